"""Source that may be broken, as tokens and statements: what `tokenize` and `ast` refuse to give for it."""

from __future__ import annotations

import functools
import keyword
import re
from typing import NamedTuple

PAIRS = {")": "(", "]": "[", "}": "{"}
QUOTE = r"\"\"\"|'''|\"|'"
# IPython's own lines are no Python: `!echo "it's`, `%run x`, `files = !ls 'a`.
MAGIC_LINE = re.compile(r"(?:[\w, \t]*=)?[ \t]*[%!?].*")
TOKEN = re.compile(
    rf"(?P<blank>[ \t\f\r]+|\\\n)|(?P<comment>#[^\n]*)|(?P<newline>\n)"
    rf"|(?P<string>(?:\b(?i:[rbuft]|[ft]r|r[bft]|br))?(?P<quote>{QUOTE}))"
    r"|(?P<number>(?:\d|\.\d)[\w.]*)|(?P<name>[^\W\d]\w*)|(?P<op>\*\*|//|==|!=|<=|>=|->|:=|[-+*/%&|^]=|.)"
)
REST = {  # of a string, from its quote on
    mark: re.compile(rf"(?:\\.|[^\\{'' if len(mark) == 3 else mark + chr(10)}])*?{mark}", re.DOTALL)
    for mark in ('"""', "'''", '"', "'")
}
DEEPEST = 50  # brackets within brackets that a closing bracket is looked for in


class Token(NamedTuple):
    """A piece of source, with `depth` brackets around it. `kind` `open` is a text without end; `at` to `end`: where."""

    kind: str
    text: str
    at: int
    end: int
    line: int
    last_line: int
    column: int
    depth: int

    @property
    def is_value(self) -> bool:
        """Whether it is a value by itself."""
        word = self.kind == "name" and (not keyword.iskeyword(self.text) or self.text in ("None", "True", "False"))
        return word or self.kind in ("number", "string")


class Statement(NamedTuple):
    """A logical line: how it is indented (`width` columns), what it is made of."""

    line: int
    indent: str
    width: int
    opens_block: bool
    tokens: tuple[Token, ...]


@functools.lru_cache(maxsize=4)
def tokens(source: str) -> tuple[Token, ...]:
    """Return the tokens of a source, without blanks and comments; line breaks that end a statement are left in."""
    found: list[Token] = []
    opened: list[str] = []  # a bracket that lacks its end is let go where the one around it is closed
    at, line, head = 0, 1, 0
    while at < len(source):
        magic = MAGIC_LINE.match(source, at) if not opened and at == head else None
        match = magic or TOKEN.match(source, at)
        if match is None:  # a lone line separator, say
            at += 1
            continue
        kind, text = "magic" if magic else match.lastgroup or "", match[0]
        if not magic and match["quote"]:
            rest = REST[match["quote"]].match(source, match.end())
            line_end = source.find("\n", at) if len(match["quote"]) == 1 else -1
            kind = "string" if rest else "open"
            text = source[at : rest.end() if rest else line_end if line_end >= 0 else len(source)]
        if text in PAIRS and PAIRS[text] in (near := opened[-DEEPEST:]):
            del opened[-1 - near[::-1].index(PAIRS[text]) :]
        if kind not in ("blank", "comment") and not (kind == "newline" and opened):
            lead = len(text) - len(text.lstrip()) if magic else 0
            last, column = line + text.count("\n"), at - head + lead + 1
            found.append(Token(kind, text[lead:], at + lead, at + len(text), line, last, column, len(opened)))
        if text in PAIRS.values():
            opened.append(text)
        line += text.count("\n")
        at += len(text)
        head = source.rfind("\n", 0, at) + 1 if "\n" in text else head
    return tuple(found)


@functools.lru_cache(maxsize=4)
def statements(source: str) -> tuple[Statement, ...]:
    """Return the logical lines of a source."""
    found: list[Statement] = []
    held: list[Token] = []
    for token in (*tokens(source), None):
        if token and token.kind != "newline":
            held.append(token)
        elif held:
            indent = source[source.rfind("\n", 0, held[0].at) + 1 : held[0].at]
            width, opens = len(indent.expandtabs(8)), held[-1].text == ":"
            found.append(Statement(held[0].line, indent, width, opens, tuple(held)))
            held = []
    return tuple(found)
