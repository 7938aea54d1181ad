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

from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    CONTAINERS,
    EMPTY,
    RestoreError,
    Row,
    are_identical,
    frozen,
    is_equal,
    unprotected,
)


def restore_bytearray(value: bytearray, state: Any) -> None:
    try:
        bytearray.__setitem__(value, slice(None), state)
    except BufferError as error:
        raise RestoreError("its buffer is in use") from error


def restore_array(value: Any, state: Any) -> None:
    try:
        if len(state) == len(value) * value.itemsize:
            memoryview(value).cast("B")[:] = state
        else:
            array.array.__delitem__(value, slice(None))
            array.array.frombytes(value, state)
    except BufferError as error:
        raise RestoreError("its buffer is in use") from error


def measure_buffer(value: Any) -> Any:
    size = memoryview(value).nbytes
    return size * BYTE_SECONDS, size


def take_stream(value: Any) -> Any:
    """Return the content and the position of a stream in memory."""
    try:
        return value.__getstate__()[:-1]  # without `__dict__`
    except ValueError:
        return "closed"


def restore_stream(value: Any, state: Any) -> None:
    if state == "closed":
        value.close()
        return
    try:
        value.__setstate__((*state, None))
    except (ValueError, BufferError) as error:
        raise RestoreError("it was closed") from error


def measure_stream(value: Any) -> Any:
    size = value.__sizeof__()
    return size * BYTE_SECONDS, size


# other builtin types


def take_random(value: Any) -> Any:
    return generator_type.getstate(value)


def restore_random(value: Any, state: Any) -> None:
    generator_type.setstate(value, state)


def take_iterator(value: Any) -> Any:
    """Return the iterable of an iterator, and the position if the iterator has one."""
    _, arguments, *position = value.__reduce__()
    return arguments, position


def is_same_iterator(value: Any, state: Any) -> bool:
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
    return list(state[0])


def take_tee(value: Any) -> Any:
    """Return the buffer of a `tee` iterator with later items, and the position."""
    return value.__reduce__()[2]


def is_same_tee(value: Any, state: Any) -> bool:
    buffer, position = take_tee(value)
    return buffer is state[0] and position == state[1]


def restore_tee(value: Any, state: Any) -> None:
    value.__setstate__(state)


def take_source(value: Any) -> Any:
    """Return the iterators from which another iterator takes its items."""
    return value.__reduce__()[1]


def take_reduced(value: Any) -> Any:
    return repr(value.__reduce__()[1][1:])


def take_length_hint(value: Any) -> Any:
    return value.__length_hint__()


def take_generator(value: Any) -> Any:
    """Return the position and the variables of a generator."""
    frame = value.gi_frame
    if frame is None:
        return "exhausted"
    return frame.f_lasti, [(name, id(item)) for name, item in frame.f_locals.items()]


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
    try:
        return (value.cell_contents,)
    except ValueError:
        return (EMPTY,)


def is_same_cell(value: Any, state: Any) -> bool:
    return take_cell(value)[0] is state[0]


def restore_cell(value: Any, state: Any) -> None:
    if state[0] is EMPTY:
        del value.cell_contents
    else:
        value.cell_contents = state[0]


def take_method(value: Any) -> Any:
    return value.__self__, value.__func__


def take_owner(value: Any) -> Any:
    """Return the object of a bound method. That of a function is a module or None."""
    owner = value.__self__
    return () if isinstance(owner, types.ModuleType) else (owner,)


def take_variable(value: Any) -> Any:
    return (value.get(EMPTY),)


def is_same_variable(value: Any, state: Any) -> bool:
    return value.get(EMPTY) is state[0]


def restore_variable(value: Any, state: Any) -> None:
    if state[0] is EMPTY:
        raise RestoreError("it had no value")
    value.set(state[0])


def take_partial(value: Any) -> Any:
    return value.func, value.args, value.keywords, value.__dict__


def take_property(value: Any) -> Any:
    return value.fget, value.fset, value.fdel


def take_wrapped(value: Any) -> Any:
    return (value.__func__,)


def take_referent(value: Any) -> Any:
    return (weakref.ref.__call__(value),)


def take_viewed(value: Any) -> Any:
    """Return the object whose memory a memoryview shows."""
    return (value.obj,)


