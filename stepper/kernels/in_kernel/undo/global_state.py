"""Global state that a cell may change: random numbers, environment, options.

The states are taken and compared before and after each run, so each must be cheap. A
state whose module is not loaded is ignored.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.numpy_types import flatten_state

# matplotlib sets these itself when it starts its backend.
BACKEND_SETTINGS = {"backend", "backend_fallback", "interactive", "toolbar"}


class GlobalState(NamedTuple):
    """How to take and restore a state. States are compared by `==`.

    `modules` are names; a cell must mention one of them to change the state, if an
    import in the cell may have changed it as well.
    """

    name: str
    module: str
    take: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]
    modules: frozenset[str] = frozenset()


def take_random(module: Any) -> Any:
    return module._inst.getstate()


def restore_random(module: Any, state: Any) -> None:
    module._inst.setstate(state)


class NumpyState:
    """The state of numpy's global generator."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.content = flatten_state(state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyState) and self.content == other.content

    __hash__ = None  # type: ignore[assignment]


def take_numpy_random(module: Any) -> Any:
    return NumpyState(module.mtrand._rand.get_state(legacy=False))


def restore_numpy_random(module: Any, state: Any) -> None:
    module.mtrand._rand.set_state(state.state)


def take_environment(module: Any) -> Any:
    return dict(module.environ._data)


def restore_environment(module: Any, state: Any) -> None:
    environ = module.environ
    decoded = {environ.decodekey(key): environ.decodevalue(state[key]) for key in state}
    for name in list(environ):
        if name not in decoded:
            del environ[name]
    for name, value in decoded.items():
        if environ.get(name) != value:
            environ[name] = value


def take_folder(module: Any) -> Any:
    try:
        return module.getcwd()
    except OSError:  # the folder was deleted
        return None


def restore_folder(module: Any, state: Any) -> None:
    if state is not None:
        module.chdir(state)


def take_settings(module: Any) -> Any:
    settings = {}
    for name, value in dict.items(module.rcParams):
        if name not in BACKEND_SETTINGS:
            settings[name] = list(value) if type(value) is list else value
    return settings


def restore_settings(module: Any, state: Any) -> None:
    for name, value in state.items():
        current = dict.get(module.rcParams, name)
        if current != value:
            dict.__setitem__(module.rcParams, name, value)


def take_options(module: Any) -> Any:
    return flatten_options(module._global_config, "")


def flatten_options(options: Any, prefix: str) -> dict[str, Any]:
    """Return nested options as a flat dict."""
    flat = {}
    for name, value in options.items():
        if type(value) is dict:
            flat.update(flatten_options(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def restore_options(module: Any, state: Any) -> None:
    current = take_options(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in state.items():
            if name in current and current[name] != value:
                module.set_option(name, value)


def take_print_options(module: Any) -> Any:
    return module.get_printoptions()


def restore_print_options(module: Any, state: Any) -> None:
    names = module.set_printoptions.__code__.co_varnames
    options = {name: value for name, value in state.items() if name in names}
    module.set_printoptions(**options)


def take_filters(module: Any) -> Any:
    return list(module.filters)


def restore_filters(module: Any, state: Any) -> None:
    module.filters[:] = state
    mutated = getattr(module, "_filters_mutated", None)
    mutated = mutated or getattr(module, "_filters_mutated_lock_held", None)
    if mutated:
        mutated()


def take_path(module: Any) -> Any:
    return list(module.path)


def restore_path(module: Any, state: Any) -> None:
    module.path[:] = state


def take_error_settings(module: Any) -> Any:
    return module.geterr()


def restore_error_settings(module: Any, state: Any) -> None:
    module.seterr(**state)


def take_torch(module: Any) -> Any:
    return module.default_generator.get_state().numpy().tobytes()


def restore_torch(module: Any, state: Any) -> None:
    content = bytearray(state)
    tensor = module.frombuffer(content, dtype=module.uint8)
    module.default_generator.set_state(tensor)


STATES = (
    GlobalState("random numbers", "random", take_random, restore_random),
    GlobalState(
        "numpy random numbers",
        "numpy.random",
        take_numpy_random,
        restore_numpy_random,
    ),
    GlobalState(
        "environment variables",
        "os",
        take_environment,
        restore_environment,
        frozenset({"os", "environ", "putenv", "load_dotenv", "dotenv", "get_ipython"}),
    ),
    GlobalState("working directory", "os", take_folder, restore_folder),
    GlobalState("matplotlib settings", "matplotlib", take_settings, restore_settings),
    GlobalState(
        "pandas options", "pandas._config.config", take_options, restore_options
    ),
    GlobalState(
        "numpy print options", "numpy", take_print_options, restore_print_options
    ),
    GlobalState(
        "warning filters",
        "warnings",
        take_filters,
        restore_filters,
        frozenset({"warnings", "filterwarnings", "simplefilter"}),
    ),
    GlobalState(
        "module search path",
        "sys",
        take_path,
        restore_path,
        frozenset({"sys", "path", "site"}),
    ),
    GlobalState(
        "numpy error settings", "numpy", take_error_settings, restore_error_settings
    ),
    GlobalState("torch random numbers", "torch", take_torch, restore_torch),
)
BY_NAME = {state.name: state for state in STATES}


def get_loaded_module(state: GlobalState) -> Any:
    return sys.modules.get(state.module)


def take_states() -> dict[str, Any]:
    """Return the current states by name."""
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
    before: dict[str, Any], after: dict[str, Any], names: set[str], has_imported: bool
) -> dict[str, Any]:
    """Return the former values of the states that differ.

    A state that an import may have changed counts only if the cell mentions it: later
    versions of the cell do not run the import's code again.
    """
    changes = {}
    for name, former in before.items():
        if name not in after or after[name] == former:
            continue
        modules = BY_NAME[name].modules
        if has_imported and modules and not modules & names:
            continue
        changes[name] = former
    return changes


def restore_state(name: str, value: Any) -> bool:
    """Restore a state. Return whether the state is now equal to the value."""
    state = BY_NAME[name]
    module = get_loaded_module(state)
    state.restore(module, value)
    return bool(state.take(module) == value)
