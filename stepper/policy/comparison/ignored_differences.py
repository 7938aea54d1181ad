"""Remove differences between outputs that never count, and compare numbers.

`IGNORED` is the table of these differences. To recognize other nondeterministic
outputs, `stepper verify` needs further fresh runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stepper.common.text import ESCAPES, apply_carriage_returns

# Two numbers are close if they differ by at most this share of the larger number.
RELATIVE_TOLERANCE = 1e-6
# Marks a line that is ignored as a whole. Unicode assigns no character to this code
# point.
IGNORED_LINE = "\ufdd0"
# How many lines are normalized at once.
BATCH_LINES = 2000
# Longer lines (in characters) are compared as they are.
MAX_LINE_LENGTH = 100_000
TEMPORARY = (
    r"(?:(?:/private)?/var/folders/\w+/\w+/T"
    r"|(?:/private)?/(?:var/)?tmp"
    r"|[A-Za-z]:\\[^\s'\"]*\\Temp)[/\\]"
)
# The random part of a name that the module tempfile generates.
RANDOM_PART = r"(?=[a-z_]*\d)(?=[0-9_]*[a-z])[a-z0-9_]{8}"
TIME = r"(?:\d+(?:d|h|min) )*[\d.]+ ?(?:ns|[uµμ]s|ms|s|min|h)"

# The times and the rate of a progress bar, and the results after them (`loss=0.5`).
PROGRESS_TIMES = (
    r"\[\d+:\d\d(?::\d\d)?(?:<[\d:?]+)?, +[^,\]]*/(?:s|[^,\]\d]+)(?:, ([^\n]*))?\]"
)
PROGRESS_MARK = " [times]"  # in place of these times
PROGRESS = re.compile(PROGRESS_TIMES)


class IgnoredDifference(NamedTuple):
    """A part of outputs that is replaced before outputs are compared.

    Only texts that contain the `keyword` are searched for the `pattern`, because this
    search is slower.
    """

    name: str
    keyword: str
    pattern: str
    replacement: str


IGNORED: tuple[IgnoredDifference, ...] = (
    IgnoredDifference(
        "addresses of objects", "at 0x", r"\bat 0x[0-9a-fA-F]+", "at 0x…"
    ),
    # `hex(n)` looks like a pointer, too, but not in angle brackets.
    IgnoredDifference(
        "pointers in the text of an object",
        "0x",
        r"(<[^<>\n]*)\b0x(?:7f|5[56])[0-9a-f]{10}\b(?=[^<>\n]*>)",
        r"\1 0x…",
    ),
    # UUIDs of the versions 3 and 5 are computed from a name.
    IgnoredDifference(
        "random UUIDs",
        "-",
        r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-(?![35])[0-9a-fA-F]{4}-[0-9a-fA-F]{4}"
        r"-[0-9a-fA-F]{12}\b",
        "…",
    ),
    IgnoredDifference(
        "UUIDs without dashes",
        "4",
        r"(?<![0-9a-f])[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])",
        "…",
    ),
    IgnoredDifference(
        "files of the kernel",
        "ipykernel_",
        rf"{TEMPORARY}?ipykernel_\d+(?:[/\\]\d+(?:\.py)?)?",
        "…",
    ),
    IgnoredDifference(
        "cell file names of ipykernel 5 and earlier",
        "<ipython-input-",
        r"<ipython-input-\d+-[0-9a-f]+>",
        "…",
    ),
    IgnoredDifference(
        "files of cells in the messages of syntax errors",
        ", line ",
        r"\((?:\d+\.py|…|<unknown>|<string>), (?=line \d+\))",
        "(…, ",
    ),
    IgnoredDifference(
        "`Writing` or `Overwriting` in the output of %%writefile",
        "riting ",
        r"^(?:Writing|Overwriting) (?=\S+$)",
        "Writing ",
    ),
    IgnoredDifference(
        "temporary files", "tmp", rf"{TEMPORARY}(?:[\w.]+-)?tmp[a-z0-9_]{{6,10}}\b", "…"
    ),
    IgnoredDifference(
        "temporary files with a prefix",
        "/",
        rf"({TEMPORARY}[\w.]+[-_.]){RANDOM_PART}\b",
        r"\1…",
    ),
    IgnoredDifference(
        "execution counts", "[", r"\b(In ?|Out ?|Input In )\[\d+\]", r"\1[…]"
    ),
    IgnoredDifference(
        "results of %time",
        "time",
        r"^(CPU times|Wall time|Compiler(?: time)?|Parser(?: time)?): .*",
        r"\1",
    ),
    IgnoredDifference(
        "results of %timeit",
        "per loop",
        rf"{TIME} (?:±|\+-) {TIME} per loop.*",
        "per loop",
    ),
    IgnoredDifference(
        "results of %timeit in an IPython before version 6",
        "best of",
        rf"^[\d,]+ loops?, best of \d+: {TIME} per loop",
        "per loop",
    ),
    IgnoredDifference(
        "warnings of %timeit",
        "slowest run",
        r"^The slowest run took .* times longer than the fastest\..*",
        IGNORED_LINE,
    ),
    IgnoredDifference(
        "unfinished tqdm bars",
        "%|",
        r"^.*?\b\d?\d%\|.*\| *[\d.]+\w*/[\d.]+\w* \[.*\]",
        IGNORED_LINE,
    ),
    IgnoredDifference(
        "blocks of finished tqdm bars",
        "100%|",
        r"(\b100%)\|[^|\n]*\|(?= *[\d.]+\w*/[\d.]+\w* \[\d)",
        r"\1",
    ),
    IgnoredDifference(
        "times of tqdm bars",
        " [",
        rf"(?<=\w) {PROGRESS_TIMES}",
        rf"{PROGRESS_MARK} \1",
    ),
)
RULES = [
    (entry.keyword, re.compile(entry.pattern, re.MULTILINE), entry.replacement)
    for entry in IGNORED
]
NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])"
    r"([-+−]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?!(?!j\b)[A-Za-z_\d])(?!\.\d)"
)
# The elements of a set. The elements of a dictionary contain a colon.
SET = re.compile(r"\{([^{}:\n]*, [^{}:\n]*)\}")
# The escape that moves the cursor up. Nested progress bars use it, and leave blank
# lines.
CURSOR_UP = "\x1b[A"
ESCAPE_START = re.compile("[\x1b\x9b\x9d]")
# A number with one of these characters is a float.
FLOAT_CHARACTERS = frozenset(".eE")
ID = re.compile(r"""\bid=["']?([\w:.-]+)""")
# The parts of HTML that a browser does not show as text.
CODE = re.compile(
    r"(<script\b.*?</script>|<style\b.*?</style>|<[^>]*>)", re.DOTALL | re.IGNORECASE
)
# Parts of an SVG that contain the time and the program that made the SVG.
SVG_METADATA = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


