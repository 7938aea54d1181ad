"""Snapshots of Python objects: what changes is detected, and restored in place."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import gc
import io
import itertools
import random
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepper.kernels.in_kernel.undo import image_memory, package_counters
from stepper.kernels.in_kernel.undo.image_memory import Sizes
from stepper.kernels.in_kernel.undo.object_snapshots import (
    MODULE_DICT,
    RestoreError,
    Row,
    UnprotectedError,
)
from stepper.kernels.in_kernel.undo.object_walk import (
    Walk,
    clock,
    find_reachable,
    forget_classes,
)
from stepper.kernels.in_kernel.undo.python_objects import scope

GB = 1 << 30


def walk(*values: Any, seconds: float = 10, max_bytes: int = GB) -> Walk:
    """Take snapshots of values and of all that they refer to."""
    forget_classes()
    result = Walk(seconds, max_bytes)
    for index, value in enumerate(values):
        result.add_name(f"name{index}", value)
    return result


def list_changed(images: Walk) -> list[Any]:
    return [
        each
        for each in images.snapshots.values()
        if not each.row.is_same(each.target, each.state)
    ]


def restore(images: Walk) -> None:
    for each in list_changed(images):
        each.row.restore(each.target, each.state)
    assert list_changed(images) == []


class Plain:
    total = 0
    shared: typing.ClassVar[list[int]] = [1]

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def method(self) -> int:
        return self.total


class Slots:
    __slots__ = ("left", "right")


class SlotsAndDict(Slots):
    pass


class Bag(list):  # type: ignore[type-arg]
    pass


class Hostile:
    """Each method that could be called raises an exception."""

    def __init__(self) -> None:
        object.__getattribute__(self, "__dict__")["value"] = [1]

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        return 7

    def __bool__(self) -> bool:
        raise AssertionError


@dataclasses.dataclass(slots=True)
class Point:
    x: Any
    y: Any


class Color(Enum):
    RED = 1


def make_closure() -> tuple[Callable[[], list[int]], Callable[[int], None]]:
    count = 0
    items: list[int] = []

    def read() -> list[int]:
        return [count, *items]

    def write(value: int) -> None:
        nonlocal count
        count += value
        items.append(value)

    return read, write


@pytest.fixture(autouse=True)
def user_module() -> Iterator[None]:
    """The classes and functions of this module count as the user's."""
    former = scope.local_modules, scope.namespace
    scope.namespace = globals()
    scope.local_modules = {"__main__": True, __name__: True}
    yield
    scope.local_modules, scope.namespace = former
    Plain.total = 0


def make(value: Any) -> Any:
    return value


class Other(Plain):
    pass


class Concrete(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, item: Any) -> None:
        self.item = item


def set_slots(value: Any) -> Any:
    value.left = 1
    return value


def make_function() -> Any:
    def collect(item: int, items: list[int] = []) -> list[int]:  # noqa: B006
        items.append(item)
        return items

    return collect


def referent() -> tuple[Any, Any]:
    value = Plain(a=[])
    return value, weakref.ref(value)


