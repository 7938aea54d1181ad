"""What a report adds to a run's end: the suggestion, what was bound and written before a failure, doubts, pictures.

The facts come from the kernel's helper, the notebook's other cells, the project's files and its environment; the
words of suggestions are made here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepper.common.json_decode import decode, decode_valid_items
from stepper.common.text import one_line
from stepper.diagnosis import (
    figure_summary,
    plotly_summary,
    preflight,
    run_warnings,
    shell_warnings,
    syntax_suggestion,
)
from stepper.diagnosis.file_sentences import file_lines
from stepper.diagnosis.in_kernel.close_matches import listed
from stepper.diagnosis.kernel_facts import Bound, Changed, FileFacts, Look, Lost
from stepper.diagnosis.missing_names import (
    file_error,
    module_error,
    name_error,
    provided,
)
from stepper.diagnosis.name_definitions import Notebook
from stepper.diagnosis.project_environment import Surroundings
from stepper.diagnosis.saved_images import Figures
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Cell, CriterionResult, Fault, Run, parse_moment
from stepper.policy.notebook_state import State
from stepper.session.diagnosis_protocol import Diagnosis, NoDiagnosis
from stepper.session.protocols import Execution

log = logging.getLogger("stepper")
FILES = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")
PYTHON = ("python", "python3", "ipython")
LONGEST, ROOM = 420, 330
RUNNING_LOOP = re.compile(r"running event loop|event loop is already running")

# What an error says that a package is missing for, though it is no ImportError.
NEEDS = {
    "nbformat": re.compile(
        r"Mime type rendering requires nbformat\S* but it is not installed"
    ),
    "ipympl": re.compile(
        r"'(?:widget|ipympl)' is not a (?:recogni[sz]ed GUI loop|valid value for backend)|module://ipympl"
    ),
}


def harmless(
    otherwise: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a method log what goes wrong in it and return `otherwise`: advice must never cost a run its report."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def advise(self: Adviser, *given: Any) -> Any:
            try:
                return method(self, *given)
            except Exception:
                log.exception("advice failed: %s", method.__name__)
                return otherwise(*given)

        return advise

    return wrap


@dataclass
class Adviser:
    """Advises on the cells of one notebook. `path` is the notebook's, which stepper itself writes."""

    path: str
    surroundings: Surroundings
    pictures: Figures
    transform: Callable[[str], str]

    def for_language(self, language: str) -> Diagnosis:
        """Return the diagnosis of cells in a language: but Python's are only looked at, for their pictures."""
        return self if language in PYTHON else Onlooker(self)

    def move(self, path: str) -> None:
        """Go on with the notebook at another path."""
        self.path = path

    def convert_to_python(self, cell: str) -> str:
        """Return a cell's source as Python, by IPython's reading of it."""
        return self.transform(cell)

    @harmless(lambda cell, namespace: None)
    def check_before_run(self, cell: Cell, namespace: Namespace) -> Fault | None:
        """Return the fault that a cell would end with for certain, as far as its source and the last facts tell."""
        lasting = namespace.lasting

        def findable(name: str) -> bool:  # what is not known may be there
            if lasting is None or lasting.other_finders or name in lasting.imported:
                return True
            return self.surroundings.findable(name, lasting.path, namespace.cwd)

        return preflight.check(cell.source, namespace, findable, self.transform)

    @harmless(lambda fault, *others: fault)
    def add_suggestion(
        self,
        fault: Fault,
        told: Mapping[str, Any],
        cell: Cell,
        cells: Sequence[Cell],
        state: State,
        namespace: Namespace,
        python: str,
    ) -> Fault:
        """Return the fault with its suggestion."""
        look, notebook = (
            decode(Look, told.get("look") or {}),
            Notebook(
                cell, cells, state, namespace, self.transform, execution_count(fault)
            ),
        )
        classes, around = {fault.ename, *fault.mro}, self.surroundings
        said: Sequence[str] = []
        # a folder that went away: the report matters more
        with contextlib.suppress(OSError):
            if "NameError" in classes:
                said = sentences(look, notebook) or name_error(
                    fault, look, notebook, around
                )
            elif "ImportError" in classes:
                said = module_error(fault, look, cell.source, namespace, around, python)
            elif classes.intersection(FILES):
                said = file_error(fault, look, around, namespace.cwd)
            elif "SyntaxError" in classes:
                said = [syntax_suggestion.suggestion(cell.source, fault)]
            elif fault.ename == "MemoryLimit":
                return fault  # its message names the largest variables
            elif fault.ename == "KernelDied":
                said = running(fault, notebook)
            elif fault.ename == "Timeout":
                line = running(fault, notebook) or [
                    "which line was running is not known"
                ]
                said = [*line, *sentences(look, notebook)[:2]]
            elif fault.ename == "StdinNotImplementedError":
                said = [
                    'a cell cannot ask for input: set the value in the cell, as in `name = "value"`'
                ]
            elif package := next(
                (name for name, needs in NEEDS.items() if needs.search(fault.evalue)),
                "",
            ):
                said = [provided(package, around, python)]
            elif RUNNING_LOOP.search(fault.evalue):
                said = [
                    "the kernel's event loop runs already: a cell can `await` the coroutine itself"
                ]
        said = [part for part in said if part] or sentences(look, notebook)
        return replace(fault, suggestion=one_line(joined(said), LONGEST))

    @harmless(lambda *_: [])
    def describe_side_effects(
        self, told: Mapping[str, Any], since_ns: int | None, how: str = "failing"
    ) -> list[str]:
        """Return failed shell lines, what a cell had bound before it ended, and which files changed while it ran.

        Without a time nothing is said of files.
        """
        changed = decode(Changed, told.get("changed") or {})
        parts = {
            "rebound": listed(
                [f"`{name}`: {old} → {new}" for name, old, new in changed.rebound], 300
            ),
            "changed in place": listed(
                [f"`{name}` (line {line})" for name, line in changed.in_place], 200
            ),
            "bound": listed([f"`{name}`" for name in changed.bound], 120),
        }
        line = "; ".join(f"{what} {which}" for what, which in parts.items() if which)
        before = [one_line(f"before {how}, this cell {line}", 600)] if line else []
        files = list[str]()
        if since_ns is not None:
            facts = decode(FileFacts, told.get("files") or {})
            files = file_lines(facts, self.surroundings, self.path, since_ns)
        return [*run_warnings.lines([], self.commands(told)), *before, *files]

    def commands(self, told: Mapping[str, Any]) -> list[str]:
        """Return the doubts about a run's shell lines."""
        return shell_warnings.lines(told.get("commands") or [], self.surroundings)

    @harmless(lambda run, namespace: True)
    def has_changed_since(self, run: Run, namespace: Namespace) -> bool:
        """Whether a file of the project or its environment changed after a run ended: it may end otherwise now."""
        began = parse_moment(run.started_at).timestamp()
        missing = run.fault.attributes.get("filename") if run.fault else None
        if missing and os.path.lexists(os.path.join(namespace.cwd, str(missing))):
            return True  # it may lie where the walk does not look
        # times in the journal are cut at milliseconds
        ended = int((began + run.duration_s + 0.001) * 1e9)
        if ended > time.time_ns():  # the clock was set back: times tell nothing
            return True
        return self.surroundings.changed_since(
            ended, [self.path], namespace.lasting.path if namespace.lasting else ()
        )

    @harmless(lambda told: None)
    def get_criterion_result(self, told: Mapping[str, Any]) -> CriterionResult | None:
        """Return whether the criterion that was asked for holds, None where that could not be told."""
        return next(
            iter(decode_valid_items(CriterionResult, [told.get("criterion")])), None
        )

    @harmless(lambda execution: [])
    def find_warnings(self, execution: Execution) -> list[str]:
        """Return the doubts on a run that ended well."""
        commands = [
            *self.commands(execution.diagnosis_data),
            *shell_warnings.complaints(execution.outputs),
        ]
        return run_warnings.lines(
            execution.diagnosis_data.get("doubts") or [], commands
        )

    @harmless(lambda execution, run: [])
    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save the pictures of a run; return the lines on them and on other rich outputs."""
        if execution.diagnosis_data.get("swallowed"):
            log.warning(
                "the look into the kernel went wrong: %s",
                str(execution.diagnosis_data["swallowed"])[:400],
            )
        saved, facts = (
            self.pictures.save(execution.images, run),
            execution.diagnosis_data.get("figures") or [],
        )
        return [
            *figure_summary.lines(saved, facts),
            *figure_summary.rich(execution.outputs, facts),
        ]

    @harmless(lambda execution: {})
    def describe_figures(self, execution: Execution) -> dict[str, str]:
        """Return what is known of the figures that a run showed, by the keys of their pictures."""
        return (
            figure_summary.facts(told)
            if (told := execution.diagnosis_data.get("figures"))
            else {}
        )

    @harmless(lambda execution: False)
    def can_render(self, execution: Execution) -> bool:
        """Whether a run showed a plotly figure that the project's kaleido can render."""
        namespace = execution.namespace
        lasting = namespace.lasting
        if lasting is None or not any(
            plotly_summary.MIME in output.get("data", ())
            for output in execution.outputs
        ):
            return False
        if "kaleido" in lasting.imported:
            return True
        return self.surroundings.findable("kaleido", lasting.path, namespace.cwd)

    @harmless(lambda run: [])
    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of a run's pictures."""
        return self.pictures.of(run)


