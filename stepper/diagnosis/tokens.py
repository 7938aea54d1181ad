"""Source that may be broken, as tokens and statements: what `tokenize` and `ast` don't give for it."""

from __future__ import annotations

import ast
import functools
import keyword
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepper.diagnosis.brackets import MAGIC_LINE, PAIRS, QUOTE, REST

TOKEN = re.compile(
    rf"(?P<blank>[ \t\f\r]+|\\\n)|(?P<comment>#[^\n]*)|(?P<newline>\n)"
    rf"|(?P<string>(?:\b(?i:[rbuft]|[ft]r|r[bft]|br))?(?P<quote>{QUOTE}))"
    r"|(?P<number>(?:\d|\.\d)[\w.]*)|(?P<name>[^\W\d]\w*)|(?P<op>\*\*|//|==|!=|<=|>=|->|:=|[-+*/%&|^]=|.)"
)
CLOSER = {opener: closer for closer, opener in PAIRS.items()}
GOES_ON = (  # what no statement begins with
    ".",
    "and",
    "or",
    "in",
    "is",
    "|",
    "&",
    "/",
    "//",
    "%",
    "==",
    "!=",
    "<",
    ">",
    "<=",
    ">=",
    "^",
    "**",
    "->",
)
DEEPEST = 50  # brackets within brackets that a closing one is looked for in
EFFORT = 1_000_000  # characters that the trials on one source may read in all: some tenths of a second


class Token(NamedTuple):
    """A piece of source; lines and columns from 1. `kind` is name, number, string, op – or `open`: a text without end.

    `depth` is the number of brackets around it.
    """

    kind: str
    text: str
    at: int
    line: int
    column: int
    depth: int

    @property
    def end(self) -> int:
        """Where it ends in the source."""
        return self.at + len(self.text)

    @property
    def last_line(self) -> int:
        """The line on which it ends."""
        return self.line + self.text.count("\n")

    @property
    def ends_value(self) -> bool:
        """Whether a value may end here."""
        return self.kind in ("number", "string") or self.is_name or self.text in PAIRS

    @property
    def begins_value(self) -> bool:
        """Whether a value may begin here, and nothing else."""
        return self.kind in ("number", "string") or self.is_name or self.text in "{[("

    @property
    def is_name(self) -> bool:
        """Whether it names a value."""
        return self.kind == "name" and (not keyword.iskeyword(self.text) or self.text in ("None", "True", "False"))


class Statement(NamedTuple):
    """A logical line: where it begins, how it is indented, what it is made of."""

    line: int
    indent: str
    tokens: Sequence[Token]

    @property
    def first(self) -> str:
        """The word it begins with; of `async for` the second."""
        words = [token.text for token in self.tokens[:2]]
        return words[-1] if words[0] == "async" else words[0]

    @property
    def width(self) -> int:
        """How far it is indented, in columns."""
        return len(self.indent.expandtabs(8))

    @property
    def opens_block(self) -> bool:
        """Whether it ends with a colon."""
        return self.tokens[-1].text == ":"

    @property
    def last_line(self) -> int:
        """The line on which it ends."""
        return self.tokens[-1].last_line


@functools.lru_cache(maxsize=4)
def tokens(source: str) -> tuple[Token, ...]:
    """Return the tokens of a source, without blanks and comments; line breaks that end a statement are left in."""
    found: list[Token] = []
    opened: list[str] = []  # a bracket that lacks its end is let go where the one around it is closed
    at, line, head = 0, 1, 0
    while at < len(source):
        magic = MAGIC_LINE.match(source, at) if not opened and at == head else None
        if magic and magic.end() > at:
            found.append(Token("magic", magic[0].strip(), at + len(magic[0]) - len(magic[0].lstrip()), line, 1, 0))
            at = magic.end()
            continue
        match = TOKEN.match(source, at)
        if match is None:  # no regular expression matches nothing of this: a lone line separator, say
            at += 1
            continue
        kind, text = match.lastgroup or "", match[0]
        if match["quote"]:
            rest = REST[match["quote"]].match(source, match.end())
            kind = "string" if rest else "open"
            whole = rest.end() if rest else len(source) if len(match["quote"]) == 3 else _line_end(source, at)
            text = source[at:whole]
        if text in PAIRS and PAIRS[text] in (near := opened[-DEEPEST:]):
            del opened[-1 - near[::-1].index(PAIRS[text]) :]
        if kind not in ("blank", "comment") and not (kind == "newline" and opened):
            found.append(Token(kind, text, at, line, at - head + 1, len(opened)))
        if text in CLOSER:
            opened.append(text)
        line += text.count("\n")
        at += len(text)
        head = at if text == "\n" else source.rfind("\n", 0, at) + 1
    return tuple(found)


def _line_end(source: str, at: int) -> int:
    found = source.find("\n", at)
    return len(source) if found < 0 else found


@functools.lru_cache(maxsize=4)
def statements(source: str) -> tuple[Statement, ...]:
    """Return the logical lines of a source."""
    found: list[Statement] = []
    held: list[Token] = []
    for token in (*tokens(source), Token("newline", "\n", len(source), 0, 0, 0)):
        if token.kind != "newline":
            held.append(token)
        elif held:
            head = source.rfind("\n", 0, held[0].at) + 1
            found.append(Statement(held[0].line, source[head : held[0].at], tuple(held)))
            held = []
    return tuple(found)


@dataclass
class Trials:
    """Tries changes of a source: what reads then was the fault. Bounded by the characters read, not by the clock."""

    source: str
    left: int = EFFORT

    def __post_init__(self) -> None:
        self.source = plain(self.source)

    def put(self, text: str, *places: int) -> SyntaxError | bool:
        """Return whether the source reads with `text` put in at these places; what Python says, where it doesn't."""
        self.left -= len(self.source)
        if self.left < 0:
            return False
        source = self.source
        for at in sorted(places, reverse=True):
            source = source[:at] + text + source[at:]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(source, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            return error
        except Exception:  # noqa: BLE001  # too deep, a null byte: it tells nothing
            return False
        return True

    def tree(self) -> ast.Module | None:
        """Return the source's tree, where only the compiler refuses it."""
        return ast.parse(self.source) if self.put("") is True else None


def plain(source: str) -> str:
    """Return a source with IPython's own lines as zeros of the same length."""
    cut = source
    for token in tokens(source):
        if token.kind == "magic":
            cut = cut[: token.at] + "0".ljust(len(token.text)) + cut[token.end :]
    return cut


@dataclass(frozen=True)
class Broken:
    """A source that Python can't read: where it stopped, and what it said."""

    source: str
    kind: str
    message: str
    line: int
    column: int
    trials: Trials

    @functools.cached_property
    def lines(self) -> list[str]:
        """The source's lines."""
        return self.source.split("\n")

    @property
    def text(self) -> str:
        """The line where Python stopped."""
        return self.lines[self.line - 1] if 0 < self.line <= len(self.lines) else ""

    @property
    def here(self) -> Statement | None:
        """The statement that this line begins, or is in."""
        before = [one for one in statements(self.source) if one.line <= self.line]
        return before[-1] if before else None

    @property
    def on_line(self) -> list[Token]:
        """The tokens that begin on this line."""
        return [token for token in tokens(self.source) if token.line == self.line and token.kind != "newline"]

    def before(self, statement: Statement) -> list[Statement]:
        """Return the statements above one, the nearest first."""
        return [one for one in statements(self.source) if one.line < statement.line][::-1]

    def shown(self, line: int) -> str:
        """Return a line's text, as one quotes it."""
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return f"`{text if len(text) <= 60 else text[:59] + '…'}`"
