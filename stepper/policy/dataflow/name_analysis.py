"""Goes over a source in the order of evaluation: the one binder of the project. Pure.

What is inside a function counts where that is called: it is `kept` under its name. Where a source can't tell, what runs
nearly always counts: a loop's body runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepper.policy.dataflow import magics, name_effects
from stepper.policy.dataflow.name_effects import Flow, Kept, parsed, root
from stepper.policy.dataflow.name_scopes import Names, Scope

EVALUATED = (ast.expr, ast.stmt, ast.pattern)


def flow(source: str, transform: Callable[[str], str] | None = None) -> Flow:
    """Return what a cell does to names; one that can't be read does nothing."""
    tree = parsed(source, transform)
    return of_tree(tree, source, transform) if tree is not None else Flow(python=False)


def of_tree(
    tree: ast.Module, source: str = "", transform: Callable[[str], str] | None = None
) -> Flow:
    """Return what a tree does to names."""
    binder = _Binder(source, transform)
    try:
        binder.all(tree.body)
    except RecursionError:
        binder.flow.python = False
    return binder.flow


class _Binder(Names):
    """Goes over a tree."""

    def visit(self, node: ast.AST | None) -> None:
        if node is None:
            return
        handle = HANDLERS.get(type(node))
        if handle:
            handle(self, node)
            return
        for part in node._fields:
            value = getattr(node, part, None)
            if type(value) is list:
                self.all(value)
            elif isinstance(value, EVALUATED):
                self.visit(value)

    def all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if isinstance(node, ast.AST):
                self.visit(node)

    def expression(self, node: ast.expr) -> None:
        """One whose value nobody takes."""
        self.alone = node.value if isinstance(node, ast.Await) else node
        self.visit(node)

    def name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.flow.uses.update(self.flow.modules.get(node.id, ()))
            self.read(node.id)
        elif isinstance(node.ctx, ast.Store):
            self.bind(node.id, node)
        else:
            self.delete(node)

    def place(self, node: ast.Attribute | ast.Subscript) -> None:
        """`x.a`, `x[a]`: read, written or deleted."""
        self.visit(node.value)
        if isinstance(node, ast.Subscript):
            self.visit(node.slice)
        if not isinstance(node.ctx, ast.Load):
            self.change(node.value)

    def assign(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node, ast.AnnAssign):
            self.visit(node.annotation)
            if node.value is None:
                return
        value, name = (
            node.value,
            targets[0].id if isinstance(targets[0], ast.Name) else "",
        )
        if isinstance(value, ast.Lambda) and name:
            self.function(value, name)
            return
        self.visit(value)
        names = {value.id} if isinstance(value, ast.Name) else set[str]()
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        self.all(targets)
        if self.kept is None and not self.scopes:
            for each in names if len(names) > 1 else ():
                self.alias[each] = self.alias.get(each, set()) | (names - {each})
            if isinstance(value, ast.Call) and (made := root(value.func)) and name:
                self.flow.made[name] = made

    def augmented(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.read(node.target.id)
            self.change(node.target)
            self.bind(node.target.id, node.target)
        else:
            self.visit(node.target)

    def branch(self, node: ast.If) -> None:
        self.visit(node.test)
        before = set(self.bound)
        self.all(node.body)
        first, self.bound = self.bound, before
        self.all(node.orelse)
        self.bound = self.bound & first | before

    def loop(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        if self.kept is None:
            parts = node.iter.args if isinstance(node.iter, ast.Call) else [node.iter]
            over = {part.id for part in parts if isinstance(part, ast.Name)}
            for target in ast.walk(node.target):
                if isinstance(target, ast.Name):
                    self.alias[target.id] = set(over)
        self.all(node.body)
        self.all(node.orelse)

    def blocks(self, node: Any) -> None:
        """`while`, `with`, `try`, an `except`: what they evaluate, then what is in them."""
        for part, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.all(value)
            elif part == "name" and value:
                self.bind(value, node)
                self.flow.mentions[-1] = self.flow.mentions[-1]._replace(
                    how=name_effects.CAUGHT
                )
            else:
                self.all(
                    value
                    if isinstance(value, list)
                    else [value]
                    if isinstance(value, ast.AST)
                    else []
                )
        # unbound at its end
        if isinstance(node, ast.ExceptHandler) and node.name and not self.scopes:
            self.flow.binds.pop(node.name, None)

    def captured(self, node: Any) -> None:
        """A pattern of `match` that binds."""
        for name in (getattr(node, "name", None), getattr(node, "rest", None)):
            if name:
                self.bind(name, node)
        self.all(ast.iter_child_nodes(node))

    def imported(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name
            if isinstance(node, ast.Import):
                modules = {alias.name}
            else:
                modules = {f"{node.module}:{alias.name}"}
            self.flow.modules.setdefault(bound.split(".")[0], set()).update(modules)
            if alias.name == "*":
                self.flow.star = self.flow.star or not self.scopes
                self.noted("*", name_effects.BIND, alias)
            else:
                name = (alias.asname or alias.name).split(".")[0]
                self.bind(name, alias, name_effects.IMPORT)
                self.flow.prints[name] = (
                    f"{getattr(node, 'module', '')}:{alias.name if alias.asname else name}"
                )

    def outer(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            self.noted(name, name_effects.GLOBAL, node)

    def function(self, node: Any, name: str = "") -> None:
        """A function: what is evaluated now, then its body, which counts where it is called."""
        args, every = node.args, name_effects.arguments(node.args)
        given = [
            *getattr(node, "decorator_list", ()),
            *args.defaults,
            *args.kw_defaults,
        ]
        self.all(given)
        self.all([*(each.annotation for each in every), getattr(node, "returns", None)])
        named = name or getattr(node, "name", "")
        statements = node.body if isinstance(node.body, list) else [ast.Expr(node.body)]
        own, outer = name_effects.own_names(statements)
        parameters = tuple(each.arg for each in every)
        later = self.kept is None and bool(named)
        kept = (
            Kept(parameters=parameters, made_of=name_effects.loaded(given))
            if later
            else None
        )
        if named:
            self.bind(named, node, name_effects.DEFINED)
        kind = name_effects.FUNCTION if named else name_effects.COMPREHENSION
        self.scopes.append(
            Scope(kind, {*own, *parameters} - outer, outer, kept, named, node.lineno)
        )
        before, self.kept = self.kept, self.kept or kept
        for each in every:
            self.noted(each.arg, name_effects.BIND, each)
        self.typed(node)
        if named:
            self.all(statements)
        else:
            self.expression(node.body)
        self.scopes.pop()
        self.kept = before
        if kept is not None:
            kept.changed &= {*parameters}
            if self.scopes and self.scopes[-1].kind == name_effects.CLASS:
                self._method(kept, named)
            else:
                self.flow.kept[named] = kept
                if getattr(node, "decorator_list", ()):
                    self.reads(named)

    def typed(self, node: Any) -> None:
        """The type parameters of a function or a class."""
        for each in getattr(node, "type_params", ()):
            self.scopes[-1].own.add(each.name)
            self.noted(each.name, name_effects.BIND, each)

    def _method(self, kept: Kept, named: str) -> None:
        name = next(
            scope.name for scope in self.scopes if scope.kind == name_effects.CLASS
        )
        whole = self.flow.kept.setdefault(name, Kept())
        whole.reads |= kept.reads
        whole.changes |= kept.changes
        whole.binds |= kept.binds
        whole.methods |= {named} if kept.changed & {*kept.parameters[:1]} else set()

    def klass(self, node: ast.ClassDef) -> None:
        self.all([*node.decorator_list, *node.bases, *node.keywords])
        if not self.scopes:
            self.flow.kept[node.name] = Kept(
                made_of=name_effects.loaded([*node.decorator_list, *node.bases])
            )
        self.scopes.append(
            Scope(
                name_effects.CLASS, name_effects.own_names(node.body)[0], name=node.name
            )
        )
        self.typed(node)
        self.all(node.body)
        self.scopes.pop()
        self.bind(node.name, node, name_effects.DEFINED)

    def comprehension(self, node: Any) -> None:
        own = {
            each.id
            for part in node.generators
            for each in ast.walk(part.target)
            if isinstance(each, ast.Name)
        }
        self.visit(node.generators[0].iter)
        self.scopes.append(Scope(name_effects.COMPREHENSION, own))
        for place, part in enumerate(node.generators):
            self.all([part.target, *([part.iter] if place else []), *part.ifs])
        for each in (
            [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        ):
            self.expression(each)
        self.scopes.pop()

    def call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and name_effects.is_ipython(
            function.value
        ):
            self.magic(
                function.attr,
                [part.value for part in node.args if isinstance(part, ast.Constant)],
            )
            return
        self.all([*node.args, *node.keywords, function])
        called = (
            function.attr
            if isinstance(function, ast.Attribute)
            else getattr(function, "id", "")
        )
        if called in name_effects.ON_FIRST and node.args:
            self.change(node.args[0])
        if isinstance(function, ast.Attribute):
            inplace = any(
                word.arg == "inplace" and getattr(word.value, "value", None) is True
                for word in node.keywords
            )
            if inplace or name_effects.changes(called, alone=node is self.alone):
                self.change(function.value)
            elif isinstance(function.value, ast.Name):
                self.method(function.value.id, called)
        elif (
            isinstance(function, ast.Name)
            and self.holder(called) is None
            and self.kept is None
        ):
            arguments = tuple(root(part) for part in node.args)
            if (own := self.flow.kept.get(called)) is not None:
                for name in name_effects.changed_by(own, arguments):
                    self.changes(name)
            elif any(arguments):
                self.flow.calls.append((called, arguments))

    def method(self, name: str, called: str) -> None:
        """A method, of which a class of the notebook's may say that it changes what it is called on."""
        if self.holder(name) is None and self.kept is None:
            own = self.flow.kept.get(self.flow.made.get(name, ""))
            if own is not None and called in own.methods:
                self.changes(name)
            self.flow.methods.add((name, called))

    def magic(self, how: str, told: list[Any]) -> None:
        found = magics.magic(how, told)
        before, bound = dict(self.flow.binds), set(self.bound)
        for code in found.code:
            if (tree := parsed(code, self.transform)) is not None:
                self.all(tree.body)
        if found.apart:  # what `%timeit` binds is its own
            self.flow.binds, self.bound = before, bound
        for name in found.reads:
            self.read(name)
        for name in found.binds:
            self.bind(name, None)
        self.flow.star = self.flow.star or found.any


HANDLERS: Mapping[type, Callable[[Any, Any], None]] = {
    ast.Expr: lambda binder, node: binder.expression(node.value),
    ast.Name: _Binder.name,
    ast.Constant: lambda binder, node: None,
    ast.Attribute: _Binder.place,
    ast.Subscript: _Binder.place,
    **dict.fromkeys((ast.Assign, ast.AnnAssign, ast.NamedExpr), _Binder.assign),
    ast.AugAssign: _Binder.augmented,
    ast.If: _Binder.branch,
    **dict.fromkeys((ast.For, ast.AsyncFor), _Binder.loop),
    **dict.fromkeys(
        (
            ast.While,
            ast.With,
            ast.AsyncWith,
            ast.Try,
            ast.ExceptHandler,
            ast.match_case,
        ),
        _Binder.blocks,
    ),
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), _Binder.captured),
    **dict.fromkeys((ast.Import, ast.ImportFrom), _Binder.imported),
    **dict.fromkeys((ast.Global, ast.Nonlocal), _Binder.outer),
    **dict.fromkeys((*name_effects.FUNCTIONS, ast.Lambda), _Binder.function),
    ast.ClassDef: _Binder.klass,
    **dict.fromkeys(name_effects.COMPREHENSIONS, _Binder.comprehension),
    ast.Call: _Binder.call,
}
if hasattr(ast, "TryStar"):
    HANDLERS = {**HANDLERS, ast.TryStar: _Binder.blocks}
