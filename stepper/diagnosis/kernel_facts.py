"""What the kernel's part of the diagnosis tells, as values; it is read as a stranger's (`common/json_decode`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A line that bound something last, or (`argument`) gave it: in a cell, by its execution count, or in a file."""

    cell: int
    file: str
    line: int
    text: str
    argument: bool = False
    name: str = ""  # what was bound there, '' where the finding begins with it
    verb: str = ""  # what the line did, where it is not `last assigned by`
    # where it was changed in place since: `changed_line` is 0 where that is not known
    changed_cell: int = 0
    changed_file: str = ""
    changed_line: int = 0
    changed_text: str = ""


@dataclass(frozen=True)
class Lost:
    """A column that a frame had before a run changed the frame: the run that fails (`now`) or an earlier one."""

    name: str
    label: str
    cell: int = 0  # the execution count of the earlier run, 0 where it is not known
    now: bool = False


@dataclass(frozen=True)
class Finding:
    """One sentence, where that was bound last of which it speaks, and the column that its subject had before."""

    text: str
    bound: Bound | None = None
    lost: Lost | None = None


@dataclass(frozen=True)
class Look:
    """What the kernel's values tell of a fault, and what is needed to look on: a path, the function's names."""

    findings: tuple[Finding, ...] = ()
    path: str = ""
    program: bool = False
    locals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changed:
    """What a failed cell had bound before it failed: names with before and after, new ones, those written into."""

    rebound: tuple[tuple[str, str, str], ...] = ()
    bound: tuple[str, ...] = ()
    in_place: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class FileChange:
    """What became of a file that this kernel opened for writing, renamed or removed.

    `change`: written, same (its content is as before), renamed, deleted, new folder. `own`: the cell did it, not a
    thread or a task of an earlier one.
    """

    path: str
    change: str
    size: int = 0
    own: bool = True
    renamed_to: str = ""


@dataclass(frozen=True)
class FileFacts:
    """What the kernel knows of the project's files at a cell's end; paths are absolute and without links."""

    began: int = 0  # when the cell began, by the clock of files, in ns
    changes: tuple[FileChange, ...] = ()
    # open for writing in this kernel or below it: (path, by a process of this cell)
    open: tuple[tuple[str, bool], ...] = ()
    earlier: tuple[str, ...] = ()  # written by an earlier cell, not since
