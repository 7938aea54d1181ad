"""Static analysis of a cell: which names the source reads, binds, changes and deletes.

Nodes are visited in the order of evaluation. Effects inside a function count when the
function is called. Code that may not run, such as the body of a loop, counts as run.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepper.policy.dataflow.library_objects import (
    DRAW,
    GENERATOR_ARGUMENTS,
    find_connected_object,
    find_creator,
    find_database,
    find_written_database,
    get_library_effects,
)
from stepper.policy.dataflow.magic_effects import MagicEffects, analyze_magic
from stepper.policy.dataflow.name_effects import (
    ANNOTATED,
    BIND,
    CAUGHT,
    CLASS,
    COMPREHENSION,
    COMPREHENSIONS,
    DECLARED,
    DEFINED,
    FIRST_ARGUMENT_MUTATORS,
    FUNCTION,
    FUNCTIONS,
    IMPORT,
    FunctionCall,
    FunctionEffects,
    NameUsage,
    collect_body_reads,
    collect_free_names,
    collect_names,
    get_root_name,
    is_get_ipython,
    is_mutating,
    list_changed_arguments,
    list_parameters,
    list_scope_names,
    parse_source,
)
from stepper.policy.dataflow.name_scopes import NameRecorder, Scope
from stepper.policy.dataflow.outside_state import (
    DISPLAY_OPTIONS,
    IPYTHON,
    LAST_RESULT,
    OutsideUse,
    find_call_use,
    find_element_use,
    find_text_reads,
    get_dotted_name,
    has_result,
    list_attribute_uses,
    may_show_object,
    name_file,
)

GLOBALS = ("globals", "locals", "vars")
EVALUATED = (ast.expr, ast.stmt, ast.pattern)


def analyze_source(
    source: str, transform: Callable[[str], str] | None = None
) -> NameUsage:
    """Return the names that a source reads, binds, changes and deletes.

    If the source cannot be parsed, the result is empty and `python` is False.
    `transform` is IPython's input transformer.
    """
    source_tree = parse_source(source, transform)
    if source_tree is None:
        return NameUsage(python=False)
    return analyze_tree(source_tree.tree, source_tree.text, transform)


def analyze_tree(
    tree: ast.Module,
    source: str = "",
    transform: Callable[[str], str] | None = None,
    has_last: bool = True,
) -> NameUsage:
    """Return the names that a syntax tree reads, binds, changes and deletes.

    `source` is the text that the tree was parsed from; without this text, definitions
    have no fingerprints. `has_last` says that the tree contains the last statement of a
    cell, whose value IPython shows. If the tree is nested too deeply, `python` of the
    result is False.
    """
    visitor = _NameVisitor(source, transform)
    try:
        _record_results(visitor.usage, tree.body, has_last=has_last)
        visitor.visit_all(tree.body)
    except RecursionError:
        visitor.usage.python = False
    visitor.usage.source = source
    visitor.usage.transform = transform
    return visitor.usage


def _record_results(
    usage: NameUsage, statements: list[ast.stmt], *, has_last: bool
) -> None:
    """Record the options that shown values depend on, and a new value of `_`.

    IPython shows the value of the last statement of a cell, and the values of other
    statements if an option says so. `has_last` says that `statements` contains the last
    statement of the cell.
    """
    others = statements[:-1] if has_last else statements
    if any(has_result(statement) for statement in others):
        usage.outside_reads.add(IPYTHON)
    if not statements or not has_last:
        return
    last = statements[-1]
    if isinstance(last, ast.Expr) and may_show_object(last.value):
        usage.outside_reads.update(DISPLAY_OPTIONS)
    if has_result(last):
        usage.outside_binds[LAST_RESULT] = [""]


class _NameVisitor(NameRecorder):
    """Visits the nodes of a syntax tree and records how they use names."""

    def visit(self, node: ast.AST | None) -> None:
        """Visit a node with its handler or, without a handler, visit its children."""
        if node is None:
            return
        handler = HANDLERS.get(type(node))
        if handler:
            handler(self, node)
            return
        for part in node._fields:
            value = getattr(node, part, None)
            if type(value) is list:
                self.visit_all(value)
            elif isinstance(value, EVALUATED):
                self.visit(value)

    def visit_all(self, nodes: Iterable[Any]) -> None:
        """Visit nodes in order; None and other values are ignored."""
        for node in nodes:
            if isinstance(node, ast.AST):
                self.visit(node)

    def visit_statement(self, node: ast.expr) -> None:
        """Visit an expression statement, or an expression that may be used like one.

        Elements of comprehensions and bodies of lambda expressions are often used like
        statements, as in `[xs.append(i) for i in values]`.
        """
        self.statement = node
        if isinstance(node, ast.Await):
            self.statement = node.value
        self.visit(node)

    def visit_name(self, node: ast.Name) -> None:
        """Visit a name that is read, bound or deleted."""
        if isinstance(node.ctx, ast.Load):
            modules = self.usage.modules.get(node.id, ())
            self.usage.uses.update(modules)
            self.record_read(node.id)
        elif isinstance(node.ctx, ast.Store):
            self.record_binding(node.id, node)
        else:
            self.record_deletion(node)

    def visit_element(self, node: ast.Attribute | ast.Subscript) -> None:
        """Visit an attribute or subscript that is read, assigned or deleted."""
        is_assigned = not isinstance(node.ctx, ast.Load)
        was_target = self.is_target
        if is_assigned:
            self.is_target = bool(get_dotted_name(node.value))
        self.visit(node.value)
        self.is_target = was_target
        if isinstance(node, ast.Subscript):
            self.visit(node.slice)
        if is_assigned:
            self.record_change(node.value)
            use = find_element_use(node)
            self.record_outside_use(use, node)
            if use is None:
                self._record_attribute(node)
        elif isinstance(node, ast.Subscript):
            self._record_namespace_read(node)
        else:
            self.record_attribute_read(node.attr)

    def _record_attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        """Record an assignment to an attribute of a notebook name.

        The binding table decides whether the name is a module or a class.
        """
        if self.find_scope(get_root_name(node)) is None:
            for use in list_attribute_uses(node, self.assigned):
                self.record_outside_use(use, node)

    def _record_namespace_read(self, node: ast.Subscript) -> None:
        """Record the variable of `globals()["a"]`, and a read of `os.environ["a"]`."""
        self.record_outside_use(find_element_use(node), node)
        call = node.value
        if not isinstance(call, ast.Call) or call.args:
            return  # `vars(obj)["a"]` is an attribute
        name = getattr(node.slice, "value", None)
        if getattr(call.func, "id", "") in GLOBALS and isinstance(name, str):
            self._record_text_reads([name])

    def _record_text_reads(self, names: Iterable[str]) -> None:
        """Record variables whose names are in a text, unless this cell binds them."""
        if self.effects is not None:
            return  # the names may be local variables of the function
        for name in names:
            if name not in self.bound and self.find_scope(name) is None:
                self.usage.outside_reads.add(name)

    def visit_assignment(
        self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr
    ) -> None:
        """Visit an assignment, an annotation or an assignment expression."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        first = targets[0]
        name = first.id if isinstance(first, ast.Name) else ""
        if isinstance(node, ast.AnnAssign):
            self.visit_annotations([node.annotation])
        value = node.value
        if value is None:
            if name:
                self.record_mention(name, ANNOTATED, node)
            return
        if isinstance(value, ast.Lambda) and name:
            self.visit_function(value, name)
            self.visit_all(targets[1:])
            return
        self.visit(value)
        self.assigned = value
        self.visit_all(targets)
        self.assigned = None
        if self.effects is not None or self.scopes:
            return
        self._record_aliases(targets, value)
        self._record_shared_names(targets, value)
        if name:
            self._record_creator(name, value)

    def _record_creator(self, name: str, value: ast.expr) -> None:
        """Record which call created the object of a name.

        If the object is a connection or cursor of another object, both names count as
        names of the same object.
        """
        if not isinstance(value, ast.Call):
            return
        creator = find_creator(value) or get_root_name(value.func)
        connected = get_root_name(find_connected_object(value))
        if connected:
            self.aliases.setdefault(name, set()).add(connected)
            creator = self.usage.created_by.get(connected, creator)
        if creator:
            self.usage.created_by[name] = creator

    def visit_with_item(self, node: ast.withitem) -> None:
        """Visit `with x as y`; `y` may be a connection."""
        self.visit(node.context_expr)
        target = node.optional_vars
        if target is None:
            return
        self.visit(target)
        if isinstance(target, ast.Name) and self.effects is None and not self.scopes:
            self._record_creator(target.id, node.context_expr)

    def _record_aliases(self, targets: Iterable[ast.AST], value: ast.expr) -> None:
        """Record that the targets of an assignment are names of the same object."""
        names = _select_names(targets)
        if isinstance(value, ast.Name):
            names.add(value.id)
        for alias in names:
            others = names - {alias}
            if others:
                aliases = self.aliases.setdefault(alias, set())
                aliases.update(others)

    def _record_shared_names(self, targets: Iterable[ast.AST], value: ast.expr) -> None:
        """Record the names in an assigned value whose objects the value contains."""
        target_names = collect_names(targets)
        pending = [value]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Name):
                self.usage.shared.setdefault(node.id, set()).update(target_names)
            elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
                pending += node.elts
            elif isinstance(node, ast.Dict):
                pending += node.values

    def visit_augmented_assignment(self, node: ast.AugAssign) -> None:
        """Visit an assignment such as `x += 1`, which may change `x` in place."""
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.record_read(node.target.id)
            self.record_change(node.target)
            self.record_binding(node.target.id, node.target)
        else:
            # The new value depends on the former value of the attribute or item.
            self.assigned = node.target
            self.visit(node.target)
            self.assigned = None

    def visit_if(self, node: ast.If) -> None:
        """Visit an `if` statement, which binds the names that both branches bind."""
        self.visit(node.test)
        bound_before = set(self.bound)
        self.visit_all(node.body)
        bound_in_body = self.bound
        self.bound = set(bound_before)
        self.visit_all(node.orelse)
        bound_in_both = self.bound & bound_in_body
        self.bound = bound_in_both | bound_before

    def visit_for(self, node: ast.For | ast.AsyncFor) -> None:
        """Visit a loop, whose targets may be the same objects as the iterated names."""
        self.visit(node.iter)
        self.visit(node.target)
        if self.effects is None:
            iterable = node.iter
            parts = [iterable]
            if isinstance(iterable, ast.Call):
                parts = iterable.args
            iterated = _select_names(parts)
            for name in _select_names(ast.walk(node.target)):
                self.aliases[name] = set(iterated)
        self.visit_all(node.body)
        self.visit_all(node.orelse)

    def visit_blocks(self, node: Any) -> None:
        """Visit a `while`, `with` or `try` statement, a handler or a `match` case."""
        for part, value in ast.iter_fields(node):
            if isinstance(value, list):
                self.visit_all(value)
            elif part == "name" and value:
                self.record_binding(value, node)
                mention = self.usage.mentions[-1]
                self.usage.mentions[-1] = mention._replace(kind=CAUGHT)
            elif isinstance(value, ast.AST):
                self.visit(value)
        # Python deletes the name at the end of the handler.
        is_handler = isinstance(node, ast.ExceptHandler)
        if is_handler and node.name and not self.scopes:
            self.usage.binds.pop(node.name, None)

    def visit_pattern(self, node: Any) -> None:
        """Visit a `match` pattern that binds names."""
        for attribute in ("name", "rest"):
            name = getattr(node, attribute, None)
            if name:
                self.record_binding(name, node)
        self.visit_all(ast.iter_child_nodes(node))

    def visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Visit an import, and record the imported modules."""
        for alias in node.names:
            name = (alias.asname or alias.name).split(".")[0]
            if isinstance(node, ast.Import):
                module = alias.name
            else:
                module = f"{node.module}:{alias.name}"
            modules = self.usage.modules.setdefault(name, set())
            modules.add(module)
            if alias.name == "*":
                if not self.scopes:
                    self.usage.star = True
                self.record_mention("*", BIND, alias)
                continue
            self.record_binding(name, alias, IMPORT)
            # A cell may write the module's file, even the cell that imports it.
            path = module.partition(":")[0].replace(".", "/")
            file = name_file(f"{path}.py")
            if file not in self.usage.outside_binds:
                self.usage.outside_reads.add(file)
            if self.find_scope(name) is None:
                source = getattr(node, "module", "")
                imported = alias.name if alias.asname else name
                self.usage.fingerprints[name] = f"{source}:{imported}"

    def visit_declaration(self, node: ast.Global | ast.Nonlocal) -> None:
        """Visit `global x` or `nonlocal x`."""
        for name in node.names:
            self.record_mention(name, DECLARED, node)

    def visit_function(self, node: Any, name: str = "") -> None:
        """Visit a function definition or a lambda expression.

        `name` is the name that a lambda expression is assigned to.
        """
        # Python evaluates these when it executes the definition.
        decorators = getattr(node, "decorator_list", ())
        defaults = [*decorators, *node.args.defaults, *node.args.kw_defaults]
        parameters = list_parameters(node.args)
        annotations = [parameter.annotation for parameter in parameters]
        return_annotation = getattr(node, "returns", None)
        self.visit_all(defaults)
        with self.type_parameter_scope(node):
            self.visit_annotations([*annotations, return_annotation])

        function_name = name or getattr(node, "name", "")
        parameter_names = tuple(parameter.arg for parameter in parameters)
        effects: FunctionEffects | None = None
        if self.effects is None and function_name:
            effects = FunctionEffects(
                parameters=parameter_names,
                definition_reads=collect_free_names(defaults),
            )
        if function_name:
            self.record_binding(function_name, node, DEFINED)
        self._visit_body(node, function_name, parameters, effects)
        if effects is None:
            return
        # A call of the function also calls its decorators' wrappers. A decorator such
        # as `@x.setter` reads a name of the class, which is no notebook name.
        for decorator_name in collect_free_names(decorators):
            if self.find_scope(decorator_name) is None:
                effects.reads.add(decorator_name)
        effects.changed_parameters &= {*parameter_names}
        scope = self.scopes[-1] if self.scopes else None
        if scope is not None and scope.kind == CLASS:
            self._add_method(effects, function_name)
        else:
            self.usage.effects[function_name] = effects
            if decorators:  # a decorator may call the function
                self.record_notebook_read(function_name)

    def _visit_body(
        self,
        node: Any,
        name: str,
        parameters: list[ast.arg],
        effects: FunctionEffects | None,
    ) -> None:
        """Visit the body of a function in a new scope.

        The effects of the body are added to `effects` or, in a nested function, to the
        effects of the outermost function.
        """
        is_block = isinstance(node.body, list)
        statements = node.body if is_block else [ast.Expr(node.body)]
        names = list_scope_names(statements)
        parameter_names = {parameter.arg for parameter in parameters}
        scope = Scope(
            kind=FUNCTION if name else COMPREHENSION,
            local_names=(names.local_names | parameter_names) - names.global_names,
            global_names=names.global_names,
            effects=effects,
            name=name,
            line=node.lineno,
        )
        self.scopes.append(scope)
        outer = self.effects
        self.effects = outer or effects
        for parameter in parameters:
            self.record_mention(parameter.arg, BIND, parameter)
        self.visit_type_parameters(node)
        if name:
            self.visit_all(statements)
        else:
            self.visit_statement(node.body)
        self.scopes.pop()
        self.effects = outer

    def visit_annotations(self, annotations: Iterable[ast.expr | None]) -> None:
        """Visit annotations.

        An annotation without a call reads names, but does not use the functions and
        classes that have these names.
        """
        for annotation in annotations:
            if annotation is not None:
                nodes = ast.walk(annotation)
                has_call = any(isinstance(node, ast.Call) for node in nodes)
                self.is_annotation = not has_call
                self.visit(annotation)
        self.is_annotation = False

    @contextlib.contextmanager
    def type_parameter_scope(self, node: Any) -> Iterator[None]:
        """Run the block in a scope with the type parameters of a definition.

        If the definition has none, no scope is added. Type parameters came with Python
        3.12.
        """
        parameters = getattr(node, "type_params", ())
        if not parameters:
            yield
            return
        names = {parameter.name for parameter in parameters}
        self.scopes.append(Scope(COMPREHENSION, names))
        yield
        self.scopes.pop()

    def visit_type_alias(self, node: Any) -> None:
        """Visit a statement such as `type X[T] = list[T]` (Python 3.12)."""
        with self.type_parameter_scope(node):
            self.visit(node.value)
        self.visit(node.name)

    def visit_type_parameters(self, node: Any) -> None:
        """Record the type parameters of a function or class in its own scope."""
        scope = self.scopes[-1]
        for parameter in getattr(node, "type_params", ()):
            scope.local_names.add(parameter.name)
            scope.bound.add(parameter.name)
            self.record_mention(parameter.name, BIND, parameter)

    def _add_method(self, effects: FunctionEffects, method: str) -> None:
        """Add the effects of a method to the effects of the outermost class."""
        class_names = [scope.name for scope in self.scopes if scope.kind == CLASS]
        class_effects = self.usage.effects.setdefault(class_names[0], FunctionEffects())
        class_effects.reads |= effects.reads
        class_effects.changes |= effects.changes
        class_effects.binds |= effects.binds
        # A property may have several functions of the same name.
        own_effects = class_effects.own_methods.setdefault(method, FunctionEffects())
        own_effects.reads |= effects.reads
        own_effects.outside_reads |= effects.outside_reads
        own_effects.read_attributes |= effects.read_attributes
        instance = effects.parameters[:1]
        if effects.changed_parameters.intersection(instance):
            class_effects.mutating_methods.add(method)

    def visit_class(self, node: ast.ClassDef) -> None:
        """Visit a class definition, whose body runs at once in a new scope."""
        self.visit_all(node.decorator_list)
        arguments = [*node.bases, *node.keywords]
        local_names = list_scope_names(node.body).local_names
        if not self.scopes:
            evaluated = [*node.decorator_list, *arguments]
            reads = collect_free_names(evaluated) | collect_body_reads(node.body)
            effects = FunctionEffects(definition_reads=reads)
            self.usage.effects[node.name] = effects
        with self.type_parameter_scope(node):
            self.visit_all(arguments)
            scope = Scope(CLASS, local_names, name=node.name)
            self.scopes.append(scope)
            self.visit_type_parameters(node)
            self.visit_all(node.body)
            self.scopes.pop()
        self.record_binding(node.name, node, DEFINED)

    def visit_comprehension(self, node: Any) -> None:
        """Visit a comprehension or generator expression in a new scope."""
        local_names = set[str]()
        for generator in node.generators:
            local_names |= collect_names([generator.target])
        # Python evaluates the first iterable outside of the comprehension's scope.
        self.visit(node.generators[0].iter)
        self.scopes.append(Scope(COMPREHENSION, local_names))
        for index, generator in enumerate(node.generators):
            self.visit(generator.target)
            if index:
                self.visit(generator.iter)
            self.visit_all(generator.ifs)
        if isinstance(node, ast.DictComp):
            self.visit_statement(node.key)
            self.visit_statement(node.value)
        else:
            self.visit_statement(node.elt)
        self.scopes.pop()

    def visit_call(self, node: ast.Call) -> None:
        """Visit a call, and record the objects that it changes."""
        function = node.func
        if isinstance(function, ast.Attribute):
            if is_get_ipython(function.value):
                self.visit_all(node.args)
                arguments = [
                    argument.value
                    for argument in node.args
                    if isinstance(argument, ast.Constant)
                ]
                self.visit_magic(function.attr, arguments, node)
                return
            name = function.attr
        else:
            name = getattr(function, "id", "")
        self.visit_all(node.args)
        self.visit_all(node.keywords)
        self.visit(function)
        self._record_passed_names(node)
        self.record_outside_use(find_call_use(node), node)
        self._record_text_reads(find_text_reads(node))
        self._record_library_objects(node)
        if name in FIRST_ARGUMENT_MUTATORS and node.args:
            self.record_change(node.args[0])
        if isinstance(function, ast.Attribute):
            self._visit_method_call(node, function)
        elif isinstance(function, ast.Name):
            self._visit_function_call(node, name)

    def _record_library_objects(self, node: ast.Call) -> None:
        """Record draws from passed generators, and uses of databases."""
        for keyword in node.keywords:
            if keyword.arg in GENERATOR_ARGUMENTS:
                value = keyword.value
                if isinstance(value, ast.Name):
                    self.record_method_call(value.id, DRAW)
        database = find_database(node)
        if database:
            self.record_outside_use(OutsideUse(database), node)
        connection = find_written_database(node)
        if connection is None:
            return
        self.record_change(connection)
        # Follow a chain such as `sqlite3.connect(path).cursor()` back to the call or
        # the name that opened the database.
        origin: ast.expr | None = connection
        while isinstance(origin, ast.Call) and not find_database(origin):
            origin = getattr(origin.func, "value", None)
        if isinstance(origin, ast.Call):
            creator = find_database(origin)
        else:
            creator = self.usage.created_by.get(get_root_name(origin), "")
        if get_library_effects(creator) and self.effects is None:
            self.record_outside_use(OutsideUse(creator, sets=True), node)

    def _record_passed_names(self, node: ast.Call) -> None:
        """Record the notebook names that a call may change."""
        if self.effects is not None:
            return
        values = [*node.args, *[keyword.value for keyword in node.keywords]]
        if isinstance(node.func, ast.Attribute):
            values.append(node.func.value)
        for value in values:
            name = get_root_name(value)
            if name and self.find_scope(name) is None:
                self.usage.passed.add(name)

    def _visit_method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        """Record that a method is called, or that the method changes its object."""
        is_statement = node is self.statement
        method = function.attr
        instance = function.value
        is_change = is_mutating(method, is_statement=is_statement)
        if is_change or _has_inplace_argument(node):
            self.record_change(instance)
        elif isinstance(instance, ast.Name):
            self.record_method_call(instance.id, method)
            self._record_call_time(instance.id)

    def _record_call_time(self, name: str) -> None:
        """Record what the cell had bound when it called a function or method first.

        `name` is the function, or the name of the method's object.
        """
        if self.effects is None and name not in self.usage.bound_at_call:
            bound = self.bound | self.usage.outside_binds.keys()
            self.usage.bound_at_call[name] = frozenset(bound)

    def _visit_function_call(self, node: ast.Call, name: str) -> None:
        """Record a function call with its arguments; calls in functions are ignored."""
        if self.find_scope(name) is not None or self.effects is not None:
            return
        arguments = tuple(get_root_name(argument) for argument in node.args)
        keywords = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                keywords[keyword.arg] = get_root_name(keyword.value)
        call = FunctionCall(name, arguments, keywords)
        self._record_call_time(name)
        effects = self.usage.effects.get(name)
        if effects is not None:
            for argument in list_changed_arguments(effects, call):
                self.record_notebook_change(argument)
        elif call.argument_names:
            self.usage.calls.append(call)

    def record_method_call(self, name: str, method: str) -> None:
        """Record a method call on a notebook name.

        The object of the name changes if the method is known to change the instance:
        if the class is defined in this cell, or is one of `library_objects`.
        """
        if self.find_scope(name) is not None:
            return
        if self.effects is not None:
            self.effects.methods.add((name, method))
            return
        creator = self.usage.created_by.get(name, "")
        effects = self.usage.effects.get(creator) or get_library_effects(creator)
        if effects is not None and method in effects.mutating_methods:
            self.record_notebook_change(name)
        self.usage.methods.add((name, method))

    def visit_magic(self, method: str, arguments: list[Any], node: ast.Call) -> None:
        """Visit a call of an IPython magic and the code in its arguments."""
        magic = analyze_magic(method, arguments)
        is_line_magic = method != "run_cell_magic"
        # The code of a line magic is in the line of the call. The code of a cell magic
        # has the line numbers of the cell.
        self._visit_magic_code(magic, node.lineno if is_line_magic else None)
        for state in magic.outside_reads:
            self.record_outside_use(OutsideUse(state), node)
        self.usage.outside_binds.update(magic.outside_binds)
        read_before = set(self.usage.reads)
        for name in magic.reads:
            self.record_read(name)
        # Code after the magic may read these names, too: see `record_notebook_read`.
        self.usage.magic_reads |= self.usage.reads - read_before
        for name in magic.binds:
            self.record_binding(name, node if is_line_magic else None)
        if magic.binds_any:
            self.usage.star = True

    def _visit_magic_code(self, magic: MagicEffects, line: int | None) -> None:
        """Visit the code that a magic runs.

        `line` is the number of the line for all mentions of names, or None to keep
        their own line numbers.
        """
        mentions_before = len(self.usage.mentions)
        binds_before = dict(self.usage.binds)
        bound_before = set(self.bound)
        outer_source = self.source
        for code in magic.code:
            source_tree = parse_source(code, self.transform)
            if source_tree is not None:
                self.source = source_tree.text
                self.visit_all(source_tree.tree.body)
        self.source = outer_source
        mentions = self.usage.mentions[mentions_before:]
        if magic.discards_bindings:
            self.usage.binds = binds_before
            self.bound = bound_before
            mentions = []
        if line is not None:
            mentions = [mention._replace(line=line) for mention in mentions]
        self.usage.mentions[mentions_before:] = mentions


def _select_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names among nodes; other nodes are ignored."""
    names = set[str]()
    for node in nodes:
        if isinstance(node, ast.Name):
            names.add(node.id)
    return names


