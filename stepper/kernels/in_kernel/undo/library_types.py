"""The rows of the types of libraries.

The classes are searched in `sys.modules`: this module imports no library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo import (
    numpy_types,
    pandas_types,
    polars_types,
    torch_types,
)
from stepper.kernels.in_kernel.undo.object_snapshots import (
    BYTE_SECONDS,
    Row,
    are_identical,
    make_is_same,
    make_measure,
    make_unprotected_row,
)

get_module: Callable[[type], Any] = type.__dict__["__module__"].__get__
get_name: Callable[[type], str] = type.__dict__["__name__"].__get__


class LibraryRow(NamedTuple):
    """The row of a library's type, or None for a type without a state.

    `is_complete` means that the row includes `__dict__` and the slots of subclasses.
    """

    row: Row | None
    is_complete: bool = True


def get_tree_state(value: Any) -> Any:
    """Return the content of a decision tree of scikit-learn."""
    state = value.__getstate__()
    return state["nodes"].tobytes(), state["values"].tobytes()


def take_element(value: Any) -> Any:
    """Return the content and the children of an XML element."""
    return (value.tag, value.text, value.tail, value.attrib), list(value)


def list_element_children(state: Any) -> Any:
    """Return the attributes and the children in the state of an XML element."""
    (_, _, _, attributes), children = state
    return [attributes, *children]


def is_same_element(value: Any, state: Any) -> bool:
    """Return whether an XML element has the content and the children of a state."""
    content, children = take_element(value)
    former_content, former_children = state
    is_same_size = len(children) == len(former_children)
    is_same_content = are_identical(content, former_content)
    return is_same_content and is_same_size and are_identical(children, former_children)


def restore_element(value: Any, state: Any) -> None:
    """Restore the content and the children of an XML element."""
    (tag, text, tail, attributes), children = state
    value.tag = tag
    value.text = text
    value.tail = tail
    value.attrib = attributes
    value[:] = children


def restore_memory(value: Any, state: Any) -> None:
    """Write the bytes of a state into the memory of a `ctypes` object."""
    ctypes = sys.modules["ctypes"]
    ctypes.memmove(ctypes.addressof(value), state, len(state))


def measure_memory(value: Any) -> Any:
    """Return the seconds and the bytes that a copy of a `ctypes` object costs."""
    size = sys.modules["ctypes"].sizeof(value)
    return size * BYTE_SECONDS, size


ELEMENT = Row(
    take=take_element,
    children=list_element_children,
    is_same=is_same_element,
    restore=restore_element,
    measure=make_measure(len),
)
MEMORY = Row(
    take=bytes,
    is_same=make_is_same(bytes),
    restore=restore_memory,
    measure=measure_memory,
)
DECISION_TREE = make_unprotected_row(
    "decision tree", get_tree_state, is_conclusive=True
)
OPEN_FILE = make_unprotected_row("open file")
QUIET = make_unprotected_row("object of a C library", is_quiet=True)
PLAIN = LibraryRow(None)
ITERATOR = LibraryRow(make_unprotected_row("iterator"))
# Module → class → the row of the class.
ROWS: dict[str, dict[str, LibraryRow]] = {
    "numpy": {
        "ndarray": LibraryRow(numpy_types.ARRAY, is_complete=False),
        "flatiter": ITERATOR,
        "nditer": ITERATOR,
        "broadcast": ITERATOR,
    },
    "numpy.random": {
        "Generator": LibraryRow(numpy_types.GENERATOR),
        "BitGenerator": LibraryRow(numpy_types.BIT_GENERATOR),
        "RandomState": LibraryRow(numpy_types.RANDOM_STATE),
        "SeedSequence": LibraryRow(numpy_types.SEED_SEQUENCE),
    },
    "pandas": {"Index": LibraryRow(pandas_types.INDEX)},
    "pandas.core.generic": {"NDFrame": LibraryRow(pandas_types.FRAME)},
    "pandas._libs.arrays": {
        "NDArrayBacked": LibraryRow(pandas_types.BACKED, is_complete=False),
    },
    "polars": {
        "DataFrame": LibraryRow(polars_types.FRAME),
        "Series": LibraryRow(polars_types.SERIES),
        "LazyFrame": PLAIN,
        "Expr": PLAIN,
    },
    "torch": {
        "Tensor": LibraryRow(torch_types.TENSOR, is_complete=False),
        "Generator": LibraryRow(torch_types.GENERATOR),
        "dtype": PLAIN,
        "device": PLAIN,
        "layout": PLAIN,
        "memory_format": PLAIN,
    },
    "pyarrow": {
        "RecordBatchReader": ITERATOR,
        "NativeFile": LibraryRow(OPEN_FILE),
    },
    "sklearn.tree._tree": {"Tree": LibraryRow(DECISION_TREE)},
    "xml.etree.ElementTree": {"Element": LibraryRow(ELEMENT)},
    "_ctypes": {"Array": LibraryRow(MEMORY), "Structure": LibraryRow(MEMORY)},
    "zoneinfo": {"ZoneInfo": PLAIN},
}
NAMES: set[str] = set().union(*ROWS.values())
# Other C types of these libraries do not change after they were created.
IMMUTABLE_C_TYPES = {"numpy", "pandas", "pyarrow", "scipy", "sklearn", "pytz"}
QUIET_C_TYPES = {"matplotlib", "_multiprocessing", "_contextvars", "_thread"}


def find_library_row(kind: Any) -> LibraryRow | None:
    """Return the row of a class in the table, or None if it is not in the table."""
    class_name = get_name(kind)
    if class_name in NAMES:
        for module_name, rows in ROWS.items():
            loaded = sys.modules.get(module_name)
            if class_name in rows and getattr(loaded, class_name, None) is kind:
                return rows[class_name]
    return None


def find_c_type_row(base: Any, kind: Any) -> LibraryRow | None:
    """Return the row of a class that is derived from a C type of a library.

    `base` is the C type, and `kind` is the class. Return None for other libraries.
    """
    package = get_package(base)
    if package == "pybind11_builtins":  # the base of all classes of pybind11
        package = get_package(kind)
    if package in IMMUTABLE_C_TYPES:
        return PLAIN
    if package in QUIET_C_TYPES:
        return LibraryRow(QUIET)
    return None


def get_package(kind: Any) -> str:
    """Return the top-level package of a class, or "" if it is unknown."""
    module = get_module(kind)
    return module.split(".")[0] if type(module) is str else ""
