"""Similar names, and joined lists of limited length. Used in the kernel and outside."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_LIST = 160
MIN_PART = 3  # letters of a name that may be contained in another


def find_close_names(
    name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.6
) -> list[str]:
    """Return the names most similar to one.

    Names with the same letters or words come first, whatever their case, separators and
    order. `cutoff` is the similarity that the others need, 1 for equal names.
    """
    candidates = [other for other in dict.fromkeys(names) if other != name]
    letters = normalize_name(name)
    words = split_words(name)
    same = []
    containing = []
    for other in candidates:
        other_letters = normalize_name(other)
        if other_letters == letters or split_words(other) == words:
            same.append(other)
        if min(len(letters), len(other_letters)) >= MIN_PART and (
            letters in other_letters or other_letters in letters
        ):
            containing.append(other)
    by_lower = {other.lower(): other for other in reversed(candidates)}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff)
    similar = [by_lower[match] for match in matches]
    return list(dict.fromkeys([*same, *similar, *containing]))[:count]


def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case, sorted."""
    return sorted(re.split(r"[\W_]+", name.lower()))


def normalize_name(name: str) -> str:
    """Return a name in lower case without white space, quotes, hyphens and underscores."""
    return re.sub(r"[\s_'\"-]", "", name).lower()


def join_items(items: Sequence[str], limit: int = MAX_LIST) -> str:
    """Return items joined by commas, with the number of those left out by `limit`."""
    shown: list[str] = []
    for item in items:
        length = sum(map(len, shown)) + len(item) + 2 * len(shown)
        if shown and length > limit:
            return f"{', '.join(shown)} and {len(items) - len(shown)} more"
        shown.append(item)
    return ", ".join(shown)


def find_quoted(text: str) -> str:
    """Return the first quoted part of a text, '' if there is none."""
    match = re.search(r"['\"](.+?)['\"]", text)
    return match[1] if match else ""


def select_public(names: Iterable[str]) -> list[str]:
    """Return the names that do not begin with an underscore."""
    return [name for name in names if not name.startswith("_")]