# How to create an object, how to change it, and how to read its state.
CASES: dict[
    str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    "list": (lambda: [1, [2]], lambda v: v[1].append(3), repr),
    "list slice": (lambda: [1, 2, 3], lambda v: v.__setitem__(slice(0, 2), []), repr),
    "list order": (lambda: [3, 1, 2], lambda v: v.sort(), repr),
    "equal items": (
        lambda: [1, 0.0],
        lambda v: v.__setitem__(slice(None), [True, -0.0]),
        repr,
    ),
    "dict": (lambda: {"a": {"b": 1}}, lambda v: v["a"].update(b=2), repr),
    "dict order": (lambda: {"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a")), repr),
    "dict pop": (lambda: {"a": 1, "b": 2}, lambda v: v.pop("a"), repr),
    "set": (lambda: {1, 2, 17}, lambda v: v.update({3}), list),
    "defaultdict": (lambda: collections.defaultdict(list), lambda v: v["a"], repr),
    "default factory": (
        lambda: collections.defaultdict(list),
        lambda v: setattr(v, "default_factory", None),
        repr,
    ),
    "Counter": (lambda: collections.Counter("aab"), lambda v: v.update("b"), repr),
    "OrderedDict": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda v: v.move_to_end("a"),
        repr,
    ),
    "deque": (lambda: collections.deque([1, 2], 3), lambda v: v.extend([3, 4]), repr),
    "ChainMap": (
        lambda: collections.ChainMap({"a": 1}, {"b": 2}),
        lambda v: v.update(c=1),
        repr,
    ),
    "UserDict": (lambda: collections.UserDict(a=1), lambda v: v.update(a=2), repr),
    "bytearray": (lambda: bytearray(b"ab"), lambda v: v.extend(b"c"), repr),
    "array": (lambda: array.array("d", [1, 2]), lambda v: v.append(3), repr),
    "array item": (
        lambda: array.array("d", [1, 2]),
        lambda v: v.__setitem__(0, 5),
        repr,
    ),
    "memoryview": (
        lambda: memoryview(bytearray(b"ab")),
        lambda v: v.__setitem__(0, 5),
        bytes,
    ),
    "StringIO": (
        lambda: io.StringIO("ab\ncd"),
        lambda v: (v.readline(), v.write("x")),
        lambda v: (v.getvalue(), v.tell()),
    ),
    "BytesIO": (
        lambda: io.BytesIO(b"abc"),
        lambda v: (v.read(1), v.write(b"x")),
        lambda v: (v.getvalue(), v.tell()),
    ),
    "Random": (
        lambda: random.Random(1),
        lambda v: (v.random(), v.gauss(0, 1)),
        lambda v: v.getstate(),
    ),
    "list iterator": (lambda: iter([1, 2, 3]), next, lambda v: v.__reduce__()),
    "tuple": (lambda: ([1], 2), lambda v: v[0].append(2), repr),
    "instance": (lambda: Plain(a=1), lambda v: setattr(v, "a", 2), vars),
    "new attribute": (lambda: Plain(a=1), lambda v: setattr(v, "b", 2), vars),
    "deleted attribute": (lambda: Plain(a=1), lambda v: delattr(v, "a"), vars),
    "nested instance": (
        lambda: Plain(a=Plain(b=[1])),
        lambda v: v.a.b.append(2),
        lambda v: repr(v.a.b),
    ),
    "__dict__": (lambda: Plain(a=1), lambda v: setattr(v, "__dict__", {"z": 1}), vars),
    "__class__": (
        lambda: Plain(a=1),
        lambda v: setattr(v, "__class__", Other),
        type,
    ),
    "slots": (
        lambda: set_slots(Slots()),
        lambda v: setattr(v, "left", 5),
        lambda v: (v.left, hasattr(v, "right")),
    ),
    "empty slot": (
        lambda: set_slots(Slots()),
        lambda v: setattr(v, "right", 5),
        lambda v: (v.left, hasattr(v, "right")),
    ),
    "slots and dict": (
        lambda: set_slots(SlotsAndDict()),
        lambda v: (setattr(v, "left", 5), setattr(v, "c", 1)),
        lambda v: (v.left, vars(v)),
    ),
    "dataclass": (
        lambda: Point([1], 2),
        lambda v: (v.x.append(1), setattr(v, "y", 3)),
        repr,
    ),
    "list subclass": (
        lambda: Bag([1]),
        lambda v: (v.append(2), setattr(v, "a", 1)),
        lambda v: (list(v), vars(v)),
    ),
    "SimpleNamespace": (
        lambda: types.SimpleNamespace(a=1),
        lambda v: setattr(v, "a", 2),
        repr,
    ),
    "partial": (
        lambda: functools.partial(make, [1], key={}),
        lambda v: (v.args[0].append(2), v.keywords.update(a=1)),
        repr,
    ),
    "bound method": (
        lambda: Plain(a=[1]).method,
        lambda v: v.__self__.a.append(2),
        lambda v: repr(v.__self__.a),
    ),
    "class attribute": (
        lambda: Plain,
        lambda v: setattr(v, "total", 9),
        lambda v: v.total,
    ),
    "attribute of the class": (
        Plain,
        lambda v: setattr(type(v), "total", 9),
        lambda v: v.total,
    ),
    "list of the class": (
        Plain,
        lambda v: v.shared.append(2),
        lambda v: repr(v.shared),
    ),
    "method of the class": (
        Plain,
        lambda v: setattr(type(v), "method", None),
        lambda v: v.method,
    ),
    "closure": (make_closure, lambda v: v[1](3), lambda v: v[0]()),
    "function attribute": (
        lambda: make_closure()[0],
        lambda v: setattr(v, "calls", 1),
        vars,
    ),
    "defaults": (
        make_function,
        lambda v: (v(1), v(2)),
        lambda v: repr(v.__defaults__),
    ),
    "code": (
        make_function,
        lambda v: setattr(v, "__defaults__", None),
        lambda v: repr(v.__defaults__),
    ),
    "exception": (
        lambda: ValueError("a"),
        lambda v: setattr(v, "args", ("b",)),
        lambda v: v.args,
    ),
    "weak reference": (
        referent,
        lambda v: v[1]().a.append(1),
        lambda v: repr(v[0].a),
    ),
    "mapping proxy": (
        lambda: types.MappingProxyType({"a": [1]}),
        lambda v: v["a"].append(2),
        repr,
    ),
    "dict view": ({"a": [1]}.values, lambda v: next(iter(v)).append(2), repr),
    "hostile": (
        Hostile,
        lambda v: object.__getattribute__(v, "__dict__").update(value=1),
        lambda v: repr(object.__getattribute__(v, "__dict__")),
    ),
    "cache": (
        lambda: functools.lru_cache(make_function()),
        lambda v: v(1),
        lambda v: v.cache_info(),
    ),
    "set of instances": (lambda: {Slots()}, lambda v: v.clear(), len),
    "abstract type": (lambda: Concrete(1), lambda v: setattr(v, "item", 2), vars),
}


