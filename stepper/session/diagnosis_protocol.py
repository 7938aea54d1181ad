"""The interface of the optional diagnosis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, CriterionResult, Fault, Run
from stepper.policy.namespace_model import Namespace
from stepper.policy.notebook_state import State


class SideEffects(NamedTuple):
    """Lines on the side effects of a cell that failed or was interrupted.

    `commands` are lines on commands that failed, `names` on names that the cell
    changed, and `cell_files` on files that the cell changed. `other_files` are lines on
    other files that changed while the cell ran.
    """

    commands: Sequence[str] = ()
    names: Sequence[str] = ()
    cell_files: Sequence[str] = ()
    other_files: Sequence[str] = ()


@dataclass
class FigureRequest:
    """The figures of one digest.

    Images are saved until `deadline`, a value of `time.monotonic()`, and at most
    `max_files` have a file. With `uses_names`, lines contain the names of the files in
    `folder`, which is set when the first file is named.
    """

    deadline: float = math.inf
    max_files: int = 150
    uses_names: bool = False
    folder: str = ""


class Diagnosis(Protocol):
    """Adds information to reports. The default methods add nothing."""

    def select_language(self, language: str) -> Diagnosis:
        """Return the diagnosis for cells in a language."""
        return self

    def move(self, path: str) -> None:
        """Set the new path of the notebook after the notebook was renamed."""
        return

    def convert_to_python(self, cell: str) -> str:
        """Return a cell's source as Python, without IPython syntax."""
        return cell

    def check_before_run(self, cell: Cell, namespace: Namespace) -> Fault | None:
        """Return the error that a cell would certainly raise, or None."""
        return None

    def add_suggestion(
        self,
        fault: Fault,
        kernel_facts: Mapping[str, Any],
        cell: Cell,
        cells: Sequence[Cell],
        state: State,
        namespace: Namespace,
        python: str,
    ) -> Fault:
        """Return the fault, with a suggestion if there is one.

        `kernel_facts` are the facts that the helper in the kernel reported with the
        error. `python` is the path of the kernel's interpreter.
        """
        return fault

    def describe_side_effects(
        self,
        kernel_facts: Mapping[str, Any],
        since_ns: int | None,
        event: str = "failing",
    ) -> SideEffects:
        """Return lines on the side effects of a cell that failed or was interrupted.

        `since_ns` is the start of the run in nanoseconds since the epoch, or None if
        file times cannot be compared. `event` completes the phrase "before …" in the
        line on names: "failing" or "its interrupt".
        """
        return SideEffects()

    def has_changed_since(self, run: Run, namespace: Namespace) -> bool:
        """Return whether files on which a run may depend have changed since the run.

        Return True if this is unknown.
        """
        return True

    def get_criterion_result(
        self, kernel_facts: Mapping[str, Any]
    ) -> CriterionResult | None:
        """Return the result of the step's criterion, or None if it is unknown."""
        return None

    def find_warnings(self, execution: Execution) -> list[str]:
        """Return the warnings on a successful run."""
        return []

    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save the figures of a run; return the lines of the figure summary.

        `run` is the number of the run.
        """
        return []

    def describe_figures(self, execution: Execution) -> dict[str, str]:
        """Return a short description of each figure, by image key."""
        return {}

    def can_render(self, execution: Execution) -> bool:
        """Return whether a run showed a plotly figure that kaleido can render."""
        return False

    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of the saved figures of a run, in order.

        `run` is the number of the run.
        """
        return []

    def list_figure_lines(
        self,
        outputs: Sequence[Mapping[str, Any]],
        run: int | None,
        descriptions: Mapping[str, str],
        request: FigureRequest,
    ) -> list[str]:
        """Return a line on each image among a cell's outputs, in order.

        A line is empty if an earlier line describes the image, too. `run` is the number
        of the run that displayed the images, or None if it is unknown. `descriptions`
        are short descriptions of figures, by image key.
        """
        return []


class NoDiagnosis(Diagnosis):
    """The diagnosis that adds nothing."""
