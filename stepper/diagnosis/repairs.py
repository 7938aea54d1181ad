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

from stepper.diagnosis.tokens import PAIRS, Statement, Token, statements, tokens

NEAR = 500  # tokens around the place where Python stopped; statements above it: a tenth
HEADS = ("if", "elif", "else", "for", "while", "def", "class", "with", "try", "except", "finally", "match", "case")
COMMAND = re.compile(  # of the shell; IPython has magics for those that change the kernel's environment
    r"(?:(?P<magic>pip|conda|mamba|uv)|apt|apt-get|cat|cd|cp|curl|git|ls|mkdir|mv|npm|pip3|python3?|rm|unzip|wget)"
    r" (?![=(\[.,:)])"
)
WORDS = (  # of other languages, of escaped or pretty-printed text → Python's, and what to call them
    (r"(?:```|~~~).*", "", "no Markdown fence (backticks)"),
    (r"[“”„‟]", '"', ""),
    (r"[‘’‚‛]", "'", ""),
    (r"×", "*", ""),
    (r"[−–—]", "-", ""),
    (r"[\u00a0\u2009\u202f\u3000]+", " ", "plain blanks in place of odd ones"),
    (r"else[ \t]+if\b|else?if\b|elsif\b", "elif", ""),
    (r"&&", " and ", ""),
    (r"\|\|", " or ", ""),
    (r"!(?!=)", "not ", ""),
    (r"\b([\w.]+)[ \t]*([+-])\2(?=[ \t]*(?:$|[;#)]))", r"\1 \2= 1", ""),
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
    (r"\\[nr]", "\n", r"a line break in place of `\n`"),
    (r"\\(?=[\"'])", "", ""),
    (r"\\[ \t]+$", r"\\", "a backslash as the last character"),
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
    query: bool = False

    @property
    def code(self) -> list[tuple[Token, Token | None]]:
        """Each token with the one after it, those nearest to where Python stopped first."""
        found = [token for token in tokens(self.source) if token.kind not in ("newline", "magic")]
        pairs = itertools.zip_longest(found, found[1:])
        return sorted(pairs, key=lambda pair: abs(pair[0].line - self.line))[:NEAR]

    @property
    def above(self) -> list[Statement]:
        """The statements up to where Python stopped."""
        return [statement for statement in statements(self.source) if statement.line <= self.line]

    def put(self, place: int, text: str, what: str, at: str = "in") -> Edit:
        """Return an insertion."""
        return Edit(((place, place, text),), what, self.source.count("\n", 0, place) + 1, at)

    def line_end(self, place: int) -> int:
        """Return where the line of a place ends."""
        end = self.source.find("\n", place)
        return len(self.source) if end < 0 else end


def words(broken: Broken) -> Iterator[Edit]:
    """What is no Python outside of a text."""
    starts = {token.at: token.line for token, _ in broken.code if token.kind in ("name", "op")}
    for pattern, python, called in WORDS:
        for found in re.finditer(pattern, broken.source, re.MULTILINE):
            if found.start() in starts:
                new = found.expand(python)
                what = f"{f'`{new.strip()}`' if new else 'nothing'} in place of `{found[0].strip()}`"
                yield Edit(((found.start(), found.end(), new),), called or what, starts[found.start()])


def command(broken: Broken) -> Iterator[Edit]:
    """A command of the shell without the mark that makes it one."""
    for statement in broken.above[-1:]:
        begin = statement.tokens[0].at
        line = broken.source[begin : broken.line_end(begin)].rstrip()
        if found := COMMAND.match(line):
            mark = "%" if found["magic"] else "!"
            yield broken.put(begin, mark, f"`{mark}{line[:60]}` (a command of the shell)")


def marks(broken: Broken) -> Iterator[Edit]:
    """A colon, a closing bracket, a comma: at a line's end, before what stands on the line where Python stopped."""
    width = [0, *(len(line) - len(line.lstrip()) for line in broken.source.split("\n"))]
    ops = [token.text for token in tokens(broken.source) if token.kind == "op"]
    lacking = [closer for closer, opener in PAIRS.items() if ops.count(opener) > ops.count(closer)]
    ends = [(last, after) for last, after in broken.code if not after or after.line > last.last_line]

    def unlikely(pair: tuple[Token, Token | None]) -> tuple[int, int]:
        """Where the indentation goes back, the bracket ended; after a comma something goes on, in most cases."""
        last, after = pair
        back = after is not None and after.text not in PAIRS and width[after.line] < width[last.last_line]
        return (0 if back else 2 if last.text == "," else 1, last.at)

    for statement in broken.above[-2:]:
        if statement.tokens[0].text in HEADS:
            yield broken.put(statement.tokens[-1].end, ":", "a colon", "at the end of")
            for token in statement.tokens[1:]:
                yield broken.put(token.at, ": ", f"a colon before `{token.text[:30]}`")
    for closer in lacking:
        for last, _ in sorted(ends, key=unlikely):
            yield broken.put(last.at if last.text in (",", ":") else last.end, closer, f"a `{closer}`", "at the end of")
        for token, _ in broken.code:
            if token.text in PAIRS:
                yield broken.put(token.at, closer, f"a `{closer}` before the `{token.text}`")
    for last, after in broken.code if not lacking else ():
        if last.depth and after and (last.is_value or last.text in PAIRS) and (after.is_value or after.text in "([{"):
            if after.line > last.last_line:
                yield broken.put(last.end, ",", "a comma", "at the end of")
            elif after.text not in ("(", "[") and {last.kind, after.kind} != {"string"}:
                yield broken.put(last.end, ",", f"a comma before `{after.text[:30]}`")


def too_many(broken: Broken) -> Iterator[Edit]:
    """A closing bracket too many, which may stand above; an operator too many."""
    for token, _ in sorted(broken.code, key=lambda pair: -pair[0].at):
        if token.kind == "op" and (token.line == broken.line or (token.text in PAIRS and token.line < broken.line)):
            at = f"in column {token.column} of"
            yield Edit(((token.at, token.end, " "),), f"the `{token.text}` taken out", token.line, at)


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
            yield broken.put(token.end - 1, "\\", f"a backslash before the inner {mark}")


def ends_of_texts(broken: Broken) -> Iterator[Edit]:
    """A text, or an f-string's field, that lacks its end; of triple quotes Python names the last of an odd number."""
    found = tokens(broken.source)
    lacks = bool(found) and found[-1].kind == "open"
    for token in found:
        quote = token.text.lstrip("rbuftRBUFT")
        mark = quote[:3] if quote[:3] in ('"""', "'''") else quote[:1]
        places = r"(?<!\n)(?=\n|\Z)" if len(mark) == 3 else r"(?=[)\]},]|\Z)"
        open_ = token.kind == "open" or (token.kind == "string" and len(mark) == 3 and lacks)
        for end in re.finditer(places, token.text) if open_ else ():
            at = "at the end of" if len(mark) == 3 else "in"
            yield broken.put(token.at + end.start(), mark, f"the {mark} of line {token.line} closed", at)
        for field in re.finditer(r"\{[\w.]+(?![\w.}:!=(\[])", token.text if "f" in token.text[:2].lower() else ""):
            if token.kind == "string":
                yield broken.put(token.at + field.end(), "}", f"a `}}` after `{field[0]}`")


def tabs(broken: Broken) -> Iterator[Edit]:
    """Blanks in place of tabs."""
    for size, line in itertools.product((4, 8), statements(broken.source)):
        if "\t" in line.indent:
            begin, new = line.tokens[0].at - len(line.indent), line.indent.replace("\t", " " * size)
            yield Edit(((begin, begin + len(line.indent), new),), f"{size} blanks in place of the tab", line.line)


def indentation(broken: Broken) -> Iterator[Edit]:
    """Lines moved into a block around them: the one where Python stopped, those with it, those above it."""
    whole, end = statements(broken.source), len(broken.above)
    for first in range(end - 1, max(0, end - NEAR // 10), -1):
        head = whole[first - 1]  # a block that begins with an odd indentation is the likeliest
        if head.opens_block and whole[first].width not in (head.width + 4, head.width):
            yield _moved(whole[first : first + 1], head.width + 4, whole[:first])
    for first in range(end - 1, max(0, end - NEAR // 10), -1):
        above, now = whole[max(0, first - NEAR) : first], whole[first].width
        widths = {above[-1].width} if above[-1].width > now else set()
        if first == end - 1:
            widths = {line.width for line in above} | {above[-1].width + 4 * above[-1].opens_block}
        run = next((number for number in range(first, len(whole)) if whole[number].width < now), len(whole))
        for _, negative in sorted((abs(width - now), -width) for width in widths - {now}):
            for stop in (end, end - 1, run):
                if stop > first:
                    yield _moved(whole[first:stop], -negative, above)


def _moved(lines: tuple[Statement, ...], width: int, above: tuple[Statement, ...]) -> Edit:
    """Return the change that moves lines, the first to this width."""
    now = lines[0].width
    begins = [(line.tokens[0].at, line) for line in lines]
    pieces = tuple((at - len(line.indent), at, " " * max(0, line.width + width - now)) for at, line in begins)
    head = next((line for line in above[::-1] if line.width < width), None)
    into = f", in the block of line {head.line}" if head else ""
    which = f"line {lines[0].line}" if len(lines) == 1 else f"lines {lines[0].line}–{lines[-1].line}"
    return Edit(pieces, f"{which} indented by {width} blanks (now {now}){into}", lines[0].line, "")


def bodies(broken: Broken) -> Iterator[Edit]:
    """What a block lacks: a statement, a handler."""
    whole = statements(broken.source)
    for number, head in [*enumerate(whole[: len(broken.above) + 1])][: -NEAR // 10 : -1]:
        after = next((line for line in whole[number + 1 :] if line.width <= head.width), None)
        if head.opens_block and (after is None or after is whole[number + 1]):
            text = f"\n{head.indent}    pass"
            yield broken.put(broken.line_end(head.tokens[-1].end), text, "a body (if only `pass`)", "below")
        if head.tokens[0].text == "try":
            text = f"{head.indent}finally:\n{head.indent}    pass\n"
            place = after.tokens[0].at - len(after.indent) if after else len(broken.source)
            what = f"an `except` or `finally` for the try of line {head.line}"
            yield broken.put(place, text if after else f"\n{text}", what, "before" if after else "below")


def joined(broken: Broken) -> Iterator[Edit]:
    """A line that goes on with the one above it."""
    for above in broken.above[-2:-1]:
        what = "a backslash (or brackets around the whole)"
        yield broken.put(broken.line_end(above.tokens[-1].end), " \\", what, "at the end of")


def names(broken: Broken) -> Iterator[Edit]:
    """A reserved word where a name has to stand; in a query two words that are one column's name."""
    for token, after in broken.code:
        if token.line == broken.line and keyword.iskeyword(token.text) and token.text not in ("break", "continue"):
            what = f"`{token.text}_` in place of the reserved word `{token.text}`"
            yield broken.put(token.end, "_", what)
        if broken.query and after and token.kind == after.kind == "name":
            what = f"`{token.text} {after.text}` as one name (a query takes it between backticks)"
            yield Edit(((token.end, after.at, "_"),), what, token.line)


ROWS: tuple[tuple[Callable[[Broken], Iterator[Edit]], bool], ...] = (  # True: all of a row may be needed together
    (words, True),
    (command, False),
    (marks, True),
    (too_many, False),
    (inner_quotes, True),
    (ends_of_texts, False),
    (tabs, True),
    (indentation, False),
    (bodies, False),
    (joined, False),
    (names, False),
)
