"""Clues → words: what the values on the failing line tell about this fault. `CLUES` is a table: a clue, its words."""

from __future__ import annotations

from collections.abc import Callable

from stepper.diagnosis.around import Around, Facts, closest, listed, where

LONGEST = 400
LATE = ("bound_at", "at_hand")


def clue_words(look: Facts, around: Around, late: bool = False) -> str:
    """Return the clues in a line, as many as have room: the telling ones, or those that come after all else."""
    told = ""
    for fact in look.get("clues") or ():
        if (fact["clue"] in LATE) is not late:
            continue
        said = CLUES[fact["clue"]](fact, around) if fact["clue"] in CLUES else ""
        more = f"{told}; {said}" if told else said
        if said and said not in told and len(more) <= LONGEST:
            told = more
    return told


def unparsed(fact: Facts, around: Around) -> str:
    """The line of the text at which it stops being JSON."""
    if not fact["lines"]:
        return "the text is empty"
    before = f", after `{fact['before']}`" if fact["before"] else ""
    if fact["line"] == 1 and not fact["from"]:
        return f"the text begins with `{fact['text']}`"
    part = "has" if fact["from"] else "is"
    return f"line {fact['line']} of {fact['lines']} of the text {part} `{fact['text']}`{before}"


def answer(fact: Facts, around: Around) -> str:
    """What the server answered."""
    kind = f", {fact['type']}" if fact["type"] else ""
    if fact["size"] is None:
        return f"the answer has the status {fact['status']}{kind}; its body has not been read"
    text = f": `{fact['text']}`" if fact["text"] else ": an empty body"
    return f"the answer (status {fact['status']}{kind}) says{text}"


def file_is(fact: Facts, around: Around) -> str:
    """What a file is by its first bytes."""
    name = f"`{fact['path']}`" if fact["path"] else "what was read"
    if fact["is"] == "empty":
        return f"{name} is empty (0 bytes)"
    kind = f" is {fact['is']}:" if fact["is"] else ""
    return f"{name} ({fact['size']:,} bytes){kind} begins with {fact['head']}".replace(": begins", ": it begins")


def line_of_table(fact: Facts, around: Around) -> str:
    """The line of the file, and its first."""
    first = f"; its first line: `{fact['first']}`" if fact["line"] != 1 else ""
    return f"line {fact['line']} of `{fact['path']}` is `{fact['text']}`{first}"


def line_of_byte(fact: Facts, around: Around) -> str:
    """Where in the file it stands."""
    return (
        f"it stands on line {fact['line']:,} of {fact['lines']:,} of `{fact['path']}` (byte {fact['at']:,} of the file)"
    )


def process(fact: Facts, around: Around) -> str:
    """What the process said."""
    if not fact["name"]:
        return "its output was not captured: it stands in the kernel's own, if anywhere"
    return f"the process's {fact['name']} ends with: {fact['text']}"


def fitted(fact: Facts, around: Around) -> str:
    """Which variables hold a fitted one."""
    this = f"`{fact['expression']}` is not fitted{where(fact.get('bound'), around)}; " if "expression" in fact else ""
    names = ", ".join(f"`{name}`" for name in fact["names"])
    return f"{this}fitted {fact['type']} in the kernel: {names or 'none under a name of its own'}"


def features(fact: Facts, around: Around) -> str:
    """What the model was fitted with and the frame has not."""
    if "frame" in fact:
        missing = f"`{fact['frame']}` lacks {listed(fact['missing'], 120)}" if fact["missing"] else ""
        more = f"has {listed(fact['more'], 120)}, unknown to `{fact['model']}`" if fact["more"] else ""
        said = " and ".join(filter(None, (missing, more if missing else more and f"`{fact['frame']}` {more}")))
        if said:
            return f"`{fact['model']}` was fitted with {fact['count']} columns: {said}"
    return f"`{fact['model']}` was fitted with the {fact['count']} columns {listed(fact['names'], 160)}"


def frames(fact: Facts, around: Around) -> str:
    """The columns of both frames, and those that are nearly the same."""
    (left, first), (right, second) = fact["frames"]
    alike = [
        f"{one!r} ~ {near[0]!r}" for one in first for near in [closest(one, second, 1)] if near and one not in second
    ]
    said = f"columns of `{left}`: {listed(first, 100)}; of `{right}`: {listed(second, 100)}"
    return f"{said}; alike: {listed(alike, 80)}" if alike else said


def tables(fact: Facts, around: Around) -> str:
    """Tables and their columns."""
    named = [f"{name} ({listed(columns, 120)})" for name, columns in fact["tables"]]
    return f"tables of the database: {listed(named, 300)}" if named else "the database has no tables"


def options(fact: Facts, around: Around) -> str:
    """What a configuration has."""
    what = (
        f"section [{fact['section']}] of `{fact['expression']}` has"
        if fact["section"]
        else f"`{fact['expression']}` has the sections"
    )
    return f"{what} {listed(nearest_first(fact['asked'], fact['names'])) or 'none'}"


def members(fact: Facts, around: Around) -> str:
    """The values of an enumeration."""
    return f"`{fact['expression']}` has the values {listed(nearest_first(fact['asked'], fact['names']))}"


def nearest_first(asked: str, names: list[str]) -> list[str]:
    """Return names, those most like the one asked for at the head."""
    return list(dict.fromkeys([*closest(asked, names), *names]))