def take_cache(value: Any) -> Any:
    """Return the statistics, the function and the entries of an `lru_cache`.

    The statistics of a cache that was cleared and filled again may be the same.
    """
    attributes = value.__dict__
    entries: list[Any] = []
    for item in gc.get_referents(value):
        if type(item) is dict and item is not attributes:
            entries += item.values()
    return value.cache_info(), attributes.get("__wrapped__"), entries


def list_cache_children(state: Any) -> Any:
    return [state[1]]


def is_same_cache(value: Any, state: Any) -> bool:
    info, _, entries = state
    current_info, _, current_entries = take_cache(value)
    if current_info != info or len(current_entries) != len(entries):
        return False
    return are_identical(current_entries, entries)


def restore_cache(value: Any, state: Any) -> None:
    # Results that were computed from a state that is undone must not stay.
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
    is_same=is_equal(take_stream),
    restore=restore_stream,
    measure=measure_stream,
)
OPEN_FILE = unprotected("open file", take_file)
LOCK = unprotected("lock", is_quiet=True)
# A row for each builtin type. The rows also apply to subclasses of the types.
ROWS: dict[Any, Row] = {
    **CONTAINERS,
    tuple: frozen(list),
    frozenset: frozen(list),
    bytearray: Row(
        take=bytes,
        is_same=is_equal(bytes),
        restore=restore_bytearray,
        measure=measure_buffer,
    ),
    array.array: Row(
        take=array.array.tobytes,
        is_same=is_equal(array.array.tobytes),
        restore=restore_array,
        measure=measure_buffer,
    ),
    io.StringIO: STREAM,
    io.BytesIO: STREAM,
    generator_type: Row(
        take=take_random,
        is_same=is_equal(take_random),
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
    types.MethodType: frozen(take_method),
    types.BuiltinMethodType: frozen(take_owner),
    types.MethodWrapperType: frozen(take_owner),
    contextvars.ContextVar: Row(
        take=take_variable,
        children=list,
        is_same=is_same_variable,
        restore=restore_variable,
    ),
    functools.partial: frozen(take_partial),
    property: frozen(take_property),
    classmethod: frozen(take_wrapped),
    staticmethod: frozen(take_wrapped),
    weakref.ref: frozen(take_referent),
    memoryview: frozen(take_viewed),
    types.MappingProxyType: frozen(gc.get_referents),
    type({}.keys()): frozen(gc.get_referents),
    type({}.values()): frozen(gc.get_referents),
    type({}.items()): frozen(gc.get_referents),
    functools._lru_cache_wrapper: Row(
        take=take_cache,
        children=list_cache_children,
        is_same=is_same_cache,
        restore=restore_cache,
    ),
    enumerate: unprotected("iterator", take_reduced),
    types.GeneratorType: unprotected("generator", take_generator),
    types.CoroutineType: unprotected("coroutine"),
    types.AsyncGeneratorType: unprotected("asynchronous generator"),
    io.TextIOWrapper: OPEN_FILE,
    io.BufferedReader: OPEN_FILE,
    io.BufferedWriter: OPEN_FILE,
    io.BufferedRandom: OPEN_FILE,
    io.FileIO: OPEN_FILE,
    type(threading.Lock()): LOCK,
    type(threading.RLock()): LOCK,
    threading.Thread: unprotected("thread", is_quiet=True),
    threading.local: unprotected("thread-local data"),
}
ITERABLES: tuple[Any, ...] = (
    *({}, {}.keys(), {}.values(), {}.items()),
    *(set(), range(0), "", b""),
)
for exhaustible in ITERABLES:
    ROWS[type(iter(exhaustible))] = unprotected("iterator", take_length_hint)
# The text of a counter is its next number.
ROWS[itertools.count] = unprotected("iterator", repr, is_conclusive=True)
for consumer in (reversed, itertools.chain, itertools.islice):
    ROWS[consumer] = unprotected("iterator")
for lazy_type in (map, filter, zip):
    ROWS[lazy_type] = frozen(take_source)
if sys.version_info < (3, 12):  # later versions do not describe these iterators
    ROWS[itertools.starmap] = frozen(take_source)
    ROWS[itertools.filterfalse] = frozen(take_source)
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
