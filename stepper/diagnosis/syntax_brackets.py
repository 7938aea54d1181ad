"""Source that Python can't read because of a bracket, a comma or a triple quote: which one it really is.

Python names the bracket that is left over at the end, and the place where it could go on no more. Where another one is
the fault is tried: what reads with one character more lacked that character.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from stepper.diagnosis.around import listed
from stepper.diagnosis.brackets import PAIRS, unclosed
from stepper.diagnosis.tokens import CLOSER, GOES_ON, Broken, Token, statements, tokens

HEADS = ("if", "elif", "else", "for", "while", "def", "class", "with", "try", "except", "finally", "match", "case")
NEAR, MOST, SUSPECTS = 40, 6, 10  # places tried for a comma, the nearest first; the most commas


class Pair(NamedTuple):
    """A bracket, what closes it (None: nothing), and the bracket around it."""

    opener: Token
    closer: Token | None
    outer: Token | None


def comma(broken: Broken) -> str:
    """Where commas lack: with them the source reads, or reads on."""
    if unclosed(broken.source) or not any(word in broken.message for word in ("comma", "invalid syntax", "cannot")):
        return ""
    found = tokens(broken.source)
    pairs = [
        (one, after)
        for one, after in itertools.pairwise(found)
        if one.depth and one.ends_value and after.begins_value and _apart(one, after)
    ]
    pairs = sorted(pairs, key=lambda pair: abs(pair[1].line - broken.line))[:NEAR]
    put: list[tuple[Token, Token]] = []
    stopped: int | None = broken.line  # None: it reads
    while stopped is not None and len(put) < MOST:
        pair, stopped = _next_comma(broken, [pair for pair in pairs if pair not in put], put, stopped)
        if pair is None:
            break
        put.append(pair)
    if not put:
        return ""
    ends = [one.last_line for one, after in put if after.line > one.last_line]
    at = f"at the end of line{'s' if len(ends) > 1 else ''} {listed([str(line) for line in sorted(ends)])}"
    at = at if len(ends) == len(put) else f"in line {put[0][0].last_line}"
    reads = "the cell reads" if stopped is None else f"it reads on up to line {stopped}"
    between = f", between {_end(put[0][0])} and {_begin(put[0][1])}" if len(put) == 1 or not ends else ""
    lacks = "a comma lacks" if len(put) == 1 else f"{len(put)} commas lack"
    return f"{lacks} {at}{between}: with {'one' if len(put) == 1 else 'them'} {reads}"


def _next_comma(
    broken: Broken, pairs: list[tuple[Token, Token]], put: list[tuple[Token, Token]], stopped: int
) -> tuple[tuple[Token, Token] | None, int | None]:
    """Return the place for one comma more and the line where Python stops then, None where it reads."""
    further: tuple[tuple[Token, Token] | None, int | None] = (None, stopped)
    for pair in pairs:
        said = broken.trials.put(",", *(one.end for one, _ in put), pair[0].end)
        if said is True:
            return pair, None
        line = said.lineno if isinstance(said, SyntaxError) else None
        if further[0] is None and line is not None and line > stopped and line >= pair[1].line:
            further = (pair, line)
    return further


def _apart(one: Token, after: Token) -> bool:
    """Whether no value goes on here: brackets after a value are a call or an index, two texts are one text."""
    if after.text in ("(", "["):
        return after.line > one.last_line
    return one.kind != "string" or after.kind != "string" or after.line > one.last_line


def _end(token: Token) -> str:
    return f"`{token.text if len(token.text) <= 30 else '…' + token.text[-28:]}`".replace("\n", " ")


def _begin(token: Token) -> str:
    return f"`{token.text if len(token.text) <= 30 else token.text[:28] + '…'}`".replace("\n", " ")


def extra(broken: Broken) -> str:
    """A closing bracket that closes nothing, and the one before it that ended the expression."""
    pairs = _pairs(broken.source)
    if unclosed(broken.source):
        return ""
    lonely = next((pair.opener for pair in pairs if pair.opener is pair.closer), None)
    if lonely is None or lonely.line < broken.line:
        return ""
    begins, ends = _expression(broken, lonely)
    closed = [
        (pair.opener, pair.closer)
        for pair in pairs
        if pair.outer is None and pair.closer is not None and begins <= pair.closer.at < ends
        and pair.closer.text == lonely.text
    ]  # fmt: skip
    told = f"the {lonely.text} in {_place(lonely)}, closes nothing"
    if not closed:
        return told
    opener, closer = closed[-1]
    return f"{told}: the {opener.text} opened in {_place(opener)}, is closed already in {_place(closer)}"


def _expression(broken: Broken, token: Token) -> tuple[int, int]:
    """Return where the expression began that a token would be the end of, and where it ended already.

    Lines that begin as no statement does go on with the one above them.
    """
    whole = [one for one in statements(broken.source) if one.tokens[0].at <= token.at]
    for one in whole[::-1]:
        if one.first not in GOES_ON and one.first not in PAIRS:
            return one.tokens[0].at, min(token.at, one.tokens[-1].end)
    return token.at, token.at


def _place(token: Token) -> str:
    return f"line {token.line}, column {token.column}"


def _pairs(source: str) -> list[Pair]:
    """Return each bracket with what closes it, by kind; in the order of the ends.

    A closing bracket that closes nothing is a pair with itself.
    """
    found, opened = [], []
    for token in tokens(source):
        if token.kind != "op":
            continue
        if token.text in CLOSER:
            opened.append(token)
        elif token.text in PAIRS:
            if opened and CLOSER[opened[-1].text] == token.text:
                opener = opened.pop()
                found.append(Pair(opener, token, opened[-1] if opened else None))
            elif not opened:
                found.append(Pair(token, token, None))
            else:
                return found  # another kind closes it: what follows can't be paired
    return [*found, *(Pair(one, None, opened[i - 1] if i else None) for i, one in enumerate(opened))]


def bracket(broken: Broken) -> str:
    """The bracket that lacks its end, and where one makes the cell read."""
    left = unclosed(broken.source)
    if left is None or left[0] not in CLOSER:
        return ""
    mark, line, column = left
    named = next(
        (one for one in tokens(broken.source) if (one.line, one.column, one.text) == (line, column, mark)), None
    )
    if named is None:
        return f"the {mark} opened in line {line}, column {column}, is not closed"  # within an f-string
    for suspect in [*_suspects(broken)[:SUSPECTS], named]:
        end = _end_of(broken, suspect)
        if end:
            closer = next((pair.closer for pair in _pairs(broken.source) if pair.opener is suspect), None)
            other = f"; now the {closer.text} of line {closer.line} closes it" if closer else ""
            return f"the {suspect.text} opened in {_place(suspect)}, lacks its {CLOSER[suspect.text]}: {end}{other}"
    return f"the {mark} opened in line {line}, column {column}, is not closed"


def _suspects(broken: Broken) -> list[Token]:
    """Return brackets closed by what, as it is indented, was to close the one around them; the innermost first.

    And those that a comma follows, which is no Python.
    """
    found = tokens(broken.source)
    emptied = [one for one, after in itertools.pairwise(found) if one.text in CLOSER and after.text == ","]
    for pair in _pairs(broken.source):
        closer, outer = pair.closer, pair.outer
        if closer is None or outer is None or outer.line == pair.opener.line:
            continue
        begins = not broken.lines[closer.line - 1][: closer.column - 1].strip()
        own, around = (_indent(broken, one.line) for one in (pair.opener, outer))
        if begins and closer.line > pair.opener.line and closer.column - 1 == around != own:
            emptied.append(pair.opener)
    return emptied


def _indent(broken: Broken, line: int) -> int:
    text = broken.lines[line - 1]
    return len(text) - len(text.lstrip())


def _end_of(broken: Broken, opener: Token) -> str:
    """Return where a closing bracket for this one makes the source read: behind it, at a line's end, before another."""
    found = [one for one in tokens(broken.source) if one.at >= opener.at and one.kind != "newline"]
    closer = CLOSER[opener.text]
    if len(found) > 1 and found[1].text == "," and broken.trials.put(closer, opener.end) is True:
        return "with one right behind it the cell reads (a `,` follows it now)"
    own = _indent(broken, opener.line)

    def unlikely(pair: tuple[Token, Token | None]) -> int:
        """Where the indentation goes back, the bracket ended; after a comma something goes on, in most cases."""
        deeper = _indent(broken, pair[0].line) > own
        back = pair[1] is None or _indent(broken, pair[1].line) <= own
        return 0 if deeper and back else 2 if pair[0].text == "," else 1

    pairs: list[tuple[Token, Token | None]] = [*itertools.pairwise(found), (found[-1], None)]
    ends = [(one, after) for one, after in pairs if after is None or after.line > one.last_line]
    for last, _ in sorted(ends, key=unlikely):
        at = last.at if last.text in (",", ":") else last.end
        if broken.trials.put(closer, at) is True:
            return f"with one at the end of line {last.last_line} the cell reads"
    other = _met(found)
    if other is not None and broken.trials.put(closer, other.at) is True:
        return f"with one before the {other.text} in {_place(other)}, the cell reads"
    return ""


