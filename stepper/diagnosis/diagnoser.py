"""The diagnosis of runs: suggestions, partial effects, warnings and saved images.

The facts come from the helper in the kernel, the notebook's other cells, the project's
files and its environment. This module selects and formats the suggestions. If the
diagnosis fails, the run is still reported: see `return_on_error`.
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

from stepper.common.dataclass_decode import decode, decode_valid_items
from stepper.common.text import one_line
from stepper.diagnosis import (
    figure_summary,
    plotly_summary,
    preflight,
    run_warnings,
    shell_warnings,
    syntax_suggestion,
)
from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.column_definitions import explain_missing_column
from stepper.diagnosis.error_fact_types import (
    AssignmentLine,
    ErrorFacts,
    FileFacts,
    LostColumn,
    NamespaceChanges,
)
from stepper.diagnosis.file_change_lines import format_file_lines
from stepper.diagnosis.in_kernel.close_matches import join_items
from stepper.diagnosis.name_definitions import NotebookNames
from stepper.diagnosis.not_found_suggestions import (
    describe_distribution,
    explain_file_error,
    explain_module_error,
    explain_name_error,
)
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, CriterionResult, Fault, Run, parse_moment
from stepper.policy.namespace_model import Namespace
from stepper.policy.notebook_state import State
from stepper.session.diagnosis_protocol import (
    Diagnosis,
    FigureRequest,
    NoDiagnosis,
    SideEffects,
)

log = logging.getLogger("stepper")
FILE_ERRORS = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")
PYTHON_LANGUAGES = ("python", "python3", "ipython")
MAX_SUGGESTION = 420  # characters
# Characters of a suggestion up to which further sentences are added.
SENTENCE_ROOM = 330
MAX_CHANGES = 600  # characters of the line on changed names
# Characters of the lists in this line.
REBOUND_CHARACTERS = 300
IN_PLACE_CHARACTERS = 200
ASSIGNED_CHARACTERS = 120
MAX_LOGGED = 400  # characters of errors in the log
MAX_FILE_NAME = 200  # characters
MAX_TIMEOUT_FINDINGS = 2
JOURNAL_RESOLUTION = 0.001  # seconds: times in the journal are truncated
RUNNING_LOOP = re.compile(r"from a running event loop|event loop is already running")

# Distribution → the messages of errors other than ImportError that mean it is missing.
NEEDED_DISTRIBUTIONS = {
    "nbformat": re.compile(
        r"Mime type rendering requires nbformat\S* but it is not installed"
    ),
    "ipympl": re.compile(
        r"'(?:widget|ipympl)' is not a (?:recogni[sz]ed GUI loop|"
        r"valid value for backend)|module://ipympl"
    ),
}


def return_on_error(
    default: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for methods of `Diagnoser` that must not raise exceptions.

    A decorated method logs an exception and returns `default(*arguments)`.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Diagnoser, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            except Exception:
                log.exception("the diagnosis failed in %s", method.__name__)
                return default(*arguments)

        return call

    return decorate


@dataclass
class Diagnoser:
    """The diagnosis of the cells of one notebook.

    `path` is the path of the notebook, which is never reported as a changed file.
    `transform` translates IPython's syntax to Python.
    """

    path: str
    environment: ProjectEnvironment
    images: SavedImages
    transform: Callable[[str], str]

    def select_language(self, language: str) -> Diagnosis:
        """Return the diagnosis for a language.

        For languages other than Python, the diagnosis covers only images.
        """
        if language not in PYTHON_LANGUAGES:
            return OtherLanguageDiagnosis(self)
        return self

    def move(self, path: str) -> None:
        """Set the path of a notebook that was renamed."""
        self.path = path

    def convert_to_python(self, cell: str) -> str:
        """Return a cell's source with IPython's syntax translated to Python."""
        return self.transform(cell)

    @return_on_error(lambda cell, namespace: None)
    def check_before_run(self, cell: Cell, namespace: Namespace) -> Fault | None:
        """Return the first error that a cell would certainly raise, or None."""
        lasting = namespace.lasting

        def can_import(name: str) -> bool:
            # If it is not known whether a module exists, assume that it does.
            if lasting is None or lasting.other_finders or name in lasting.imported:
                return True
            return self.environment.can_import(name, lasting.path, namespace.cwd)

        return preflight.find_certain_error(
            cell.source, namespace, can_import, self.transform
        )

    @return_on_error(lambda fault, *others: fault)
    def add_suggestion(
        self,
        fault: Fault,
        facts: Mapping[str, Any],
        cell: Cell,
        cells: Sequence[Cell],
        state: State,
        namespace: Namespace,
        python: str,
    ) -> Fault:
        """Return a fault with the suggestion added.

        `facts` are the helper's facts on the run, and `python` is the path of the
        kernel's interpreter.
        """
        if fault.ename == "MemoryLimit":
            return fault  # its message already names the largest variables
        error = decode(ErrorFacts, facts.get("look") or {})
        notebook = NotebookNames(
            cell=cell,
            cells=cells,
            state=state,
            namespace=namespace,
            transform=self.transform,
            count=get_execution_count(fault),
        )
        sentences: Sequence[str] = []
        # A folder may be deleted during the search; the report is needed anyway.
        with contextlib.suppress(OSError):
            sentences = self._explain(fault, error, notebook, python)
        sentences = [sentence for sentence in sentences if sentence]
        if not sentences:
            sentences = format_findings(error, notebook)
            # The helper knows which run removed a column that existed.
            if not any(finding.lost for finding in error.findings):
                column = explain_missing_column(fault, notebook)
                sentences = [*filter(None, [column]), *sentences]
        suggestion = one_line(join_sentences(sentences), MAX_SUGGESTION)
        return replace(fault, suggestion=suggestion)

    def _explain(
        self,
        fault: Fault,
        error: ErrorFacts,
        notebook: NotebookNames,
        python: str,
    ) -> Sequence[str]:
        """Return sentences that explain an error.

        `python` is the path of the kernel's interpreter. Return an empty list for an
        error that this module cannot explain; the helper's findings may explain it.
        """
        classes = {fault.ename, *fault.mro}
        environment = self.environment
        source = notebook.cell.source
        namespace = notebook.namespace
        if "NameError" in classes:
            findings = format_findings(error, notebook)
            return findings or explain_name_error(fault, error, notebook, environment)
        if "ImportError" in classes:
            return explain_module_error(
                fault,
                error,
                source,
                namespace,
                environment,
                python,
            )
        if classes.intersection(FILE_ERRORS):
            return explain_file_error(fault, error, environment, namespace.cwd)
        if "SyntaxError" in classes:
            suggestion = syntax_suggestion.suggest_change(source, fault)
            return [suggestion]
        if fault.ename == "KernelDied":
            return describe_running_line(fault, notebook)
        if fault.ename == "Timeout":
            running = describe_running_line(fault, notebook)
            if not running:
                running = ["the line that was running is unknown"]
            findings = format_findings(error, notebook)
            return running + findings[:MAX_TIMEOUT_FINDINGS]
        return self._explain_message(fault, python)

    def _explain_message(self, fault: Fault, python: str) -> list[str]:
        """Return a list with the sentence on an error with a known class or message.

        Return an empty list for other errors.
        """
        if fault.ename == "StdinNotImplementedError":
            return [
                "cells cannot ask for input: set the value in the cell, "
                'as in `name = "value"`'
            ]
        for distribution, message in NEEDED_DISTRIBUTIONS.items():
            if message.search(fault.evalue):
                sentence = describe_distribution(distribution, self.environment, python)
                return [sentence]
        if RUNNING_LOOP.search(fault.evalue):
            return [
                "the kernel's event loop is already running: "
                "use `await` with the coroutine in the cell"
            ]
        return []

    @return_on_error(lambda *_: SideEffects())
    def describe_side_effects(
        self,
        facts: Mapping[str, Any],
        since_ns: int | None,
        event: str = "failing",
    ) -> SideEffects:
        """Return lines on commands that failed, and on names and files that changed.

        `since_ns` is the start of the run in nanoseconds since the epoch. If it is
        None, return no lines on files. `event` completes the phrase "before …" in the
        line on names: "failing" or "its interrupt".
        """
        command_warnings = self._list_command_warnings(facts)
        commands = run_warnings.format_warnings([], command_warnings)
        names = []
        changes = decode(NamespaceChanges, facts.get("changed") or {})
        actions = format_changes(changes)
        if actions:
            line = one_line(f"before {event}, this cell {actions}", MAX_CHANGES)
            names.append(line)
        if since_ns is None:
            return SideEffects(commands, names)
        files = decode(FileFacts, facts.get("files") or {})
        lines = format_file_lines(files, self.environment, self.path, since_ns)
        return SideEffects(commands, names, lines.by_cell, lines.others)

    def _list_command_warnings(self, facts: Mapping[str, Any]) -> list[str]:
        """Return the warnings on the shell commands of a run."""
        commands = facts.get("commands") or []
        return shell_warnings.format_command_warnings(commands, self.environment)

    @return_on_error(lambda run, namespace: True)
    def has_changed_since(self, run: Run, namespace: Namespace) -> bool:
        """Return whether a file of the project or environment changed after a run.

        Return True if this is unknown.
        """
        if run.fault is not None:
            missing_file = str(run.fault.attributes.get("filename") or "")
            path = os.path.join(namespace.cwd, missing_file)
            # Checked here because the walk through the project may not reach the file.
            if missing_file and os.path.lexists(path):
                return True
        started = parse_moment(run.started_at).timestamp()
        ended = started + run.duration_s + JOURNAL_RESOLUTION
        ended_ns = int(ended * 1e9)
        if ended_ns > time.time_ns():
            return True  # the clock was set back, so times cannot be compared
        folders = namespace.lasting.path if namespace.lasting else ()
        return self.environment.has_changed_since(ended_ns, [self.path], folders)

    @return_on_error(lambda facts: None)
    def get_criterion_result(self, facts: Mapping[str, Any]) -> CriterionResult | None:
        """Return the result of the step's criterion, or None if there is none."""
        criterion = facts.get("criterion")
        results = decode_valid_items(CriterionResult, [criterion])
        return next(iter(results), None)

    @return_on_error(lambda execution: [])
    def find_warnings(self, execution: Execution) -> list[str]:
        """Return the warnings on a successful run."""
        facts = execution.diagnosis_data
        command_warnings = self._list_command_warnings(facts)
        shell_errors = shell_warnings.format_shell_errors(execution.outputs)
        kernel_warnings = facts.get("warnings") or []
        return run_warnings.format_warnings(
            kernel_warnings, command_warnings + shell_errors
        )

    @return_on_error(lambda execution, run: [])
    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save the images of a run, and return the lines on images and rich outputs.

        The errors that the helper suppressed are logged.
        """
        suppressed_errors = execution.diagnosis_data.get("swallowed")
        if suppressed_errors:
            details = str(suppressed_errors)[:MAX_LOGGED]
            log.warning("the kernel helper suppressed errors: %s", details)
        saved = self.images.save(execution.images, run)
        facts = execution.diagnosis_data.get("figures") or []
        return [
            *figure_summary.format_images(saved, facts),
            *figure_summary.format_rich_outputs(execution.outputs, facts),
        ]

    @return_on_error(lambda execution: {})
    def describe_figures(self, execution: Execution) -> dict[str, str]:
        """Return short descriptions of the figures of a run, by image key."""
        facts = execution.diagnosis_data.get("figures") or []
        return figure_summary.describe_figures(facts)

    @return_on_error(lambda execution: False)
    def can_render(self, execution: Execution) -> bool:
        """Return whether a run showed a plotly figure that kaleido can render.

        Return False if the kernel cannot import kaleido.
        """
        namespace = execution.namespace
        lasting = namespace.lasting
        has_figure = any(
            plotly_summary.MIME in output.get("data", ())
            for output in execution.outputs
        )
        if lasting is None or not has_figure:
            return False
        if "kaleido" in lasting.imported:
            return True
        return self.environment.can_import("kaleido", lasting.path, namespace.cwd)

    @return_on_error(lambda run: [])
    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of the saved images of a run, in order."""
        return self.images.list_paths(run)

    @return_on_error(lambda outputs, run, descriptions: [])
    def list_figure_lines(
        self,
        outputs: Sequence[Mapping[str, Any]],
        run: int | None,
        descriptions: Mapping[str, str],
        request: FigureRequest,
    ) -> list[str]:
        """Return a line on each image among a cell's outputs, in order.

        An image without a file is saved. `run` is the number of the run that displayed
        the images, or None if it is unknown. `descriptions` are short descriptions of
        figures, by image key. `request` limits the number of files; its `folder` is set
        if a line contains only the name of a file.
        """
        images = self.images.find_or_save(outputs, run, request)
        folder = ""
        if request.uses_names and any(image.path for image in images):
            folder = self.images.folder
            request.folder = folder
        return figure_summary.format_recorded_images(images, descriptions, folder)


