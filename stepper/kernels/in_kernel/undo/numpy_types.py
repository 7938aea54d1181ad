"""Snapshots of numpy's arrays and random number generators.

The content of an array is copied and written back into the same memory, so views and
arrays that share the memory are restored, too.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    ITEM_SECONDS,
    RestoreError,
    Row,
    are_identical,
    make_immutable_row,
)

SAMPLES = 1000
MAX_OWNER = 16 << 20  # bytes
WORD = 8  # bytes
LAYOUT = ("dtype", "shape", "strides")


class ArrayState(NamedTuple):
    """The memory, layout and content of an array.

    `content` is a copy, a list of objects, or None if another array owns the memory.
    `owner` is that array.
    """

    address: int
    layout: tuple[Any, ...]
    is_writeable: bool
    content: Any
    owner: Any


def get_base_class() -> Any:
    """Return numpy's class of arrays."""
    return sys.modules["numpy"].ndarray


def view_array(value: Any) -> Any:
    """Return a view without the methods of a subclass."""
    base_class = get_base_class()
    return base_class.view(value, base_class)


def get_layout(view: Any) -> Any:
    """Return the dtype, the shape and the strides of an array."""
    return view.dtype, view.shape, view.strides


def copy_content(view: Any) -> Any:
    """Return a copy of the content of an array, or a list of its objects."""
    if view.dtype.kind == "O":
        return view.ravel().tolist()
    return view.copy()


def take_array(value: Any) -> ArrayState:
    """Return the state of an array. The owner of its memory has a state of its own."""
    view = view_array(value)
    is_writeable = view.flags.writeable
    owner = find_owner(value)
    content = None if owner is not None else copy_content(view)
    address = view.ctypes.data
    return ArrayState(address, get_layout(view), is_writeable, content, owner)


def find_owner(value: Any) -> Any:
    """Return the array that owns the memory of a view.

    The owner is copied instead of the view, because a cell may change the memory
    through another view. Return None if there is no owner, or if the owner is larger
    than MAX_OWNER: then the view itself is copied.
    """
    owner = get_base_class().base.__get__(value)
    if not issubclass(type(owner), get_base_class()):
        return None
    return owner if view_array(owner).nbytes <= MAX_OWNER else None


def list_array_children(state: ArrayState) -> Any:
    """Return the array that owns the memory, or the objects, in an array's state."""
    if state.owner is not None:
        return [state.owner]
    if type(state.content) is list:
        return state.content
    if state.content.dtype.hasobject:  # fields with objects
        return list_objects(state.content)
    return []


def list_current_children(value: Any) -> Any:
    """Return the array whose memory a view uses, and the objects in an array."""
    children = [get_base_class().base.__get__(value)]
    view = view_array(value)
    if view.dtype.hasobject:
        children += list_objects(view)
    return children


def list_objects(array: Any) -> Any:
    """Return the objects in an array and in the fields of a structured array."""
    if array.dtype.kind == "O":
        return array.ravel().tolist()
    objects = []
    for name in array.dtype.names or ():
        objects += list_objects(array[name])
    return objects


def is_same_array(value: Any, state: ArrayState) -> bool:
    """Return whether an array has the memory, the layout and the content of a state."""
    view = view_array(value)
    if view.flags.writeable != state.is_writeable:
        return False
    if get_layout(view) != state.layout or view.ctypes.data != state.address:
        return False
    return state.content is None or has_content(view, state.content)


def has_content(view: Any, content: Any) -> bool:
    """Return whether an array has the same bytes, or the same objects, as a content.

    `content` is the content of an ArrayState, and not None. The fields of a structured
    array that contains objects are compared one by one.
    """
    if type(content) is list:
        return are_identical(view.ravel().tolist(), content)
    if content.dtype.hasobject:
        names = content.dtype.names
        if names is None:
            return are_identical(list_objects(view), list_objects(content))
        return all(has_content(view[name], content[name]) for name in names)
    order = "C"
    if view.flags.f_contiguous:
        order = "F"
    first = view.ravel(order)
    second = content.ravel(order)
    if first.dtype.itemsize == 0 or first.size == 0:
        return True
    first = first.view("u1")
    second = second.view("u1")
    if first.nbytes % WORD == 0:
        first = first.view("u8")
        second = second.view("u8")
    return bool((first == second).all())


def restore_array(value: Any, state: ArrayState) -> None:
    """Restore the layout and the content of an array, in the same memory.

    Raise RestoreError if the array has another memory or incompatible strides.
    """
    view = view_array(value)
    kind = get_base_class()
    if view.ctypes.data != state.address or view.nbytes != count_bytes(state):
        raise RestoreError("its memory was replaced")
    if get_layout(view) != state.layout:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.dtype.__set__(value, state.layout[0])
            kind.shape.__set__(value, state.layout[1])
        view = view_array(value)
        if view.strides != state.layout[2]:
            raise RestoreError("its layout was changed")
    if state.content is not None and not has_content(view, state.content):
        kind.setflags(value, write=True)
        write_content(view_array(value), state.content)
    if view_array(value).flags.writeable != state.is_writeable:
        kind.setflags(value, write=state.is_writeable)


