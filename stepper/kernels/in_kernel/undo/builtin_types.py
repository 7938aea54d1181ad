"""The table of builtin types: how to take, compare and restore the state of each."""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import ipaddress
import itertools
import operator
import pathlib
import random
import re
import struct
import sys
import threading
import types
import typing
import uuid
import weakref
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import is_a
from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    CONTAINERS,
    EMPTY,
    RestoreError,
    Row,
    are_identical,
    make_immutable_row,
    make_is_same,
    make_unprotected_row,
)


def restore_bytearray(value: bytearray, state: Any) -> None:
    """Replace the content of a bytearray. Raise RestoreError if this is not possible.

    The length cannot change while a memoryview uses the memory of the bytearray.
    """
    try:
        bytearray.__setitem__(value, slice(None), state)
    except BufferError as error:
        raise RestoreError("its buffer is in use") from error


def restore_array(value: Any, state: Any) -> None:
    """Replace the items of an `array.array` by those in the bytes of a state.

    Raise RestoreError if the length differs and a memoryview uses the array's memory.
    """
    try:
        if len(state) == len(value) * value.itemsize:
            memoryview(value).cast("B")[:] = state
        else:
            array.array.__delitem__(value, slice(None))
            array.array.frombytes(value, state)
    except BufferError as error:
        raise RestoreError("its buffer is in use") from error


def measure_buffer(value: Any) -> Any:
    """Return the seconds and the bytes that a copy of a bytearray or array costs."""
    size = memoryview(value).nbytes
    return size * BYTE_SECONDS, size


def take_stream(value: Any) -> Any:
    """Return the content and the position of a stream in memory.

    Return "closed" if the stream is closed.
    """
    try:
        return value.__getstate__()[:-1]  # without `__dict__`
    except ValueError:
        return "closed"


def restore_stream(value: Any, state: Any) -> None:
    """Restore a stream in memory. Raise RestoreError if it was closed since."""
    if state == "closed":
        value.close()
        return
    try:
        value.__setstate__((*state, None))
    except (ValueError, BufferError) as error:
        raise RestoreError("it was closed") from error


def measure_stream(value: Any) -> Any:
    """Return the seconds and the bytes that a copy of a stream's content costs."""
    size = value.__sizeof__()
    return size * BYTE_SECONDS, size


# other builtin types


def take_random(value: Any) -> Any:
    """Return the state of a generator of random numbers."""
    return generator_type.getstate(value)


def restore_random(value: Any, state: Any) -> None:
    """Set the state of a generator of random numbers."""
    generator_type.setstate(value, state)


def take_iterator(value: Any) -> Any:
    """Return the arguments of an iterator, and a list with its position if it has one.

    The first argument is the object from which the iterator takes its items.
    """
    _, arguments, *position = value.__reduce__()
    return arguments, position


def is_same_iterator(value: Any, state: Any) -> bool:
    """Return whether an iterator has the arguments and the position of a state."""
    arguments, position = take_iterator(value)
    former_arguments, former_position = state
    if len(arguments) != len(former_arguments) or position != former_position:
        return False
    return are_identical(arguments, former_arguments)


def restore_iterator(value: Any, state: Any) -> None:
    """Restore the position of an iterator, or exhaust it."""
    _, position = state
    if position:
        value.__setstate__(position[0])
    else:  # it was exhausted
        collections.deque(value, maxlen=0)


def list_iterator_children(state: Any) -> Any:
    """Return the arguments in the state of an iterator."""
    return list(state[0])


def take_tee(value: Any) -> Any:
    """Return the buffer of a `tee` iterator, and the position in this buffer."""
    return value.__reduce__()[2]


def is_same_tee(value: Any, state: Any) -> bool:
    """Return whether a `tee` iterator is at the position of a state."""
    buffer, position = take_tee(value)
    former_buffer, former_position = state
    return buffer is former_buffer and position == former_position


def restore_tee(value: Any, state: Any) -> None:
    """Set the position of a `tee` iterator. Its buffer contains the later items."""
    value.__setstate__(state)


def take_source(value: Any) -> Any:
    """Return the arguments of a `map`, `filter` or `zip` object, such as iterators."""
    return value.__reduce__()[1]


def take_number(value: Any) -> Any:
    """Return the next number of an `enumerate` object, as text."""
    _, (_, *numbers) = value.__reduce__()
    return repr(numbers)


def take_length_hint(value: Any) -> Any:
    """Return the number of items that an iterator has left."""
    return value.__length_hint__()


