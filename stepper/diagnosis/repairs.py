"""Small changes that make broken source read, by kind: `ROWS` is a table, read from the top.

Each row proposes changes near the place where Python stopped. None of them knows what the fault is: whoever asks tries
them, and the first with which the whole source reads tells it.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepper.diagnosis.tokens import CLOSER, PAIRS, Statement, Token, mate, statements, tokens

HEADS = ("if", "elif", "else", "for", "while", "def", "class", "with", "try", "except", "finally", "match", "case")
HANDLERS = ("except", "finally")
ALONE = ("True", "False", "None", "break", "continue", "pass")  # reserved words that are no mistaken names
PLAIN = str.maketrans("“”„‟‘’‚‛×÷−–—…；，：（）\u00a0\u2009\u202f\u3000", "\"\"\"\"''''*/---.;,:()    ")
SHELL = {  # the word that a command of the shell begins with → IPython's mark
    **dict.fromkeys("pip conda mamba uv".split(), "%"),
    **dict.fromkeys(
        "apt apt-get cat cd cp curl git ls mkdir mv npm pip3 python python3 rm tar unzip wget".split(), "!"
    ),
}
WORDS = (  # of other languages, of escaped text → Python's, and what to call them
    (r"else[ \t]+if\b|else?if\b|elsif\b", "elif", ""),
    (r"&&", " and ", ""),
    (r"\|\|", " or ", ""),
    (r"!(?!=)", "not ", ""),
    (r"([\w.]+)[ \t]*\+\+(?=[ \t]*(?:$|[;#)]))", r"\1 += 1", ""),
    (r"([\w.]+)[ \t]*--(?=[ \t]*(?:$|[;#)]))", r"\1 -= 1", ""),
    (r"!==|<>", "!=", ""),
    (r"===", "==", ""),
    (r"=>", ">=", ""),
    (r"=<", "<=", ""),
    (r"catch\b", "except", ""),
    (r"throw([ \t]+new)?\b", "raise", ""),
    (r"function\b", "def", ""),
    (r"(?:var|let|const|new|int|float|double|auto)[ \t]+(?=\w)", "", ""),
    (r"//", "#", ""),
    (r"(and|or)[ \t]+\1\b", r"\1", ""),  # what pandas makes of && and ||
    (r"\\[nr]", "\n", "a line break"),
    (r"\\(?=[\"'])", "", ""),
    (r"\\[ \t]+$", r"\\", "a backslash at the line's very end"),
)


@dataclass(frozen=True)
class Edit:
    """A change of a source: pieces from–to and what stands there then; how one says it after "reads with".

    `at` goes between `what` and the line; '' where `what` names its lines.
    """

    pieces: tuple[tuple[int, int, str], ...]
    what: str
    line: int
    at: str = "in"


@dataclass(frozen=True)
class Broken:
    """A source that Python can't read, and where it stopped. `query`: pandas has names with blanks in it."""

    source: str
    line: int
    column: int = 0
    query: bool = False

    @property
    def tokens(self) -> list[Token]:
        """The tokens that are code, those nearest to where Python stopped first."""
        found = [token for token in tokens(self.source) if token.kind not in ("newline", "magic")]
        return sorted(found, key=lambda token: abs(token.line - self.line))

    @property
    def pairs(self) -> list[tuple[Token, Token]]:
        """Each token with the one after it, the nearest first."""
        return sorted(itertools.pairwise(tokens(self.source)), key=lambda pair: abs(pair[1].line - self.line))

    @property
    def above(self) -> list[Statement]:
        """The statements up to where Python stopped, the nearest first."""
        return [statement for statement in statements(self.source) if statement.line <= self.line][::-1]

    def line_end(self, at: int) -> int:
        """Return where the line of a place ends."""
        end = self.source.find("\n", at)
        return len(self.source) if end < 0 else end


def _put(place: int, text: str, what: str, line: int, at: str = "in") -> Edit:
    return Edit(((place, place, text),), what, line, at)


def fences(broken: Broken) -> Iterator[Edit]:
    """The lines of backticks that fence code in Markdown."""
    for found in re.finditer(r"^[ \t]*(?:```|~~~).*", broken.source, re.MULTILINE):
        line = broken.source.count("\n", 0, found.start()) + 1
        yield Edit(((found.start(), found.end(), ""),), "no Markdown fence (backticks)", line)


