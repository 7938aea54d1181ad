"""Snapshots of pandas objects.

With copy-on-write, pandas itself keeps the content of a snapshot intact: a shallow copy
of a block makes pandas copy the block before the next change. Without copy-on-write,
the arrays of the blocks are visited and copied like other arrays.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.object_snapshots import (
    Row,
    are_identical,
    is_identical,
)

# Attributes of a frame that pandas fills by itself.
FRAME_CACHES = {"_item_cache", "_cacher", "_is_copy", "_mgr"}
MANAGER_CACHES = {
    "_blknos": None,
    "_blklocs": None,
    "_is_consolidated": False,
    "_known_consolidated": False,
}
MAX_COMPARED = 100_000_000  # bytes of a frame whose blocks were merged
INDEX_PARTS = ("_name", "_names", "_data", "_levels", "_codes")


class FrameState(NamedTuple):
    """A frame's attributes, its manager, and the content of the manager.

    `blocks` are the manager's blocks, `values` their arrays and `positions` their
    columns. `copies` are shallow copies of the blocks, or None without copy-on-write.
    """

    kind: Any
    attributes: dict[str, Any]
    manager: Any
    axes: list[Any]
    blocks: tuple[Any, ...]
    values: list[Any]
    positions: list[Any]
    copies: tuple[Any, ...] | None
    copied_values: list[Any]


def uses_copy_on_write() -> bool:
    """Return whether copy-on-write is on: pandas copies a shared block before a change.

    The answer is the same for all frames. It may change with pandas' options.
    """
    pandas = sys.modules["pandas"]
    if int(pandas.__version__.split(".")[0]) >= 3:
        return True
    return pandas.options.mode.copy_on_write is True


def get_attributes(value: Any) -> Any:
    """Return the `__dict__` of an object without a call of its methods."""
    attributes: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return attributes


def list_attributes(value: Any) -> Any:
    """Return the attributes of a frame, without caches."""
    attributes = dict(get_attributes(value))
    for name in FRAME_CACHES:
        attributes.pop(name, None)
    return attributes


def take_frame(value: Any) -> FrameState | None:
    """Return the state of a frame, or None if the frame has no blocks."""
    manager = get_attributes(value).get("_mgr")
    blocks = getattr(manager, "blocks", None)
    if type(blocks) is not tuple:
        return None
    values = [block.values for block in blocks]
    positions = [block._mgr_locs for block in blocks]
    copies = None
    copied_values = []
    if uses_copy_on_write():
        copies = tuple(block.copy(deep=False) for block in blocks)
        copied_values = [block.values for block in copies]
    return FrameState(
        type(value),
        list_attributes(value),
        manager,
        list(manager.axes),
        blocks,
        values,
        positions,
        copies,
        copied_values,
    )


def list_frame_children(state: FrameState) -> Any:
    """Return the objects in the state of a frame that may change in place.

    With copy-on-write, the blocks' arrays are not included, except arrays of objects.
    """
    children = [*state.attributes.values(), *state.axes]
    for array in state.values:
        if state.copies is None or is_object_array(array):
            children.append(array)
    return children


def is_object_array(array: Any) -> bool:
    """Return whether an array contains Python objects."""
    return bool(array.dtype.kind == "O" and type(array).__name__ == "ndarray")


def is_same_frame(value: Any, state: FrameState) -> bool:
    """Return whether a frame has the attributes and the content of a state."""
    attributes = list_attributes(value)
    if type(value) is not state.kind or len(attributes) != len(state.attributes):
        return False
    for name, item in state.attributes.items():
        if name not in attributes or attributes[name] is not item:
            return False
    manager = get_attributes(value).get("_mgr")
    if manager is not state.manager or not are_same_axes(manager, state):
        return False
    if has_blocks(manager, state):
        return True
    return state.copies is not None and has_columns(manager, state)


def are_same_axes(manager: Any, state: FrameState) -> bool:
    """Return whether a manager has the axes of a state."""
    axes = manager.axes
    return len(axes) == len(state.axes) and are_identical(axes, state.axes)


def has_blocks(manager: Any, state: FrameState) -> bool:
    """Return whether a manager has the blocks or the copied blocks of a state.

    The blocks must have the former arrays and positions.
    """
    blocks = manager.blocks
    if len(blocks) != len(state.blocks):
        return False
    if len(state.axes) == 1 and manager._block is not blocks[0]:
        return False
    arrays = state.values
    if state.copies is not None and are_identical(blocks, state.copies):
        arrays = state.copied_values
    elif not are_identical(blocks, state.blocks):
        return False
    for block, array, positions in zip(blocks, arrays, state.positions):
        if block.values is not array or block._mgr_locs is not positions:
            return False
    return True


def has_columns(manager: Any, state: FrameState) -> bool:
    """Return whether a manager has the columns of a state, in other blocks.

    pandas merges blocks without a change of the content. Frames that are larger than
    MAX_COMPARED, and columns with objects or of extension types, are not compared: the
    answer is False.
    """
    sizes = [array.nbytes for array in state.values]
    if sum(sizes) > MAX_COMPARED:
        return False
    numpy = sys.modules["numpy"]
    former = {}
    for block, positions in zip(state.copies or (), state.positions):
        for row, column in enumerate(positions):
            former[column] = get_column(block.values, row)
    for block in manager.blocks:
        for row, column in enumerate(block._mgr_locs):
            array = get_column(block.values, row)
            old = former.pop(column, None)
            if type(array) is not numpy.ndarray or type(old) is not numpy.ndarray:
                return False
            if array.dtype != old.dtype or array.dtype.hasobject:
                return False
            if array.tobytes() != old.tobytes():
                return False
    return not former


def get_column(values: Any, row: int) -> Any:
    """Return one column of a frame. `values` is the array of a pandas block.

    The columns are the rows of this array, or the array itself if it has one dimension.
    """
    return values[row] if values.ndim > 1 else values


def restore_frame(value: Any, state: FrameState) -> None:
    """Restore the attributes and the content of a frame."""
    attributes = get_attributes(value)
    if type(value) is not state.kind:
        object.__setattr__(value, "__class__", state.kind)
    manager = state.manager
    # The hash tables of the index and the cached columns belong to the old content.
    item_cache = attributes.get("_item_cache")
    if item_cache:
        item_cache.clear()
    for name in list(attributes):
        if name not in state.attributes and name not in FRAME_CACHES:
            del attributes[name]
    attributes.update(state.attributes)
    attributes["_mgr"] = manager
    if are_same_axes(manager, state) and has_blocks(manager, state):
        return
    blocks = state.copies or state.blocks
    if state.copies is None:
        for block, array, positions in zip(blocks, state.values, state.positions):
            block.values = array
            block._mgr_locs = positions
    manager.axes = list(state.axes)
    manager.blocks = blocks
    manager._reset_cache()
    for name, default in MANAGER_CACHES.items():
        # The manager of a Series has none of them.
        with suppress(AttributeError):
            setattr(manager, name, default)


def list_arrays(value: Any) -> list[Any]:
    """Return the arrays of the blocks of a frame, or [] if it has no blocks."""
    manager = get_attributes(value).get("_mgr")
    return [block.values for block in getattr(manager, "blocks", ())]


def measure_frame(value: Any) -> tuple[float, int]:
    """Return the seconds and the bytes that the state of a frame costs."""
    # The blocks are not copied. Without copy-on-write, the arrays have snapshots.
    return 0.0, sum(int(array.nbytes) for array in list_arrays(value))


def sample_frame(value: Any) -> Any:
    """Return a fingerprint of a frame: the identity of its arrays and axes."""
    manager = get_attributes(value).get("_mgr")
    axes = getattr(manager, "axes", ())
    return [id(manager), *map(id, list_arrays(value)), *map(id, axes)]


def take_index(value: Any) -> Any:
    """Return the parts of an index, and a copy of its names or None."""
    attributes = get_attributes(value)
    parts = [attributes.get(name) for name in INDEX_PARTS]
    names = attributes.get("_names")
    return parts, list(names) if names is not None else None


def is_same_index(value: Any, state: Any) -> bool:
    """Return whether an index has the parts and the names of a state."""
    parts, names = take_index(value)
    former_parts, former_names = state
    if not are_identical(parts, former_parts):
        return False
    if names is None or former_names is None:
        return names is former_names
    return len(names) == len(former_names) and all(
        map(is_identical, names, former_names)
    )


def restore_index(value: Any, state: Any) -> None:
    """Restore the parts and the names of an index."""
    parts, names = state
    attributes = get_attributes(value)
    for name, item in zip(INDEX_PARTS, parts):
        if attributes.get(name) is not item:
            attributes[name] = item
    if names is not None:
        attributes["_names"][:] = names


def take_backed(value: Any) -> Any:
    """Return the numpy array and the dtype of an NDArrayBacked extension array."""
    return value._ndarray, value._dtype


def is_same_backed(value: Any, state: Any) -> bool:
    """Return whether an extension array has the array and the dtype of a state."""
    array, dtype = state
    return value._ndarray is array and value._dtype is dtype


def restore_backed(value: Any, state: Any) -> None:
    """Restore the numpy array and the dtype of an extension array."""
    array, dtype = state
    base = sys.modules["pandas._libs.arrays"].NDArrayBacked
    base.__init__(value, array, dtype)


FRAME = Row(
    take=take_frame,
    children=list_frame_children,
    is_same=is_same_frame,
    restore=restore_frame,
    measure=measure_frame,
    sample=sample_frame,
)
INDEX = Row(
    take=take_index,
    is_same=is_same_index,
    restore=restore_index,
)
BACKED = Row(
    take=take_backed,
    children=list,
    is_same=is_same_backed,
    restore=restore_backed,
)