@pytest.mark.parametrize("case", CASES)
def test_change_is_detected_and_restored_in_place(case: str) -> None:
    create, change, read = CASES[case]
    value = create()
    before = repr(read(value))
    images = walk(value)
    assert list_changed(images) == []
    change(value)
    assert repr(read(value)) != before
    assert list_changed(images)
    restore(images)
    assert repr(read(value)) == before


def test_aliases_stay_aliases() -> None:
    shared = [1]
    value = {"a": shared, "b": Plain(c=shared)}
    images = walk(value)
    value["a"] = [9]
    shared.clear()
    restore(images)
    assert value["a"] is shared is value["b"].c
    assert shared == [1]


def test_reading_changes_nothing() -> None:
    value = [{"a": [1, {2}], "b": Plain(c=Point(1, 2))}, Color.RED, Fraction(1, 2)]
    images = walk(value, Color, threading.Lock())
    repr(value)
    assert list_changed(images) == []


GENERATED = (
    (lambda: (number for number in range(3)), next),
    (lambda: enumerate("ab"), next),
    (lambda: iter({"a": 1}), next),
    (lambda: iter({1}), next),
)


@pytest.mark.parametrize(("create", "change"), GENERATED)
def test_iterators_are_unprotected_and_their_use_is_noticed(
    create: Callable[[], Any], change: Callable[[Any], Any]
) -> None:
    value = create()
    images = walk([value])
    (each,) = images.unprotected.values()
    assert each.row.is_same(value, each.state)
    change(value)
    assert not each.row.is_same(value, each.state)


@pytest.mark.parametrize("value", [zip("ab"), map(make, "ab"), itertools.cycle("a")])
def test_objects_of_unknown_types_are_unprotected(value: Any) -> None:
    images = walk(value)
    (each,) = images.unprotected.values()
    assert not each.row.is_conclusive


def test_objects_of_the_kernel_and_locks_are_ignored_in_containers() -> None:
    images = walk([threading.Lock(), threading.current_thread()])
    assert images.unprotected == {}


