"""What is nearest to a name, and lists that have an end. Pure: imported on both sides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

LIMIT = 160


def closest(
    name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.6
) -> list[str]:
    """Return the names nearest to one, first those of the same letters or words: case, blanks, underscores, order.

    `cutoff` is how alike the others must be, 1 for equal ones.
    """
    known = [other for other in dict.fromkeys(names) if other != name]
    plain, words = bare(name), parts(name)
    same = [other for other in known if bare(other) == plain or parts(other) == words]
    lower = {other.lower(): other for other in reversed(known)}
    alike = [
        lower[other]
        for other in difflib.get_close_matches(
            name.lower(), lower, n=count, cutoff=cutoff
        )
    ]
    part = [
        other
        for other in known
        if min(len(plain), len(bare(other))) >= 3
        and (plain in bare(other) or bare(other) in plain)
    ]
    return list(dict.fromkeys([*same, *alike, *part]))[:count]


def parts(name: str) -> list[str]:
    """Return the words of a name, whatever their case and order."""
    return sorted(re.split(r"[\W_]+", name.lower()))


def bare(name: str) -> str:
    """Return a name without case, white space, quotes and underscores."""
    return re.sub(r"[\s_'\"-]", "", name).lower()


def listed(items: Sequence[str], limit: int = LIMIT) -> str:
    """Return items joined by commas within `limit` characters, with the number left out."""
    shown: list[str] = []
    for item in items:
        if shown and sum(map(len, shown)) + len(item) + 2 * len(shown) > limit:
            return f"{', '.join(shown)} and {len(items) - len(shown)} more"
        shown.append(item)
    return ", ".join(shown)


def quoted(text: str) -> str:
    """Return the first quoted part of a text, '' where there is none."""
    match = re.search(r"['\"](.+?)['\"]", text)
    return match[1] if match else ""


def public(names: Iterable[str]) -> list[str]:
    """Return the names that are not private."""
    return [name for name in names if not name.startswith("_")]