@dataclass
class OtherLanguageDiagnosis(NoDiagnosis):
    """The diagnosis of cells in a language other than Python, which covers images."""

    diagnoser: Diagnoser

    def move(self, path: str) -> None:
        """Set the path of a notebook that was renamed."""
        self.diagnoser.move(path)

    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save the images of a run, and return the lines on images and rich outputs."""
        return list(self.diagnoser.summarize_figures(execution, run))

    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of the saved images of a run, in order."""
        return list(self.diagnoser.list_saved_figures(run))

    def list_figure_lines(
        self,
        outputs: Sequence[Mapping[str, Any]],
        run: int | None,
        descriptions: Mapping[str, str],
        request: FigureRequest,
    ) -> list[str]:
        """Return a line on each image among a cell's outputs, in order."""
        lines = self.diagnoser.list_figure_lines(outputs, run, descriptions, request)
        return list(lines)


def format_changes(changes: NamespaceChanges) -> str:
    """Return a phrase on the names that a cell changed, such as "assigned `a`, `b`"."""
    rebound = [
        f"`{change.name}`: {change.old_value} → {change.new_value}"
        for change in changes.rebound
    ]
    in_place = [f"`{change.name}` (line {change.line})" for change in changes.in_place]
    bound = [f"`{name}`" for name in changes.bound]
    parts = {
        "rebound": join_items(rebound, REBOUND_CHARACTERS),
        "changed in place": join_items(in_place, IN_PLACE_CHARACTERS),
        "assigned": join_items(bound, ASSIGNED_CHARACTERS),
    }
    texts = []
    for verb, names in parts.items():
        if names:
            texts.append(f"{verb} {names}")
    return "; ".join(texts)