def count_bytes(state: ArrayState) -> int:
    """Return the size of the content of an array, in bytes."""
    dtype, shape, _ = state.layout
    size = dtype.itemsize
    for length in shape:
        size *= length
    return int(size)


def write_content(view: Any, content: Any) -> None:
    """Write a copied content, or a list of objects, into an array."""
    if type(content) is not list:
        view[...] = content
        return
    # An assignment to `flat` would write the items of a sequence, not the sequence.
    for position, item in enumerate(content):
        view.flat[position] = item if not is_sequence(item) else None
    for index, item in zip(sys.modules["numpy"].ndindex(view.shape), content):
        if is_sequence(item):
            view[index] = item


def is_sequence(item: Any) -> bool:
    """Return whether numpy would assign the items of an object one by one."""
    return hasattr(type(item), "__len__") and type(item) not in (str, bytes)


def measure_array(value: Any) -> Any:
    """Return the seconds and the bytes that a copy of an array costs.

    They are 0 for a view whose owner is copied.
    """
    view = view_array(value)
    if find_owner(value) is not None:
        return 0.0, 0
    if view.dtype.hasobject:
        return view.size * ITEM_SECONDS, view.nbytes
    return view.nbytes * BYTE_SECONDS, view.nbytes


def sample_array(value: Any) -> Any:
    """Return a fingerprint of an array: its memory, its layout and some items."""
    view = view_array(value)
    step = max(1, view.size // SAMPLES)
    sample = view.flat[::step]
    content = [*map(id, sample)] if view.dtype.hasobject else sample.tobytes()
    return view.ctypes.data, get_layout(view), content


def flatten_state(state: Any) -> Any:
    """Return the state of a random generator with bytes instead of arrays.

    Such states can be compared by `==`.
    """
    if type(state) is dict:
        return {name: flatten_state(item) for name, item in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


class BitGeneratorState(NamedTuple):
    """The state of a bit generator, as numpy returns it and for comparison.

    `seeds` is the SeedSequence, which counts the generators that it has spawned.
    """

    numpy_state: Any
    flat_state: Any
    seeds: Any


def take_bits(value: Any) -> BitGeneratorState:
    """Return the state of a bit generator."""
    numpy_state = value.state
    seeds = getattr(value, "seed_seq", None)  # numpy 1.25 and newer
    return BitGeneratorState(numpy_state, flatten_state(numpy_state), seeds)


def list_bits_children(state: BitGeneratorState) -> Any:
    """Return the SeedSequence in the state of a bit generator."""
    return [state.seeds]


def is_same_bits(value: Any, state: BitGeneratorState) -> bool:
    """Return whether a bit generator has a state. The SeedSequence is not compared."""
    return bool(flatten_state(value.state) == state.flat_state)


def restore_bits(value: Any, state: BitGeneratorState) -> None:
    """Set the state of a bit generator."""
    value.state = state.numpy_state


def take_seeds(value: Any) -> Any:
    """Return the number of children of a SeedSequence, and its state for pickling."""
    _, _, pickled_state = value.__reduce__()
    return value.n_children_spawned, pickled_state


def is_same_seeds(value: Any, state: Any) -> bool:
    """Return whether a SeedSequence has the number of children of a state."""
    child_count, _ = state
    return bool(value.n_children_spawned == child_count)


def restore_seeds(value: Any, state: Any) -> None:
    """Restore a SeedSequence by its method for unpickling: the number is read-only."""
    _, pickled_state = state
    value.__setstate__(pickled_state)


def take_legacy(value: Any) -> Any:
    """Return the state of a RandomState, for comparison and as numpy returns it."""
    state = value.get_state(legacy=False)
    return flatten_state(state), state


def is_same_legacy(value: Any, state: Any) -> bool:
    """Return whether a RandomState has the state that `take_legacy` returned."""
    flat_state, _ = state
    current = value.get_state(legacy=False)
    return bool(flatten_state(current) == flat_state)


def restore_legacy(value: Any, state: Any) -> None:
    """Set the state of a RandomState."""
    _, numpy_state = state
    value.set_state(numpy_state)


ARRAY = Row(
    take=take_array,
    children=list_array_children,
    is_same=is_same_array,
    restore=restore_array,
    measure=measure_array,
    sample=sample_array,
    list_current=list_current_children,
)
GENERATOR = make_immutable_row(lambda value: [value.bit_generator])
BIT_GENERATOR = Row(
    take=take_bits,
    children=list_bits_children,
    is_same=is_same_bits,
    restore=restore_bits,
)
SEED_SEQUENCE = Row(
    take=take_seeds,
    is_same=is_same_seeds,
    restore=restore_seeds,
)
RANDOM_STATE = Row(
    take=take_legacy,
    is_same=is_same_legacy,
    restore=restore_legacy,
)
