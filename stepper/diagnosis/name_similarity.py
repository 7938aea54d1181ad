"""How alike names are and how far apart folders lie."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

from stepper.common.project_files import SECONDS

LONGEST = 4096  # characters of a path that the system takes
ALIKE = 0.6  # difflib's ratio
SAME_NAME, OTHER_CASE, OTHER_EXTENSION = 4.0, 3.0, 2.0


def likeness(asked: str, names: Iterable[str]) -> dict[str, float]:
    """Return how alike names are, for those that are: the same, in another case, with another extension, or close."""
    wanted = _folded(asked)
    stem, found, others = _stem(wanted), dict[str, float](), []
    for name in names:
        folded = _folded(name)
        if name == asked:
            found[name] = SAME_NAME
        elif folded == wanted:
            found[name] = OTHER_CASE
        elif (
            _stem(folded) == stem
            or folded.startswith(wanted + ".")
            or wanted.startswith(folded + ".")
        ):
            found[name] = OTHER_EXTENSION
        else:
            # without the extension, which alone is no likeness
            others.append((_stem(folded), name))
    matcher, until = SequenceMatcher(b=stem, autojunk=False), time.monotonic() + SECONDS
    for other, name in others:
        matcher.set_seq1(other)
        if (
            matcher.real_quick_ratio() >= ALIKE
            and matcher.quick_ratio() >= ALIKE
            and matcher.ratio() >= ALIKE
        ):
            found[name] = matcher.ratio()
        if time.monotonic() > until:
            break
    return found


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _folded(name: str) -> str:
    """Return a name without its case, and without the two ways in which systems write an accent."""
    return (
        name.lower()
        if name.isascii()
        else unicodedata.normalize("NFKC", name).casefold()
    )


def distance(one: str, other: str) -> int:
    """Return how many steps lie between two folders; what both end with was only moved, and is no step."""
    a, b = list(Path(one).parts), list(Path(other).parts)
    while a and b and a[-1] == b[-1]:
        a.pop()
        b.pop()
    shared = next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )
    return len(a) + len(b) - 2 * shared
