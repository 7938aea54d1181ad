"""Results of `stepper verify`.

`--json` prints these dataclasses field by field, so their field names are public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepper.policy import changed_cells
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.model import Cell
from stepper.policy.reloaded_modules import SOURCE_PREFIX

# Another version of these packages may draw the same figure differently.
DRAWING_PACKAGES = ("matplotlib", "PIL", "seaborn")


@dataclass(frozen=True)
class CellVerdict:
    """The verdict on a cell.

    `lines` are some of the lines that differ: recorded lines start with `- `, replayed
    lines with `+ `.
    """

    cell_id: str
    number: int
    verdict: ReplayVerdict
    difference: str = ""
    lines: Sequence[str] = ()
    duration_s: float | None = None  # in the first replay; None if the cell did not run


@dataclass(frozen=True)
class FileChange:
    """A file that the replay wrote.

    `change` is `same` (the same bytes), `changed`, `new`, `deleted`, or `written` if
    the file is too large to be compared.
    """

    name: str
    change: str
    text: str


@dataclass(frozen=True)
class PackageChange:
    """A package or local module whose version differs from the recorded run.

    For a local module, `then` and `now` are hashes of its source.
    """

    name: str
    then: str
    now: str


@dataclass(frozen=True)
class VerifyResult:
    """The result of replaying a notebook in one or more fresh kernels.

    `where` is the name of the kernel backend, or an empty string for the notebook's own
    backend. `reproduces` does not depend on skipped cells.
    """

    notebook: str
    reproduces: bool
    cells: Sequence[CellVerdict]
    files: Sequence[FileChange]
    duration_s: float
    kernels: int
    packages: Sequence[PackageChange] = ()
    where: str = ""
    text: str = ""  # the printed result
    failing: int = 0  # number of cells that failed in both the recorded and fresh run
    open_steps: int = 0  # number of plan steps that are neither done nor skipped
    # Number of cells that reproduce their outputs, but have new warnings on stderr.
    warnings: int = 0
    partial: bool = False  # some cells were skipped on request (--from)

    @property
    def replayed_cells(self) -> list[CellVerdict]:
        """The cells that a partial replay did not skip."""
        return [
            cell for cell in self.cells if cell.verdict is not ReplayVerdict.SKIPPED
        ]

    @property
    def loaded_cells(self) -> list[CellVerdict]:
        """The skipped cells whose values were loaded from the live kernel.

        Their `difference` names the values. It is empty for other skipped cells.
        """
        return [
            cell
            for cell in self.cells
            if cell.verdict is ReplayVerdict.SKIPPED and cell.difference
        ]

    @property
    def reproduced_count(self) -> int:
        """The number of cells that reproduce their recorded outputs."""
        return sum(cell.verdict.reproduces for cell in self.cells)


def hash_sources(cells: Iterable[Cell]) -> str:
    """Return a hash of the sources of a notebook's runnable cells, in their order.

    A result of `stepper verify` is valid as long as this hash does not change.
    """
    hashes = [
        changed_cells.hash_source(cell.source)
        for cell in changed_cells.select_runnable(cells)
    ]
    digest = hashlib.sha256("\n".join(hashes).encode())
    return digest.hexdigest()[: changed_cells.HASH_LENGTH]


def find_changed_packages(
    recorded: Mapping[str, str], fresh: Mapping[str, str]
) -> list[PackageChange]:
    """Return the packages that both runs used in different versions."""
    return [
        PackageChange(name, recorded[name], fresh[name])
        for name in sorted(fresh)
        if name in recorded and recorded[name] != fresh[name]
    ]


def find_changed_modules(
    recorded: Mapping[str, str], fresh: Mapping[str, str]
) -> list[str]:
    """Return the modules of the project whose source changed between two runs."""
    return [
        package.name
        for package in find_changed_packages(recorded, fresh)
        if package.now.startswith(SOURCE_PREFIX)
    ]
