"""Record how a source uses names: in which scope, and with which effect.

A name belongs to the innermost scope that binds it. Names that belong to no scope are
*notebook names*. The effects of a function are collected in its `FunctionEffects` and
count when the function is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.dataflow.name_effects import (
    BIND,
    CHANGE,
    CLASS,
    COMPREHENSION,
    DEFINED,
    DELETE,
    GLOBAL,
    IMPORT,
    VALUE,
    FunctionEffects,
    Mention,
    NameUsage,
    get_root_name,
    list_executed_functions,
)
from stepper.policy.dataflow.outside_state import (
    INLINE_PLOTS,
    PLOTS,
    OutsideUse,
    describe_setter,
)


@dataclass(eq=False, repr=False)
class Scope:
    """The scope of a function, class or comprehension.

    `kind` is FUNCTION, CLASS or COMPREHENSION. `effects` is set for outermost
    functions. `bound` are the names that the code has bound so far.
    """

    kind: str
    local_names: set[str]
    global_names: set[str] = field(default_factory=set)
    effects: FunctionEffects | None = None
    name: str = ""
    line: int = 0
    bound: set[str] = field(default_factory=set)


class NameRecorder:
    """Records in `usage` how a source uses names, in the order of evaluation."""

    def __init__(self, source: str, transform: Callable[[str], str] | None) -> None:
        self.usage = NameUsage()
        self.source = source  # the text of the nodes that are being visited
        self.transform = transform
        # Names that the cell itself has bound so far.
        self.bound: set[str] = set()
        self.scopes: list[Scope] = []
        # Name → other names of the same object.
        self.aliases: dict[str, set[str]] = {}
        # Functions of this cell whose effects have been applied.
        self.applied: set[str] = set()
        # The expression that is being visited, if its value is not used (see
        # `_NameVisitor.visit_statement`).
        self.statement: ast.expr | None = None
        # The value of the assignment whose targets are being visited.
        self.assigned: ast.expr | None = None
        # Whether the object of an assigned attribute is being visited.
        self.is_target = False
        # Whether an annotation is being visited.
        self.is_annotation = False
        # Effects of the outermost enclosing function; None outside of functions.
        self.effects: FunctionEffects | None = None

    def record_mention(
        self, name: str, kind: str, node: Any, scope: Scope | None = None
    ) -> None:
        """Record a mention of a name; `scope` defaults to the innermost scope.

        See `Mention` for `kind`.
        """
        line = getattr(node, "lineno", 0)
        mention = Mention(name, kind, line)
        if scope is None and self.scopes:
            scope = self.scopes[-1]
        if scope is not None:
            mention = mention._replace(
                scope=scope.kind,
                scope_name=scope.name,
                scope_line=scope.line,
            )
        self.usage.mentions.append(mention)

    def find_scope(self, name: str) -> Scope | None:
        """Return the scope that a name belongs to, or None for a notebook name."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if name in scope.global_names:
                return None
            # Functions inside a class do not see the names of the class body.
            is_visible = scope.kind != CLASS or depth == 0
            if is_visible and name in scope.local_names:
                return scope
        return None

    def record_read(self, name: str) -> None:
        """Record that a name is read, if it is a notebook name.

        In the body of a class, a name is a notebook name until the body binds it: `x =
        x` in a class reads the `x` of the notebook.
        """
        scope = self.find_scope(name)
        if scope is None or (scope.kind == CLASS and name not in scope.bound):
            self.record_notebook_read(name)

    def record_notebook_read(self, name: str) -> None:
        """Record that a notebook name is read.

        If the name is a function of this cell, the function's effects are recorded,
        too, unless an annotation reads the name. Inside a function, the read is added
        to the effects of that function.
        """
        if self.effects is not None:
            self.effects.reads.add(name)
            return
        is_first = name not in self.usage.reads
        if name not in self.bound:
            self.usage.reads.add(name)
        self.usage.magic_reads.discard(name)
        if self.is_annotation:
            if is_first:
                self.usage.annotation_reads.add(name)
            return
        self.usage.annotation_reads.discard(name)
        if not self.is_target:
            self.usage.used.add(name)
        effects = self.usage.effects.get(name)
        if effects is None or name in self.applied:
            return
        self.applied.add(name)
        for inner in sorted(effects.reads):
            self.record_notebook_read(inner)
        for inner in sorted(effects.changes):
            self.record_notebook_change(inner)
        self.usage.methods |= effects.methods
        self._record_executed_functions(effects)
        for inner in effects.binds:
            self.usage.binds[inner] = VALUE

    def _record_executed_functions(self, effects: FunctionEffects) -> None:
        """Record the outside state that functions read, and their attributes.

        `effects` are the effects of a function or class of this cell that is used.
        """
        for function in list_executed_functions(effects, self.usage.read_attributes):
            for state in sorted(function.outside_reads):
                self._record_outside_read(state)
            for attribute in sorted(function.read_attributes):
                self.record_attribute_read(attribute)

    def record_attribute_read(self, attribute: str) -> None:
        """Record an attribute that is read; it may be a method of a class of the cell.

        Inside a function, the attribute is added to the effects of that function.
        """
        if self.effects is not None:
            self.effects.read_attributes.add(attribute)
            return
        if attribute in self.usage.read_attributes:
            return
        self.usage.read_attributes.add(attribute)
        for name in sorted(self.applied):
            effects = self.usage.effects.get(name)
            if effects is not None and attribute in effects.own_methods:
                self._record_executed_functions(effects)

    def record_binding(self, name: str, node: Any, kind: str = VALUE) -> None:
        """Record that a name is bound; `kind` is VALUE, IMPORT or DEFINED."""
        scope = self.find_scope(name)
        self._record_binding_mention(name, node, scope)
        if scope is not None:
            scope.bound.add(name)
            return
        if self.effects is not None:  # declared `global` in a function
            self.effects.binds.add(name)
            return
        usage = self.usage
        usage.binds[name] = kind
        if not isinstance(self.assigned, ast.Constant):
            usage.non_literals.add(name)
        usage.deletes.discard(name)
        usage.created_by.pop(name, None)
        usage.fingerprints.pop(name, None)
        self.bound.add(name)
        self.applied.discard(name)
        self.aliases.pop(name, None)
        if kind == DEFINED and self.source:
            usage.fingerprints[name] = self._compute_definition_fingerprint(node)
        elif kind != DEFINED:
            usage.effects.pop(name, None)

    def _record_binding_mention(
        self, name: str, node: Any, scope: Scope | None
    ) -> None:
        """Record the mention of a name that is bound.

        `scope` is the scope of the name, or None for a notebook name.
        """
        if scope is not None:
            self.record_mention(name, BIND, node, scope)
        elif all(enclosing.kind == COMPREHENSION for enclosing in self.scopes):
            line = getattr(node, "lineno", 0)
            self.usage.mentions.append(Mention(name, BIND, line))
        else:
            self.record_mention(name, GLOBAL, node)

    def _compute_definition_fingerprint(self, node: Any) -> str:
        """Return a hash of the source lines of a definition and its decorators."""
        parts = (node, *getattr(node, "decorator_list", ()))
        first = min(part.lineno for part in parts)
        lines = self.source.split("\n")
        definition = lines[first - 1 : node.end_lineno]
        return str(hash("\n".join(definition)))

    def record_outside_use(self, use: OutsideUse | None, node: ast.expr) -> None:
        """Record how a node uses state outside the variables, if it does.

        Inside functions, only reads are recorded.
        """
        if use is None:
            return
        if self.effects is not None:
            if not use.sets and not use.changes:
                self.effects.outside_reads.add(use.name)
            if use.name == PLOTS:
                self.effects.outside_reads.add(INLINE_PLOTS)
            return
        usage = self.usage
        if use.sets:
            codes = usage.outside_binds.setdefault(use.name, [])
            code = describe_setter(node, self.source, self.assigned)
            codes.append(code)
            return
        if use.changes:
            usage.outside_changes.add(use.name)
        self._record_outside_read(use.name)

    def _record_outside_read(self, name: str) -> None:
        """Record that the cell reads state outside the variables."""
        usage = self.usage
        if name in usage.outside_binds:
            return
        usage.outside_reads.add(name)
        if name == PLOTS:
            usage.outside_reads.add(INLINE_PLOTS)

    def record_change(self, node: ast.expr | None) -> None:
        """Record that an expression changes an object in place.

        The change counts for the first name of the expression, such as `x` in `x.a[0]`.
        """
        name = get_root_name(node)
        if not name:
            return
        self.record_mention(name, CHANGE, node)
        scope = self.find_scope(name)
        if scope is None:
            self.record_notebook_change(name)
        elif scope.effects is not None and scope.effects is self.effects:
            scope.effects.changed_parameters.add(name)

    def record_notebook_change(self, name: str) -> None:
        """Record that the object of a notebook name changes in place.

        Inside a function, the change is added to the effects of that function.
        """
        if self.effects is not None:
            self.effects.reads.add(name)
            self.effects.changes.add(name)
            return
        for alias in {name, *self.aliases.get(name, ())}:
            if alias not in self.bound:
                self.usage.reads.add(alias)
            if self.usage.binds.get(alias) not in (IMPORT, DEFINED):
                self.usage.changes.add(alias)

    def record_deletion(self, node: ast.Name) -> None:
        """Record that a name is deleted. In a function, record only the mention."""
        self.record_mention(node.id, DELETE, node)
        if self.find_scope(node.id) is None and self.effects is None:
            if node.id not in self.bound:
                self.usage.reads.add(node.id)
            self.usage.deletes.add(node.id)
            self.usage.binds.pop(node.id, None)
            self.usage.changes.discard(node.id)
            self.bound.discard(node.id)