def characters(broken: Broken) -> Iterator[Edit]:
    """Curly quotes, long dashes, odd blanks: what a word processor or a web page writes."""
    for token in broken.tokens:
        plain = token.text.translate(PLAIN)
        if token.kind == "op" and not token.text.isascii():
            shown = token.text if token.text.isprintable() else f"U+{ord(token.text):04X}"
            yield Edit(((token.at, token.end, plain),), f"`{plain}` in place of `{shown}`", token.line)


def words(broken: Broken) -> Iterator[Edit]:
    """Words and operators of other languages; escapes outside of a text."""
    starts = {token.at: token.line for token in broken.tokens if token.kind in ("name", "op")}
    for pattern, python, called in WORDS:
        for found in re.finditer(pattern, broken.source, re.MULTILINE):
            if found.start() in starts:
                new = found.expand(python)
                what = f"{called or f'`{new.strip()}`' if new else 'nothing'} in place of `{found[0].strip()}`"
                yield Edit(((found.start(), found.end(), new),), what, starts[found.start()])


def command(broken: Broken) -> Iterator[Edit]:
    """A command of the shell without the mark that makes it one."""
    for statement in broken.above[:1]:
        begin = statement.tokens[0].at
        line = broken.source[begin : broken.line_end(begin)].rstrip()
        mark = SHELL.get(line.split()[0])
        if mark and re.match(r"\S+ [^=(\[.,:)]", line):
            yield _put(begin, mark, f"`{mark}{line[:60]}` (a command of the shell)", statement.line)


def colon(broken: Broken) -> Iterator[Edit]:
    """A colon at the end of a block's head, or before its body."""
    for statement in broken.above[:2]:
        if statement.first in HEADS:
            last = statement.tokens[-1]
            yield _put(last.end, ":", "a colon", last.last_line, "at the end of")
            for token in statement.tokens:
                if (token.line, token.column) == (broken.line, broken.column):
                    yield _put(token.at, ": ", f"a colon before `{token.text}`", token.line)


def equals(broken: Broken) -> Iterator[Edit]:
    """An assignment where a comparison is meant."""
    for statement in broken.above[:1]:
        for token in statement.tokens if statement.first in ("if", "elif", "while", "assert", "return") else ():
            if token.text == "=":
                yield _put(token.end, "=", "`==` in place of `=`", token.line, f"in column {token.column} of")


def bracket(broken: Broken) -> Iterator[Edit]:
    """A closing bracket: at a line's end, before its comma or colon; before one of another kind."""
    code = [token for token in tokens(broken.source) if token.kind != "newline"]
    width = [0, *(len(line) - len(line.lstrip()) for line in broken.source.split("\n"))]

    def unlikely(pair: tuple[Token, Token | None]) -> int:
        """Where the indentation goes back, the bracket ended; after a comma something goes on, in most cases."""
        last, after = pair
        back = after is not None and after.text not in PAIRS and width[after.line] < width[last.last_line]
        return 0 if back else 2 if last.text == "," else 1

    ends = [
        (last, after)
        for last, after in itertools.zip_longest(code, code[1:])
        if (not after or after.line > last.last_line) and (last.depth or last.text in CLOSER)
    ]
    marks = [token.text for token in code if token.kind == "op"]
    for opener, closer in CLOSER.items():
        if marks.count(opener) <= marks.count(closer):
            continue
        for token, _ in sorted(ends, key=unlikely):
            place = token.at if token.text in (",", ":") else token.end
            yield _closed(broken, closer, place, token.last_line, "at the end of")
        for token in code:
            if token.text in PAIRS and token.text != closer:
                yield _closed(broken, closer, token.at, token.line, f"before the `{token.text}` in")


def _closed(broken: Broken, closer: str, place: int, line: int, at: str) -> Edit:
    opener = mate(broken.source[:place] + closer + broken.source[place:], place)
    what = f"the {opener.text} of line {opener.line}, column {opener.column}, closed" if opener else f"a `{closer}`"
    return _put(place, closer, what, line, at)


