"""The table of values on the failing lines, and the rule that reads it: the words of the message × their members.

A row is a name, an attribute or an item that the failing line holds, with its value; the failing expression's own come
first. What a row has that the message speaks of comes before what it is.
"""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

from stepper.diagnosis.inside.items import fitted, fitting, odd_kind, odd_length
from stepper.diagnosis.inside.lacks import Finding, finding
from stepper.diagnosis.inside.members import label, labels_of
from stepper.diagnosis.inside.near import closest, listed
from stepper.diagnosis.inside.reach import asked
from stepper.diagnosis.inside.spots import FUNCTIONS, Spot
from stepper.diagnosis.inside.words import CALLABLE, described, is_data, size, written
from stepper.kernel.inside.base import class_names, guarded, is_pandas, one_of, own_names, short
from stepper.kernel.inside.fault import message

ROWS, TOLD, AT_HAND = 24, 6, 4
# What messages say of unequal lengths, and of items of a wrong kind.
SIZES = "(?i)length|inhomogeneous|shape|columns? passed|sequence|dimension|mismatch|broadcast|inconsistent|same size"
KINDS = (
    "^(?!.*(indices|keyword|positional)).*(operand|supported|instance|has no len|object is not|must be|concat|unhash)"
)


class Row(NamedTuple):
    """A value on a failing line."""

    text: str
    value: Any
    node: Any
    spot: Spot


def rows(places: list[Spot], said: str) -> list[Row]:
    """The values on the failing lines, innermost line first; functions where the message speaks of them."""
    worth = r"\b(function|method)\b"
    table: dict[str, Row] = {}
    for spot in places:
        for text, value, node in spot.known():
            shown = is_data(value) or (one_of(type(value), CALLABLE) and re.search(worth, said))
            if shown and len(table) < ROWS and text not in table:
                table[text] = Row(short(text, 60), value, node, spot)
    return list(table.values())


def telling(error: BaseException, table: list[Row]) -> Iterator[Finding]:
    """What the values have that the message speaks of."""
    said, kinds = message(error), {name.rsplit(".", 1)[-1] for name in class_names(type(error))}
    yield from of_error(error, said)
    yield from unlike(table, kinds)
    searches: list[Callable[[Any], str]] = [partial(fitted, test=test) for test in fitting(said, kinds)]
    if "TypeError" in kinds and re.search(KINDS, said):
        searches.append(partial(odd_kind, said=said))
    if kinds & {"ValueError", "TypeError"} and re.search(SIZES, said):
        searches.append(odd_length)
    for search in searches:
        for row in table:
            text = guarded(search, row.value)
            if text:
                yield finding(f"`{row.text}{text}")
                break


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
        parts = [f"`{row.text}` lacks {listed(names, 120)}" for row, names in ((right, lacks), (left, more)) if names]
        yield finding(" and ".join(parts))
    elif lacks:
        alike = [f"{name} ~ {near}" for name in mine for near in closest(name, others, 1) if near not in mine]
        shown = f"columns of `{left.text}`: {listed(mine, 100)}; of `{right.text}`: {listed(others, 100)}"
        yield finding(f"{shown}; alike: {listed(alike, 80)}" if alike else shown)


def has_labels(row: Row) -> bool:
    kind = is_pandas(row.value, "DataFrame") or "feature_names_in_" in own_names(row.value)
    texts = one_of(type(row.value), (list, tuple)) and all(type(item) is str for item in row.value[:100]) and row.value
    return bool(kind or is_pandas(row.value, "Index") or texts)


def unpacked(error: BaseException, places: list[Spot]) -> Iterator[Finding]:
    """The value that has more or fewer items than there are names for it."""
    count = re.search(r"expected (?:at least )?(\d+)", message(error))
    for spot in places if count else ():
        for node, loop in taken_apart(spot):
            text = short(ast.unparse(node), 60)
            value = asked(lambda: (spot.value(node),))  # noqa: B023  # called at once
            if value is not None and type(value[0]) is dict:
                key = written(next(iter(value[0]), None), 40)
                yield finding(f"`{text}` is a dict: iterating it gives its keys, the first is {key}")
            elif value is not None and not loop and size(value[0]) is not None:
                yield finding(f"`{text}` has {size(value[0])} items: {described(value[0])}")
            elif value is not None and one_of(type(value[0]), (list, tuple)):
                usual = (None, int(count[1]) if count else 0)
                odd = [(number, item) for number, item in enumerate(value[0][:20_000]) if size(item) not in usual]
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
        shown = [f"{name} = {text}" for name, value in held for text in [written(value, 60)] if text is not None]
        if shown:
            of = f"in `{inner.name}`" if isinstance(inner, FUNCTIONS[:2]) else "at that moment"
            yield finding(f"{of}: {', '.join(shown[:AT_HAND])}")
            return
