"""The global state of IPython and of libraries that a cell may change."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import shell
from stepper.kernels.in_kernel.undo.numpy_types import flatten_state
from stepper.kernels.in_kernel.undo.python_objects import scope
from stepper.kernels.in_kernel.undo.state_row import GlobalState, References

# matplotlib itself sets these when it starts its backend.
BACKEND_SETTINGS = {"backend", "backend_fallback", "interactive", "toolbar"}
SHELL_OPTIONS = ("ast_node_interactivity", "autoawait", "automagic", "call_pdb")
TRANSFORMERS = ("ast_transformers", "input_transformers_post")
PRINT_OPTIONS_OF_TORCH = (
    "precision",
    "threshold",
    "edgeitems",
    "linewidth",
    "sci_mode",
)


# IPython


def is_from_user(function: Any) -> bool:
    """Return whether a callable, or its class, is defined in a module of the user."""
    module = getattr(function, "__module__", None)
    return scope.is_local(module) or scope.is_local(type(function).__module__)


class Magics:
    """The magics of IPython by kind and name. Only those of the user are compared."""

    def __init__(self, tables: dict[str, dict[str, Any]]) -> None:
        self.tables = tables

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Magics):
            return False
        is_same = self.tables == other.tables
        return is_same or self.list_user_magics() == other.list_user_magics()

    __hash__ = None  # type: ignore[assignment]

    def list_user_magics(self) -> dict[tuple[str, str], Any]:
        """Return the magics that the user has registered, by kind and name."""
        magics = {}
        for kind, table in self.tables.items():
            for name, function in table.items():
                if is_from_user(function):
                    magics[kind, name] = function
        return magics


def take_shell(module: Any) -> Any:
    """Return the user's callbacks and magics, and the settings of IPython.

    The callbacks and magics of libraries are not included: a later import of the
    library would not add them again.
    """
    callbacks = {}
    for event, functions in shell.events.callbacks.items():
        callbacks[event] = References(filter(is_from_user, functions))
    magics = {}
    for kind, table in shell.magics_manager.magics.items():
        magics[kind] = dict(table)
    transformers = {}
    for name in TRANSFORMERS:
        transformers[name] = References(filter(is_from_user, getattr(shell, name)))
    return {
        "callbacks": callbacks,
        "magics": Magics(magics),
        "transformers": transformers,
        "extensions": list_removable_extensions(),
        "options": [getattr(shell, name) for name in SHELL_OPTIONS],
        "precision": get_text_formatter().float_precision,
    }


def list_removable_extensions() -> set[str]:
    """Return the names of the loaded extensions that can be unloaded."""
    removable = set[str]()
    for name in shell.extension_manager.loaded:
        if hasattr(sys.modules.get(name), "unload_ipython_extension"):
            removable.add(name)
    return removable


def get_text_formatter() -> Any:
    """Return IPython's formatter of plain text."""
    return shell.display_formatter.formatters["text/plain"]


def restore_shell(module: Any, state: Any) -> None:
    """Restore the user's callbacks and magics, and the settings of IPython.

    Unload the extensions that were loaded since.
    """
    for event, functions in shell.events.callbacks.items():
        former = state["callbacks"].get(event, References([]))
        functions[:] = replace_users(functions, former)
    for name, former in state["transformers"].items():
        functions = getattr(shell, name)
        functions[:] = replace_users(functions, former)
    restore_magics(state["magics"])
    for name, option in zip(SHELL_OPTIONS, state["options"]):
        if getattr(shell, name) != option:
            setattr(shell, name, option)
    formatter = get_text_formatter()
    if formatter.float_precision != state["precision"]:
        formatter.float_precision = state["precision"]
    for name in list_removable_extensions() - state["extensions"]:
        shell.extension_manager.unload_extension(name)


def restore_magics(state: Magics) -> None:
    """Remove the magics that were registered later; register the former ones again."""
    tables = shell.magics_manager.magics
    former_magics = state.list_user_magics()
    for kind, name in Magics(tables).list_user_magics():
        if (kind, name) not in former_magics:
            del tables[kind][name]
    for (kind, name), function in former_magics.items():
        tables[kind][name] = function


def replace_users(functions: list[Any], former: References) -> list[Any]:
    """Return functions with former functions of the user instead of current ones."""
    others = [function for function in functions if not is_from_user(function)]
    return [*others, *former.values]