def _has_inplace_argument(node: ast.Call) -> bool:
    """Return whether a call has the argument `inplace=True`."""
    for keyword in node.keywords:
        if keyword.arg == "inplace":
            return getattr(keyword.value, "value", None) is True
    return False


def _skip(_visitor: _NameVisitor, _node: ast.AST) -> None:
    """Ignore a node that does not affect names."""


HANDLERS: Mapping[type, Callable[[Any, Any], None]] = {
    ast.Expr: lambda visitor, node: visitor.visit_statement(node.value),
    ast.Name: _NameVisitor.visit_name,
    ast.Constant: _skip,
    ast.Attribute: _NameVisitor.visit_element,
    ast.Subscript: _NameVisitor.visit_element,
    ast.Assign: _NameVisitor.visit_assignment,
    ast.AnnAssign: _NameVisitor.visit_assignment,
    ast.NamedExpr: _NameVisitor.visit_assignment,
    ast.AugAssign: _NameVisitor.visit_augmented_assignment,
    ast.If: _NameVisitor.visit_if,
    ast.For: _NameVisitor.visit_for,
    ast.AsyncFor: _NameVisitor.visit_for,
    ast.While: _NameVisitor.visit_blocks,
    ast.With: _NameVisitor.visit_blocks,
    ast.AsyncWith: _NameVisitor.visit_blocks,
    ast.withitem: _NameVisitor.visit_with_item,
    ast.Try: _NameVisitor.visit_blocks,
    ast.ExceptHandler: _NameVisitor.visit_blocks,
    ast.match_case: _NameVisitor.visit_blocks,
    ast.MatchAs: _NameVisitor.visit_pattern,
    ast.MatchStar: _NameVisitor.visit_pattern,
    ast.MatchMapping: _NameVisitor.visit_pattern,
    ast.Import: _NameVisitor.visit_import,
    ast.ImportFrom: _NameVisitor.visit_import,
    ast.Global: _NameVisitor.visit_declaration,
    ast.Nonlocal: _NameVisitor.visit_declaration,
    **dict.fromkeys((*FUNCTIONS, ast.Lambda), _NameVisitor.visit_function),
    ast.ClassDef: _NameVisitor.visit_class,
    **dict.fromkeys(COMPREHENSIONS, _NameVisitor.visit_comprehension),
    ast.Call: _NameVisitor.visit_call,
}
if hasattr(ast, "TryStar"):
    HANDLERS = {**HANDLERS, ast.TryStar: _NameVisitor.visit_blocks}
if hasattr(ast, "TypeAlias"):
    HANDLERS = {**HANDLERS, ast.TypeAlias: _NameVisitor.visit_type_alias}
