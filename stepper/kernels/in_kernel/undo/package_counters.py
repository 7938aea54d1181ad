"""Counters of packages, such as the number in the default name `sys[3]` of an object.

A counter is an integer to which a function of the same class or module adds in place,
or an `itertools.count`. Before a cell runs again, a counter for names gets the value
that it had when the cell ran first. If the counter has the same value as before after
the run, it then gets its last value, because the objects of other cells have the next
numbers. Otherwise, and for other counters, the report says that they may differ.
"""

from __future__ import annotations

import dis
import itertools
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import is_a, is_one_of
from stepper.kernels.in_kernel.undo.object_walk import clock, get_module
from stepper.kernels.in_kernel.undo.python_objects import (
    KERNEL_PACKAGES,
    get_class_dict,
    get_module_dict,
    scope,
)

# For one search in modules that are new: about 1,000 modules, whose import took longer.
SEARCH_SECONDS = 0.015
MAX_COUNTERS = 1000
# Packages whose counters users do not see, and large packages.
OTHER_PACKAGES = {
    "PIL",
    "bokeh",
    "jedi",
    "matplotlib",
    "numba",
    "numpy",
    "pandas",
    "parso",
    "prompt_toolkit",
    "pyarrow",
    "pygments",
    "scipy",
    "sklearn",
    "sympy",
    "torch",
}
STORING = {dis.opmap["STORE_ATTR"], dis.opmap["STORE_GLOBAL"]}
COUNTER_TYPES = (int, itertools.count)
METHOD_TYPES = (classmethod, staticmethod, types.MethodType)
LABEL = "may differ from the values in a run from the top"
# An addition in place has one of these as its name or argument in bytecode.
IN_PLACE = {"INPLACE_ADD", "+="}
# Instructions between an addition and the assignment.
IN_BETWEEN = {"CACHE", "EXTENDED_ARG", "ROT_TWO", "SWAP"}


class Counter(NamedTuple):
    """A class or module with a counter, and the name of the counter's attribute.

    `is_for_names` is true if a function that assigns the attribute also builds a text.
    """

    owner: Any
    name: str
    is_for_names: bool


class Step(NamedTuple):
    """The values of a counter before and after a run.

    `before` is None if the counter was found during the run.
    """

    run: int
    before: int | None
    after: int


class Expected(NamedTuple):
    """The value of a counter after a run that repeats another, and its last value."""

    after: int
    last: int


class Counters:
    """The counters of all modules that were loaded so far, and how runs changed them.

    The key of a counter is its index in `counters`.
    """

    def __init__(self) -> None:
        self.counters: list[Counter] = []
        self.known_modules: set[str] = set()
        self.pending: list[str] = []  # modules that were not searched yet
        self.standard = set(getattr(sys, "stdlib_module_names", ()))
        self.values: list[int] = []  # before the current run
        self.steps: dict[int, list[Step]] = {}  # by key, oldest first
        self.expected: dict[int, Expected] = {}  # by key, for the current run
        # Whether the last undo could not reset a counter.
        self.has_other_value = False

    def start_run(self) -> None:
        """Search new modules for counters, and store all values before a run."""
        self.search()
        self.values = [read_counter(counter) for counter in self.counters]

    def finish_run(self, run: int) -> bool:
        """Record how a run changed the counters.

        Counters that were reset before the run get their last values again. Return
        whether counters may differ from their values in a run from the top.
        """
        values = self.values
        expected_values = self.expected
        differs = self.has_other_value
        self.values = []
        self.expected = {}
        self.has_other_value = False
        self.search()
        for key, before in enumerate(values):
            after = read_counter(self.counters[key])
            if after != before:
                self.steps.setdefault(key, []).append(Step(run, before, after))
        for key in range(len(values), len(self.counters)):
            after = read_counter(self.counters[key])
            # A counter with 0 has probably not counted yet.
            if after:
                self.steps.setdefault(key, []).append(Step(run, None, after))
        for key, expected in expected_values.items():
            counter = self.counters[key]
            after = read_counter(counter)
            differs = differs or after != expected.after
            write_counter(counter, max(after, expected.last))
        return differs

    def undo(self, runs: Collection[int], is_repeated: bool) -> bool:
        """Reset the counters that runs of a cell changed.

        If `is_repeated` is true, the cell runs again now. Return whether a counter
        could not be reset.
        """
        self.has_other_value = False
        for key, steps in self.steps.items():
            own_steps = [step for step in steps if step.run in runs]
            if not own_steps:
                continue
            counter = self.counters[key]
            value = read_counter(counter)
            before = own_steps[0].before
            after = own_steps[-1].after
            other_steps = [step for step in steps if step.run not in runs]
            if value == before:
                self.steps[key] = other_steps
                continue
            # If other cells have counted since, only a repetition of the cell may use
            # its former numbers.
            is_last = value == after
            is_separate = are_contiguous(own_steps, other_steps)
            can_set_back = is_separate and (is_last or is_repeated)
            if before is None or not counter.is_for_names or not can_set_back:
                self.has_other_value = True
                continue
            if not is_last:
                self.expected[key] = Expected(after, value)
            write_counter(counter, before)
            self.steps[key] = other_steps
        return self.has_other_value

    def search(self) -> None:
        """Search new modules for counters, for at most SEARCH_SECONDS.

        The remaining modules are searched by the next call.
        """
        if len(sys.modules) != len(self.known_modules):
            new_names = [name for name in sys.modules if name not in self.known_modules]
            # An undo may have removed modules, which are new after another import.
            self.known_modules = set(sys.modules)
            self.pending += filter(self.may_have_counters, new_names)
        deadline = clock() + SEARCH_SECONDS
        while self.pending and clock() < deadline:
            module = sys.modules.get(self.pending.pop())
            if is_a(module, types.ModuleType):
                self.add_counters(module)

    def may_have_counters(self, name: Any) -> bool:
        """Return whether a module is searched. `name` is its key in `sys.modules`.

        Modules of the standard library, of the kernel and of OTHER_PACKAGES are not
        searched, and neither are private ones.
        """
        package = str(name).partition(".")[0]
        if package in OTHER_PACKAGES or package in KERNEL_PACKAGES:
            return False
        return package not in self.standard and not package.startswith("_")

    def add_counters(self, module: Any) -> None:
        """Add the counters of a module and of its classes."""
        attributes = get_module_dict(module)
        name = attributes.get("__name__")
        # The state of the user's modules is restored.
        if scope.is_local(name) or len(self.counters) >= MAX_COUNTERS:
            return
        self.counters += find_counters(module, attributes, name)
        for value in list(attributes.values()):
            if is_a(value, type) and get_module(value) == name:
                self.counters += find_counters(value, get_class_dict(value), name)


