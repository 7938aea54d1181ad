"""Which bracket or quote of a cell is never closed: a scan of its own, because the source is broken."""

from __future__ import annotations

import keyword
import re
from typing import NamedTuple

PAIRS = {")": "(", "]": "[", "}": "{"}
FIELD, SPEC = "{field", "{field:spec"  # what may be open within an f-string, besides brackets
QUOTE = r"\"\"\"|'''|\"|'"
# IPython's own lines are no Python: `!echo "it's`, `%run x`, `files = !ls 'a`.
MAGIC_LINE = re.compile(r"(?:[\w, \t]*=)?[ \t]*[%!?].*")
# What counts: in code, in the text of an f-string, in the format of its field. All else is passed over.
CODE = re.compile(rf"#.*|(?P<prefix>\b(?i:[rbu]|[ft]r?|r[bft]|br))?(?P<quote>{QUOTE})|[()\[\]{{}}:\n]")
TEXT = re.compile(rf"\\[^{{}}]|\{{\{{|\}}\}}|[{{\n]|{QUOTE}", re.DOTALL)
FORMAT = re.compile(rf"[{{}}\n]|{QUOTE}")
REST = {  # of a string, from its quote on
    '"""': re.compile(r'(?:\\.|[^\\])*?"""', re.DOTALL),
    "'''": re.compile(r"(?:\\.|[^\\])*?'''", re.DOTALL),
    '"': re.compile(r'(?:\\.|[^\\\n"])*"', re.DOTALL),
    "'": re.compile(r"(?:\\.|[^\\\n'])*'", re.DOTALL),
}
LAST_WORD = re.compile(r"(\w+|[)\]}\"'])[ \t]*$")


class Opened(NamedTuple):
    """What is open: a bracket, an f-string's quote, FIELD or SPEC. `within` is the quote of the f-string around it."""

    text: str
    at: int
    within: str


def unclosed(source: str) -> tuple[str, int, int] | None:
    """Return the innermost bracket or quote that nothing, or the wrong bracket, closes; its line and column from 1."""
    left = _scan(source)
    if left is None:
        return None
    text = left.text[0] if left.text in (FIELD, SPEC) else left.text
    return text, source.count("\n", 0, left.at) + 1, left.at - source.rfind("\n", 0, left.at)


def _scan(source: str) -> Opened | None:
    opened: list[Opened] = []
    at = 0
    while True:
        top = opened[-1] if opened else Opened("", 0, "")
        magic = MAGIC_LINE.match(source, at) if not opened and source[max(0, at - 1) : at] in ("", "\n") else None
        counts = TEXT if top.text in REST else FORMAT if top.text == SPEC else CODE
        found = counts.search(source, magic.end() if magic else at)
        if found is None:
            return opened[-1] if opened else None
        text, start, at = found[0], found.start(), found.end()

        if counts is not CODE:
            if text == "{":
                opened.append(Opened(FIELD, start, top.within))
            elif text == "}":
                opened.pop()  # the field
            elif text.startswith(top.within):
                if top.text == SPEC:
                    return top
                opened.pop()
                at = start + len(top.within)
            elif text == "\n" and len(top.within) == 1:
                return top
        elif quote := found["quote"]:
            prefix = found["prefix"] or ""
            rest = REST[quote].match(source, at)
            if top.within and quote.startswith(top.within) and (rest is None or _no_string_may_begin(source, start)):
                return top  # the f-string ends before what is open within it
            start += len(prefix)
            if set("ftFT") & set(prefix):
                opened.append(Opened(quote, start, quote))
            elif rest is None:
                return Opened(quote, start, top.within)
            else:
                at = rest.end()
        elif text in PAIRS:
            if opened and top.text != PAIRS[text] and not (text == "}" and top.text == FIELD):
                return top
            del opened[-1:]
        elif text in PAIRS.values():
            opened.append(Opened(text, start, top.within))
        elif text == ":" and top.text == FIELD:
            opened[-1] = Opened(SPEC, top.at, top.within)


def _no_string_may_begin(source: str, at: int) -> bool:
    """Whether a value ends here, so that a quote can only end the f-string around it."""
    before = LAST_WORD.search(source[max(0, at - 80) : at])
    return before is not None and not keyword.iskeyword(before[1])