def too_many(broken: Broken) -> Iterator[Edit]:
    """A closing bracket that closes nothing, or what should go on."""
    for token in sorted(broken.tokens, key=lambda token: -token.at):
        if token.text in PAIRS and token.line <= broken.line:
            at = f"in column {token.column} of"
            yield Edit(((token.at, token.end, ""),), f"the `{token.text}` taken out", token.line, at)


def inner_quotes(broken: Broken) -> Iterator[Edit]:
    """A text that its own quote inside it ends too early."""
    found = tokens(broken.source)
    for token, inner, after in zip(found, found[1:], found[2:], strict=False):
        mark = token.text[-1:]
        if token.kind != "string" or inner.at != token.end or inner.kind not in ("name", "number"):
            continue
        if "f" in token.text[:2].lower() and after.text[:1] == mark:
            other = {'"': "'", "'": '"'}[mark]
            pieces = ((token.end - 1, token.end, other), (after.at, after.at + 1, other))
            yield Edit(pieces, f"the other kind of quotes ({other}) inside the f-string", token.line)
        elif token.text[-3:] != mark * 3:
            at = f"in column {inner.column - 1} of"
            yield _put(token.end - 1, "\\", f"a backslash before the {mark}", token.last_line, at)


def ends_of_texts(broken: Broken) -> Iterator[Edit]:
    """A text, or a field of an f-string, that lacks its end; of triple quotes Python names the last of an odd number."""
    found = tokens(broken.source)
    for token in found if found and found[-1].kind == "open" else broken.tokens:
        quote = token.text.lstrip("rbuftRBUFT")
        mark = quote[:3] if quote[:3] in ('"""', "'''") else quote[:1]
        what = f"the {mark} of line {token.line}, column {token.column}, closed"
        if token.kind == "open" and f"\\{mark}" in quote:
            at = token.text.rindex(f"\\{mark}")
            yield _put(token.at + at, "\\", f"one more backslash before the last {mark}", token.line)
        places = r"(?<!\n)(?=\n|\Z)" if len(mark) == 3 else r"(?=[)\]},]|\Z)"
        open_ = token.kind == "open" or (token.kind == "string" and len(mark) == 3 and found[-1].kind == "open")
        for end in re.finditer(places, token.text) if open_ else ():
            at, line = end.start(), token.line + token.text.count("\n", 0, end.start())
            before = "in" if len(mark) == 1 and token.text[at:] else "at the end of"
            yield _put(token.at + at, mark, what, line, before)
        fields = re.finditer(r"\{[\w.]+(?![\w.}:!=(\[])", token.text if "f" in token.text[:2].lower() else "")
        for field in fields if token.kind == "string" else ():
            line = token.line + token.text.count("\n", 0, field.end())
            yield _put(token.at + field.end(), "}", f"a `}}` after `{field[0]}`", line)


def comma(broken: Broken) -> Iterator[Edit]:
    """A comma between two values within brackets."""
    for token, after in broken.pairs:
        ends, begins = token.is_value or token.text in PAIRS, after.is_value or after.text in CLOSER
        apart = after.line > token.last_line  # else a call, an index; two texts side by side are one
        texts = token.kind == after.kind == "string"
        if token.depth and ends and begins and (apart or (after.text not in ("(", "[") and not texts)):
            at = "at the end of" if apart else f"before `{after.text[:30]}` in"
            yield _put(token.end, ",", "a comma", token.last_line, at)


def declaration(broken: Broken) -> Iterator[Edit]:
    """A declaration that has to stand further up."""
    for here in broken.above[:1]:
        begin, end = here.tokens[0].at, here.tokens[-1].end
        for above in broken.above[1:] if here.first in ("global", "nonlocal", "from") else ():
            text = broken.source[begin:end]
            pieces = ((above.tokens[0].at, above.tokens[0].at, f"{text}\n{above.indent}"), (begin, end, "pass"))
            yield Edit(pieces, f"`{text}` moved up", above.line, "before")


