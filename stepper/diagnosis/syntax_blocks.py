"""Source that Python can't read because of its blocks: indentation, tabs, what belongs together and is apart."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from stepper.diagnosis.around import listed
from stepper.diagnosis.tokens import GOES_ON, Broken, Statement, statements

OPENERS = {  # what may stand before it, at the same indentation
    "elif": ("if", "elif"),
    "else": ("if", "elif", "for", "while", "try", "except"),
    "except": ("try", "except"),
    "finally": ("try", "except", "else"),
}
LOOPS = (ast.For, ast.While, ast.AsyncFor)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def tabs(broken: Broken) -> str:
    """Which lines are indented by a tab, and which by blanks."""
    if not broken.kind.startswith(("Tab", "Indentation")):
        return ""
    with_tab = [one.line for one in statements(broken.source) if "\t" in one.indent]
    with_blanks = [one.line for one in statements(broken.source) if one.indent and "\t" not in one.indent]
    if not with_tab or not with_blanks:
        return ""
    verb = "is" if len(with_tab) == 1 else "are"
    return f"{_lines(with_tab)} {verb} indented with a tab, {_lines(with_blanks)} with blanks alone"


def unindent(broken: Broken) -> str:
    """How far a line is indented, and the blocks open there."""
    here = broken.here
    if "unindent does not match" not in broken.message or here is None:
        return ""
    opened: list[Statement] = []
    for one in broken.before(here)[::-1]:
        opened = [*(block for block in opened if block.width < one.width), one]
    if not opened or here.width in [block.width for block in opened]:
        return ""
    widths = [f"{block.width} (line {block.line})" for block in opened]
    return f"line {here.line} is indented by {here.width} blanks, the blocks open there by {listed(widths)}"


def no_body(broken: Broken) -> str:
    """A block without a statement: only a comment, or nothing that is indented deeper."""
    here = broken.here
    if "expected an indented block" not in broken.message:
        return ""
    above = [one for one in statements(broken.source) if one.line < broken.line or here is None]
    header = above[-1] if above else None
    if header is None or not header.opens_block:
        return ""
    between = range(header.last_line + 1, broken.line if broken.text.strip() else len(broken.lines) + 1)
    comments = [line for line in between if line <= len(broken.lines) and broken.lines[line - 1].strip()[:1] == "#"]
    of = f"the `{header.first}` of line {header.line}"
    if comments:
        return f"the body of {of} is only a comment ({_lines(comments)}); a body needs a statement, if only `pass`"
    if here is None or here.line <= header.line:
        return f"{of} has no body; a body needs a statement, if only `pass`"
    return f"{of} is indented by {header.width} blanks, line {here.line} after it by {here.width}: no deeper"


def lonely_try(broken: Broken) -> str:
    """The try that has neither except nor finally."""
    here = broken.here
    if here is None or ("'except' or 'finally'" not in broken.message and broken.message != "invalid syntax"):
        return ""
    whole = statements(broken.source)
    at_end = whole[-1] is here and broken.column > len(broken.text.rstrip())
    width = -1 if at_end else here.width
    above = [one for one in whole if at_end or one.line < here.line]
    for number, one in reversed([*enumerate(above)]):
        if one.first != "try" or not one.opens_block or one.width < width:
            continue
        caught = [*above[number + 1 :], here]
        if not any(other.first in ("except", "finally") and other.width == one.width for other in caught):
            ends = "the cell ends" if at_end else f"line {here.line} ({broken.shown(here.line)}) ends it"
            return f"the try of line {one.line} has no except and no finally; {ends}"
    return ""


def apart(broken: Broken) -> str:
    """What stands between an `else`, `elif`, `except` or `finally` and what it belongs to."""
    here = broken.here
    if here is None or here.line != broken.line or here.first not in OPENERS:
        return ""
    wanted = OPENERS[here.first]
    between: list[Statement] = []
    deeper: Statement | None = None
    for one in broken.before(here):
        if one.width < here.width:
            break
        if one.width == here.width and one.first in wanted and one.opens_block:
            if not between:
                return ""
            first = between[-1]
            more = f" to {between[0].last_line}" if len(between) > 1 else ""
            stands = f"line{'s' if more else ''} {first.line}{more} ({broken.shown(first.line)})"
            verb = "stand" if more else "stands"
            ends = f"the `{one.first}` of line {one.line} and the `{here.first}` of line {here.line}"
            return f"{stands} {verb} between {ends}"
        if one.width == here.width:
            between.append(one)
        elif one.first in wanted and one.opens_block and deeper is None:
            deeper = one
    names = " or ".join(f"`{word}`" for word in wanted[:2])
    if deeper is not None:
        return (
            f"the `{here.first}` of line {here.line} is indented by {here.width} blanks, the nearest `{deeper.first}`"
            f" (line {deeper.line}) by {deeper.width}"
        )
    return f"no {names} stands before the `{here.first}` of line {here.line} at its indentation ({here.width} blanks)"


def goes_on(broken: Broken) -> str:
    """A line that goes on with an expression which has ended."""
    here = broken.here
    if here is None or here.line != broken.line or here.first not in GOES_ON:
        return ""
    above = broken.before(here)
    if not above:
        return ""
    return (
        f"line {here.line} begins with `{here.first}`, but the expression before it ended in line {above[0].last_line}"
        f" ({broken.shown(above[0].last_line)}): no bracket is open there"
    )


def unexpected(broken: Broken) -> str:
    """How far a line is indented, and the one before it, which opens no block."""
    here = broken.here
    if "unexpected indent" not in broken.message or here is None:
        return ""
    above = broken.before(here)
    if not above:
        return f"line {here.line}, the first, is indented by {here.width} blanks"
    before = above[0]
    return (
        f"line {here.line} is indented by {here.width} blanks, line {before.line} before it"
        f" ({broken.shown(before.line)}) by {before.width}, and that opens no block"
    )


def compiler(broken: Broken) -> str:
    """What reads, but doesn't compile: global after use, return outside of a function, one argument twice."""
    for pattern, say in COMPILER:
        found = re.search(pattern, broken.message)
        if found:
            tree = broken.trials.tree()
            return say(broken, tree, found) if tree else ""
    return ""