def normalize_lines(text: str) -> list[str]:
    """Return the lines of a text without escapes and ignored differences.

    Carriage returns are applied. Blank lines at the end are removed.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    normalized_lines = list[str]()
    for start in range(0, len(lines), BATCH_LINES):
        normalized_lines += _normalize_batch(lines[start : start + BATCH_LINES])
    while normalized_lines and not normalized_lines[-1]:
        normalized_lines.pop()
    return normalized_lines


def _normalize_batch(lines: list[str]) -> list[str]:
    """Return normalized lines; a batch with a very long line is returned as it is."""
    if any(len(line) > MAX_LINE_LENGTH for line in lines):
        return lines
    text = "\n".join(lines)
    if ESCAPE_START.search(text):
        text = "\n".join([_remove_escapes(line) for line in lines])
    if "\r" in text:
        text = "\n".join(map(apply_carriage_returns, text.split("\n")))
    for keyword, pattern, replacement in RULES:
        if keyword in text:
            text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.split("\n") if IGNORED_LINE not in line]


def _remove_escapes(line: str) -> str:
    """Return a line without escapes, or IGNORED_LINE for a cleared progress bar."""
    plain = ESCAPES.sub("", line)
    is_cleared_bar = CURSOR_UP in line and not apply_carriage_returns(plain).strip()
    return IGNORED_LINE if is_cleared_bar else plain


def normalize_markup(text: str) -> str:
    """Return HTML or SVG with numbered ids, and each element on its own line.

    Ids are random in many outputs. Ids in the visible text are not replaced.
    """
    text = SVG_METADATA.sub("", text)
    ids = dict.fromkeys(ID.findall(text))
    replacements = {name: f"id-{number}" for number, name in enumerate(ids)}
    if replacements:
        # The longest id first, because an id may start with another id.
        alternatives = sorted(map(re.escape, replacements), key=len, reverse=True)
        any_id = re.compile(
            rf"(?<![A-Za-z0-9])(?:{'|'.join(alternatives)})(?![A-Za-z0-9])"
        )
        parts = CODE.split(text)  # text and code alternate
        parts[1::2] = [
            any_id.sub(lambda match: replacements[match[0]], part)
            for part in parts[1::2]
        ]
        text = "".join(parts)
    return text.replace("><", ">\n<")


def format_json(content: Any) -> str:
    """Return JSON data as text; 1.0 becomes 1, as in notebooks that a browser saves."""
    json_text = json.dumps(content, default=str)
    saved_content = json.loads(json_text, parse_float=_parse_json_float)
    return json.dumps(saved_content, indent=1, sort_keys=True, ensure_ascii=False)


def _parse_json_float(text: str) -> float:
    """Return the value of a float in JSON, as an integer if possible."""
    value = float(text)
    return int(value) if value.is_integer() else value


def have_same_words(recorded: Iterable[object], fresh: Iterable[object]) -> bool:
    """Return whether two lists of lines have the same words, in any order.

    The order of a set's elements depends on the hash seed. Only the first
    MAX_LINE_LENGTH characters of each list are compared. Return False if there are
    fewer than two words.
    """
    recorded_words = _sort_words(recorded)
    fresh_words = _sort_words(fresh)
    return recorded_words == fresh_words and len(recorded_words) > 1


def _sort_words(items: Iterable[object]) -> list[str]:
    """Return the words of items, up to MAX_LINE_LENGTH characters, sorted."""
    text = "\n".join(map(str, items))
    return sorted(re.findall(r"\w+", text[:MAX_LINE_LENGTH]))


def differ_by_set_order(recorded: Sequence[object], fresh: Sequence[object]) -> bool:
    """Return whether two lists differ only in the order of elements of sets.

    Such a difference is nondeterministic even if all fresh runs agree: they may have
    the same order of a small set by chance.
    """
    if len(recorded) != len(fresh) or [*recorded] == [*fresh]:
        return False
    recorded_lines = [_sort_sets(item) for item in recorded]
    fresh_lines = [_sort_sets(item) for item in fresh]
    return recorded_lines == fresh_lines


def _sort_sets(item: object) -> object:
    """Return a line with the elements of its sets in alphabetical order.

    Other items and very long lines are returned as they are.
    """
    if not isinstance(item, str) or len(item) > MAX_LINE_LENGTH:
        return item
    return SET.sub(_sort_elements, item)


def _sort_elements(match: re.Match[str]) -> str:
    """Return the text of a set, with the elements in alphabetical order."""
    elements = sorted(match[1].split(", "))
    return "{" + ", ".join(elements) + "}"


def differ_by_rounding(recorded: str, fresh: str) -> bool:
    """Return whether two texts differ only in numbers that are close, and in spaces.

    At least one number must be written differently.
    """
    before = NUMBER.split(recorded)  # texts and numbers alternate
    after = NUMBER.split(fresh)
    if len(before) != len(after) or len(before) < 2:
        return False
    if recorded.split() == fresh.split():
        return False
    texts = zip(before[::2], after[::2], strict=True)
    same_texts = all(old.split() == new.split() for old, new in texts)
    return same_texts and all(map(_are_close, before[1::2], after[1::2]))


def _are_close(recorded: str, fresh: str) -> bool:
    """Return whether two numbers count as equal, although one may be rounded.

    Two integers must have the same text. An integer and an equal float do not count as
    equal.
    """
    if recorded == fresh:
        return True
    recorded = _clean_number(recorded)
    fresh = _clean_number(fresh)
    recorded_is_integer = FLOAT_CHARACTERS.isdisjoint(recorded)
    fresh_is_integer = FLOAT_CHARACTERS.isdisjoint(fresh)
    # A count may not differ by one in a million, and 02134 may be a postal code.
    if recorded_is_integer and fresh_is_integer:
        return recorded == fresh
    recorded_value = parse_number(recorded)
    fresh_value = parse_number(fresh)
    if math.isinf(recorded_value) or math.isinf(fresh_value):
        return False  # a number is too large for a float
    # The type of the value changed, for example from 3 to 3.0.
    if recorded_value == fresh_value and (recorded_is_integer or fresh_is_integer):
        return False
    return math.isclose(recorded_value, fresh_value, rel_tol=RELATIVE_TOLERANCE)


def parse_number(text: str) -> float:
    """Return the value of a number that `NUMBER` matches."""
    return float(_clean_number(text))


def _clean_number(text: str) -> str:
    """Return a number in Python's notation."""
    return text.replace(",", "").replace("−", "-").removeprefix("+")