# numpy


class NumpyState:
    """The state of numpy's global generator, as numpy returns it and for comparison."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.content = flatten_state(state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyState) and self.content == other.content

    __hash__ = None  # type: ignore[assignment]


def take_numpy_random(module: Any) -> Any:
    """Return the state of numpy's global generator of random numbers."""
    return NumpyState(module.mtrand._rand.get_state(legacy=False))


def restore_numpy_random(module: Any, state: Any) -> None:
    """Set the state of numpy's global generator of random numbers."""
    module.mtrand._rand.set_state(state.state)


def take_print_options(module: Any) -> Any:
    """Return numpy's options for printing."""
    return module.get_printoptions()


def restore_print_options(module: Any, state: Any) -> None:
    """Set numpy's options for printing, except those that have no parameter."""
    names = module.set_printoptions.__code__.co_varnames
    options = {name: value for name, value in state.items() if name in names}
    module.set_printoptions(**options)


def take_error_settings(module: Any) -> Any:
    """Return numpy's settings for floating-point errors."""
    return module.geterr()


def restore_error_settings(module: Any, state: Any) -> None:
    """Change numpy's settings for floating-point errors."""
    module.seterr(**state)


def take_initial_errors(module: Any) -> Any:
    """Return numpy's default settings for floating-point errors."""
    return {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def take_initial_printing(module: Any) -> Any:
    """Return numpy's default options for printing.

    If `%precision` is set, IPython has set the precision of numpy, which is kept.
    """
    options = module.get_printoptions()
    defaults = sys.modules["numpy._core.printoptions"].default_format_options_dict
    has_precision = bool(get_text_formatter().float_precision)
    for name, value in defaults.items():
        is_kept = name == "precision" and has_precision
        if name in options and not is_kept:
            options[name] = value
    options["legacy"] = False  # in `defaults`, this is a number
    return options


# matplotlib and pandas


def take_settings(module: Any) -> Any:
    """Return the settings of matplotlib."""
    return copy_settings(module.rcParams)


def copy_settings(parameters: Any) -> Any:
    """Return a copy of matplotlib's settings, without those of the backend."""
    settings = {}
    for name, value in dict.items(parameters):
        if name not in BACKEND_SETTINGS:
            settings[name] = list(value) if type(value) is list else value
    return settings


def restore_settings(module: Any, state: Any) -> None:
    """Restore the settings of matplotlib that differ, without a validation."""
    for name, value in state.items():
        current = dict.get(module.rcParams, name)
        if current != value:
            dict.__setitem__(module.rcParams, name, value)


def take_initial_settings(module: Any) -> Any:
    """Return the settings that matplotlib has after its import."""
    return copy_settings(module.rcParamsOrig)


def take_options(module: Any) -> Any:
    """Return the options of pandas by full name, such as `display.width`."""
    return flatten_options(module._global_config, "")


def flatten_options(options: Any, prefix: str) -> dict[str, Any]:
    """Return nested options as a flat dict. `prefix` is added to each name."""
    flat = {}
    for name, value in options.items():
        if type(value) is dict:
            flat.update(flatten_options(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def restore_options(module: Any, state: Any) -> None:
    """Set the options of pandas that differ. Warnings on old options are suppressed."""
    current = take_options(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in state.items():
            if name in current and current[name] != value:
                module.set_option(name, value)


def take_initial_options(module: Any) -> Any:
    """Return the default options of pandas."""
    options = take_options(module)
    for name, option in module._registered_options.items():
        options[name] = option.defval
    return options


def take_figures(module: Any) -> Any:
    """Return the managers of matplotlib's open figures. The last figure is active."""
    return References(module.Gcf.figs.values())


def take_no_figures(module: Any) -> Any:
    """Return the state without figures, as after the import of matplotlib."""
    return References([])


def restore_figures(module: Any, state: Any) -> None:
    """Close new figures, and register the former ones again."""
    figures = module.Gcf.figs
    for manager in list(figures.values()):
        if not any(manager is kept for kept in state.values):
            module.Gcf.destroy(manager)
    # The last figure is the active one.
    for manager in state.values:
        figures[manager.num] = manager
        figures.move_to_end(manager.num)


# scikit-learn, torch and other packages


def take_config(module: Any) -> Any:
    """Return the configuration of scikit-learn in this thread."""
    return module.get_config()


def restore_config(module: Any, state: Any) -> None:
    """Set the configuration of scikit-learn in this thread."""
    module.set_config(**state)


def take_initial_config(module: Any) -> Any:
    """Return the default configuration of scikit-learn."""
    return dict(module._config._global_config)


def take_torch(module: Any) -> Any:
    """Return the state of torch's global generator of random numbers, as bytes."""
    return module.default_generator.get_state().numpy().tobytes()


def restore_torch(module: Any, state: Any) -> None:
    """Set the state of torch's global generator of random numbers."""
    content = bytearray(state)
    tensor = module.frombuffer(content, dtype=module.uint8)
    module.default_generator.set_state(tensor)


def take_torch_settings(module: Any) -> Any:
    """Return the settings of torch."""
    return {
        "dtype": module.get_default_dtype(),
        "threads": module.get_num_threads(),
        "grad": module.is_grad_enabled(),
        "deterministic": module.are_deterministic_algorithms_enabled(),
        "print": dict(vars(module._tensor_str.PRINT_OPTS)),
    }


def restore_torch_settings(module: Any, state: Any) -> None:
    """Restore the settings of torch."""
    module.set_default_dtype(state["dtype"])
    if module.get_num_threads() != state["threads"]:
        module.set_num_threads(state["threads"])
    module.set_grad_enabled(state["grad"])
    if module.are_deterministic_algorithms_enabled() != state["deterministic"]:
        module.use_deterministic_algorithms(state["deterministic"])
    vars(module._tensor_str.PRINT_OPTS).update(state["print"])


def take_initial_torch(module: Any) -> Any:
    """Return the settings of torch after its import, with the current thread count."""
    settings = take_torch_settings(module)
    default_options = type(module._tensor_str.PRINT_OPTS)()
    settings["dtype"] = module.float32
    settings["grad"] = True
    settings["deterministic"] = False
    settings["print"] = dict(vars(default_options))
    return settings


def take_plotly(module: Any) -> Any:
    """Return the names of plotly's default template and renderer."""
    return module.templates.default, module.renderers.default


def restore_plotly(module: Any, state: Any) -> None:
    """Set plotly's default template and renderer."""
    template, renderer = state
    module.templates.default = template
    if module.renderers.default != renderer:
        module.renderers.default = renderer


def take_xarray(module: Any) -> Any:
    """Return the options of xarray."""
    return dict(module.OPTIONS)


def restore_xarray(module: Any, state: Any) -> None:
    """Set the options of xarray."""
    module.OPTIONS.update(state)


STATES = (
    # IPython's precision also sets that of numpy, so it is restored first.
    GlobalState("IPython settings", "IPython", take_shell, restore_shell),
    GlobalState(
        "numpy random numbers",
        "numpy.random",
        take_numpy_random,
        restore_numpy_random,
    ),
    GlobalState(
        "matplotlib settings",
        "matplotlib",
        take_settings,
        restore_settings,
        take_initial=take_initial_settings,
    ),
    GlobalState(
        "matplotlib figures",
        "matplotlib._pylab_helpers",
        take_figures,
        restore_figures,
        take_initial=take_no_figures,
    ),
    GlobalState(
        "pandas options",
        "pandas._config.config",
        take_options,
        restore_options,
        take_initial=take_initial_options,
    ),
    GlobalState(
        "numpy print options",
        "numpy",
        take_print_options,
        restore_print_options,
        take_initial=take_initial_printing,
    ),
    GlobalState(
        "numpy error settings",
        "numpy",
        take_error_settings,
        restore_error_settings,
        take_initial=take_initial_errors,
    ),
    GlobalState(
        "sklearn configuration",
        "sklearn",
        take_config,
        restore_config,
        take_initial=take_initial_config,
    ),
    GlobalState("torch random numbers", "torch", take_torch, restore_torch),
    GlobalState(
        "torch settings",
        "torch",
        take_torch_settings,
        restore_torch_settings,
        take_initial=take_initial_torch,
    ),
    GlobalState("plotly settings", "plotly.io", take_plotly, restore_plotly),
    GlobalState("xarray options", "xarray.core.options", take_xarray, restore_xarray),
)
