"""Warnings on a successful run.

There are warnings for Python warnings, for swallowed errors and for suspicious changes
of DataFrames.

Each run is observed separately. After the run, `warnings.showwarning` and IPython's
`ast_transformers` are restored.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepper.diagnosis.in_kernel.dataframe_changes import (
    Fact,
    FrameState,
    capture_frames,
    compare_frames,
    create_fact,
    shorten_name,
)
from stepper.diagnosis.in_kernel.swallowed_errors import (
    HELPER,
    HOOK,
    MAX_COUNT,
    SwallowedError,
    add_calls,
    get_first_line,
    record_error,
    start_recording,
    stop_recording,
)
from stepper.kernels.in_kernel.cell_sources import (
    find_running_cell_line,
    get_source_lines,
    run_state,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    get_qualname,
    shell,
)

MAX_FACTS = 50
MAX_WARNINGS = 20  # that are reported
MAX_COUNTED = 10_000  # different warnings, including the reported ones
SECONDS_BEFORE = 0.1
SECONDS_AFTER = 0.15


class WarningKey(NamedTuple):
    """The category of a Python warning, and the first line of its message."""

    category: str
    message: str


@dataclass(eq=False)
class RecordedWarning:
    """The position of a Python warning, and how often it was shown."""

    filename: str
    line: int
    times: int = 1


@dataclass(eq=False)
class ObservedRun:
    """The warnings, trees and frames that are recorded during a run."""

    raw: str
    trees: list[ast.Module] = field(default_factory=list)
    warnings: dict[WarningKey, RecordedWarning] = field(default_factory=dict)
    # There were more than MAX_COUNTED different warnings.
    is_incomplete: bool = False
    # Hashes of the warnings that are counted but not reported.
    others: set[int] = field(default_factory=set)
    frames: dict[str, FrameState] = field(default_factory=dict)
    showwarning: Any = None


# The run that is observed, if any. Replacements of `showwarning` from earlier runs only
# pass warnings on.
active_runs: list[ObservedRun] = []


class TreeRecorder(ast.NodeTransformer):
    """Receives the tree of the cell, and the trees that its magics run, from IPython.

    The recorder is the last transformer in IPython's list. It removes itself
    immediately, so that cells cannot see it and IPython does not visit the tree a
    second time. It stays in the list during a cell magic.
    """

    def visit(self, tree: Any) -> Any:
        """Record a tree and return it."""
        call_safely(record_tree, tree)
        return tree


tree_recorder = TreeRecorder()


def install() -> None:
    """Make `record_error` available to the calls that are added to handlers."""
    vars(sys.modules[HELPER])[HOOK] = record_error


def start_run(raw: str) -> None:
    """Start observing a run."""
    if active_runs:  # the previous run was not finished
        finish_run(active_runs[0].raw, is_successful=False)
    run = ObservedRun(raw)
    has_pandas = "pandas" in sys.modules
    start_recording()
    if has_pandas:
        deadline = clock() + SECONDS_BEFORE
        run.frames = call_safely(capture_frames, raw, deadline) or {}
    # Only the checks of data frames and of swallowed errors need the cell's tree.
    if has_pandas or "except" in raw or "pandas" in raw:
        shell.ast_transformers.append(tree_recorder)
    original = unwrap_showwarning(warnings.showwarning)
    run.showwarning = wrap_showwarning(original, run)
    active_runs[:] = [run]
    vars(warnings)["showwarning"] = run.showwarning


def finish_run(raw: str, is_successful: bool) -> list[Fact]:
    """Stop observing a run, and return its warnings if the run was successful.

    If there are too many warnings, the last fact contains the number of the others.
    """
    # A cell can run another cell, which finishes first and is not observed.
    if not active_runs or raw != active_runs[0].raw:
        return []
    run = active_runs.pop()
    remove_tree_recorder()
    if warnings.showwarning is run.showwarning:  # the user may have set another one
        original = unwrap_showwarning(run.showwarning)
        vars(warnings)["showwarning"] = original
    errors = stop_recording()
    if not is_successful:
        return []
    facts = list_swallowed_errors(errors)
    facts += call_safely(list_frame_warnings, run) or []
    facts += list_python_warnings(run)
    shown_facts = facts[:MAX_FACTS]
    other_count = len(run.others) + len(facts) - len(shown_facts)
    if other_count:
        count = str(other_count)
        if run.is_incomplete:
            count += " or more"
        fact = create_fact("more", count)
        shown_facts.append(fact)
    return shown_facts


def list_swallowed_errors(errors: list[SwallowedError]) -> list[Fact]:
    """Return a fact on each error that a handler of this cell swallowed."""
    facts: list[Fact] = []
    for error in errors:
        line = call_safely(find_running_cell_line, error.filename, error.line)
        if not line:
            continue
        source_lines = get_source_lines(run_state["number"])
        # The code of an earlier `%%time` cell has the same file name as this cell's.
        if "except" not in source_lines[line - 1]:
            continue
        name = error.class_name
        if error.times >= MAX_COUNT:
            name += f" {error.times:,} or more times"
        elif error.times > 1:
            name += f" {error.times} times"
        description = format_error(name, error.message)
        text = f"line {line}: {error.handler} swallowed {description}"
        fact = create_fact("swallowed", text)
        facts.append(fact)
    return facts


def list_python_warnings(run: ObservedRun) -> list[Fact]:
    """Return a fact on each Python warning of a run."""
    facts: list[Fact] = []
    for key, warning in run.warnings.items():
        details = []
        cell_line = call_safely(find_running_cell_line, warning.filename, warning.line)
        if cell_line:
            details.append(f"line {cell_line}")
        if warning.times > 1:
            details.append(f"{warning.times} times")
        name = shorten_name(key.category)
        if details:
            joined_details = ", ".join(details)
            name += f" ({joined_details})"
        text = format_error(name, key.message)
        fact = create_fact("warning", text)
        facts.append(fact)
    return facts


def format_error(name: str, message: str) -> str:
    """Return the name of an error's class, followed by the message if there is one."""
    if not message:
        return name
    return f"{name}: {message}"


