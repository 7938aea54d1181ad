"""What a suggestion is made of: the facts around a fault, the names nearest to one, items in a line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Around:
    """What is around a fault: in the kernel, in the notebook, below the project.

    `names`: live name → what it holds, in short. `unrun`: where cells that have not run define the name. `paths`:
    existing ones like the one asked for, as written from `folder`, the kernel's (`cwd`: its whole path). `local`:
    modules of that name, path and folder. `modules`: modules close to it. `install`: the command that adds a
    distribution to this project. `gone`: where a cell that ran unbound the name. `defined`: project files that define a
    name: path, line, name. `on_path`: whether the local module's folder is on sys.path. `lacks`: the missing folder of
    a path, and the nearest above it that is there. `asked`: the module or path meant, as far as more tells it.
    """

    source: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    unrun: Sequence[str] = ()
    paths: Sequence[str] = ()
    folder: str = ""
    cwd: str = ""
    local: Sequence[tuple[str, str]] = ()
    modules: Sequence[str] = ()
    install: str = ""
    holds: Sequence[str] = ()  # of the folder that was asked for
    largest: Sequence[str] = ()
    gone: Sequence[str] = ()
    defined: Sequence[tuple[str, int, str]] = ()
    on_path: bool = False
    lacks: tuple[str, str] = ("", "")
    asked: str = ""
    place: Callable[[Facts], str] = lambda bound: f"cell [{bound.get('cell')}]"


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the names nearest to one: those that differ in case, white space or underscores alone come first."""
    known = [one for one in dict.fromkeys(names) if one != name]
    plain = bare(name)
    same = [one for one in known if bare(one) == plain]
    alike = difflib.get_close_matches(name.lower(), {one.lower(): one for one in known}, n=count, cutoff=0.6)
    lower = {one.lower(): one for one in reversed(known)}
    part = [
        one for one in known if len(plain) >= 3 and len(bare(one)) >= 3 and (plain in bare(one) or bare(one) in plain)
    ]
    return list(dict.fromkeys([*same, *(lower[one] for one in alike), *part]))[:count]


def bare(name: str) -> str:
    """Return a name without case, white space, quotes and underscores."""
    return re.sub(r"[\s_'\"-]", "", name).lower()


def listed(items: Sequence[str], limit: int = 160) -> str:
    """Return items joined by commas within `limit` characters, with the number left out."""
    told: list[str] = []
    for item in items:
        if sum(map(len, told)) + len(item) + 2 * len(told) > limit and told:
            return f"{', '.join(told)} and {len(items) - len(told)} more"
        told.append(item)
    return ", ".join(told)


def where(bound: Facts | None, around: Around) -> str:
    """Return where something was bound last, with the text of that line; '' where it is not known."""
    if not bound:
        return ""
    line = f"line {bound['line']} of {around.place(bound)}: `{bound['text']}`"
    return f"; it is an argument, given by {line}" if bound.get("argument") else f"; last bound by {line}"


def public(names: Iterable[str]) -> list[str]:
    """Return the names that are not private."""
    return [name for name in names if not name.startswith("_")]


def version(found: Facts) -> str:
    """Return ` VERSION` of a fact that has one."""
    return f" {found['version']}" if found.get("version") else ""


def quoted(text: str) -> str:
    """Return the first quoted part of a text, '' where there is none."""
    found = re.search(r"'([^']+)'", text)
    return found[1] if found else ""