@dataclass
class Onlooker(NoDiagnosis):
    """What is known of cells in any language: the pictures that they show."""

    adviser: Adviser

    def move(self, path: str) -> None:
        """Go on with the notebook at another path."""
        self.adviser.move(path)

    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save the pictures of a run; return the lines on them."""
        return list(self.adviser.summarize_figures(execution, run))

    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of a run's pictures."""
        return list(self.adviser.list_saved_figures(run))


def sentences(look: Look, notebook: Notebook) -> list[str]:
    """Return the findings as sentences, each with the place where its subject was bound last."""
    said = []
    for finding in look.findings:
        text, bound = finding.text, finding.bound
        if finding.lost:
            text = f"{lost_column(finding.lost, notebook)}; now {text}"
        if bound:
            text += f"; {origin(bound, text, notebook)}"
        said.append(text)
    return said


def origin(bound: Bound, text: str, notebook: Notebook) -> str:
    """Return which line bound what a finding speaks of, and which changed it in place since."""
    line = f"line {bound.line} of {place(bound.cell, bound.file, notebook)}: `{bound.text}`"
    if bound.verb:
        return f"{bound.verb} {line}"
    if bound.argument:
        return f"{f'`{bound.name}`' if bound.name else 'it'} is an argument, given by {line}"
    is_subject = not bound.name or text.startswith(f"`{bound.name}`")
    verb = "last assigned by" if is_subject else f"`{bound.name}` was last assigned by"
    clause = f"{verb} {line}"
    if bound.changed_line:
        where = place(bound.changed_cell, bound.changed_file, notebook)
        clause += f", and changed in place by line {bound.changed_line} of {where}: `{bound.changed_text}`"
    return clause


