"""The lines of a report on the files that changed while a cell ran, by who changed them.

A file is the cell's only where the kernel noted that the cell opened it for writing; whatever else changed is told as
such, and without a claim.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepper.common.text import one_line
from stepper.diagnosis.in_kernel.close_matches import listed
from stepper.diagnosis.kernel_facts import FileFacts
from stepper.diagnosis.project_environment import TICK, Surroundings

ROOM, LONGEST = 200, 600
BY_KERNEL = "opened for writing by this kernel, but perhaps not by this cell"
UNKNOWN = "stepper does not know by which process"


def file_lines(
    facts: FileFacts, surroundings: Surroundings, notebook: str, since_ns: int
) -> list[str]:
    """Return the lines on files; `since_ns` is when the cell began, where the kernel does not know it better."""
    inside = surroundings.inside
    changes = {
        path: change for change in facts.changes if (path := inside(change.path))
    }
    by_cell = {inside(path) for path, own in facts.open if own}
    by_kernel = {inside(path) for path, _ in facts.open}
    by_cell |= {path for path, change in changes.items() if change.own}
    by_kernel |= set(changes)
    unchanged = {path for path, change in changes.items() if change.change == "same"}
    unchanged |= {inside(path) for path in facts.earlier}
    unchanged.add(inside(notebook))

    sizes = {
        path: change.size
        for path, change in changes.items()
        if change.change == "written" and path not in unchanged
    }
    seen = surroundings.written_since(facts.began or since_ns - TICK, unchanged)
    sizes = {**{path: size for path, size in seen if path not in unchanged}, **sizes}
    written = [path for path in sizes if path in by_cell]
    opened = [path for path in sizes if path in by_kernel - by_cell]
    others = [path for path in sizes if path not in by_kernel | by_cell]

    own = [change for change in changes.values() if change.own]
    renamed = {
        inside(change.path): inside(change.renamed_to) or change.renamed_to
        for change in own
        if change.change == "renamed"
    }
    kinds = {
        kind: [inside(change.path) for change in own if change.change == kind]
        for kind in ("new folder", "deleted")
    }
    folders = [path for path in kinds["new folder"] if path not in renamed.values()]
    written = [path for path in written if path not in renamed.values()]
    moves = [f"{old} to {new}" for old, new in renamed.items()]
    deeds = {
        "wrote": with_sizes(written, sizes),
        "created the folder" + "s" * (len(folders) > 1): folders,
        "renamed": moves,
        "deleted": kinds["deleted"],
    }
    cell = "; ".join(
        f"{verb} {listed(paths, ROOM)}" for verb, paths in deeds.items() if paths
    )
    lines = [f"This cell {cell}"] if cell else []
    lines += changed_meanwhile(BY_KERNEL, with_sizes(opened, sizes))
    lines += changed_meanwhile(UNKNOWN, with_sizes(others, sizes))
    return [one_line(line, LONGEST) for line in lines]


def with_sizes(paths: Collection[str], sizes: dict[str, int]) -> list[str]:
    """Return paths with the sizes of their files."""
    return [f"{path} ({size_text(sizes[path])})" for path in paths]


def size_text(size: int) -> str:
    """Return a file's size."""
    return "1 byte" if size == 1 else f"{size:,} bytes"


def changed_meanwhile(by: str, files: Sequence[str]) -> list[str]:
    """Return the line on files that changed while a cell ran, no line where there are none."""
    if not files:
        return []
    return [f"Changed while the cell ran ({by}): {listed(files, ROOM)}"]
