"""Suggestions for the texts that `DataFrame.query` and `.eval` parse: pandas' own small language."""

from __future__ import annotations

import ast
import itertools

from stepper.diagnosis.around import Around, Facts, closest, listed
from stepper.diagnosis.tokens import Token, tokens
from stepper.policy.model import Fault

DOUBLE = {"&&": ("&", "and"), "||": ("|", "or")}
BOTH = ("query", "eval")


def query(fault: Fault, look: Facts, around: Around) -> str:
    """Two words side by side, which are one column's name or none; operators of other languages."""
    text = _asked(fault, look, around)
    if text is None:
        return ""
    found = [token for token in tokens(text) if token.kind not in ("newline", "magic")]
    for one, after in itertools.pairwise(found):
        pair = DOUBLE.get(one.text + after.text) if one.end == after.at else None
        if pair:
            return f"`{one.text * 2}` is no operator of a query: it is `{pair[0]}` or `{pair[1]}` there"
    columns = _columns(look)
    for words in _runs(found):
        name = " ".join(words)
        if name in columns:
            return f"{name!r} is a column; a name with a blank stands between backticks in a query: `{name}`"
        near = closest(name, columns, 1)
        if near and " " in near[0]:
            return f"the column nearest to `{name}` is {near[0]!r}, between backticks in a query: `{near[0]}`"
    for words in _runs(found):
        blank = [repr(one) for one in columns if " " in one]
        rule = "a name with a blank stands between backticks" if blank or not columns else "no operator is between them"
        told = f"; columns: {listed(blank or [*map(repr, columns)], 120)}" if columns else ""
        return f"`{' '.join(words)}` in a query: names side by side; {rule}{told}"
    return ""


def _asked(fault: Fault, look: Facts, around: Around) -> str | None:
    """Return the text handed to `.query` or `.eval` on the failing line; None where there is no such call."""
    try:
        tree = ast.parse(around.source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BOTH and node.args:
            given = node.args[0]
            if node.lineno <= (fault.line or 0) <= (node.end_lineno or 0):
                if isinstance(given, ast.Constant):
                    return given.value if isinstance(given.value, str) else None
                return str(fault.attributes.get("text") or "")
    return None


def _columns(look: Facts) -> list[str]:
    return [str(one) for fact in look.get("operands") or () for one in fact.get("columns") or ()]


def _runs(found: list[Token]) -> list[list[str]]:
    """Return names that stand side by side."""
    runs: list[list[str]] = []
    before = None
    for token in found:
        if token.is_name and before is not None and before.is_name:
            runs[-1].append(token.text)
        elif token.is_name:
            runs.append([token.text])
        before = token
    return [run for run in runs if len(run) > 1]
