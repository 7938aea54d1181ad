"""The search for similar names, and the formatting of long lists.

Both the kernel and the daemon use this module.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_LIST = 160  # characters
MIN_PART = 3  # letters of a name that may be contained in another


def find_close_names(
    name: str,
    names: Iterable[str],
    count: int = 3,
    cutoff: float = 0.6,
) -> list[str]:
    """Return up to `count` names that are similar to a name, the most similar first.

    Names that differ only in case, separators or word order come first, then names with
    a similarity of at least `cutoff` (from 0 to 1), then names that contain `name` or
    are contained in `name`.
    """
    candidates = dict.fromkeys(names)
    candidates.pop(name, None)
    letters = normalize_name(name)
    words = split_words(name)
    same = []
    containing = []
    by_lower: dict[str, str] = {}
    for other in candidates:
        other_letters = normalize_name(other)
        other_words = split_words(other)
        if other_letters == letters or other_words == words:
            same.append(other)
        if _contains(letters, other_letters) or _contains(other_letters, letters):
            containing.append(other)
        by_lower.setdefault(other.lower(), other)
    lower_name = name.lower()
    matches = difflib.get_close_matches(lower_name, by_lower, n=count, cutoff=cutoff)
    similar = [by_lower[match] for match in matches]
    close = dict.fromkeys(same + similar + containing)
    return list(close)[:count]


def _contains(letters: str, part: str) -> bool:
    """Return whether `letters` contains `part`. A very short part does not count."""
    if len(part) < MIN_PART:
        return False
    return part in letters


def split_words(name: str) -> list[str]:
    """Return the words of a name, in lower case and sorted."""
    words = re.split(r"[\W_]+", name.lower())
    return sorted(words)


def normalize_name(name: str) -> str:
    """Return a name in lower case, without white space, quotes, hyphens and `_`."""
    letters = re.sub(r"[\s_'\"-]", "", name)
    return letters.lower()


def join_items(items: Sequence[str], limit: int = MAX_LIST) -> str:
    """Return items joined by commas, cut to about `limit` characters.

    A cut list ends with the number of omitted items: `a, b and 3 more`.
    """
    text = ""
    for index, item in enumerate(items):
        if not text:
            text = item
            continue
        longer = f"{text}, {item}"
        if len(longer) > limit:
            hidden_count = len(items) - index
            return f"{text} and {hidden_count} more"
        text = longer
    return text


def find_quoted(text: str) -> str:
    """Return the first quoted part of a text without its quotes, or an empty string."""
    match = re.search(r"['\"](.+?)['\"]", text)
    if match is None:
        return ""
    return match[1]


def select_public(names: Iterable[str]) -> list[str]:
    """Return the names that do not begin with an underscore."""
    return [name for name in names if not name.startswith("_")]
