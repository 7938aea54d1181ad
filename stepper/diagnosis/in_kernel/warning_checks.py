"""Doubts about a run that ended well: warnings, swallowed errors, what became of the frames that the cell names.

Each run is watched by itself: after it `warnings.showwarning` and IPython's `ast_transformers` are as they were.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepper.diagnosis.in_kernel.dataframe_changes import (
    Fact,
    Seen,
    compare,
    cut,
    fact,
    look,
)
from stepper.diagnosis.in_kernel.swallowed_errors import (
    HELPER,
    MOST,
    listen,
    message,
    start,
    stop,
    swallowed,
)
from stepper.kernels.in_kernel.cell_sources import (
    find_running_cell_line,
    get_source_lines,
    run_state,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely, clock, name_of, shell

FACTS, WARNINGS = 50, 20
COUNTED = 10_000  # different warnings that are counted, of which WARNINGS are kept
BEFORE, AFTER = 0.1, 0.15  # seconds


@dataclass(eq=False)
class Run:
    raw: str
    trees: list[ast.Module] = field(default_factory=list)
    # (category, message) → file, line, count
    warnings: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    uncounted: bool = False  # there were more than COUNTED
    # hashes of the warnings that are counted and not kept
    others: set[int] = field(default_factory=set)
    frames: dict[str, Seen] = field(default_factory=dict)
    showing: Any = None


# the run that is watched; the stand-ins of former ones only pass on
watched: list[Run] = []


class Reader(ast.NodeTransformer):
    """IPython hands it the tree of the cell, and those of what the cell's magics run.

    It is the last in IPython's list and leaves it at once: no cell sees it, and IPython does not go over the tree once
    more, as it does where transformers are left. Before a cell magic it stays.
    """

    def visit(self, tree: Any) -> Any:
        call_safely(read, tree)
        return tree


reader = Reader()


def begin() -> None:
    vars(sys.modules[HELPER])["swallowed"] = swallowed


def before(raw: str) -> None:
    if watched:  # its end was not told
        after(watched[0].raw, False)
    run, pandas = Run(raw), "pandas" in sys.modules
    start()
    if pandas:
        run.frames = call_safely(look, raw, clock() + BEFORE) or {}
    if pandas or "except" in raw or "pandas" in raw:
        shell.ast_transformers.append(reader)
    run.showing = listening(unwrapped(warnings.showwarning), run)
    watched[:] = [run]
    vars(warnings)["showwarning"] = run.showing


def after(raw: str, ok: bool) -> list[Fact]:
    """End it; the facts where the run ended well, the weightiest first."""
    if not watched or raw != watched[0].raw:  # what a cell runs ends before the cell
        return []
    run = watched.pop()
    leave()
    if warnings.showwarning is run.showing:  # else the user's own stays
        vars(warnings)["showwarning"] = unwrapped(run.showing)
    errors, facts = stop(), list[Fact]()
    if not ok:
        return []
    for filename, line, head, name, text, count in errors:
        own = call_safely(find_running_cell_line, filename, line)
        if own and "except" in get_source_lines(run_state["number"])[own - 1]:
            times = f"{count:,} or more ×" if count >= MOST else f"{count} ×"
            facts.append(
                fact(
                    "swallowed",
                    f"line {own}: {head} swallowed {times} {said(name, text)}",
                )
            )
    facts += call_safely(of_frames, run) or []
    for (category, text), (filename, line, count) in run.warnings.items():
        own = call_safely(find_running_cell_line, filename, line)
        where = ", ".join([f"line {own}"] * bool(own) + [f"{count} ×"] * (count > 1))
        facts.append(
            fact(
                "warning", said(cut(category) + (f" ({where})" if where else ""), text)
            )
        )
    more = len(run.others) + max(0, len(facts) - FACTS)
    counted = (
        [fact("more", f"{more} or more" if run.uncounted else str(more))]
        if more
        else []
    )
    return facts[:FACTS] + counted


def said(name: str, text: str) -> str:
    return f"{name}: {text}" if text else name


def leave() -> None:
    if reader in shell.ast_transformers:
        shell.ast_transformers.remove(reader)


def read(tree: ast.Module) -> None:
    run = watched[0]
    run.trees.append(tree)
    if (
        len(run.trees) > 1
        or not run.raw.lstrip().startswith("%%")
        or "timeit" in run.raw
    ):
        leave()
    if "except" in run.raw:
        listen(tree, run.raw)


def of_frames(run: Run) -> list[Fact]:
    if not run.trees or "pandas" not in sys.modules:
        return []
    seen = look(run.raw, clock() + AFTER)
    odd = any(frame.rows == 0 or frame.blank for frame in seen.values())
    return (
        compare(run.frames, seen, run.trees)
        if odd or "merge" in run.raw or "join" in run.raw
        else []
    )


def unwrapped(showing: Any) -> Any:
    return getattr(showing, "__dict__", {}).get("stepper_passes_to", showing)


def listening(original: Any, run: Run) -> Callable[..., Any]:
    """A stand-in for `warnings.showwarning`, which users may keep, call and replace."""

    def showwarning(
        message: Any,
        category: Any,
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> Any:
        __tracebackhide__ = True
        if run in watched:
            call_safely(heard, run, message, category, filename, lineno)
        return original(message, category, filename, lineno, file, line)

    vars(showwarning)["stepper_passes_to"] = original
    return showwarning


def heard(run: Run, given: Any, category: Any, filename: str, line: int) -> None:
    key = (
        name_of(category),
        given.split("\n")[0] if type(given) is str else message(given),
    )
    if key in run.warnings:
        run.warnings[key][2] += 1
    elif len(run.warnings) < WARNINGS:
        run.warnings[key] = [filename, line, 1]
    elif len(run.others) < COUNTED - WARNINGS:
        run.others.add(hash(key))
    else:
        run.uncounted = run.uncounted or hash(key) not in run.others
