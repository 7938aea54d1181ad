"""What is always left out where outputs are compared, as a table; and which numbers count as the same.

What no row tells is not guessed at: a second fresh run settles it (`compare`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from stepper.common.text import ESCAPES, apply_carriage_returns

NUMBERS = 1e-6  # relative: how far numbers may be apart
GONE = "\ufdd0"  # no character: what marks a line that is left out as a whole
# lines that one search goes over; characters of a line that no rule is for
AT_ONCE, LONG = 2000, 100_000
TEMPORARY = r"(?:(?:/private)?/var/folders/\w+/\w+/T|(?:/private)?/(?:var/)?tmp|[A-Za-z]:\\[^\s'\"]*\\Temp)[/\\]"
LOT = r"(?=[a-z_]*\d)(?=[0-9_]*[a-z])[a-z0-9_]{8}"  # what tempfile draws
TIME = r"(?:\d+(?:d|h|min) )*[\d.]+ ?(?:ns|[uµμ]s|ms|s|min|h)"
# What it is · a word without which it is not there · how it looks · what is left of it.
LEFT_OUT: tuple[tuple[str, str, str, str], ...] = (
    ("addresses of objects", "at 0x", r"\bat 0x[0-9a-fA-F]+", "at 0x…"),
    ("bare pointers", "0x", r"\b0x(?:7f|5[56])[0-9a-f]{10}\b", "0x…"),
    ("UUIDs", "-", r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "…"),
    (
        "UUIDs without dashes",
        "4",
        r"(?<![0-9a-f])[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])",
        "…",
    ),
    (
        "the kernel's files",
        "ipykernel_",
        rf"{TEMPORARY}?ipykernel_\d+(?:[/\\]\d+(?:\.py)?)?",
        "…",
    ),
    (
        "the kernel's files, of old",
        "<ipython-input-",
        r"<ipython-input-\d+-[0-9a-f]+>",
        "…",
    ),
    (
        "what was there before %%writefile",
        "riting ",
        r"^(?:Writing|Overwriting) (?=\S+$)",
        "Writing ",
    ),
    ("temporary files", "tmp", rf"{TEMPORARY}(?:[\w.]+-)?tmp[a-z0-9_]{{6,10}}\b", "…"),
    ("temporary files with a name", "/", rf"({TEMPORARY}[\w.]+[-_.]){LOT}\b", r"\1…"),
    ("execution counts", "[", r"\b(In ?|Out ?|Input In )\[\d+\]", r"\1[…]"),
    (
        "results of %time",
        "time",
        r"^(CPU times|Wall time|Compiler(?: time)?|Parser(?: time)?): .*",
        r"\1",
    ),
    (
        "results of %timeit",
        "per loop",
        rf"{TIME} (?:±|\+-) {TIME} per loop.*",
        "per loop",
    ),
    (
        "results of %timeit, of old",
        "best of",
        rf"^[\d,]+ loops?, best of \d+: {TIME} per loop",
        "per loop",
    ),
    (
        "what %timeit suspects",
        "slowest run",
        r"^The slowest run took .* times longer than the fastest\..*",
        GONE,
    ),
    ("tqdm on its way", "%|", r"^.*?\b\d?\d%\|.*\| *[\d.]+\w*/[\d.]+\w* \[.*\]", GONE),
    ("tqdm's times", "%|", r"(\b100%)\|.*\|( *[\d.]+\w*/[\d.]+\w*) \[\d.*\]", r"\1\2"),
    (
        "tqdm's times, of what has no end",
        "/s]",
        r"^(.*?\d+\w+) \[\d+:\d\d, +[^\]]*/s\]",
        r"\1",
    ),
)
RULES = [
    (word, re.compile(pattern, re.MULTILINE), left)
    for _, word, pattern, left in LEFT_OUT
]
NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])([-+−]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?!(?!j\b)[A-Za-z_\d])(?!\.\d)"
)
# of bars below each other; what is left of a line of theirs that was cleared is none
UP = "\x1b[A"
BEGINS_ESCAPE = re.compile("[\x1b\x9b\x9d]")
PARTS = frozenset(".eE")  # of a number that is no count
ID = re.compile(r"""\bid=["']?([\w:.-]+)""")
CODE = re.compile(
    r"(<script\b.*?</script>|<style\b.*?</style>|<[^>]*>)", re.DOTALL | re.IGNORECASE
)
# of an SVG: when and by what it was made
UNTOLD = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


