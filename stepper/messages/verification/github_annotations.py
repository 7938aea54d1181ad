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

# GitHub shows at most ten errors of a step.
MAX_ANNOTATIONS = 10
# The order matters: `%` must be replaced first.
DATA_ESCAPES = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
PROPERTY_ESCAPES = (*DATA_ESCAPES, (":", "%3A"), (",", "%2C"))


def format_github_report(outcome: NotebookOutcome) -> str:
    """Return the report on a notebook, without workflow commands."""
    lines = []
    for line in format_outcome(outcome).replace("##[", "## [").splitlines():
        text = line
        if line.lstrip().startswith("::"):
            text = line.replace("::", ": :", 1)
        lines.append(text)
    return "\n".join(lines)


def format_annotations(outcomes: Sequence[NotebookOutcome]) -> str:
    """Return the annotations for the differences, or an empty string.

    The first annotation of each notebook comes before the others, because GitHub shows
    only some.
    """
    first: list[str] = []
    others: list[str] = []
    for outcome in outcomes:
        if not outcome.reproduces:
            annotations = _list_annotations(outcome)
            first += annotations[:1]
            others += annotations[1:]
    return "\n".join([*first, *others][:MAX_ANNOTATIONS])


def _list_annotations(outcome: NotebookOutcome) -> list[str]:
    """Return the annotations for a notebook that does not reproduce."""
    if outcome.result is None:
        title = f"{outcome.notebook} was not verified"
        message = f"{outcome.error}\n{outcome.hint}".strip()
        return [_format_error({"file": outcome.notebook, "title": title}, message)]
    cells = []
    not_recorded = []
    for cell in outcome.result.cells:
        if cell.verdict is ReplayVerdict.NOT_RECORDED:
            not_recorded.append(cell)
        elif not cell.verdict.reproduces and not is_skipped(cell):
            cells.append(cell)
    # One annotation is enough for all cells without recorded outputs.
    return [_annotate(outcome, cell) for cell in [*cells, *not_recorded[:1]]]


def _annotate(outcome: NotebookOutcome, cell: CellVerdict) -> str:
    """Return the annotation for a cell."""
    properties = {"file": outcome.notebook}
    if cell.number in outcome.source_lines:
        properties["line"] = str(outcome.source_lines[cell.number])
    properties["title"] = f"cell {cell.number} does not reproduce"
    message = "\n".join([describe_cell(cell), *cell.lines])
    return _format_error(properties, message)


def _format_error(properties: Mapping[str, str], message: str) -> str:
    """Return the workflow command for an error."""
    pairs = []
    for name, value in properties.items():
        pairs.append(f"{name}={_escape(value, PROPERTY_ESCAPES)}")
    text = _escape(message, DATA_ESCAPES)
    return f"::error {','.join(pairs)}::{text}".replace("##[", "## [")


def _escape(text: str, escapes: Sequence[tuple[str, str]]) -> str:
    for character, escaped in escapes:
        text = text.replace(character, escaped)
    return text
