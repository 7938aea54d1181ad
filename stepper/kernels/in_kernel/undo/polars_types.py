"""Snapshots of polars' frames and series.

A clone shares the memory until one of the two changes, so it is cheap.
"""

from __future__ import annotations

from typing import Any

from stepper.kernels.in_kernel.undo.object_snapshots import BYTE_SECONDS, Row


def take_clone(value: Any) -> Any:
    """Return a clone of a frame or series."""
    return value.clone()


def measure_clone(value: Any) -> Any:
    """Return the seconds and the bytes that a clone and its comparison cost."""
    size = value.estimated_size()
    return size * BYTE_SECONDS, size


def is_same_frame(value: Any, state: Any) -> bool:
    """Return whether a frame has the columns and the content of a clone."""
    is_same_schema = list(value.schema.items()) == list(state.schema.items())
    return is_same_schema and bool(value.equals(state, null_equal=True))


def restore_frame(value: Any, state: Any) -> None:
    """Replace the data of a frame by those of a clone."""
    value._df = state.clone()._df


def is_same_series(value: Any, state: Any) -> bool:
    """Return whether a series has the dtype, the name and the content of a clone."""
    if value.dtype != state.dtype or value.name != state.name:
        return False
    return bool(value.equals(state, null_equal=True))


def restore_series(value: Any, state: Any) -> None:
    """Replace the data of a series by those of a clone."""
    value._s = state.clone()._s


FRAME = Row(
    take=take_clone,
    is_same=is_same_frame,
    restore=restore_frame,
    measure=measure_clone,
)
SERIES = Row(
    take=take_clone,
    is_same=is_same_series,
    restore=restore_series,
    measure=measure_clone,
)