def remove_tree_recorder() -> None:
    """Remove the recorder from IPython's list of transformers."""
    if tree_recorder in shell.ast_transformers:
        shell.ast_transformers.remove(tree_recorder)


def record_tree(tree: ast.Module) -> None:
    """Store the tree of a cell or magic, and add the calls that record errors."""
    run = active_runs[0]
    run.trees.append(tree)
    # A cell magic may run a second tree, the rest of the cell. `%%timeit` measures this
    # tree, so the tree must not be changed.
    is_cell_magic = run.raw.lstrip().startswith("%%")
    if len(run.trees) > 1 or not is_cell_magic or "timeit" in run.raw:
        remove_tree_recorder()
    if "except" in run.raw:
        add_calls(tree, run.raw)


def list_frame_warnings(run: ObservedRun) -> list[Fact]:
    """Return a fact on each suspicious change of a DataFrame that the cell names."""
    if not run.trees or "pandas" not in sys.modules:
        return []
    deadline = clock() + SECONDS_AFTER
    frames = capture_frames(run.raw, deadline)
    has_joins = "merge" in run.raw or "join" in run.raw
    is_suspicious = any(map(is_suspicious_frame, frames.values()))
    if not is_suspicious and not has_joins:
        return []
    return compare_frames(run.frames, frames, run.trees)


def is_suspicious_frame(frame: FrameState) -> bool:
    """Return whether a frame is empty or has columns without values."""
    return frame.rows == 0 or bool(frame.blank)


def unwrap_showwarning(function: Any) -> Any:
    """Return the original of a replaced `showwarning`, else the function itself."""
    attributes = getattr(function, "__dict__", {})
    return attributes.get("stepper_passes_to", function)


def wrap_showwarning(original: Any, run: ObservedRun) -> Callable[..., Any]:
    """Return a `warnings.showwarning` that records the warnings of a run.

    The user's code may call or replace the function, also after the run.
    """

    def showwarning(
        message: Any,
        category: Any,
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> Any:
        """Record the warning, then call the original function."""
        __tracebackhide__ = True  # IPython leaves this frame out of tracebacks
        if run in active_runs:
            call_safely(record_warning, run, message, category, filename, lineno)
        return original(message, category, filename, lineno, file, line)

    vars(showwarning)["stepper_passes_to"] = original
    return showwarning


def record_warning(
    run: ObservedRun,
    message: Any,
    category: Any,
    filename: str,
    line: int,
) -> None:
    """Record a warning of a run; only count a warning that is repeated.

    Two warnings are the same if their categories and the first lines of their messages
    are equal. After MAX_WARNINGS different warnings, other ones are only counted, up to
    MAX_COUNTED.
    """
    if type(message) is str:
        first_line = message.split("\n")[0]
    else:
        first_line = get_first_line(message)
    key = WarningKey(get_qualname(category), first_line)
    if key in run.warnings:
        run.warnings[key].times += 1
    elif len(run.warnings) < MAX_WARNINGS:
        run.warnings[key] = RecordedWarning(filename, line)
    elif len(run.others) < MAX_COUNTED - MAX_WARNINGS:
        run.others.add(hash(key))
    elif hash(key) not in run.others:
        run.is_incomplete = True