def _met(found: list[Token]) -> Token | None:
    """Return the closing bracket of another kind that a bracket, the first of these tokens, meets."""
    open_ = 0
    for token in found:
        open_ += (token.text in CLOSER) - (token.text in PAIRS)
        if token.text in PAIRS and open_ == 0:
            return token
    return None


def quote(broken: Broken) -> str:
    """A text that the same quote inside it ends too early, or whose last quote follows a backslash."""
    line = broken.on_line
    for token, after in itertools.pairwise(line):
        joined = token.kind == "string" and after.at == token.end and after.kind in ("name", "number")
        if joined and len(token.text) > 2 and token.text[-3:] != token.text[-1] * 3:
            ends = f"ends at the {token.text[-1]} in line {token.last_line}, column {after.column - 1}"
            return f"the text {_end(token)} {ends}; `{after.text}` follows it"
    if line and line[-1].kind == "open":
        text = line[-1]
        mark = next(one for one in text.text if one in "'\"")
        escaped = text.text.rfind("\\" + mark)
        if escaped > 0:
            told = f"in column {text.column + escaped + 1} follows a backslash and so does not end it"
            return f"the {mark} opened in {_place(text)}, is not closed: the {mark} {told}"
    left = unclosed(broken.source)
    return f"the {left[0]} opened in line {left[1]}, column {left[2]}, is not closed" if left else ""


