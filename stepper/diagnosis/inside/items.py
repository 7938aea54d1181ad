"""Which item is it: the first that the message's words fit, in the values of the failing lines.

One walk over nested lists, dicts and columns. What is looked for, the message says: a quoted text, the name of a type,
a missing or negative number, a length, what stands twice.
"""

from __future__ import annotations

import collections
import re
from functools import partial
from typing import Any, Callable, Iterator

from stepper.diagnosis.inside.words import label, size, written
from stepper.kernel.inside.base import is_a, is_pandas, name_of, of_library, one_of, short

ITEMS, DEPTH, ROWS = 20_000, 4, 500_000
# What messages say of items of a wrong kind, of unequal lengths, of what stands more than once.
KINDS = r"operand|supported|instance|has no len|object is not|must be|concat|unhash"
OTHERS = "indices|keyword|positional"
SIZES = "length|inhomogeneous|shape|columns? passed|sequence|dimension|mismatch|broadcast|inconsistent|same size|unpack"
TWICE = "duplicate|unique|truth value|multiple"
Leaf = tuple[str, str, Any]  # its path, the path without places, the item
Search = Callable[[Any], str]  # what a value has that the message speaks of, with the way there; '' where nothing
Test = Callable[[Any], bool]
TESTS: tuple[tuple[str, Test], ...] = (  # what messages say of an item, and whether it is one of these
    (r"\bNaN\b|\bNAs?\b|missing values|finite|\bNaT\b|infinity", lambda item: item is None or not finite(item)),
    ("(?i)negative|positive|domain", lambda item: one_of(type(item), (int, float)) and item < 0),
)


def searches(said: str, kinds: set[str], line: list[str]) -> list[Search]:
    """The searches that a message's words ask for, the surest first; `line` are the texts on the failing line."""
    quotes = re.findall(r"'((?:[^'\\]|\\.)*)'", said)[::-1][:4] + re.findall(r'"([^"\n]*)"', said)[:1]
    tests: list[Test] = [partial(is_text, text) for text in quotes if text and "ValueError" in kinds]
    tests += [test for words, test in TESTS if re.search(words, said)]
    tests += [partial(is_of, name) for name in re.findall(r"type (\w+) is not JSON", said)]
    found: list[Search] = [partial(first, test=test) for test in tests]
    if "TypeError" in kinds and re.search(KINDS, said) and not re.search(OTHERS, said):
        found.append(partial(odd_kind, said=said))
    if kinds & {"ValueError", "TypeError"} and re.search(f"(?i){SIZES}", said):
        found.append(odd_length)
    return [*found, *([partial(twice, line=line)] if re.search(f"(?i){TWICE}", said) else [])]


def is_text(text: str, item: Any) -> bool:
    return type(item) is str and item == text


def is_of(name: str, item: Any) -> bool:
    return name_of(type(item)) == name


def finite(item: Any) -> bool:
    return type(item) is not float or item - item == 0


def leaves(value: Any) -> Iterator[Leaf]:
    """The items of nested lists, dicts and columns, nearest first."""
    todo: collections.deque[tuple[str, str, Any, int]] = collections.deque([("", "", value, 0)])
    count = 0
    while todo and count < ITEMS:
        path, group, item, depth = todo.popleft()
        count += 1
        yield path, group, item
        room = ITEMS - count - len(todo)  # no more is ever taken out
        if depth < DEPTH and room > 0:
            todo.extend((path + step, group + like, below, depth + 1) for step, like, below in inner(item)[:room])


