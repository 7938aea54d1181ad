"""Whose a name is: the scopes of a source while it is gone over, and what is done to the notebook's own names. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.dataflow.name_effects import (
    BIND,
    CHANGE,
    CLASS,
    DEFINED,
    DELETE,
    GLOBAL,
    IMPORT,
    VALUE,
    Flow,
    Kept,
    Mention,
    root,
)


@dataclass(eq=False, repr=False)
class Scope:
    """A function, class or comprehension that is being read; `kept` of the outermost function around."""

    kind: str
    own: set[str]
    outer: set[str] = field(default_factory=set)  # `global`
    kept: Kept | None = None
    name: str = ""
    line: int = 0


class Names:
    """The names of a source that is gone over in the order of evaluation."""

    def __init__(self, source: str, transform: Callable[[str], str] | None) -> None:
        self.flow, self.transform, self.source = Flow(), transform, source
        self.bound: set[str] = set()  # by the cell itself, so far
        self.scopes: list[Scope] = []
        self.alias: dict[str, set[str]] = {}
        self.used: set[str] = set()
        self.alone: ast.expr | None = None  # whose value nobody takes
        # of the outermost function around; None where the code runs now
        self.kept: Kept | None = None

    def noted(self, name: str, how: str, node: Any) -> None:
        """Take note of a name, for those who ask for lines."""
        where = (
            (self.scopes[-1].kind, self.scopes[-1].name, self.scopes[-1].line)
            if self.scopes
            else ("", "", 0)
        )
        self.flow.mentions.append(
            Mention(name, how, getattr(node, "lineno", 0), *where)
        )

    def holder(self, name: str) -> Scope | None:
        """Return the scope that a name belongs to, None for the notebook's own names."""
        for place, scope in enumerate(reversed(self.scopes)):
            if name in scope.outer:
                return None
            if name in scope.own and (scope.kind != CLASS or place == 0):
                return scope
        return None

    def read(self, name: str) -> None:
        """A name is read, whosever it is."""
        if self.holder(name) is None:
            self.reads(name)

    def reads(self, name: str) -> None:
        """A name of the notebook's is read, now or when a function is called."""
        if (kept := self.kept) is not None:
            kept.reads.add(name)
            return
        if name not in self.bound:
            self.flow.reads.add(name)
        if (own := self.flow.kept.get(name)) is not None and name not in self.used:
            self.used.add(name)
            for inner in sorted(own.reads):
                self.reads(inner)
            for inner in sorted(own.changes):
                self.changes(inner)
            for inner in own.binds:
                self.flow.binds[inner] = VALUE

    def bind(self, name: str, node: Any, kind: str = VALUE) -> None:
        """A name is bound, whosever it is."""
        its = self.holder(name)
        self.noted(name, GLOBAL if self.scopes and its is None else BIND, node)
        if its is not None:
            return
        if (kept := self.kept) is not None:  # `global`
            kept.binds.add(name)
            return
        self.flow.binds[name] = kind
        self.flow.deletes.discard(name)
        self.bound.add(name)
        self.used.discard(name)
        self.alias.pop(name, None)
        self.flow.made.pop(name, None)
        self.flow.prints.pop(name, None)
        if kind == DEFINED and self.source:
            first = min(
                each.lineno for each in (node, *getattr(node, "decorator_list", ()))
            )
            lines = self.source.split("\n")[first - 1 : node.end_lineno]
            self.flow.prints[name] = str(hash("\n".join(lines)))
        elif kind != DEFINED:
            self.flow.kept.pop(name, None)

    def change(self, node: ast.expr | None) -> None:
        """What an expression names is changed in place."""
        name = root(node)
        if not name:
            return
        self.noted(name, CHANGE, node)
        holder = self.holder(name)
        if holder is None:
            self.changes(name)
        elif holder.kept is not None and holder.kept is self.kept:
            holder.kept.changed.add(name)

    def changes(self, name: str) -> None:
        """What a name of the notebook's holds is changed in place, now or when a function is called."""
        if (kept := self.kept) is not None:
            kept.reads.add(name)
            kept.changes.add(name)
            return
        for each in {name, *self.alias.get(name, ())}:
            if each not in self.bound:
                self.flow.reads.add(each)
            if self.flow.binds.get(each) not in (IMPORT, DEFINED):
                self.flow.changes.add(each)

    def delete(self, node: ast.Name) -> None:
        """A name is unbound."""
        self.noted(node.id, DELETE, node)
        if self.holder(node.id) is None and self.kept is None:
            if node.id not in self.bound:
                self.flow.reads.add(node.id)
            self.flow.deletes.add(node.id)
            self.flow.binds.pop(node.id, None)
            self.flow.changes.discard(node.id)
            self.bound.discard(node.id)
