"""The results of `stepper verify` as workflow commands of GitHub Actions.

GitHub shows `::error …` lines as annotations of the changed files. Texts of a notebook
must not become commands themselves: the runner reads `::` at the start of a line, and
`##[` anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepper.messages.verification.notebook_outcome import (
    NotebookOutcome,
    describe_cell,
    format_outcome,
    is_skipped,
)
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import CellVerdict

COMMAND = "::"
# GitHub shows at most ten errors of a step.
MAX_ANNOTATIONS = 10
# The order matters: `%` must be replaced first.
DATA_ESCAPES = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
PROPERTY_ESCAPES = (*DATA_ESCAPES, (":", "%3A"), (",", "%2C"))


def format_github_report(outcome: NotebookOutcome) -> str:
    """Return the report on a notebook, without workflow commands."""
    report = _break_prefix(format_outcome(outcome))
    return "\n".join(map(_break_command, report.splitlines()))


def _break_command(line: str) -> str:
    """Return a line, changed if the runner would read the line as a command."""
    if line.lstrip().startswith(COMMAND):
        return line.replace(COMMAND, ": :", 1)
    return line


def format_annotations(outcomes: Sequence[NotebookOutcome]) -> str:
    """Return the annotations for the differences, or an empty string.

    The first annotation of each notebook comes before the others, because GitHub shows
    only some.
    """
    first_annotations: list[str] = []
    further_annotations: list[str] = []
    for outcome in outcomes:
        if outcome.reproduces:
            continue
        annotations = _list_annotations(outcome)
        first_annotations += annotations[:1]
        further_annotations += annotations[1:]
    shown = [*first_annotations, *further_annotations][:MAX_ANNOTATIONS]
    return "\n".join(shown)


def _list_annotations(outcome: NotebookOutcome) -> list[str]:
    """Return the annotations for a notebook that does not reproduce."""
    if outcome.result is None:
        return [_annotate_notebook(outcome)]
    annotations = []
    not_recorded = []
    for cell in outcome.result.cells:
        if cell.verdict.reproduces or is_skipped(cell):
            continue
        annotation = _annotate_cell(outcome, cell)
        if cell.verdict is ReplayVerdict.NOT_RECORDED:
            not_recorded.append(annotation)
        else:
            annotations.append(annotation)
    # One annotation is enough for all cells without recorded outputs.
    return annotations + not_recorded[:1]


def _annotate_notebook(outcome: NotebookOutcome) -> str:
    """Return the annotation for a notebook that was not verified."""
    properties = {
        "file": outcome.notebook,
        "title": f"{outcome.notebook} was not verified",
    }
    message = f"{outcome.error}\n{outcome.advice}"
    return _format_error(properties, message.strip())


def _annotate_cell(outcome: NotebookOutcome, cell: CellVerdict) -> str:
    """Return the annotation for a cell that does not reproduce."""
    properties = {"file": outcome.notebook}
    line = outcome.source_lines.get(cell.number)
    if line is not None:
        properties["line"] = str(line)
    properties["title"] = f"cell {cell.number} does not reproduce"
    lines = [describe_cell(cell), *cell.lines]
    message = "\n".join(lines)
    return _format_error(properties, message)


def _format_error(properties: Mapping[str, str], message: str) -> str:
    """Return the workflow command for an error."""
    pairs = []
    for name, value in properties.items():
        escaped_value = _escape(value, PROPERTY_ESCAPES)
        pairs.append(f"{name}={escaped_value}")
    property_list = ",".join(pairs)
    escaped_message = _escape(message, DATA_ESCAPES)
    return _break_prefix(f"::error {property_list}::{escaped_message}")


def _escape(text: str, escapes: Sequence[tuple[str, str]]) -> str:
    """Replace characters of a text; `escapes` are pairs of old and new text."""
    for character, escaped in escapes:
        text = text.replace(character, escaped)
    return text


def _break_prefix(text: str) -> str:
    """Return a text without the prefix of commands that the runner finds anywhere."""
    return text.replace("##[", "## [")
