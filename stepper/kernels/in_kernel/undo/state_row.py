"""The description of a global state: how to take, compare and restore it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Function = Callable[..., Any]


class GlobalState(NamedTuple):
    """How to take and restore a state. States are compared by `current == former`.

    The state exists if `module` is loaded. If a cell imports modules, which may have
    changed the state, the state counts as changed by the cell only if the cell mentions
    one of the names in `words`.

    `restore` is None if the state can only be compared; then `label` says why.
    `take_initial` returns the state after the import of the module, which is the former
    state for a cell that imports the module. `keep_imported` returns the former state
    with the additions of the modules that a run imported; its arguments are the former
    state, the current state, and the names of these modules.
    """

    name: str
    module: str
    take: Function
    restore: Function | None
    words: frozenset[str] = frozenset()
    take_initial: Function | None = None
    keep_imported: Function | None = None
    label: str = ""


class References:
    """A list of objects that are compared by identity."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, References):
            return False
        ids = [id(value) for value in self.values]
        other_ids = [id(value) for value in other.values]
        return ids == other_ids

    __hash__ = None  # type: ignore[assignment]