def format_findings(error: ErrorFacts, notebook: NotebookNames) -> list[str]:
    """Return the findings as sentences.

    A sentence includes the last assignment of the value and the run that removed a
    column, if they are known.
    """
    sentences = []
    for finding in error.findings:
        text = finding.text
        if finding.lost:
            change = describe_lost_column(finding.lost, notebook)
            text = f"{change}; now {text}"
        if finding.bound:
            assignment = describe_assignment(finding.bound, text, notebook)
            text += f"; {assignment}"
        sentences.append(text)
    return sentences


def describe_assignment(
    bound: AssignmentLine, text: str, notebook: NotebookNames
) -> str:
    """Return a clause on the line that assigned the value of a finding.

    The clause includes the last change in place. `text` is the sentence of the finding;
    the clause does not repeat a name with which the sentence starts.
    """
    cell = describe_location(bound.cell, bound.file, notebook)
    line = f"line {bound.line} of {cell}: `{bound.text}`"
    if bound.verb:
        return f"{bound.verb} {line}"
    subject = "the value"
    if bound.name:
        subject = f"`{bound.name}`"
    if bound.argument:
        return f"{subject} is an argument, passed by {line}"
    verb = f"{subject} was last assigned by"
    if not bound.name or text.startswith(subject):
        verb = "last assigned by"
    clause = f"{verb} {line}"
    if bound.changed_line:
        cell = describe_location(bound.changed_cell, bound.changed_file, notebook)
        clause += (
            f", and changed in place by line {bound.changed_line} of {cell}: "
            f"`{bound.changed_text}`"
        )
    return clause