def colon(broken: Broken) -> str:
    """Where a colon makes the source read: at the end of a block's head, or before its body."""
    here = broken.here
    if here is None or here.first not in HEADS:
        return ""
    before = [one for one in here.tokens if (one.line, one.column) == (broken.line, broken.column)]
    for at, told in [
        (here.tokens[-1].end, f"at the end of line {here.last_line}"),
        *((one.at, f"before {_begin(one)} in line {one.line}") for one in before),
    ]:
        if broken.trials.put(":", at) is True:
            return f"a colon lacks {told}: with one the cell reads"
    return ""


def triple(broken: Broken) -> str:
    """The triple quote that really lacks its end: Python names the last of an odd number."""
    found = tokens(broken.source)
    if not found or found[-1].kind != "open" or len(found[-1].text.lstrip("rbuftRBUFT")) < 3:
        return ""
    quote = found[-1].text.lstrip("rbuftRBUFT")[:3]
    if quote[0] * 3 != quote:
        return ""
    last = found[-1]
    for one in found:
        if one is not last and (one.kind != "string" or not one.text.endswith(quote)):
            continue
        if line := _ends(broken, one, quote):
            paired = f"; as it is, the {quote} of line {one.last_line} ends it" if one is not last else ""
            lacks = f"lacks its end: with one {line} the cell reads{paired}"
            return f"the {quote} opened in {_place(one)}, {lacks}"
    return f"the {quote} opened in {_place(last)}, is not closed"


def _ends(broken: Broken, text: Token, quote: str) -> str:
    """Return the first line in a text at whose end a closing quote makes the source read."""
    begin = broken.source.index(quote, text.at) + 3
    at = begin
    for line in range(text.line, text.last_line + 1):
        end = broken.source.find("\n", at)
        end = len(broken.source) if end < 0 else end
        blank = not broken.source[at:end].strip()
        if not blank and end <= text.end and broken.trials.put(quote, end) is True:
            return f"at the end of line {line}"
        at = end + 1
    return ""
