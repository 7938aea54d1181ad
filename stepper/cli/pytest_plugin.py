"""A pytest plugin: `pytest --stepper-verify` verifies notebooks.

Each code cell is a test. The first test of a notebook replays it. pytest loads this
module in every session, so it imports the rest of stepper only when needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepper.policy.comparison.verify_results import CellVerdict

OPTION = "--stepper-verify"


class DoesNotReproduceError(Exception):
    """A cell does not reproduce its recorded outputs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the plugin."""
    text = "Replay the notebooks and compare the outputs: a test for each code cell."
    parser.getgroup("stepper").addoption(OPTION, action="store_true", help=text)


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> NotebookFile | None:
    """Collect a notebook if the option is given."""
    if file_path.suffix != ".ipynb" or not parent.config.getoption(OPTION):
        return None
    return NotebookFile.from_parent(parent, path=file_path)


class NotebookFile(pytest.File):
    """A notebook, with a test for each code cell."""

    verdicts: dict[str, CellVerdict] | None = None  # by the name of the test

    def collect(self) -> Iterator[CellTest]:
        """Yield a test for each code cell that runs.

        Raise CollectError if the notebook can't be read.
        """
        from stepper.common.errors import StepperError
        from stepper.notebooks.notebook_file import IpynbFile
        from stepper.policy.changed_cells import select_runnable

        try:
            document = IpynbFile(str(self.path)).read()
        except StepperError as error:
            raise self.CollectError(str(error)) from error
        for cell in select_runnable(document.cells):
            yield CellTest.from_parent(self, name=f"cell {cell.number}")

    def get_verdict(self, name: str) -> CellVerdict | None:
        """Return the verdict on a cell; replay the notebook at the first call.

        `name` is the name of the test. If the replay fails, the first call raises
        StepperError, and later calls return None.
        """
        if self.verdicts is None:
            from stepper.daemon.replay.standalone import replay_once

            self.verdicts = {}  # a replay that fails is not repeated for each cell
            result = replay_once(str(self.path))
            self.verdicts = {f"cell {cell.number}": cell for cell in result.cells}
        return self.verdicts.get(name)


class CellTest(pytest.Item):
    """The test of a code cell."""

    def runtest(self) -> None:
        """Raise DoesNotReproduceError if the cell does not reproduce.

        Skip the test if the cell has no verdict or did not run in the replay. Raise
        StepperError if the notebook can't be replayed.
        """
        from stepper.messages.verification import notebook_outcome

        assert isinstance(self.parent, NotebookFile)
        cell = self.parent.get_verdict(self.name)
        if cell is None:
            pytest.skip("the notebook was not verified")
        text = notebook_outcome.describe_cell(cell)
        if notebook_outcome.is_skipped(cell):
            pytest.skip(text)
        if not cell.verdict.reproduces:
            raise DoesNotReproduceError("\n".join([text, *cell.lines]))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> Any:
        """Return the difference, without a traceback of this plugin."""
        from stepper.common.errors import StepperError

        if isinstance(excinfo.value, DoesNotReproduceError | StepperError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the test for reports."""
        return self.path, None, f"{self.path.name}: {self.name}"
