"""The table of values on the failing lines, and the rule that reads it: the words of the message × their members.

A row is a name, an attribute or an item that the failing line holds, with its value; the failing expression's own come
first. What a row has that the message speaks of comes before what it is.
"""

from __future__ import annotations

import ast
import linecache
import re
from typing import Any, Callable, Iterator, NamedTuple

from stepper.diagnosis.inside.bound import bound, line_of
from stepper.diagnosis.inside.items import fitted, fitting, no_numbers, odd_kind, odd_length, twice
from stepper.diagnosis.inside.lacks import Finding, finding
from stepper.diagnosis.inside.members import label, labels_of
from stepper.diagnosis.inside.near import closest, listed
from stepper.diagnosis.inside.reach import asked
from stepper.diagnosis.inside.spots import FUNCTIONS, Spot, parsed
from stepper.diagnosis.inside.words import described, is_data, size, written
from stepper.inkernel.base import class_names, guarded, is_pandas, one_of, own_names, short
from stepper.inkernel.fault import message

ROWS, TOLD, AT_HAND, WORDS = 24, 6, 4, 5
SIZES = "(?i)length|inhomogeneous|shape|columns? passed|sequence|dimension|mismatch|broadcast|inconsistent|same (size|first)"
KINDS = "^(?!.*(indices|keyword|positional)).*(operand|supported|instance|has no len|object is not|must be|concat|unhash)"
NUMBERS = "operand|ufunc|convert|must be real|concatenate|agg function|numeric"


class Row(NamedTuple):
    """A value on a failing line."""

    text: str
    value: Any
    node: Any
    spot: Spot


def rows(places: list[Spot]) -> list[Row]:
    """The values on the failing lines, innermost line first."""
    table: dict[str, Row] = {}
    for spot in places:
        for text, value, node in spot.known():
            if len(table) < ROWS and text not in table and is_data(value):
                table[text] = Row(short(text, 60), value, node, spot)
    return list(table.values())


def telling(error: BaseException, table: list[Row]) -> Iterator[Finding]:
    """What the values have that the message speaks of."""
    said, kinds = message(error), {name.rsplit(".", 1)[-1] for name in class_names(type(error))}
    yield from of_error(error, said)
    yield from unlike(table, kinds)
    searches: list[Callable[[Row], str]] = [
        lambda row, test=test: of_item(row, fitted(row.value, test)) for test in fitting(said, kinds)  # type: ignore[misc]
    ]
    if "TypeError" in kinds and re.search(KINDS, said):
        searches.append(lambda row: of_item(row, odd_kind(row.value, said)))
    if "TypeError" in kinds and re.search(NUMBERS, said):
        searches.append(lambda row: of_item(row, no_numbers(row.value)))
    if kinds & {"ValueError", "TypeError"} and re.search(SIZES, said):
        searches.append(lambda row: of_item(row, odd_length(row.value)))
    if re.search("(?i)duplicate|unique", said):
        searches.append(lambda row: of_item(row, twice(row.value)))
    for search in searches:
        text = next((text for row in table for text in [guarded(search, row)] if text), "")
        if text:
            yield finding(text)
    if "ValueError" in kinds and re.search(SIZES, said):
        yield from lengths(table, said)


def of_item(row: Row, text: str) -> str:
    """A search's find behind the name of what was searched."""
    return f"`{row.text}{text}" if text else ""


def of_error(error: BaseException, said: str) -> Iterator[Finding]:
    """What the error itself stores and its message does not hold: a process's output, an answer's body."""
    for name, value in list(own_names(error).items())[:20]:
        body = own_names(value).get("_content", value) if name == "response" else value
        text = body[-4000:].decode("utf-8", "replace") if type(body) is bytes else body
        lines = [line.strip() for line in text.splitlines() if line.strip()] if type(text) is str else []
        if lines and lines[-1] not in said and name in ("stderr", "output", "stdout", "body", "response", "reason"):
            yield finding(f"its {name} ends with: {short(lines[-1], 250)}")


def unlike(table: list[Row], kinds: set[str]) -> Iterator[Finding]:
    """Of two values with labels on the line: what the one has and the other lacks, and what is nearly the same."""
    labelled = [(row, [label(name) for name in labels_of(row.value) or ()]) for row in table if has_labels(row)]
    if len(labelled) < 2 or not kinds & {"ValueError", "MergeError"}:
        return
    (left, mine), (right, others) = labelled[:2]
    lacks, more = ([name for name in side if name not in other] for side, other in ((mine, others), (others, mine)))
    if len(mine) > 1 and len(lacks) < len(mine) and (lacks or more):
        parts = [f"`{right.text}` lacks {listed(lacks, 120)}" if lacks else "", f"`{left.text}` lacks {listed(more, 120)}" if more else ""]
        yield finding(" and ".join(filter(None, parts)))
    elif lacks:
        alike = [f"{name} ~ {near}" for name in mine for near in closest(name, others, 1) if near not in mine]
        told = f"columns of `{left.text}`: {listed(mine, 100)}; of `{right.text}`: {listed(others, 100)}"
        yield finding(f"{told}; alike: {listed(alike, 80)}" if alike else told)


