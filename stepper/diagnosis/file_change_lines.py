"""The report's lines on files that changed while a cell ran, grouped by author.

A change is attributed to the cell only if the kernel recorded that the cell opened the
file for writing. All other changes are listed without an author.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stepper.common.text import one_line
from stepper.diagnosis.error_fact_types import FileChange, FileFacts
from stepper.diagnosis.in_kernel.close_matches import join_items
from stepper.diagnosis.project_facts import TICK, ProjectEnvironment

MAX_LIST = 200
MAX_LINE = 600
BY_KERNEL = "opened for writing by this kernel, but perhaps not by this cell"
UNKNOWN = "by an unknown process"


class FileLines(NamedTuple):
    """The lines on files that a cell changed, and on other changed files."""

    by_cell: list[str]
    others: list[str]


def format_file_lines(
    facts: FileFacts,
    environment: ProjectEnvironment,
    notebook: str,
    since_ns: int,
) -> FileLines:
    """Return the lines on files that changed while a cell ran.

    The notebook itself is not listed. `since_ns` is the start of the cell, which is
    used if the kernel did not report its start.
    """
    relative = environment.get_relative_path
    changes = {}
    for change in facts.changes:
        path = relative(change.path)
        if path:
            changes[path] = change
    unchanged = {relative(notebook)}
    unchanged.update(map(relative, facts.earlier))
    for path, change in changes.items():
        if change.change == "same":
            unchanged.add(path)

    start = facts.began or since_ns - TICK
    sizes = _list_written_files(changes, unchanged, environment, start)
    writers = _find_writers(facts, changes, environment)
    only_kernel = writers.kernel - writers.cell
    cell_files = [path for path in sizes if path in writers.cell]
    kernel_files = [path for path in sizes if path in only_kernel]
    other_files = [path for path in sizes if path not in writers.kernel]

    own_changes = [change for change in changes.values() if change.own]
    cell_lines = _format_cell_changes(own_changes, cell_files, sizes, environment)
    other_lines = [
        *_format_other_changes(BY_KERNEL, _add_sizes(kernel_files, sizes)),
        *_format_other_changes(UNKNOWN, _add_sizes(other_files, sizes)),
    ]
    return FileLines(
        [one_line(line, MAX_LINE) for line in cell_lines],
        [one_line(line, MAX_LINE) for line in other_lines],
    )


def _list_written_files(
    changes: dict[str, FileChange],
    unchanged: set[str],
    environment: ProjectEnvironment,
    start_ns: int,
) -> dict[str, int]:
    """Return the sizes of the files that were written since a time, by path.

    Files that the kernel recorded as written are included, whatever their time. Files
    in `unchanged` are left out.
    """
    sizes = {}
    for path, size in environment.list_written_since(start_ns, unchanged):
        if path not in unchanged:
            sizes[path] = size
    for path, change in changes.items():
        if change.change == "written" and path not in unchanged:
            sizes[path] = change.size
    return sizes


class _Writers(NamedTuple):
    """The paths of the files that a cell or its kernel opened for writing.

    `kernel` also contains the paths in `cell`.
    """

    cell: set[str]
    kernel: set[str]


def _find_writers(
    facts: FileFacts,
    changes: dict[str, FileChange],
    environment: ProjectEnvironment,
) -> _Writers:
    """Return the paths of the files that the cell or its kernel opened for writing.

    `changes` are the recorded changes by path.
    """
    by_cell = set()
    by_kernel = set(changes)
    for open_file in facts.open:
        path = environment.get_relative_path(open_file.path)
        by_kernel.add(path)
        if open_file.is_own:
            by_cell.add(path)
    for path, change in changes.items():
        if change.own:
            by_cell.add(path)
    return _Writers(by_cell, by_kernel)


def _format_cell_changes(
    changes: Sequence[FileChange],
    written: Sequence[str],
    sizes: dict[str, int],
    environment: ProjectEnvironment,
) -> list[str]:
    """Return a list with the line on the cell's changes of files, or an empty list.

    `changes` are the changes that the kernel recorded, and `written` the paths of the
    files that the cell wrote.
    """
    relative = environment.get_relative_path
    new_paths = set()
    renamed = []
    folders = []
    deleted = []
    for change in changes:
        path = relative(change.path)
        if change.change == "renamed":
            new_path = relative(change.renamed_to) or change.renamed_to
            new_paths.add(new_path)
            renamed.append(f"{path} to {new_path}")
        elif change.change == "new folder":
            folders.append(path)
        elif change.change == "deleted":
            deleted.append(path)
    # A renamed folder or file is not listed again under its new path.
    new_folders = [path for path in folders if path not in new_paths]
    written_files = [path for path in written if path not in new_paths]
    plural = "s" if len(new_folders) > 1 else ""
    actions = {
        "wrote": _add_sizes(written_files, sizes),
        f"created the folder{plural}": new_folders,
        "renamed": renamed,
        "deleted": deleted,
    }
    parts = []
    for verb, paths in actions.items():
        if paths:
            joined_paths = join_items(paths, MAX_LIST)
            parts.append(f"{verb} {joined_paths}")
    if not parts:
        return []
    text = "; ".join(parts)
    return [f"This cell {text}"]


def _add_sizes(paths: Collection[str], sizes: dict[str, int]) -> list[str]:
    """Return the paths with their sizes, such as "a.csv (12 bytes)"."""
    texts = []
    for path in paths:
        size = _format_size(sizes[path])
        texts.append(f"{path} ({size})")
    return texts


def _format_size(size: int) -> str:
    """Return a number of bytes with its unit."""
    if size == 1:
        return "1 byte"
    return f"{size:,} bytes"


def _format_other_changes(author: str, files: Sequence[str]) -> list[str]:
    """Return the line on files that changed while a cell ran, with their author.

    Return an empty list if there are no such files.
    """
    if not files:
        return []
    joined_files = join_items(files, MAX_LIST)
    return [f"Changed while the cell ran ({author}): {joined_files}"]