def take_generator(value: Any) -> Any:
    """Return the position of a generator, and the names and values of its variables.

    Return None if the generator has ended.
    """
    frame = value.gi_frame
    if frame is None:
        return None
    variables = dict(frame.f_locals)
    return frame.f_lasti, list(variables), list(variables.values())


def is_same_generator(value: Any, state: Any) -> bool:
    """Return whether a generator has the position and the variables of a state."""
    current = take_generator(value)
    if current is None or state is None:
        return current is state
    position, names, values = current
    former_position, former_names, former_values = state
    if position != former_position or names != former_names:
        return False
    return are_identical(values, former_values)


def take_file(value: Any) -> Any:
    """Return the position of a file.

    Return "closed" if the file is closed, and "unknown" if its position cannot be read.
    """
    if value.closed:
        return "closed"
    binary = value.buffer if isinstance(value, io.TextIOWrapper) else value
    try:
        return binary.tell()
    except (OSError, ValueError):
        return "unknown"


def take_cell(value: Any) -> Any:
    """Return a tuple with the content of a closure cell, or with EMPTY."""
    try:
        return (value.cell_contents,)
    except ValueError:
        return (EMPTY,)


def is_same_cell(value: Any, state: Any) -> bool:
    """Return whether a closure cell contains the object of a state."""
    return take_cell(value)[0] is state[0]


def restore_cell(value: Any, state: Any) -> None:
    """Restore the content of a closure cell."""
    if state[0] is EMPTY:
        del value.cell_contents
    else:
        value.cell_contents = state[0]


def take_method(value: Any) -> Any:
    """Return the object and the function of a method."""
    return value.__self__, value.__func__


def take_bound_object(value: Any) -> Any:
    """Return a tuple with the object of a builtin method.

    The tuple is empty for a builtin function, which is bound to its module.
    """
    bound_object = value.__self__
    if is_a(bound_object, types.ModuleType):
        return ()
    return (bound_object,)


def take_variable(value: Any) -> Any:
    """Return a tuple with the value of a context variable, or with EMPTY."""
    return (value.get(EMPTY),)


def is_same_variable(value: Any, state: Any) -> bool:
    """Return whether a context variable has the value of a state."""
    return value.get(EMPTY) is state[0]


def restore_variable(value: Any, state: Any) -> None:
    """Set a context variable. Raise RestoreError if it had no value."""
    if state[0] is EMPTY:
        raise RestoreError("it had no value")
    value.set(state[0])


def take_partial(value: Any) -> Any:
    """Return the function, the arguments and the attributes of a `partial` object."""
    return value.func, value.args, value.keywords, value.__dict__


def take_property(value: Any) -> Any:
    """Return the functions of a property."""
    return value.fget, value.fset, value.fdel


def take_wrapped(value: Any) -> Any:
    """Return a tuple with the function of a class method or static method."""
    return (value.__func__,)


def take_referent(value: Any) -> Any:
    """Return a tuple with the object of a weak reference, or None if it was freed."""
    return (weakref.ref.__call__(value),)


def take_viewed(value: Any) -> Any:
    """Return a tuple with the object whose memory a memoryview shows."""
    return (value.obj,)


def take_cache(value: Any) -> Any:
    """Return the statistics, the function and the entries of an `lru_cache`.

    The entries are needed for the comparison, because a cache that was cleared and
    filled again may have the same statistics.
    """
    attributes = value.__dict__
    entries: list[Any] = []
    for item in gc.get_referents(value):
        if type(item) is dict and item is not attributes:
            entries += item.values()
    return value.cache_info(), attributes.get("__wrapped__"), entries


def list_cache_children(state: Any) -> Any:
    """Return the function in the state of an `lru_cache`."""
    _, function, _ = state
    return [function]


def is_same_cache(value: Any, state: Any) -> bool:
    """Return whether an `lru_cache` has the statistics and the entries of a state."""
    info, _, entries = state
    current_info, _, current_entries = take_cache(value)
    if current_info != info or len(current_entries) != len(entries):
        return False
    return are_identical(current_entries, entries)


def restore_cache(value: Any, state: Any) -> None:
    """Clear an `lru_cache`: entries cannot be written.

    Results that were computed from a state that is undone must not stay.
    """
    value.cache_clear()