def has_labels(row: Row) -> bool:
    kind = is_pandas(row.value, "DataFrame") or "feature_names_in_" in own_names(row.value)
    texts = one_of(type(row.value), (list, tuple)) and all(type(item) is str for item in row.value[:100]) and row.value
    return bool(kind or is_pandas(row.value, "Index") or texts)


def lengths(table: list[Row], said: str) -> Iterator[Finding]:
    """Where the names of unequal length were bound."""
    sizes = {row.text: (size(row.value), row) for row in table
             if isinstance(row.node, ast.Name) and not one_of(type(row.value), (str, dict)) and size(row.value)}  # fmt: skip
    named = set(map(int, re.findall(r"\d+", said)))
    counts = {count for count, _ in sizes.values()}
    if len(counts) > 1 and (not named or counts & named):
        for text, (count, row) in list(sizes.items())[:2]:
            where = asked(bound, row.node, row.spot)
            if where:
                yield finding(f"`{text}` (length {count:,})", where)


def unpacked(error: BaseException, places: list[Spot]) -> Iterator[Finding]:
    """The value that has more or fewer items than there are names for it."""
    count = re.search(r"expected (?:at least )?(\d+)", message(error))
    for spot in places if count else ():
        for node, loop in taken_apart(spot):
            text = short(ast.unparse(node), 60)
            value = asked(lambda: (spot.value(node),))  # noqa: B023  # called at once
            if value is None and isinstance(node, ast.Call) and not loop:
                yield from returned(asked(spot.value, node.func), text, int(count[1]) if count else 0)
            if value is not None and type(value[0]) is dict:
                yield finding(f"`{text}` is a dict: iterating it gives its keys, the first is {written(next(iter(value[0]), None), 40)}")
            elif value is not None and not loop and size(value[0]) is not None:
                yield finding(f"`{text}` has {size(value[0])} items: {described(value[0])}")
            elif value is not None and one_of(type(value[0]), (list, tuple)):
                odd = [(n, item) for n, item in enumerate(value[0][:20_000]) if size(item) not in (None, int(count[1]) if count else 0)]
                for number, item in odd[:1]:
                    yield finding(f"`{text}`[{number}] has {size(item)} items: {written(item) or described(item)}")


def taken_apart(spot: Spot) -> Iterator[tuple[Any, bool]]:
    """The expressions of the statement whose values are taken apart, and whether item by item."""
    whole: Any = spot.statement
    apart = (ast.Tuple, ast.List)
    if isinstance(whole, ast.Assign) and isinstance(whole.targets[0], apart):
        yield whole.value, False
    for node in ast.walk(whole) if whole is not None else ():
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and isinstance(node.target, apart):
            yield node.iter, True


def returned(function: Any, text: str, count: int) -> Iterator[Finding]:
    """The line on which a function of the user's gives back another number of values."""
    code = own_code(function)
    tree = parsed("".join(linecache.getlines(code.co_filename))) if code is not None else parsed("")
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS[:2]) and code is not None and node.name == code.co_name:
            given = [one for one in ast.walk(node) if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)]
            for line in [one for one in given if isinstance(one.value, ast.Tuple) and len(one.value.elts) != count][:1]:
                yield finding(f"`{text}`", line_of(code.co_filename, line.lineno))


def own_code(function: Any) -> Any:
    return getattr(getattr(function, "__func__", function), "__code__", None)


def held(table: list[Row]) -> Iterator[Finding]:
    """What the values of the innermost line are."""
    for row in [row for row in table if row.spot is table[0].spot][:TOLD]:
        if not isinstance(row.node, ast.Name) or not any(row.text + "." in other.text for other in table):
            yield finding(f"`{row.text}`: {described(row.value)}")


def at_hand(places: list[Spot]) -> Iterator[Finding]:
    """The arguments and the loops' variables at the failing line, as far as they are plain and short."""
    for spot in places[:2]:
        inner, names = spot.function(), list[str]()
        for loop in spot.around((ast.For, ast.AsyncFor)):
            names += [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        if inner is not None:
            names += [argument.arg for argument in ast.walk(inner.args) if isinstance(argument, ast.arg)]
        held = [(name, spot.frame.f_locals[name]) for name in dict.fromkeys(names) if name in spot.frame.f_locals]
        told = [f"{name} = {text}" for name, value in held for text in [written(value, 60)] if text is not None]
        if told:
            of = f"in `{inner.name}`" if isinstance(inner, FUNCTIONS[:2]) else "at that moment"
            yield finding(f"{of}: {', '.join(told[:AT_HAND])}")
            return
