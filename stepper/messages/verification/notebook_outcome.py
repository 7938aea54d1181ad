"""The outcome of `stepper verify` for one notebook, and the summary for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepper.common.text import format_count, one_line
from stepper.messages.error_hint import format_hint
from stepper.messages.marks import FAILED_MARK
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import CellVerdict, VerifyResult

NAME_CHARACTERS = 200


@dataclass(frozen=True)
class NotebookOutcome:
    """The result for a notebook, or the reason why there is none.

    `notebook` is the path of the notebook. `result` is None if the notebook was not
    verified; then `error` and `hint` say why, and `exit_code` is the exit code of the
    error. `source_lines` are the lines of the file at which the sources of its code
    cells start, by the number of the cell.
    """

    notebook: str
    result: VerifyResult | None = None
    error: str = ""
    hint: str = ""
    exit_code: int = 0
    source_lines: Mapping[int, int] = field(default_factory=dict)

    @property
    def reproduces(self) -> bool:
        """Whether the notebook was verified and reproduces."""
        return self.result is not None and self.result.reproduces

    @property
    def advice(self) -> str:
        """The hint, with a sentence that says what its command is for."""
        return format_hint(self.hint)


def is_skipped(cell: CellVerdict) -> bool:
    """Return whether a cell did not run in the replay."""
    return cell.verdict in (ReplayVerdict.NOT_RUN, ReplayVerdict.SKIPPED)


def describe_cell(cell: CellVerdict) -> str:
    """Return the verdict on a cell and the difference, on one line."""
    if cell.verdict is ReplayVerdict.SKIPPED:
        if cell.difference:
            return f"not replayed (--from); {one_line(cell.difference, 400)}"
        return "skipped (--from)"
    if cell.verdict is ReplayVerdict.NOT_RUN:
        return f"not run, because {one_line(cell.difference, 400)}"
    if cell.verdict is ReplayVerdict.NOT_RECORDED:
        return "the notebook contains no outputs of the current source"
    if cell.difference:
        return one_line(f"{cell.verdict}: {cell.difference}", 400)
    return str(cell.verdict)


def format_summary(outcomes: Sequence[NotebookOutcome]) -> str:
    """Return the number of notebooks that reproduce, and the names of the others.

    Each notebook that does not reproduce or was not verified has its own line.
    """
    total = format_count(len(outcomes), "notebook")
    other_outcomes = [outcome for outcome in outcomes if not outcome.reproduces]
    verb = "reproduces" if len(outcomes) == 1 else "reproduce"
    count = len(outcomes) - len(other_outcomes)
    lines = [f"{count} of {total} {verb}"]
    for outcome in other_outcomes:
        name = one_line(outcome.notebook, NAME_CHARACTERS)
        problem = "does not reproduce"
        if outcome.result is None:
            problem = "was not verified"
        lines.append(f"  {FAILED_MARK} {name} {problem}")
    return "\n".join(lines)


def format_outcome(outcome: NotebookOutcome) -> str:
    """Return the report on a notebook, or the reason why it was not verified."""
    if outcome.result is not None:
        return outcome.result.text
    name = one_line(outcome.notebook, NAME_CHARACTERS)
    text = f"{name}: NOT VERIFIED · {outcome.error}"
    for line in outcome.advice.splitlines():
        text += f"\n  {line}"
    return text