def test_closed_stream_is_not_restored() -> None:
    stream = io.BytesIO(b"a")
    images = walk(stream)
    stream.close()
    (each,) = list_changed(images)
    with pytest.raises(RestoreError, match="it was closed"):
        each.row.restore(stream, each.state)


def test_exhausted_iterator_is_not_called_restored() -> None:
    value = iter([1])
    images = walk(value)
    list(value)
    (each,) = list_changed(images)
    each.row.restore(value, each.state)
    assert list_changed(images)


def test_large_object_is_unprotected() -> None:
    value = list(range(100_000))
    images = walk(value, max_bytes=1000)
    (each,) = images.unprotected.values()
    assert each.row.label == "too large"
    value[0] = 5
    assert not each.row.is_same(value, each.state)


def test_walk_stops_at_its_deadline_and_says_so() -> None:
    value = [Plain(a=[number]) for number in range(1000)]
    assert walk(value, seconds=0).incomplete == ["name0"]


def test_search_that_finds_all_objects_is_complete() -> None:
    target = [1]
    unreadable = [2]

    def list_children(value: Any, row: Row) -> Any:
        if value is unreadable:
            raise ValueError
        return row.children(row.take(value))

    keys = {id(target)}
    deadline = clock() + 60
    found = find_reachable([target, unreadable], keys, deadline, list_children)
    assert found == (keys, True)
    missing = find_reachable([unreadable], keys, deadline, list_children)
    assert missing == (set(), False)


def test_contents_of_a_long_dict_have_a_size() -> None:
    value = {number: [bytes(100_000)] for number in range(1001)}
    assert Sizes([value]).total > 50 * 100_000


def test_size_of_many_texts_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = []

    def get_size(value: Any) -> int:
        visited.append(value)
        return int(value.__sizeof__())

    monkeypatch.setattr(image_memory, "get_size", get_size)
    texts = [[f"text {row} {column}" for column in range(300)] for row in range(300)]
    size = sum(text.__sizeof__() for row in texts for text in row)
    assert size < Sizes([texts]).total < 1.2 * size
    assert len(visited) < 7000


def test_big_objects_are_not_estimated() -> None:
    values = [bytes(70_000) for _ in range(300)]
    sizes = Sizes(values, max_objects=100)
    assert len(sizes.big) == 300
    assert sizes.small == 0


def test_counters_are_found_beside_an_object_that_fails() -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError

    module: Any = types.ModuleType("counting")
    exec("count = 0\ndef step():\n    global count\n    count += 1\n", vars(module))
    module.failing = Failing()
    (counter,) = package_counters.find_counters(module, vars(module), "counting")
    assert counter.name == "count"


def test_classes_are_not_kept_alive() -> None:
    kind = type("Short", (), {"__module__": __name__})
    reference = weakref.ref(kind)
    walk(kind())
    forget_classes()
    del kind
    gc.collect()
    assert reference() is None


# random graphs and random changes

KINDS: tuple[Callable[[], Any], ...] = (
    list,
    dict,
    collections.OrderedDict,
    collections.deque,
    Plain,
    Bag,
    Slots,
    lambda: Point(None, None),
    lambda: collections.defaultdict(list),
    lambda: set_slots(SlotsAndDict()),
    set,
)
SCALARS = st.sampled_from([None, 0, 1, True, -0.0, 1.0, "a", "b", (1, "c"), b"x"])


def store_value(owner: Any, key: int, value: Any) -> None:
    """Store a value in an object of any of KINDS."""
    if isinstance(owner, (list, collections.deque)):
        if len(owner) and key % 2:
            owner[key % len(owner)] = value
        else:
            owner.append(value)
    elif isinstance(owner, dict):
        owner[f"k{key % 4}"] = value
    elif isinstance(owner, set):
        owner.add(key)
    elif isinstance(owner, Point):
        setattr(owner, "xy"[key % 2], value)
    elif type(owner) is Slots:
        setattr(owner, ("left", "right")[key % 2], value)
    else:
        setattr(owner, f"a{key % 4}", value)


