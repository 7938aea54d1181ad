"""The facts that the kernel's helper reports about a failed cell.

The helper's message comes from the user's process, so `common/dataclass_decode`
validates it. The field names are the JSON keys of the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class AssignmentLine:
    """The line that last assigned a value, or that passed an argument (`argument`).

    The line is in `file` or, if `file` is empty, in the cell with the execution count
    `cell`.
    """

    cell: int
    file: str
    line: int
    text: str
    argument: bool = False
    # The assigned expression, or an empty string if it was not reported.
    name: str = ""
    # The verb for the line if it is not "last assigned by".
    verb: str = ""
    # The last line that changed the value in place; `changed_line` is 0 if unknown.
    changed_cell: int = 0
    changed_file: str = ""
    changed_line: int = 0
    changed_text: str = ""


@dataclass(frozen=True)
class LostColumn:
    """A column (`label`) that a DataFrame (`name`) lost in a run.

    The run is the failed run if `now` is true, else an earlier run.
    """

    name: str
    label: str
    # The execution count of the earlier run, or 0 if it is unknown.
    cell: int = 0
    now: bool = False


@dataclass(frozen=True)
class Finding:
    """A sentence on a value, with the value's last assignment and lost column."""

    text: str
    bound: AssignmentLine | None = None
    lost: LostColumn | None = None


@dataclass(frozen=True)
class ErrorFacts:
    """The findings on an error.

    `path` is the path of a missing file, and `program` is whether the file is a program
    that could not be started. `locals` contains the local names after a NameError.
    """

    findings: tuple[Finding, ...] = ()
    path: str = ""
    program: bool = False
    locals: tuple[str, ...] = ()


class ReboundName(NamedTuple):
    """A name that a cell assigned again, and its old and new value as text."""

    name: str
    old_value: str
    new_value: str


class InPlaceChange(NamedTuple):
    """A name whose value a line of the cell changed in place."""

    name: str
    line: int


@dataclass(frozen=True)
class NamespaceChanges:
    """The names that a failed cell changed.

    `rebound` existed before and was assigned again, `bound` was assigned for the first
    time, and the values of `in_place` were changed without an assignment.
    """

    rebound: tuple[ReboundName, ...] = ()
    bound: tuple[str, ...] = ()
    in_place: tuple[InPlaceChange, ...] = ()


@dataclass(frozen=True)
class FileChange:
    """A change of a file that this kernel opened for writing, renamed or removed.

    `change` is "written", "same" (the content is unchanged), "renamed", "deleted" or
    "new folder". `own` means that the cell made the change, not a thread or task of an
    earlier cell.
    """

    path: str
    change: str
    size: int = 0
    own: bool = True
    renamed_to: str = ""


class OpenFile(NamedTuple):
    """A file that is open for writing.

    `is_own` is whether a process that the cell started has opened the file.
    """

    path: str
    is_own: bool


@dataclass(frozen=True)
class FileFacts:
    """The kernel's facts on the project's files after a cell.

    Paths are absolute and contain no symbolic links.
    """

    # The start of the cell in ns, by the clock of file times.
    began: int = 0
    changes: tuple[FileChange, ...] = ()
    open: tuple[OpenFile, ...] = ()
    # Files that the previous cell wrote and that are unchanged since.
    earlier: tuple[str, ...] = ()
