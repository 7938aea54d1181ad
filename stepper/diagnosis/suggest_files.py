"""Suggestions for what is not there on the disk: files, folders, programs."""

from __future__ import annotations

import re

from stepper.diagnosis.around import Around, Facts, listed
from stepper.policy.model import Fault


def file_not_found(fault: Fault, look: Facts, around: Around) -> str:
    """The closest existing paths, as written from the kernel's folder, and that folder; what is missing above."""
    here = f"the kernel's folder is {around.folder}" if around.folder else ""
    program = look.get("program")
    if program:
        return "; ".join(filter(None, [started(program), here if "/" in program["name"] else ""]))
    asked = around.asked or str(fault.attributes.get("filename") or "")
    if fault.ename == "IsADirectoryError":
        return f"{asked!r} is a folder; it holds {listed(around.holds) or 'nothing'}"
    said = []
    if asked.startswith("~") and fault.ename == "FileNotFoundError":
        said.append("`~` is no folder here: Python leaves it as it is, os.path.expanduser replaces it")
    if around.paths:
        said.append(f"closest existing paths: {', '.join(map(repr, around.paths))}")
    if around.lacks[0] and not asked.startswith("~"):
        above = f" ({around.lacks[1]!r} does)" if around.lacks[1].strip("./") else ""
        said.append(f"the folder {around.lacks[0]!r} does not exist{above}")
    if not said and asked:
        said.append("nothing below the project is like it")
    return "; ".join(filter(None, [*said, here]))


def started(program: Facts) -> str:
    """Return why a program did not start."""
    name = program["name"]
    if program["script"]:
        return f"{name!r} is there, but the program that its first line (`#!`) names is not"
    if re.search(r"\s", name):
        return f"a program of the name {name!r} was sought, blanks and all; its arguments are given apart, as a list"
    close = f"; closest there: {', '.join(program['close'])}" if program["close"] else ""
    return f"{name!r} was sought as a program{'' if '/' in name else ' on PATH'} and is not there{close}"
