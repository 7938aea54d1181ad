"""The global state of Python and its standard library that a cell may change."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from typing import Any

from stepper.kernels.in_kernel.undo.python_objects import scope
from stepper.kernels.in_kernel.undo.state_row import GlobalState, References

STREAMS = ("stdout", "stderr", "stdin")
# The kernel sets its own handler for this signal before each cell.
INTERRUPT = 2
CONTEXT_NUMBERS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
CONTEXT_SETS = ("flags", "traps")
RUNNING = "cannot be stopped"
NO_REFERENCES = References([])
LOGGER_DEFAULTS: Any = (0, True, False, NO_REFERENCES, NO_REFERENCES, [])
# The garbage collector is disabled while an image is taken.
collector = {"enabled": True}


def take_random(module: Any) -> Any:
    return module._inst.getstate()


def restore_random(module: Any, state: Any) -> None:
    module._inst.setstate(state)


def take_environment(module: Any) -> Any:
    return dict(module.environ._data)


def restore_environment(module: Any, state: Any) -> None:
    """Restore the environment variables, also for child processes."""
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


def take_arguments(module: Any) -> Any:
    return list(module.argv)


def restore_arguments(module: Any, state: Any) -> None:
    module.argv[:] = state


def take_recursion_limit(module: Any) -> Any:
    return module.getrecursionlimit()


def restore_recursion_limit(module: Any, state: Any) -> None:
    module.setrecursionlimit(state)


def take_digits_limit(module: Any) -> Any:
    return module.get_int_max_str_digits()


def restore_digits_limit(module: Any, state: Any) -> None:
    module.set_int_max_str_digits(state)


def take_streams(module: Any) -> Any:
    return References(getattr(module, name, None) for name in STREAMS)


def restore_streams(module: Any, state: Any) -> None:
    for name, stream in zip(STREAMS, state.values):
        setattr(module, name, stream)


def take_collector(module: Any) -> Any:
    """Return whether the garbage collector is enabled, and its thresholds."""
    return collector["enabled"], module.get_threshold()


def restore_collector(module: Any, state: Any) -> None:
    is_enabled, threshold = state
    collector["enabled"] = is_enabled
    module.set_threshold(*threshold)
    if is_enabled:
        module.enable()
    else:
        module.disable()


def pause_collector() -> bool:
    """Disable the garbage collector. Return whether it was enabled."""
    was_enabled = gc.isenabled()
    collector["enabled"] = was_enabled
    gc.disable()
    return was_enabled


# logging


def take_loggers(module: Any) -> Any:
    """Return the settings of the loggers that have settings of their own."""
    manager = module.Logger.manager
    loggers = {"": take_logger(manager.root)}
    for name, logger in list(manager.loggerDict.items()):
        if type(logger) is not module.PlaceHolder and is_configured(logger):
            loggers[name] = take_logger(logger)
    return manager.disable, loggers


def is_configured(logger: Any) -> bool:
    """Return whether a logger has settings of its own."""
    has_objects = logger.handlers or logger.filters
    has_flags = logger.level or logger.disabled or not logger.propagate
    return bool(has_objects or has_flags)


def take_logger(logger: Any) -> Any:
    """Return the settings of a logger and its handlers."""
    handlers = logger.handlers
    return (
        logger.level,
        logger.propagate,
        logger.disabled,
        References(handlers),
        References(logger.filters),
        [take_handler(handler) for handler in handlers],
    )


def take_handler(handler: Any) -> Any:
    references = References([handler.formatter, *handler.filters])
    return handler.level, references


def restore_loggers(module: Any, state: Any) -> None:
    """Restore the settings of all loggers. New loggers get the defaults."""
    disabled_level, loggers = state
    manager = module.Logger.manager
    manager.disable = disabled_level
    _, current = take_loggers(module)
    for name in {*loggers, *current}:
        logger = manager.loggerDict[name] if name else manager.root
        restore_logger(logger, loggers.get(name, LOGGER_DEFAULTS))
    manager._clear_cache()


def restore_logger(logger: Any, settings: Any) -> None:
    """Restore the settings of a logger and its handlers."""
    level, propagate, is_disabled, handlers, filters, handler_states = settings
    logger.level = level
    logger.propagate = propagate
    logger.disabled = is_disabled
    logger.handlers[:] = handlers.values
    logger.filters[:] = filters.values
    for handler, (handler_level, references) in zip(logger.handlers, handler_states):
        formatter, *handler_filters = references.values
        handler.level = handler_level
        handler.formatter = formatter
        handler.filters[:] = handler_filters


def keep_new_libraries(former: Any, current: Any, new_modules: set[str]) -> Any:
    """Add the loggers that libraries have configured in their import."""
    disabled_level, loggers = former
    kept = dict(loggers)
    for name, settings in current[1].items():
        if name.split(".")[0] in new_modules and not scope.is_local(name):
            kept.setdefault(name, settings)
    return disabled_level, kept


# decimal, locale, time, signal, socket


def take_context(module: Any) -> Any:
    context = module.getcontext()
    numbers = [getattr(context, name) for name in CONTEXT_NUMBERS]
    return numbers, [dict(getattr(context, name)) for name in CONTEXT_SETS]


def restore_context(module: Any, state: Any) -> None:
    context = module.getcontext()
    numbers, sets = state
    for name, number in zip(CONTEXT_NUMBERS, numbers):
        setattr(context, name, number)
    for name, values in zip(CONTEXT_SETS, sets):
        setattr(context, name, values)


def take_locale(module: Any) -> Any:
    return module.setlocale(module.LC_ALL, None)


def restore_locale(module: Any, state: Any) -> None:
    module.setlocale(module.LC_ALL, state)


def take_time_zone(module: Any) -> Any:
    return module.tzname, module.timezone, module.altzone


def restore_time_zone(module: Any, state: Any) -> None:
    # The environment variables are restored before.
    module.tzset()


def take_signals(module: Any) -> Any:
    numbers = range(1, module.NSIG)
    return {
        number: module.getsignal(number) for number in numbers if number != INTERRUPT
    }


def restore_signals(module: Any, state: Any) -> None:
    for number, handler in state.items():
        if handler is not None and module.getsignal(number) is not handler:
            module.signal(number, handler)


def take_timeout(module: Any) -> Any:
    return module.getdefaulttimeout()


def restore_timeout(module: Any, state: Any) -> None:
    module.setdefaulttimeout(state)


def take_annotations(module: Any) -> Any:
    annotations = scope.namespace.get("__annotations__")
    return dict(annotations) if type(annotations) is dict else None


def restore_annotations(module: Any, state: Any) -> None:
    if state is None:
        scope.namespace.pop("__annotations__", None)
        return
    annotations = scope.namespace.setdefault("__annotations__", {})
    annotations.clear()
    annotations.update(state)


# threads and tasks


class Activities:
    """Threads or tasks by id. They count as equal to former ones if none was added."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.ids = set(map(id, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activities) and self.ids <= other.ids

    __hash__ = None  # type: ignore[assignment]