def inner(item: Any) -> list[tuple[str, str, Any]]:
    """(step, step without its place, item) of what an item holds."""
    if type(item) is dict:
        pairs = [(key, f"[{written(key, 30, 0) or '…'}]", below) for key, below in list(item.items())[:ITEMS]]
        return [(step, step if is_a(key, str) else "[]", below) for key, step, below in pairs]
    if is_pandas(item, "DataFrame") and item.size <= ROWS and item.columns.is_unique:
        return [(f"[{label(name)}]", f"[{label(name)}]", item[name]) for name in item.columns]
    if is_pandas(item, "Series") and len(item) <= ROWS:
        return [(f" at {short(str(key), 40)}", "[]", below) for key, below in zip(item.index, item.tolist())]
    array = is_of("ndarray", item) and of_library(item) and item.ndim > 0 and item.size <= ROWS
    items = item[:ITEMS] if one_of(type(item), (list, tuple)) else item.tolist() if array else []
    return [(f"[{number}]", "[]", below) for number, below in enumerate(items)]


def first(value: Any, test: Test) -> str:
    """Where the first item stands that a test fits, what it is, and how many more there are."""
    found = [(path, item) for path, _, item in leaves(value) if path and test(item)]
    more = f", {len(found):,} such items" if len(found) > 1 else ""
    return f"{where(*found[0])}{more}" if found else ""


def where(path: str, item: Any) -> str:
    text, kind = written(item, 60, 1), name_of(type(item))
    return f"{short(path, 80)}` is " + (f"{text} ({kind})" if text is not None else f"a {kind}")


def odd_kind(value: Any, said: str) -> str:
    """For a message that names types: the first item of such a type among items of another."""
    named = {word.rsplit(".", 1)[-1] for word in re.findall(r"[A-Za-z_][\w.]*", said)}
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, group, item in leaves(value):
        groups.setdefault(group, []).append((path, item))
    of_all = [pair for group in groups.values() for pair in group if "[" in pair[0]]
    for items in [*groups.values(), of_all]:
        kinds = [kind for kind, _ in collections.Counter(name_of(type(item)) for _, item in items).most_common()]
        odd = [(path, item) for path, item in items if name_of(type(item)) in named.intersection(kinds[1:])]
        if odd and kinds[0] not in ("dict", "list", "tuple"):
            return f"{where(*odd[0])}; of {len(items):,} most are {short(kinds[0], 40)}"
    return ""


def odd_length(value: Any) -> str:
    pairs = list(value.items()) if type(value) is dict else list(enumerate(value)) if is_a(value, (list, tuple)) else []
    sizes = [(key, item, size(item)) for key, item in pairs[:ITEMS] if not is_a(item, (str, bytes))]
    usual = collections.Counter(count for *_, count in sizes if count is not None).most_common(1)
    odd = [(key, item, count) for key, item, count in sizes if count not in (usual[0][0], None)] if usual else []
    if not odd or len(odd) * 2 > len(sizes):
        return ""
    key, item, count = odd[0]
    text = written(item, 60, 1) or ""
    shown = f": {text}" if 0 < len(text) <= 80 else ""
    rest = f"the other {len(sizes) - len(odd):,} have {usual[0][0]:,}"
    return f"[{written(key, 40, 0) or '…'}]` has {count:,} values{shown}; {rest}"


def twice(value: Any, line: list[str]) -> str:
    """What stands more than once: among the columns that the line names, the labels, the items of a list."""
    lists: dict[str, Any] = {}
    if is_pandas(value, "DataFrame") and value.columns.is_unique:
        named = [name for name in dict.fromkeys(line) if name in value.columns][:2]
        rows = zip(*(value[name][:ITEMS].tolist() for name in named))
        lists[f"rows with {' and '.join(map(label, named))}"] = list(rows)
    if is_pandas(value, "NDFrame"):
        lists["rows with the label"] = value.index[:ITEMS].tolist()
        lists["columns called"] = getattr(value, "columns", [])[:ITEMS]
    elif one_of(type(value), (list, tuple)):
        lists["times"] = value[:ITEMS]
    for what, items in lists.items():
        texts = [text for text in (written(item, 80, 1) for item in items) if text and "…" not in text]
        text, count = next(iter(collections.Counter(texts).most_common(1)), ("", 0))
        if count > 1:
            return f"` has {count} {what} {text}"
    return ""