def searched(fact: Facts, around: Around) -> str:
    """What was searched."""
    if not fact["len"]:
        return f"`{fact['expression']}` is empty"
    if not fact.get("values"):
        return f"none of the {fact['len']} items of `{fact['expression']}` fits"
    return f"`{fact['key']}` over the {fact['len']} items of `{fact['expression']}`: {listed(fact['values'])}"


def low_rank(fact: Facts, around: Around) -> str:
    """That columns depend on each other."""
    return (
        f"`{fact['expression']}` ({', '.join(map(str, fact['shape']))})"
        f" has the rank {fact['rank']}: some of its columns (or rows) depend on the others"
    )


def unpacked(fact: Facts, around: Around) -> str:
    """What there is to unpack."""
    if fact.get("dict"):
        return f"`{fact['expression']}` is a dict: iterating it gives its keys, the first is {fact['first']}"
    if "bound" in fact:
        line = f"line {fact['bound']['line']} of {around.place(fact['bound'])}"
        return f"`{fact['expression']}` gives {fact['len']} values: {line}: `{fact['bound']['text']}`"
    item = f"[{fact['index']}]" if "index" in fact else ""
    value = f": {fact['value']}" if fact["value"] else ""
    return f"`{fact['expression']}`{item} has {fact['len']} items{value}"


def item(fact: Facts) -> str:
    """Return `data['a'][3]`, or `column` at its label."""
    path = fact["path"]
    return f"`{fact['expression']}`{path}" if path.startswith(" ") else f"`{fact['expression']}{path}`"


def not_json(fact: Facts, around: Around) -> str:
    """Which value can't be written."""
    value = f" ({fact['value']})" if fact["value"] else ""
    return f"{item(fact)} is the {fact['type']}{value}"


def not_called(fact: Facts, around: Around) -> str:
    """That a function stands there, not what it returns."""
    return f"`{fact['expression']}` is a function, {fact['expression']}{fact['signature']}: it is not called here"


def odd_kind(fact: Facts, around: Around) -> str:
    """Which item is of another kind than the others."""
    value = f"{fact['value']} ({fact['type']})" if fact["value"] else f"a {fact['type']}"
    times = f", {fact['count']:,} such items" if fact["count"] > 1 else ""
    return f"{item(fact)} is {value}{times}; of {fact['of']:,} most are {fact['others']}"


def no_numbers(fact: Facts, around: Around) -> str:
    """What text stands in a column."""
    if not fact["count"]:
        return f"`{fact['expression']}` holds numbers as text, like {fact['value']}"
    rest = f"{fact['count']:,} of {fact['of']:,} values are no numbers, the first"
    return f"`{fact['expression']}` holds text: {rest} {fact['value']} at {fact['row']}"


def odd_length(fact: Facts, around: Around) -> str:
    """Which list is shorter or longer."""
    odd = ", ".join(f"`{fact['expression']}[{key}]` has {count:,}" for key, count in fact["odd"])
    more = f" ({fact['count']:,} such items in all)" if fact["count"] > len(fact["odd"]) else ""
    return f"{odd} values{more}, the other {fact['of'] - fact['count']:,} have {fact['usual']:,}"


def bound_at(fact: Facts, around: Around) -> str:
    """Where the names of unequal length were bound."""
    told = [one for one in fact["names"] if not one["bound"].get("argument")]
    lines = [where(one["bound"], around).removeprefix("; ") for one in told]
    return "; ".join(
        f"`{one['expression']}` (length {one['len']:,}) was {line}" for one, line in zip(told, lines, strict=True)
    )


def twice(fact: Facts, around: Around) -> str:
    """What stands more than once."""
    of = f" in {', '.join(fact['keys'])}" if "keys" in fact else ""
    return f"{fact['value']}{of} stands {fact['count']:,} times in `{fact['expression']}`"


def bad_number(fact: Facts, around: Around) -> str:
    """Where the number stands that must not be."""
    more = f", {fact['count']:,} such values" if fact["count"] > 1 else ""
    return f"`{fact['expression']}` {fact['where']} is {fact['value']}{more}"


def at_hand(fact: Facts, around: Around) -> str:
    """What the arguments and the loop's variables held."""
    of = f"in `{fact['function']}`" if fact["function"] else "at that moment"
    return f"{of}: " + ", ".join(f"{name} = {text}" for name, text in fact["names"])


def recursion(fact: Facts, around: Around) -> str:
    """Which functions call one another without an end, and the last calls."""
    names = " and ".join(f"`{name}`" for name in fact["functions"])
    how = "calls itself" if len(fact["functions"]) == 1 else "call one another"
    return f"{names} {how}, {fact['count']:,} deep; the last calls: {', '.join(fact['calls'])}"


CLUES: dict[str, Callable[[Facts, Around], str]] = {
    "unparsed": unparsed,
    "answer": answer,
    "file_is": file_is,
    "line_of_table": line_of_table,
    "line_of_byte": line_of_byte,
    "process": process,
    "fitted": fitted,
    "features": features,
    "frames": frames,
    "tables": tables,
    "options": options,
    "members": members,
    "searched": searched,
    "low_rank": low_rank,
    "recursion": recursion,
    "unpacked": unpacked,
    "not_json": not_json,
    "not_called": not_called,
    "odd_kind": odd_kind,
    "no_numbers": no_numbers,
    "odd_length": odd_length,
    "bound_at": bound_at,
    "twice": twice,
    "below_zero": bad_number,
    "missing_at": bad_number,
    "at_hand": at_hand,
}