def take_threads(module: Any) -> Any:
    """Return the threads that run code of the user."""
    return Activities(filter(is_users_thread, module.enumerate()))


def is_users_thread(thread: Any) -> bool:
    """Return whether a thread runs a function, or is of a class, of the user."""
    if scope.is_local(getattr(type(thread), "__module__", None)):
        return True
    target = getattr(thread, "_target", None)
    if type(target) is types.MethodType:
        target = target.__func__
    return type(target) is types.FunctionType and scope.is_local(target.__module__)


def take_tasks(module: Any) -> Any:
    """Return the tasks that run a coroutine of the user."""
    try:
        tasks = module.all_tasks()
    except RuntimeError:  # no event loop
        tasks = set()
    return Activities(filter(is_users_task, tasks))


def is_users_task(task: Any) -> bool:
    """Return whether a task runs a coroutine of the namespace."""
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    return frame is not None and frame.f_globals is scope.namespace


ENVIRONMENT_WORDS = frozenset(
    {"os", "environ", "putenv", "load_dotenv", "dotenv", "get_ipython"}
)
WARNING_WORDS = frozenset({"warnings", "filterwarnings", "simplefilter"})
LOGGING_WORDS = frozenset({"logging", "logger", "log", "basicConfig", "getLogger"})
STATES = (
    GlobalState("random numbers", "random", take_random, restore_random),
    GlobalState(
        "environment variables",
        "os",
        take_environment,
        restore_environment,
        ENVIRONMENT_WORDS,
    ),
    GlobalState("working directory", "os", take_folder, restore_folder),
    GlobalState(
        "warning filters", "warnings", take_filters, restore_filters, WARNING_WORDS
    ),
    GlobalState(
        "module search path",
        "sys",
        take_path,
        restore_path,
        frozenset({"sys", "path", "site"}),
    ),
    GlobalState(
        "command-line arguments",
        "sys",
        take_arguments,
        restore_arguments,
        frozenset({"sys", "argv"}),
    ),
    GlobalState(
        "recursion limit",
        "sys",
        take_recursion_limit,
        restore_recursion_limit,
        frozenset({"sys", "setrecursionlimit"}),
    ),
    GlobalState(
        "limit of integer digits", "sys", take_digits_limit, restore_digits_limit
    ),
    GlobalState("standard output", "sys", take_streams, restore_streams),
    GlobalState("garbage collector", "gc", take_collector, restore_collector),
    GlobalState(
        "logging settings",
        "logging",
        take_loggers,
        restore_loggers,
        LOGGING_WORDS,
        keep_imported=keep_new_libraries,
    ),
    GlobalState("decimal context", "decimal", take_context, restore_context),
    GlobalState(
        "locale settings",
        "locale",
        take_locale,
        restore_locale,
        frozenset({"locale", "setlocale"}),
    ),
    GlobalState("time zone", "time", take_time_zone, restore_time_zone),
    GlobalState("signal handlers", "_signal", take_signals, restore_signals),
    GlobalState("socket timeout", "_socket", take_timeout, restore_timeout),
    GlobalState(
        "variable annotations", "builtins", take_annotations, restore_annotations
    ),
    GlobalState("running threads", "threading", take_threads, None, label=RUNNING),
    GlobalState("running tasks", "asyncio", take_tasks, None, label=RUNNING),
)