counters = Counters()


def are_contiguous(own_steps: list[Step], other_steps: list[Step]) -> bool:
    """Return whether other runs counted only before or after all own steps."""
    first = own_steps[0].before
    last = own_steps[-1].after
    if first is None:
        return False
    value = first
    for step in own_steps:
        if step.before != value:
            return False
        value = step.after
    for other in other_steps:
        is_earlier = other.after <= first
        is_later = other.before is not None and other.before >= last
        if not is_earlier and not is_later:
            return False
    return True


def find_counters(owner: Any, attributes: Any, module_name: Any) -> Iterator[Counter]:
    """Yield the counters of a class or module.

    `attributes` is its `__dict__`, and `module_name` the name of the module that
    defines it. Names in upper case are constants and are left out.
    """
    candidates = [
        name
        for name, value in list(attributes.items())
        if type(value) in COUNTER_TYPES and type(name) is str and not name.isupper()
    ]
    if not candidates:
        return
    codes = [*list_storing_codes(attributes, module_name)]
    for name in candidates:
        storing = [code for code in codes if name in code.co_names]
        if type(attributes[name]) is itertools.count:
            yield Counter(owner, name, is_for_names=False)
        elif any(adds_in_place(code, name) for code in storing):
            yield Counter(owner, name, any(map(builds_text, storing)))


def list_storing_codes(attributes: Any, module_name: Any) -> Iterator[types.CodeType]:
    """Yield the code of a module's functions that assign attributes or globals.

    `attributes` is the `__dict__` of the module or of one of its classes.
    """
    for value in list(attributes.values()):
        function: Any = value
        if is_one_of(type(value), METHOD_TYPES):
            function = value.__func__
        elif type(value) is property:
            function = value.fset or value.fget
        if type(function) is not types.FunctionType:
            continue
        code = function.__code__
        is_own = function.__module__ == module_name
        if is_own and not STORING.isdisjoint(code.co_code[::2]):
            yield code


def adds_in_place(code: types.CodeType, name: str) -> bool:
    """Return whether a function adds to an attribute or global variable in place."""
    is_added = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in IN_BETWEEN:
            continue
        if is_added and instruction.opcode in STORING and instruction.argval == name:
            return True
        is_added = not IN_PLACE.isdisjoint((instruction.opname, instruction.argrepr))
    return False


def builds_text(code: types.CodeType) -> bool:
    """Return whether a function formats a text."""
    if not {"format", "str"}.isdisjoint(code.co_names):
        return True
    operations = {dis.opname[number] for number in set(code.co_code[::2])}
    if any(name.startswith("FORMAT_") for name in operations):
        return True
    # The first constant may be the docstring.
    texts = [constant for constant in code.co_consts[1:] if type(constant) is str]
    return any("%" in text for text in texts)


def read_counter(counter: Counter) -> int:
    """Return the value of a counter, or 0 if the attribute is no longer a counter."""
    value = vars(counter.owner).get(counter.name)
    if type(value) is itertools.count:
        # The text is `count(3)` or `count(3, 2)`.
        text = repr(value).strip("count()").partition(",")[0]
        return int(text) if text.isdigit() else 0
    return value if type(value) is int else 0


def write_counter(counter: Counter, value: int) -> None:
    """Set the value of a counter that is an integer."""
    if isinstance(counter.owner, type):
        type.__setattr__(counter.owner, counter.name, value)
    else:
        get_module_dict(counter.owner)[counter.name] = value