def remove(owner: Any, key: int) -> None:
    """Remove something from an object of any of KINDS."""
    if isinstance(owner, (list, collections.deque)):
        if owner:
            del owner[key % len(owner)]
    elif isinstance(owner, collections.OrderedDict) and owner and key % 2:
        owner.move_to_end(next(iter(owner)))
    elif isinstance(owner, dict):
        owner.pop(f"k{key % 4}", None)
    elif isinstance(owner, set):
        owner.discard(key)
    elif isinstance(owner, Slots):
        if hasattr(owner, "right"):
            del owner.right
    elif hasattr(owner, "__dict__"):
        vars(owner).clear()


def describe(value: Any, numbers: dict[int, int]) -> Any:
    """Return a value as nested tuples, in which aliases and cycles are numbers."""
    if isinstance(value, (int, float, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    if id(value) in numbers:
        return "seen", numbers[id(value)]
    numbers[id(value)] = len(numbers)
    parts: list[Any] = [type(value).__name__, id(value)]
    if isinstance(value, dict):
        parts += [(repr(key), describe(item, numbers)) for key, item in value.items()]
    elif isinstance(value, (list, tuple, collections.deque)):
        parts += [describe(item, numbers) for item in value]
    elif isinstance(value, set):
        parts += sorted(map(repr, value))
    for name in ("left", "right", "x", "y"):
        if name in dir(type(value)) and hasattr(value, name):
            parts.append((name, describe(getattr(value, name), numbers)))
    if hasattr(value, "__dict__"):
        parts.append(describe(vars(value), numbers))
    return tuple(parts)


@given(st.data())
def test_random_changes_of_random_graphs_are_undone(data: st.DataObject) -> None:
    pool = [
        data.draw(st.sampled_from(KINDS))() for _ in range(data.draw(st.integers(1, 8)))
    ]
    numbers = st.integers(0, 20)
    index = st.integers(0, len(pool) - 1)
    for owner, key, item in data.draw(
        st.lists(st.tuples(index, numbers, index | SCALARS))
    ):
        store_value(
            pool[owner],
            key,
            pool[item] if type(item) is int and item < len(pool) else item,
        )
    roots = data.draw(st.lists(index, min_size=1, max_size=3))
    namespace = {f"root{each}": pool[each] for each in roots}
    images = walk(*namespace.values())
    before = describe(namespace, {})
    owners = [each for each in pool if id(each) in images.snapshots] or [[]]
    owner_index = st.integers(0, len(owners) - 1)
    for owner, key, item in data.draw(
        st.lists(st.tuples(owner_index, numbers, index | SCALARS | st.just("remove")))
    ):
        target = owners[owner]
        if item == "remove":
            remove(target, key)
        else:
            store_value(
                target,
                key,
                pool[item] if type(item) is int and item < len(pool) else item,
            )
    restore(images)
    assert describe(namespace, {}) == before


def test_module_finalizer():
    """The finalizer of a removed item may remove other items of the module."""
    module = types.ModuleType("helpers")
    module.kept = 1  # type: ignore[attr-defined]
    state = dict(vars(module))
    module.first = Plain()  # type: ignore[attr-defined]
    module.second = 2  # type: ignore[attr-defined]
    weakref.finalize(vars(module)["first"], vars(module).pop, "second")
    MODULE_DICT.restore(vars(module), state)
    assert vars(module) == state


def raise_error(value: Any) -> Any:
    raise RuntimeError("the value has no storage")


def raise_unprotected(value: Any) -> Any:
    raise UnprotectedError("sparse value")


@pytest.mark.parametrize(
    ("row", "label"),
    [
        (Row(measure=raise_error), "object whose state cannot be read"),
        (Row(measure=raise_unprotected, sample=raise_error), "sparse value"),
    ],
)
def test_object_that_cannot_be_measured(row: Row, label: str) -> None:
    images = walk()
    value = Plain()
    assert images.take(id(value), value, row) is None
    (snapshot,) = images.unprotected.values()
    assert snapshot.row.label == label
    assert snapshot.row.is_same(value, snapshot.state)