def lost_column(lost: Lost, notebook: Notebook) -> str:
    """Return which run changed a frame so that it lacks a column that it had before."""
    then = f"changed `{lost.name}`, which had {lost.label} before"
    if lost.now:
        return f"this run of the cell {then}"
    cell_id = notebook.state.cells_by_execution_count.get(lost.cell)
    if cell_id is not None and cell_id == notebook.cell.id:
        return f"an earlier run of this cell {then}"
    other = next((cell for cell in notebook.cells if cell.id == cell_id), None)
    return f"{other.label if other else 'an earlier execution'} {then}"


def place(cell: int, file: str, notebook: Notebook) -> str:
    """Return how a report names a place: a file, or a cell by its execution count."""
    if file:
        return one_line(file, 200)
    counts = notebook.state.cells_by_execution_count
    if cell not in counts:
        newest = max(counts, default=0)
        is_this = cell == notebook.count if notebook.count else cell > newest
        return "this cell" if is_this else "code that ran outside of the cells"
    other = next((each for each in notebook.cells if each.id == counts[cell]), None)
    return other.label if other else "a deleted cell"


def execution_count(fault: Fault) -> int:
    """Return the execution count of the cell that failed, 0 where its frames do not tell."""
    return fault.frames[0].cell if fault.frames else 0


def running(fault: Fault, notebook: Notebook) -> list[str]:
    """Return the line that was running, nothing where it is not known."""
    if not fault.frames:
        return []
    inner = fault.frames[-1]
    text = next(
        (text for number, text in inner.context if number == inner.line), ""
    ).strip()
    # a sample has none
    text = (
        text
        or "".join(
            notebook.cell.source.split("\n")[inner.line - 1 : inner.line]
        ).strip()
    )
    return [
        f"line {inner.line} of {place(inner.cell, inner.file, notebook)} was running: `{text}`"
    ]


def joined(said: Sequence[str]) -> str:
    """Return the sentences in one line: the first, and of the others those for which there is room."""
    line = ""
    for part in said:
        both = f"{line}; {part}" if line else part
        if not line or (len(both) <= ROOM and part not in line):
            line = both
    return " ".join(line.split("\n"))
