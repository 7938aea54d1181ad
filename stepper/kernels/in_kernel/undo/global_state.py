"""Global state that a cell may change: random numbers, environment, options, modules.

The states are taken and compared before and after each run, so each must be cheap. A
state whose module is not loaded is ignored. The states themselves are in
`process_state`, `imported_modules` and `library_state`.
"""

from __future__ import annotations

import sys
from typing import Any

from stepper.kernels.in_kernel.undo import (
    imported_modules,
    library_state,
    process_state,
)
from stepper.kernels.in_kernel.undo.state_row import GlobalState

# In the order in which they are restored.
STATES: tuple[GlobalState, ...] = (
    *process_state.STATES,
    *library_state.STATES,
    imported_modules.STATE,
)
BY_NAME = {state.name: state for state in STATES}


def get_loaded_module(state: GlobalState) -> Any:
    """Return the module of a state, or None if it is not loaded."""
    return sys.modules.get(state.module)


def take_states() -> dict[str, Any]:
    """Return the current states by name.

    A state is left out if its module is not loaded, or if it cannot be read.
    """
    states = {}
    for state in STATES:
        module = get_loaded_module(state)
        if module is None:
            continue
        try:
            states[state.name] = state.take(module)
        except Exception:  # noqa: S112 - another version of the library
            continue
    return states


def find_changes(
    before: dict[str, Any],
    after: dict[str, Any],
    mentioned: set[str],
    new_modules: set[str],
) -> dict[str, Any]:
    """Return the former values of the states that differ.

    `mentioned` are the names in the cell, `new_modules` the modules that it imported. A
    state that an import may have changed counts only if the cell mentions it: later
    versions of the cell do not run the import's code again.
    """
    changes = {}
    for name, current in after.items():
        state = BY_NAME[name]
        if name not in before:
            former = take_initial(state, current)
        elif new_modules and state.keep_imported:
            former = state.keep_imported(before[name], current, new_modules)
        else:
            former = before[name]
        is_mentioned = not state.words.isdisjoint(mentioned)
        if new_modules and state.words and not is_mentioned:
            continue
        if current != former:
            changes[name] = former
    return changes


def take_initial(state: GlobalState, current: Any) -> Any:
    """Return a state as it was just after the import of its module.

    Return `current`, the current state, if this is unknown.
    """
    if state.take_initial is None:
        return current
    try:
        return state.take_initial(get_loaded_module(state))
    except Exception:  # another version of the library
        return current


def restore_state(name: str, value: Any) -> bool:
    """Restore a state. Return whether the state is now equal to the value.

    A state that can only be compared is not restored.
    """
    state = BY_NAME[name]
    module = get_loaded_module(state)
    if state.restore is not None:
        state.restore(module, value)
    return bool(state.take(module) == value)


def get_label(name: str) -> str:
    """Return the reason why a state can only be compared, or an empty string."""
    return BY_NAME[name].label


def get_position(name: str) -> int:
    """Return the position of a state in the order in which states are restored."""
    return STATES.index(BY_NAME[name])