def describe_lost_column(lost: LostColumn, notebook: NotebookNames) -> str:
    """Return a clause on the run that removed a column from a DataFrame."""
    change = f"changed `{lost.name}`, which had the column {lost.label} before"
    if lost.now:
        return f"this run of the cell {change}"
    cell_id = notebook.state.cells_by_execution_count.get(lost.cell)
    if cell_id is not None and cell_id == notebook.cell.id:
        return f"an earlier run of this cell {change}"
    for cell in notebook.cells:
        if cell.id == cell_id:
            return f"{cell.label} {change}"
    return f"an earlier execution {change}"


def describe_location(count: int, file: str, notebook: NotebookNames) -> str:
    """Return a file's name, or a phrase for the cell with an execution count.

    `count` is 0 for a file, and for a running cell whose count is unknown.
    """
    if file:
        return one_line(file, MAX_FILE_NAME)
    if count == 0:
        return "this cell"
    cell_ids = notebook.state.cells_by_execution_count
    if count in cell_ids:
        for cell in notebook.cells:
            if cell.id == cell_ids[count]:
                return cell.label
        return "a deleted cell"
    # The state does not contain the execution count of the cell that failed yet.
    if notebook.count:
        is_failed_cell = count == notebook.count
    else:
        is_failed_cell = count > max(cell_ids, default=0)
    return "this cell" if is_failed_cell else "code executed outside a cell"


def get_execution_count(fault: Fault) -> int:
    """Return the execution count of the cell that failed, or 0 if it is unknown."""
    if not fault.frames:
        return 0
    return fault.frames[0].cell


def describe_running_line(fault: Fault, notebook: NotebookNames) -> list[str]:
    """Return a list with the sentence on the line that was running.

    Return an empty list if the line is unknown.
    """
    if not fault.frames:
        return []
    frame = fault.frames[-1]
    text = ""
    for number, line in frame.context:
        if number == frame.line:
            text = line.strip()
            break
    if not text and not frame.file:
        # A sample of the stack has no source lines.
        for number, line in enumerate(notebook.cell.source.split("\n"), 1):
            if number == frame.line:
                text = line.strip()
    location = describe_location(frame.cell, frame.file, notebook)
    sentence = f"line {frame.line} of {location} was running"
    if text:
        sentence += f": `{text}`"
    return [sentence]


def join_sentences(sentences: Sequence[str]) -> str:
    """Return the first sentence, and further sentences that fit, on one line.

    A sentence that the line already contains is left out.
    """
    line = ""
    for sentence in sentences:
        if not line:
            line = sentence
            continue
        longer_line = f"{line}; {sentence}"
        if len(longer_line) <= SENTENCE_ROOM and sentence not in line:
            line = longer_line
    return line.replace("\n", " ")
