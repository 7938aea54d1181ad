"""Which item is it: the first that the message's words fit, in the values of the failing lines.

One walk over nested lists, dicts and columns. What is looked for, the message says: a quoted text, the name of a type,
a missing or negative number, a length.
"""

from __future__ import annotations

import collections
import re
from functools import partial
from typing import Any, Callable, Iterator

from stepper.diagnosis.inside.members import label
from stepper.diagnosis.inside.words import size, written
from stepper.kernel.inside.base import is_a, is_pandas, name_of, of_library, one_of, short

ITEMS, DEPTH, ROWS = 20_000, 4, 500_000
NUMBERS = (int, float)
Leaf = tuple[str, str, Any]  # its path, the path without places, the item


def leaves(value: Any) -> Iterator[Leaf]:
    """The items of nested lists, dicts and columns, nearest first."""
    todo: collections.deque[tuple[str, str, Any, int]] = collections.deque([("", "", value, 0)])
    count = 0
    while todo and count < ITEMS:
        path, group, item, depth = todo.popleft()
        count += 1
        yield path, group, item
        if depth < DEPTH:
            todo.extend((path + step, group + like, below, depth + 1) for step, like, below in inner(item))


def inner(item: Any) -> list[tuple[str, str, Any]]:
    """(step, step without its place, item) of what an item holds."""
    if type(item) is dict:
        keys = [(key, f"[{written(key, 30, 0) or '…'}]") for key in list(item)[:ITEMS]]
        return [(step, step if is_a(key, str) else "[]", item[key]) for key, step in keys]
    if one_of(type(item), (list, tuple)):
        return [(f"[{number}]", "[]", below) for number, below in enumerate(item[:ITEMS])]
    if is_pandas(item, "DataFrame") and item.size <= ROWS:
        return [(f"[{label(name)}]", f"[{label(name)}]", item[name]) for name in item.columns if item.columns.is_unique]
    if is_pandas(item, "Series") and len(item) <= ROWS:
        return [(f" at {short(str(key), 40)}", "[]", below) for key, below in zip(item.index, item.tolist())]
    if name_of(type(item)) == "ndarray" and of_library(item) and item.size <= ROWS and item.ndim:
        return [(f"[{number}]", "[]", below) for number, below in enumerate(item.tolist())]
    return []


def fitting(said: str, kinds: set[str]) -> list[Callable[[Any], bool]]:
    """The tests for an item that a message's words make, the surest first."""
    tests: list[Callable[[Any], bool]] = []
    quotes = re.findall(r"'((?:[^'\\]|\\.)*)'", said)[::-1][:4] + re.findall(r'"([^"\n]*)"', said)[:1]
    if "ValueError" in kinds:
        tests += [partial(same_text, text) for text in quotes if text]
    if re.search(r"\bNaN\b|\bNAs?\b|missing values|non-finite|\bNaT\b", said):
        tests.append(lambda item: item is None or (one_of(type(item), NUMBERS) and item != item))  # noqa: PLR0124
    if re.search("(?i)negative|positive|domain", said):
        tests.append(lambda item: one_of(type(item), NUMBERS) and item < 0)
    json = re.search(r"type (\w+) is not JSON", said)
    if json:
        tests.append(lambda item: name_of(type(item)) == json[1])
    return tests


def same_text(text: str, item: Any) -> bool:
    return type(item) is str and item == text


def fitted(value: Any, test: Callable[[Any], bool]) -> str:
    """Where the first item stands that a test fits, what it is, and how many more there are."""
    fits = [(path, item) for path, _, item in leaves(value) if path and test(item)]
    if not fits:
        return ""
    more = f", {len(fits):,} such items" if len(fits) > 1 else ""
    return f"{where(*fits[0])}{more}"


def where(path: str, item: Any) -> str:
    """`[path]` is the item."""
    text = written(item, 60, 1)
    shown = f"{text} ({name_of(type(item))})" if text is not None else f"a {name_of(type(item))}"
    return f"{short(path, 80)}` is {shown}" if not path.endswith("`") else path


def odd_kind(value: Any, said: str) -> str:
    """For a message that names types: the first item of such a type among items of another."""
    named = {word.rsplit(".", 1)[-1] for word in re.findall(r"[A-Za-z_][\w.]*", said)}
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, group, item in leaves(value):
        groups.setdefault(group, []).append((path, item))
        if type(item) is dict and "[" in group:
            continue
    for items in [*groups.values(), [*(pair for group in groups.values() for pair in group if "[" in pair[0])]]:
        kinds = collections.Counter(name_of(type(item)) for _, item in items).most_common()
        fits = [kind for kind, _ in kinds[1:] if kind in named]
        if fits and kinds[0][0] not in ("dict", "list", "tuple"):
            path, item = next((path, item) for path, item in items if name_of(type(item)) == fits[-1])
            return f"{where(path, item)}; of {len(items):,} most are {short(kinds[0][0], 40)}"
    return ""


def odd_length(value: Any) -> str:
    """Among lists side by side: the first whose length is not the usual one."""
    if not one_of(type(value), (dict, list, tuple)) or len(value) < 2:
        return ""
    pairs = list(value.items() if type(value) is dict else enumerate(value))[:ITEMS]
    sizes = [(key, item, size(item)) for key, item in pairs if not is_a(item, (str, bytes)) and size(item) is not None]
    usual = collections.Counter(count for *_, count in sizes).most_common()
    odd = [(key, item, count) for key, item, count in sizes if count != usual[0][0]]
    if not odd or len(odd) * 2 > len(sizes):
        return ""
    key, item, count = odd[0]
    text = written(item, 60, 1)
    shown = f": {text}" if text and len(text) <= 80 else ""
    more = f" ({len(odd):,} such items)" if len(odd) > 1 else ""
    rest = f"the other {len(sizes) - len(odd):,} have {usual[0][0]:,}"
    return f"[{written(key, 40, 0) or '…'}]` has {count:,} values{more}{shown}; {rest}"
