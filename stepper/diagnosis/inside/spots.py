"""Where it failed in the user's own code: frame, line, statement and, from Python 3.11 on, the very expression."""

from __future__ import annotations

import ast
import builtins
import linecache
from types import FrameType, TracebackType
from typing import Any, Callable, Iterator

from stepper.diagnosis.inside.reach import Unknown, evaluate
from stepper.kernel.inside.cells import own_frames

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DATA = (ast.Name, ast.Attribute, ast.Subscript)
PLACES = 3


class Spot:
    """One such place, with the expressions of its failing line in `nodes`, the failing one first."""

    def __init__(self, frame: FrameType, line: int, last: int) -> None:
        self.frame, self.line = frame, line
        self.filename = frame.f_code.co_filename
        self.scope = (frame.f_locals, frame.f_globals, vars(builtins))
        self.tree = parsed("".join(linecache.getlines(self.filename)))
        self.statement = min(self.around(ast.stmt), key=height, default=None)
        self.exact = self._exact(last)
        self.nodes: list[Any] = list(ast.walk(self.exact)) if self.exact is not None else []
        self.nodes += [node for node in self._on_line() if not any(node is known for known in self.nodes)]

    def around(self, kind: Any) -> list[Any]:
        """The nodes of a kind that span the line."""
        return [n for n in ast.walk(self.tree) if isinstance(n, kind) and n.lineno <= self.line <= n.end_lineno]

    def _exact(self, last: int) -> ast.expr | None:
        positions: Callable[[], Any] | None = getattr(self.frame.f_code, "co_positions", None)
        if positions is None:
            return None  # Python 3.9 and 3.10: the line alone is known
        line, end, column, stop = list(positions())[last // 2]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and span(node) == (line, end, column, stop):
                return node
        return None

    def _on_line(self) -> list[ast.expr]:
        if self.statement is None:
            return []
        body = {
            id(inner) for name in ("body", "orelse", "handlers", "finalbody")
            for child in getattr(self.statement, name, None) or () for inner in ast.walk(child)
        }  # fmt: skip
        return [node for node in ast.walk(self.statement) if isinstance(node, ast.expr) and id(node) not in body]

    def value(self, node: ast.AST) -> Any:
        """What an expression holds; raise Unknown where that can't be had without running code."""
        return evaluate(node, self.scope)

    def function(self) -> Any:
        """The innermost function around the line, None at a cell's top level."""
        return min(self.around(FUNCTIONS), key=height, default=None)

    def known(self, nodes: Any = None) -> Iterator[tuple[str, Any, Any]]:
        """(text, value, node) of each name, attribute and item that can be looked up."""
        for node in self.nodes if nodes is None else nodes:
            if isinstance(node, DATA):
                try:
                    yield ast.unparse(node), self.value(node), node
                except Unknown:
                    continue


def parsed(text: str) -> ast.Module:
    """A source's tree, an empty one where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def height(node: Any) -> int:
    """How many lines a node spans."""
    return int(node.end_lineno - node.lineno)


def span(node: Any) -> tuple[int, int, int, int]:
    """Where a node stands, in the order of `co_positions`."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def spots(trace: TracebackType | None) -> list[Spot]:
    """The places in the user's own code, innermost first."""
    return [Spot(*entry) for entry in reversed(own_frames(trace)[-PLACES:])]