generator_type: Any = random.Random.__mro__[1]  # the C class _random.Random
ITERATOR = Row(
    take=take_iterator,
    children=list_iterator_children,
    is_same=is_same_iterator,
    restore=restore_iterator,
)
STREAM = Row(
    take=take_stream,
    is_same=make_is_same(take_stream),
    restore=restore_stream,
    measure=measure_stream,
)
OPEN_FILE = make_unprotected_row("open file", take_file)
LOCK = make_unprotected_row("lock", is_quiet=True)
# A row for each builtin type. The rows also apply to subclasses of the types.
ROWS: dict[Any, Row] = {
    **CONTAINERS,
    tuple: make_immutable_row(list),
    frozenset: make_immutable_row(list),
    bytearray: Row(
        take=bytes,
        is_same=make_is_same(bytes),
        restore=restore_bytearray,
        measure=measure_buffer,
    ),
    array.array: Row(
        take=array.array.tobytes,
        is_same=make_is_same(array.array.tobytes),
        restore=restore_array,
        measure=measure_buffer,
    ),
    io.StringIO: STREAM,
    io.BytesIO: STREAM,
    generator_type: Row(
        take=take_random,
        is_same=make_is_same(take_random),
        restore=restore_random,
    ),
    type(iter([])): ITERATOR,
    type(iter(())): ITERATOR,
    type(reversed([])): ITERATOR,
    types.CellType: Row(
        take=take_cell,
        children=list,
        is_same=is_same_cell,
        restore=restore_cell,
    ),
    types.MethodType: make_immutable_row(take_method),
    types.BuiltinMethodType: make_immutable_row(take_bound_object),
    types.MethodWrapperType: make_immutable_row(take_bound_object),
    contextvars.ContextVar: Row(
        take=take_variable,
        children=list,
        is_same=is_same_variable,
        restore=restore_variable,
    ),
    functools.partial: make_immutable_row(take_partial),
    property: make_immutable_row(take_property),
    classmethod: make_immutable_row(take_wrapped),
    staticmethod: make_immutable_row(take_wrapped),
    weakref.ref: make_immutable_row(take_referent),
    memoryview: make_immutable_row(take_viewed),
    types.MappingProxyType: make_immutable_row(gc.get_referents),
    type({}.keys()): make_immutable_row(gc.get_referents),
    type({}.values()): make_immutable_row(gc.get_referents),
    type({}.items()): make_immutable_row(gc.get_referents),
    functools._lru_cache_wrapper: Row(
        take=take_cache,
        children=list_cache_children,
        is_same=is_same_cache,
        restore=restore_cache,
    ),
    enumerate: make_unprotected_row("iterator", take_number),
    types.GeneratorType: Row(
        take=take_generator,
        is_same=is_same_generator,
        label="generator",
    ),
    types.CoroutineType: make_unprotected_row("coroutine"),
    types.AsyncGeneratorType: make_unprotected_row("asynchronous generator"),
    io.TextIOWrapper: OPEN_FILE,
    io.BufferedReader: OPEN_FILE,
    io.BufferedWriter: OPEN_FILE,
    io.BufferedRandom: OPEN_FILE,
    io.FileIO: OPEN_FILE,
    type(threading.Lock()): LOCK,
    type(threading.RLock()): LOCK,
    threading.Thread: make_unprotected_row("thread", is_quiet=True),
    threading.local: make_unprotected_row("thread-local data"),
}
ITERABLES: tuple[Any, ...] = (
    *({}, {}.keys(), {}.values(), {}.items()),
    *(set(), range(0), "", b""),
)
for exhaustible in ITERABLES:
    ROWS[type(iter(exhaustible))] = make_unprotected_row("iterator", take_length_hint)
# The text of a counter is its next number.
ROWS[itertools.count] = make_unprotected_row("iterator", repr, is_conclusive=True)
for consumer in (reversed, itertools.chain, itertools.islice):
    ROWS[consumer] = make_unprotected_row("iterator")
for lazy_type in (map, filter, zip):
    ROWS[lazy_type] = make_immutable_row(take_source)
if sys.version_info < (3, 12):  # later versions do not describe these iterators
    ROWS[itertools.starmap] = make_immutable_row(take_source)
    ROWS[itertools.filterfalse] = make_immutable_row(take_source)
    ROWS[type(itertools.tee(())[0])] = Row(
        take=take_tee,
        is_same=is_same_tee,
        restore=restore_tee,
    )
# Types whose objects cannot change, and whose content need not be visited.
PLAIN_TYPES: set[Any] = {
    *(int, float, complex, bool, str, bytes, type(None), range, slice, type(...)),
    *(type(NotImplemented), object, re.Pattern, re.Match, decimal.Decimal),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(fractions.Fraction, uuid.UUID, struct.Struct, pathlib.PurePath, enum.Enum),
    *(ipaddress._IPAddressBase, types.CodeType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GenericAlias),
    type(datetime.datetime_CAPI),
    types.GetSetDescriptorType,
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType),
    *(typing.TypeVar, type(typing.Any), type(typing.List[int])),
    *(type(operator.itemgetter(0)), type(operator.attrgetter("a"))),
}