def lines(text: str) -> list[str]:
    """Return the lines of a text as they are compared: redrawn, without escapes and what is left out."""
    found, rest = list[str](), text.replace("\r\n", "\n").split("\n")
    for begin in range(0, len(rest), AT_ONCE):
        found += _quiet(rest[begin : begin + AT_ONCE])
    while found and not found[-1]:
        found.pop()
    return found


def _quiet(shown: list[str]) -> list[str]:
    if any(len(line) > LONG for line in shown):
        return shown
    told = "\n".join(shown)
    if BEGINS_ESCAPE.search(told):
        told = "\n".join(
            [
                GONE if UP in line and _blank(line) else ESCAPES.sub("", line)
                for line in shown
            ]
        )
    if "\r" in told:
        told = "\n".join(map(apply_carriage_returns, told.split("\n")))
    for word, rule, left in RULES:
        if word in told:
            told = rule.sub(left, told)
    return [line.rstrip() for line in told.split("\n") if GONE not in line]


def _blank(line: str) -> bool:
    return not apply_carriage_returns(ESCAPES.sub("", line)).strip()


def markup(text: str) -> str:
    """Return HTML or an SVG with its ids by their order, for they are drawn by lot; what one reads stays."""
    text = UNTOLD.sub("", text)
    names = dict.fromkeys(ID.findall(text))
    places = {name: f"id-{place}" for place, name in enumerate(names)}
    if places:
        longest = sorted(map(re.escape, places), key=len, reverse=True)
        known = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest)})(?![A-Za-z0-9])")
        parts = CODE.split(text)  # what is read, and between that what is not
        parts[1::2] = [
            known.sub(lambda found: places[found[0]], part) for part in parts[1::2]
        ]
        text = "".join(parts)
    return text.replace("><", ">\n<")


def plain(content: Any) -> str:
    """Return JSON as text, its numbers as a browser saves them: 1.0 is 1."""
    saved = json.loads(json.dumps(content, default=str), parse_float=_number)
    return json.dumps(saved, indent=1, sort_keys=True, ensure_ascii=False)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def reordered(then: Iterable[object], now: Iterable[object]) -> bool:
    """Whether the texts of two hold the same words, as a set does that is gone over with another hash seed."""
    one, other = (
        sorted(re.findall(r"\w+", "\n".join(map(str, side))[:LONG]))
        for side in (then, now)
    )
    return one == other and len(one) > 1


def close(then: str, now: str) -> bool:
    """Whether two texts differ in nothing but numbers that count as the same, and in the blanks that these need."""
    before, after = NUMBER.split(then), NUMBER.split(now)
    if len(before) != len(after) or len(before) < 2 or then.split() == now.split():
        return False
    texts = all(
        one.split() == other.split()
        for one, other in zip(before[::2], after[::2], strict=True)
    )
    return texts and all(map(_near, before[1::2], after[1::2]))


def _near(then: str, now: str) -> bool:
    if then == now:
        return True
    then, now = (
        each.replace(",", "").replace("−", "-").removeprefix("+")
        for each in (then, now)
    )
    counts = [PARTS.isdisjoint(each) for each in (then, now)]
    if all(counts):  # one row of a million is a row, and 02134 is a name
        return then == now
    before, after = float(then), float(now)
    # 3 is not 3.0
    return math.isclose(before, after, rel_tol=NUMBERS) and not (
        any(counts) and before == after
    )