def tabs(broken: Broken) -> Iterator[Edit]:
    """Blanks in place of tabs."""
    for size in (4, 8):
        for line in statements(broken.source):
            if "\t" in line.indent:
                begin, new = line.tokens[0].at - len(line.indent), line.indent.replace("\t", " " * size)
                what = f"{size} blanks in place of the tab"
                yield Edit(((begin, begin + len(line.indent), new),), what, line.line)


def indentation(broken: Broken) -> Iterator[Edit]:
    """Lines moved into a block around them: the one where Python stopped, those with it, those above it."""
    whole = broken.above[::-1]
    for here in whole[-1:]:
        run = itertools.takewhile(lambda line: line.width >= here.width, statements(broken.source)[len(whole) :])
        both = [here], [here, *run]
        widths = {line.width for line in whole[:-1]} | {line.width + 4 for line in whole[-2:-1] if line.opens_block}
        for width in sorted(widths - {here.width}, key=lambda width: (abs(width - here.width), -width)):
            yield from (_moved(lines, width, whole[:-1]) for lines in both)
    for number in range(len(whole) - 1, 0, -1):
        width = whole[number - 1].width
        if width > whole[number].width:
            ends = range(len(whole), max(number, len(whole) - 2), -1)
            yield from (_moved(whole[number:end], width, whole[:number]) for end in ends)


def _moved(lines: list[Statement], width: int, above: list[Statement]) -> Edit:
    """Return the change that moves lines, the first to this width."""
    now = lines[0].width
    pieces = tuple(
        (line.tokens[0].at - len(line.indent), line.tokens[0].at, " " * max(0, line.width + width - now))
        for line in lines
    )
    head = next((line for line in above[::-1] if line.width < width), None)
    into = f", in the block of line {head.line}" if head else ""
    which = f"line {lines[0].line}" if len(lines) == 1 else f"lines {lines[0].line}–{lines[-1].line}"
    return Edit(pieces, f"{which} indented by {width} blanks (now {now}){into}", lines[0].line, "")


def bodies(broken: Broken) -> Iterator[Edit]:
    """What a block lacks: a statement, a handler."""
    whole = statements(broken.source)
    for number, head in reversed([*enumerate(whole)]):
        after = next((line for line in whole[number + 1 :] if line.width <= head.width), None)
        if head.opens_block and (after is None or after is whole[number + 1]):
            text = f"\n{head.indent}    pass"
            yield _put(broken.line_end(head.tokens[-1].end), text, "a body (if only `pass`)", head.line, "below")
        if head.first == "try" and not (after and after.first in HANDLERS and after.width == head.width):
            text = f"{head.indent}finally:\n{head.indent}    pass\n"
            begin = after.tokens[0].at - len(after.indent) if after else len(broken.source)
            what = "an `except` or `finally`"
            yield _put(begin, text if after else f"\n{text}", what, head.line, "for the try of")


def joined(broken: Broken) -> Iterator[Edit]:
    """A line that goes on with the one above it."""
    for above in broken.above[1:2]:
        last = above.tokens[-1]
        what = "a backslash (or brackets around the whole)"
        yield _put(broken.line_end(last.end), " \\", what, last.last_line, "at the end of")


def names(broken: Broken) -> Iterator[Edit]:
    """A reserved word where a name has to stand; in a query two words that are one column's name."""
    for token in broken.tokens:
        if token.line == broken.line and keyword.iskeyword(token.text) and token.text not in ALONE:
            what = f"`{token.text}_` in place of the reserved word `{token.text}`"
            yield _put(token.end, "_", what, token.line)
    for token, after in broken.pairs if broken.query else ():
        if token.kind == after.kind == "name":
            what = f"`{token.text} {after.text}` as one name (a query takes it between backticks)"
            yield Edit(((token.end, after.at, "_"),), what, token.line)


ROWS: tuple[tuple[Callable[[Broken], Iterator[Edit]], bool], ...] = (  # True: all of a row may be needed together
    (fences, True),
    (characters, True),
    (words, True),
    (command, False),
    (colon, False),
    (equals, False),
    (bracket, False),
    (too_many, False),
    (inner_quotes, True),
    (ends_of_texts, False),
    (comma, True),
    (declaration, False),
    (tabs, True),
    (indentation, False),
    (bodies, False),
    (joined, False),
    (names, False),
)