def _declared(broken: Broken, tree: ast.Module, found: re.Match[str]) -> str:
    name, kind = found[1], found[3]
    scopes = [
        node for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.lineno <= broken.line <= (node.end_lineno or 0)
    ]  # fmt: skip
    inner = max(scopes, key=lambda node: node.lineno, default=tree)
    lines = [node.lineno for node in ast.walk(inner) if isinstance(node, ast.Name) and node.id == name]
    first = min(lines, default=broken.line)
    if first >= broken.line:
        return ""
    after = f"`{kind} {name}` stands after it, in line {broken.line}"
    return f"line {first} ({broken.shown(first)}) uses `{name}` first; {after}"


def _outside(broken: Broken, tree: ast.Module, found: re.Match[str]) -> str:
    """Which block of the kind it needs ended above it."""
    word = found[1]
    loop = "loop" in found[0]
    kinds: tuple[type[ast.stmt], ...] = LOOPS if loop else (ast.FunctionDef, ast.AsyncFunctionDef)
    ended = [
        (one, below) for above, below in _neighbours(tree) for one in _last(above)
        if isinstance(one, kinds) and (one.end_lineno or 0) < broken.line and below.lineno <= broken.line
    ]  # fmt: skip
    if not ended:
        return f"no {'loop' if loop else 'function'} stands above the `{word}` of line {broken.line}"
    one, below = max(ended, key=lambda pair: pair[0].lineno)
    of = "loop" if loop else f"function `{getattr(one, 'name', '')}`"
    width = f"indented by {below.col_offset} blanks" if below.col_offset else "not indented"
    below_it = f"line {below.lineno} ({broken.shown(below.lineno)}), which is {width}"
    return f"the {of} of line {one.lineno} ended before {below_it}"


def _neighbours(tree: ast.AST) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    for node in ast.walk(tree):
        for body in ("body", "orelse", "finalbody"):
            block = getattr(node, body, None)
            if isinstance(block, list):
                yield from itertools.pairwise(block)


def _last(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and what ends with it."""
    yield statement
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt) and node is not statement and node.end_lineno == statement.end_lineno:
            yield node


def _twice(broken: Broken, tree: ast.Module, found: re.Match[str]) -> str:
    name = found[1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [f"line {one.lineno}, column {one.col_offset + 1}" for one in node.keywords if one.arg == name]
            if len(given) > 1:
                return f"the argument `{name}` is given twice: {' and '.join(given[:2])}"
    return ""


COMPILER = (
    (r"name '(\w+)' is (used|assigned to) (?:prior to|before) (global|nonlocal) declaration", _declared),
    (r"'(return|yield|yield from|await|break)' outside (?:async )?(?:function|loop)", _outside),
    (r"'(continue)' not properly in loop", _outside),
    (r"keyword argument repeated: (\w+)", _twice),
)


def _lines(lines: list[int]) -> str:
    """Return numbers of lines, neighbours joined: `lines 2, 4–7`."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"line{'s' if len(lines) > 1 else ''} {listed(told, 80)}"
