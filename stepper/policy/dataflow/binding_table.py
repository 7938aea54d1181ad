"""The bindings of the notebook's names after some of its cells."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.policy.dataflow.library_objects import get_library_effects
from stepper.policy.dataflow.name_effects import (
    DEFINED,
    VALUE,
    FunctionEffects,
    NameUsage,
    list_changed_arguments,
    list_executed_functions,
)
from stepper.policy.dataflow.outside_state import LAST_RESULT, get_whole_state

# Methods that Python calls only when it makes an instance.
CONSTRUCTORS = ("__new__", "__init__", "__post_init__", "__init_subclass__")
BUILTIN_NAMES = frozenset(vars(builtins))

Names = Collection[str]
# The fingerprints of values by name; an empty string for a large value.
Fingerprints = Mapping[str, str]
# The fingerprint of a value or, if it is unknown, the origin of the binding.
Version = int | str


class Binding(NamedTuple):
    """The last binding of a name.

    `origin` is the number of the run that bound the name or changed its object. If
    cells are applied without their runs, it is the index of the cell. `kind` is VALUE,
    IMPORT or DEFINED. `effects` is set for functions and classes, and for objects with
    mutating methods.
    """

    origin: int
    kind: str
    version: Version
    effects: FunctionEffects | None = None


class ResolvedUsage(NamedTuple):
    """The names that a cell uses, directly and in functions of other cells.

    `changes` are the names whose objects change in place. `binds` maps names to kinds
    of bindings. `outside_reads` and `outside_writes` are names of state outside the
    variables (see `outside_state`).
    """

    reads: set[str]
    changes: set[str]
    binds: dict[str, str]
    outside_reads: set[str]
    outside_writes: set[str]


@dataclass(eq=False, repr=False)
class BindingTable:
    """The bindings of the notebook's names after some of its cells, in their order."""

    bindings: dict[str, Binding] = field(default_factory=dict)
    # The origin of the last `from … import *`, which may have bound any name.
    star_origin: int | None = None
    # Module or class → its attributes that a cell assigned, such as `module.x`.
    attributes: dict[str, set[str]] = field(default_factory=dict)
    # State such as options → the names of its parts that a cell set.
    parts: dict[str, set[str]] = field(default_factory=dict)
    # Whether a name was ever bound to the connection of a database. Most notebooks have
    # none, and each step looks for them in all cells.
    has_databases: bool = False

    def apply(
        self,
        origin: int,
        usage: NameUsage,
        reported: Fingerprints | None = None,
        *,
        succeeded: bool = True,
        bound_before: Names | None = None,
        changed: Names = (),
    ) -> dict[str, Binding]:
        """Apply a cell to the table; return the bindings that the cell reads, by name.

        `origin` is the origin of the cell's bindings. `reported` are the names that the
        kernel reports as bound or changed, with their fingerprints; if `succeeded` is
        false, only these names count. `bound_before` are the names that the cell bound
        or changed when it ran, if they are known. `changed` are names whose objects the
        cell changed in place according to the kernel; the cell also reads these names.
        """
        reported = reported or {}
        has_report = bool(reported)
        resolved = self.resolve_usage(usage)
        changes = resolved.changes
        binds = resolved.binds
        if bound_before is not None:
            changes.intersection_update(bound_before)
            # Names that only the run changed; their fingerprints are not known.
            other_names = {*bound_before} - binds.keys() - changes
            reported = dict.fromkeys(other_names, "")
        # Find the bindings that the cell reads before its own bindings are applied.
        read_bindings = self._find_read_bindings(resolved, changed)
        for name in changes - binds.keys():
            if succeeded or name in reported:
                self._apply_change(name, origin, reported, has_report=has_report)
        for name, kind in binds.items():
            if succeeded or name in reported:
                fingerprint = reported.get(name, "")
                self._apply_binding(name, kind, origin, usage, fingerprint)
        # Names that only the kernel's report contains: `exec` bound them, or a function
        # of another module changed their objects.
        for name in reported.keys() - binds.keys() - changes:
            self._apply_unknown_change(name, origin, reported[name])
        self._apply_outside_state(origin, usage)
        for name in resolved.outside_writes - usage.outside_binds.keys():
            if name not in usage.outside_changes:  # a database
                self.bindings[name] = Binding(origin, VALUE, origin)
        for name in usage.deletes:
            self.bindings.pop(name, None)
        if usage.star:
            self.star_origin = origin
        return read_bindings

    def _find_read_bindings(
        self, resolved: ResolvedUsage, changed: Names
    ) -> dict[str, Binding]:
        """Return the bindings that a cell reads, by name.

        `changed` are names whose objects the cell also reads, because it changes them
        in place.
        """
        read_bindings = self._find_providers(resolved.reads)
        for name in resolved.outside_reads & self.bindings.keys():
            read_bindings[name] = self.bindings[name]
        for name in changed:
            binding = self.bindings.get(name)
            if binding is not None and binding.kind == VALUE:
                read_bindings[name] = binding
        return read_bindings

    def _apply_unknown_change(self, name: str, origin: int, fingerprint: str) -> None:
        """Update the binding of a name that a cell bound, or whose object it changed.

        `fingerprint` is empty if it is not known.
        """
        version = fingerprint or origin
        binding = self.bindings.get(name)
        if binding is None or binding.kind != VALUE:
            binding = Binding(origin, VALUE, version)
        self.bindings[name] = binding._replace(origin=origin, version=version)

    def _apply_outside_state(self, origin: int, usage: NameUsage) -> None:
        """Apply changes of state outside the variables.

        The version of a state is a hash of the code that set it, because equal code has
        equal effects on the same state. This does not apply to files.
        """
        versions: dict[str, Version] = {}
        for name in usage.outside_changes:
            former = self.bindings.get(name)
            # Without a seed, there is no former version, and random numbers differ in
            # each run.
            if former is not None:
                content = (former.version, usage.source)
                versions[name] = str(hash(content))
        for name, codes in usage.outside_binds.items():
            root = _get_attribute_root(name)
            if root:
                if not self._is_definition(root):
                    continue  # a change of the object in place
                self.attributes.setdefault(root, set()).add(name)
            is_known = all(codes) and not name.startswith("file ")
            versions[name] = origin
            if is_known:
                text = "\n".join(codes)
                versions[name] = str(hash(text))
        for name, version in versions.items():
            self.bindings[name] = Binding(origin, VALUE, version)
            state = get_whole_state(name)
            if state != name:
                self.parts.setdefault(state, set()).add(name)

    def _is_definition(self, name: str) -> bool:
        """Return whether a name is bound to a module, a class or a function.

        The attributes of such an object are state outside the variables.
        """
        binding = self.bindings.get(name)
        return binding is not None and binding.kind != VALUE

    def _apply_binding(
        self,
        name: str,
        kind: str,
        origin: int,
        usage: NameUsage,
        fingerprint: str,
    ) -> None:
        """Set the binding of a name; `fingerprint` is empty if none was reported."""
        if not fingerprint:
            fingerprint = self._compute_fingerprint(name, usage)
        effects = self._find_bound_effects(name, kind, usage)
        version = fingerprint or origin
        self.bindings[name] = Binding(origin, kind, version, effects)
        if effects is not None and effects.database:
            self.has_databases = True

    def _apply_change(
        self,
        name: str,
        origin: int,
        reported: Fingerprints,
        *,
        has_report: bool,
    ) -> None:
        """Update the binding of a name whose object a cell may have changed in place.

        The binding remains as it is if its value is the same as before. `has_report`
        says that the kernel reported changes of names.
        """
        binding = self.bindings.get(name)
        if binding is None or binding.kind != VALUE:
            return
        if name in reported:
            is_unchanged = reported[name] == binding.version
        else:
            # The kernel would have reported a change of a value with a fingerprint.
            is_unchanged = has_report and isinstance(binding.version, str)
        if not is_unchanged:
            version = reported.get(name) or origin
            self.bindings[name] = binding._replace(origin=origin, version=version)

    def _compute_fingerprint(self, name: str, usage: NameUsage) -> str:
        """Return the fingerprint of an import or definition, or an empty string.

        Two fingerprints are equal if the source lines are equal and the names that the
        definition reads have the same versions.
        """
        fingerprint = usage.fingerprints.get(name, "")
        effects = usage.effects.get(name)
        if not fingerprint or effects is None:
            return fingerprint
        for read in sorted(effects.definition_reads):
            if read in self.bindings:
                fingerprint += f" {self.bindings[read].version}"
        return fingerprint

    def _find_providers(self, names: Names) -> dict[str, Binding]:
        """Return the bindings of names, by name.

        A name without a binding may come from the last star import, unless it is the
        name of a builtin. If there was no star import, the name is omitted.
        """
        providers = {}
        for name in names:
            binding = self.bindings.get(name)
            if binding is not None:
                providers[name] = binding
            elif self.star_origin is not None and name not in BUILTIN_NAMES:
                providers[name] = Binding(self.star_origin, VALUE, self.star_origin)
        return providers

    def _find_bound_effects(
        self,
        name: str,
        kind: str,
        usage: NameUsage,
    ) -> FunctionEffects | None:
        """Return the effects of a function or class that a cell binds to a name.

        For another object, return the methods of its class and its database, as far as
        they are known, or None if nothing is known.
        """
        if kind == DEFINED:
            return usage.effects.get(name)
        creator = usage.created_by.get(name, "")
        effects = usage.effects.get(creator)
        if effects is None and creator in self.bindings:
            effects = self.bindings[creator].effects
        if effects is None:
            return get_library_effects(creator)
        methods = {**effects.own_methods}
        for constructor in CONSTRUCTORS:
            methods.pop(constructor, None)
        if not effects.mutating_methods and not effects.database and not methods:
            return None
        return FunctionEffects(
            mutating_methods=effects.mutating_methods,
            own_methods=methods,
            database=effects.database,
        )

    def _get_effects(self, name: str) -> FunctionEffects | None:
        """Return the effects of the object that a name is bound to, or None."""
        binding = self.bindings.get(name)
        return binding.effects if binding else None

    def resolve_usage(self, usage: NameUsage) -> ResolvedUsage:
        """Return the names that a cell reads, changes and binds.

        This includes the effects of the functions of other cells that the cell uses.
        """
        reads = {*usage.reads}
        changes = {*usage.changes}
        binds = {**usage.binds}
        for call in usage.calls:
            effects = self._get_effects(call.function)
            if effects:
                changes.update(list_changed_arguments(effects, call))
        changes |= self._list_changed_instances(usage.methods)
        # Each name that is read, with the names that the cell has bound before.
        own_names = usage.binds.keys()
        seen = reads - usage.annotation_reads
        pending = [(name, usage.bound_at_call.get(name, own_names)) for name in seen]
        while pending:
            function, bound = pending.pop()
            effects = self._get_effects(function)
            if effects is None:
                continue
            new_reads = effects.reads - seen - bound
            seen |= new_reads
            reads |= new_reads
            pending += [(name, bound) for name in new_reads]
            changes |= effects.changes
            changes |= self._list_changed_instances(effects.methods)
            binds |= dict.fromkeys(effects.binds, VALUE)
        states = usage.outside_reads | self._list_function_states(usage)
        outside_reads = self._list_outside_reads(usage, reads, states)
        outside_writes = {*usage.outside_binds, *usage.outside_changes}
        outside_writes |= self.list_databases(changes)
        return ResolvedUsage(reads, changes, binds, outside_reads, outside_writes)

    def _list_function_states(self, usage: NameUsage) -> set[str]:
        """Return the state outside the variables that functions of other cells read.

        `usage` is the usage of a cell that uses these functions, also as methods.
        """
        states = set[str]()
        attributes = {*usage.read_attributes}
        own_names = usage.binds.keys() | usage.outside_binds.keys()
        # Each name that is read, with what the cell has bound before.
        pending = list[tuple[str, Names]]()
        seen = usage.reads - usage.annotation_reads
        for name in seen:
            pending.append((name, usage.bound_at_call.get(name, own_names)))
        executed = set[FunctionEffects]()
        # The names of classes and instances, with what the cell has bound before.
        objects = dict[str, Names]()
        while pending:
            name, bound = pending.pop()
            effects = self._get_effects(name)
            if effects is None:
                continue
            if effects.own_methods:
                objects[name] = bound
            for function in list_executed_functions(effects, attributes):
                if function in executed:
                    continue
                executed.add(function)
                states |= function.outside_reads.difference(bound)
                new_reads = function.reads.difference(bound, seen)
                seen |= new_reads
                pending += [(read, bound) for read in new_reads]
                if not function.read_attributes <= attributes:
                    attributes |= function.read_attributes
                    pending += objects.items()
        return states

    def _list_changed_instances(self, methods: set[tuple[str, str]]) -> set[str]:
        """Return the names whose objects change because of called methods.

        `methods` are pairs of a name and a method.
        """
        names = set()
        for name, method in methods:
            effects = self._get_effects(name)
            if effects is not None and method in effects.mutating_methods:
                names.add(name)
        return names

    def _list_outside_reads(
        self, usage: NameUsage, reads: set[str], states: set[str]
    ) -> set[str]:
        """Return the state outside the variables that a cell reads.

        `states` are the states that the cell, or a function that it uses, reads.
        """
        outside_reads = states | self.list_databases(reads)
        for name in states:
            state = get_whole_state(name)
            if state != name:
                outside_reads.add(state)
                continue
            parts = self.parts.get(state)
            if parts is not None:
                outside_reads |= parts - usage.outside_binds.keys()
        if "_" in reads and "_" not in self.bindings:
            outside_reads.add(LAST_RESULT)
        for name, attributes in self.attributes.items():
            # A cell that only assigns attributes does not read them.
            if name in usage.used or name in reads - usage.reads:
                outside_reads |= attributes
        return outside_reads

    def list_databases(self, names: Names) -> set[str]:
        """Return the databases of the names that are bound to connections."""
        databases = set[str]()
        if not self.has_databases:
            return databases
        for name in names:
            effects = self._get_effects(name)
            if effects is not None and effects.database:
                databases.add(effects.database)
        return databases


def _get_attribute_root(state: str) -> str:
    """Return `x` for the state `x.y`, or an empty string for other state."""
    root, _, attribute = state.partition(".")
    return root if attribute and root.isidentifier() else ""
