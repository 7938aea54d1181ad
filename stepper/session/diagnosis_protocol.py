"""What the engine needs of a diagnosis, which can be taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Cell, CriterionResult, Fault, Run
from stepper.policy.notebook_state import State
from stepper.session.protocols import Execution


class Diagnosis(Protocol):
    """What a report adds to a run's end; by itself it adds nothing, which is all that the main path needs."""

    def for_language(self, language: str) -> Diagnosis:
        """Return the diagnosis of cells that are in a language."""
        return self

    def move(self, path: str) -> None:
        """Go on with the notebook at another path."""
        return

    def convert_to_python(self, cell: str) -> str:
        """Return a cell's source as Python, by IPython's reading of it."""
        return cell

    def check_before_run(self, cell: Cell, namespace: Namespace) -> Fault | None:
        """Return the fault that a cell would end with for certain, None where it may run."""
        return None

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
        return fault

    def describe_side_effects(
        self, told: Mapping[str, Any], since_ns: int | None, how: str = "failing"
    ) -> list[str]:
        """Return what a failed cell had bound and written before it failed, in lines."""
        return []

    def has_changed_since(self, run: Run, namespace: Namespace) -> bool:
        """Whether something changed after a run ended, so that it may end otherwise now; True in doubt."""
        return True

    def get_criterion_result(self, told: Mapping[str, Any]) -> CriterionResult | None:
        """Return whether the criterion that was asked for holds, None where that could not be told."""
        return None

    def find_warnings(self, execution: Execution) -> list[str]:
        """Return the doubts on a run that ended well."""
        return []

    def summarize_figures(self, execution: Execution, run: int) -> list[str]:
        """Save what there is to see of a run; return the lines on it."""
        return []

    def describe_figures(self, execution: Execution) -> dict[str, str]:
        """Return what is known of the figures that a run showed: by the key of the picture, in a few words."""
        return {}

    def can_render(self, execution: Execution) -> bool:
        """Whether a run showed a plotly figure that the project's kaleido can render."""
        return False

    def list_saved_figures(self, run: int) -> list[str]:
        """Return the paths of the pictures that were saved of a run, in order."""
        return []


class NoDiagnosis(Diagnosis):
    """No diagnosis: a report holds what Python says."""
