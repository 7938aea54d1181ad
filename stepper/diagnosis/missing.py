"""Suggestions for a path that is not there: what is like it, which of its folders lacks, where the kernel stands."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from stepper.diagnosis.facts import Look
from stepper.diagnosis.inside.near import listed, quoted
from stepper.diagnosis.tree import ENTRIES, entries
from stepper.policy.model import Fault
from stepper.session.ports import Surroundings

LONGEST = 4096  # characters of a path that the system takes


def file_error(fault: Fault, look: Look, surroundings: Surroundings, cwd: str) -> list[str]:
    """The closest existing paths, as written from the kernel's folder, and that folder; what is missing above."""
    here = [f"the kernel's folder is {surroundings.named(cwd)}"] if cwd else []
    asked = str(fault.attributes.get("filename") or look.path or quoted(fault.evalue))
    if look.program:
        return [finding.text for finding in look.findings] + (here if "/" in asked else [])
    if fault.ename == "IsADirectoryError":
        held = sorted(entry.name for entry in islice(entries(os.path.join(cwd, asked)), ENTRIES))
        return [f"{asked!r} is a folder; it holds {listed(held) or 'nothing'}", *here]
    paths = surroundings.paths_like(asked, cwd) if asked else []
    lacks, above = missing_folder(asked, cwd)
    if asked.startswith("/") and lacks:  # a path of another machine: what is like it is written from here
        paths = [os.path.relpath(path, os.path.realpath(cwd)) for path in paths]
    home = asked.startswith("~")
    said = ["`~` is no folder here: Python leaves it as it is, os.path.expanduser replaces it"] if home else []
    said += [f"closest existing paths: {', '.join(map(repr, paths))}"] if paths else []
    if lacks and not home:
        there = f" ({above!r} does)" if above.strip("./") else ""
        said.append(f"the folder {lacks!r} does not exist{there}")
    if not said and asked:
        said.append("nothing below the project is like it")
    return said + here


def missing_folder(asked: str, cwd: str) -> tuple[str, str]:
    """Return the topmost folder of a path that does not exist, and the one above it; '' for none."""
    above = Path(asked).parents if len(asked) <= LONGEST else ()
    lacks = [folder for folder in above if folder.name and not os.path.lexists(os.path.join(cwd, folder))]
    return (str(lacks[-1]), str(lacks[-1].parent)) if lacks else ("", "")
