"""Values of the facts that the helper in the kernel reports about a failed cell.

The message comes from the user's process: `common/json_decode` validates it. The field
names are the JSON keys of that message.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """The line that last assigned a value, or that passed an argument (`argument`).

    It is in a cell, given by its execution count, or in a file.
    """

    cell: int
    file: str
    line: int
    text: str
    argument: bool = False
    # The assigned expression, or an empty string if the finding begins with its name.
    name: str = ""
    # The verb for the line if it is not "last assigned by".
    verb: str = ""
    # The last line that changed the value in place; `changed_line` is 0 if unknown.
    changed_cell: int = 0
    changed_file: str = ""
    changed_line: int = 0
    changed_text: str = ""


@dataclass(frozen=True)
class Lost:
    """A column that a DataFrame had before a run changed the DataFrame.

    That run is the failed one (`now`) or an earlier one.
    """

    name: str
    label: str
    # The execution count of the earlier run, or 0 if it is unknown.
    cell: int = 0
    now: bool = False


@dataclass(frozen=True)
class Finding:
    """One sentence, with the last assignment of its subject and a column it lost."""

    text: str
    bound: Bound | None = None
    lost: Lost | None = None


@dataclass(frozen=True)
class ErrorFacts:
    """Findings on an error, with a path and local names for a search in the project."""

    findings: tuple[Finding, ...] = ()
    path: str = ""
    program: bool = False
    locals: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamespaceChanges:
    """The names that a failed cell rebound, assigned first, or changed in place.

    `rebound` has name, old value and new value; `in_place` has name and line.
    """

    rebound: tuple[tuple[str, str, str], ...] = ()
    bound: tuple[str, ...] = ()
    in_place: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class FileChange:
    """A change of a file that this kernel opened for writing, renamed or removed.

    `change` is "written", "same" (the content is unchanged), "renamed", "deleted" or
    "new folder". `own`: the cell did it, not a thread or task of an earlier cell.
    """

    path: str
    change: str
    size: int = 0
    own: bool = True
    renamed_to: str = ""


@dataclass(frozen=True)
class FileFacts:
    """The kernel's facts on the project's files after a cell.

    Paths are absolute and contain no symbolic links.
    """

    # When the cell began, in ns of the clock of file times.
    began: int = 0
    changes: tuple[FileChange, ...] = ()
    # Files open for writing: (path, whether by a process of this cell).
    open: tuple[tuple[str, bool], ...] = ()
    # Files that an earlier cell wrote and that are unchanged since.
    earlier: tuple[str, ...] = ()
