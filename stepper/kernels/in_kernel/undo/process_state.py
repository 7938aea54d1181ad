"""The global state of Python and its standard library that a cell may change."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.undo.python_objects import scope
from stepper.kernels.in_kernel.undo.state_row import GlobalState, References

STREAMS = ("stdout", "stderr", "stdin")
# The kernel sets its own handler for this signal before each cell.
INTERRUPT = 2
CONTEXT_NUMBERS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
CONTEXT_SETS = ("flags", "traps")
RUNNING = "cannot be stopped"
NO_REFERENCES = References([])
# Whether the garbage collector was enabled before `pause_collector` disabled it.
collector = {"enabled": True}


def take_random(module: Any) -> Any:
    """Return the state of the global generator of `random`."""
    return module._inst.getstate()


def restore_random(module: Any, state: Any) -> None:
    """Set the state of the global generator of `random`."""
    module._inst.setstate(state)


def take_environment(module: Any) -> Any:
    """Return the environment variables, encoded as `os.environ` stores them."""
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
    """Return the working directory, or None if it was deleted."""
    try:
        return module.getcwd()
    except OSError:
        return None


def restore_folder(module: Any, state: Any) -> None:
    """Change to the former working directory, unless it was unknown."""
    if state is not None:
        module.chdir(state)


def take_filters(module: Any) -> Any:
    """Return the filters of `warnings`."""
    return list(module.filters)


def restore_filters(module: Any, state: Any) -> None:
    """Restore the filters of `warnings`, and make Python forget cached results."""
    module.filters[:] = state
    # The name of this function depends on the version of Python.
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        report_change = getattr(module, name, None)
        if report_change is not None:
            report_change()
            return


def take_path(module: Any) -> Any:
    """Return the items of `sys.path`."""
    return list(module.path)


def restore_path(module: Any, state: Any) -> None:
    """Replace the items of `sys.path`."""
    module.path[:] = state


def take_arguments(module: Any) -> Any:
    """Return the items of `sys.argv`."""
    return list(module.argv)


def restore_arguments(module: Any, state: Any) -> None:
    """Replace the items of `sys.argv`."""
    module.argv[:] = state


def take_recursion_limit(module: Any) -> Any:
    """Return the maximum depth of Python's call stack."""
    return module.getrecursionlimit()


def restore_recursion_limit(module: Any, state: Any) -> None:
    """Set the maximum depth of Python's call stack."""
    module.setrecursionlimit(state)


def take_digits_limit(module: Any) -> Any:
    """Return the maximum number of digits in a conversion of int and str."""
    return module.get_int_max_str_digits()


def restore_digits_limit(module: Any, state: Any) -> None:
    """Set the maximum number of digits in a conversion of int and str."""
    module.set_int_max_str_digits(state)


def take_streams(module: Any) -> Any:
    """Return the objects of the standard streams."""
    return References(getattr(module, name, None) for name in STREAMS)


def restore_streams(module: Any, state: Any) -> None:
    """Restore the objects of the standard streams."""
    for name, stream in zip(STREAMS, state.values):
        setattr(module, name, stream)


def take_collector(module: Any) -> Any:
    """Return whether the garbage collector was enabled, and its thresholds.

    It is disabled while an image is taken, so the value from before is returned.
    """
    return collector["enabled"], module.get_threshold()


def restore_collector(module: Any, state: Any) -> None:
    """Enable or disable the garbage collector, and set its thresholds."""
    is_enabled, threshold = state
    collector["enabled"] = is_enabled
    module.set_threshold(*threshold)
    if is_enabled:
        module.enable()
    else:
        module.disable()


def pause_collector() -> bool:
    """Disable the garbage collector while an image is taken or compared.

    Return whether the garbage collector was enabled.
    """
    was_enabled = gc.isenabled()
    collector["enabled"] = was_enabled
    gc.disable()
    return was_enabled


# logging


class LoggerSettings(NamedTuple):
    """The settings of a logger, and those of each of its handlers."""

    level: int = 0
    propagate: bool = True
    is_disabled: bool = False
    handlers: References = NO_REFERENCES
    filters: References = NO_REFERENCES
    handler_settings: tuple[Any, ...] = ()


def take_loggers(module: Any) -> Any:
    """Return the level that is disabled for all loggers, and settings by name.

    Loggers without settings of their own are left out. The root logger has the name "".
    """
    manager = module.Logger.manager
    loggers = {"": take_logger(manager.root)}
    for name, logger in list(manager.loggerDict.items()):
        if type(logger) is not module.PlaceHolder and is_configured(logger):
            loggers[name] = take_logger(logger)
    return manager.disable, loggers


def is_configured(logger: Any) -> bool:
    """Return whether a logger has handlers, filters or another flag than by default."""
    has_objects = logger.handlers or logger.filters
    has_flags = logger.level or logger.disabled or not logger.propagate
    return bool(has_objects or has_flags)


def take_logger(logger: Any) -> Any:
    """Return the settings of a logger and its handlers."""
    handlers = logger.handlers
    return LoggerSettings(
        logger.level,
        logger.propagate,
        logger.disabled,
        References(handlers),
        References(logger.filters),
        tuple(map(take_handler, handlers)),
    )


def take_handler(handler: Any) -> Any:
    """Return the level of a handler, and its formatter with its filters."""
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
        restore_logger(logger, loggers.get(name, LoggerSettings()))
    manager._clear_cache()


def restore_logger(logger: Any, settings: LoggerSettings) -> None:
    """Restore the settings of a logger and its handlers."""
    logger.level = settings.level
    logger.propagate = settings.propagate
    logger.disabled = settings.is_disabled
    logger.handlers[:] = settings.handlers.values
    logger.filters[:] = settings.filters.values
    for handler, (level, references) in zip(logger.handlers, settings.handler_settings):
        formatter, *handler_filters = references.values
        handler.level = level
        handler.formatter = formatter
        handler.filters[:] = handler_filters


def keep_new_libraries(former: Any, current: Any, new_modules: set[str]) -> Any:
    """Return the former settings with loggers that libraries configured on import.

    See `GlobalState` for the arguments.
    """
    disabled_level, loggers = former
    _, current_loggers = current
    kept = dict(loggers)
    for name, settings in current_loggers.items():
        if name.split(".")[0] in new_modules and not scope.is_local(name):
            kept.setdefault(name, settings)
    return disabled_level, kept


# decimal, locale, time, signal, socket


def take_context(module: Any) -> Any:
    """Return the numbers, the flags and the traps of the context of `decimal`."""
    context = module.getcontext()
    numbers = [getattr(context, name) for name in CONTEXT_NUMBERS]
    return numbers, [dict(getattr(context, name)) for name in CONTEXT_SETS]


def restore_context(module: Any, state: Any) -> None:
    """Restore the context of `decimal` in place."""
    context = module.getcontext()
    numbers, sets = state
    for name, number in zip(CONTEXT_NUMBERS, numbers):
        setattr(context, name, number)
    for name, values in zip(CONTEXT_SETS, sets):
        setattr(context, name, values)


def take_locale(module: Any) -> Any:
    """Return the locale of all categories, as text."""
    return module.setlocale(module.LC_ALL, None)


def restore_locale(module: Any, state: Any) -> None:
    """Set the locale of all categories."""
    module.setlocale(module.LC_ALL, state)


def take_time_zone(module: Any) -> Any:
    """Return the names and the offsets of the time zone."""
    return module.tzname, module.timezone, module.altzone


def restore_time_zone(module: Any, state: Any) -> None:
    """Read the time zone from the environment variables, which are restored before."""
    module.tzset()


def take_signals(module: Any) -> Any:
    """Return the handlers of all signals except SIGINT, by number."""
    numbers = range(1, module.NSIG)
    return {
        number: module.getsignal(number) for number in numbers if number != INTERRUPT
    }


def restore_signals(module: Any, state: Any) -> None:
    """Restore the handlers of signals that Python code has set."""
    for number, handler in state.items():
        if handler is not None and module.getsignal(number) is not handler:
            module.signal(number, handler)


def take_timeout(module: Any) -> Any:
    """Return the default timeout of new sockets."""
    return module.getdefaulttimeout()


def restore_timeout(module: Any, state: Any) -> None:
    """Set the default timeout of new sockets."""
    module.setdefaulttimeout(state)


def take_annotations(module: Any) -> Any:
    """Return the annotations of the namespace's variables, or None if it has none."""
    annotations = scope.namespace.get("__annotations__")
    return dict(annotations) if type(annotations) is dict else None


def restore_annotations(module: Any, state: Any) -> None:
    """Restore the annotations of the namespace's variables."""
    if state is None:
        scope.namespace.pop("__annotations__", None)
        return
    annotations = scope.namespace.setdefault("__annotations__", {})
    annotations.clear()
    annotations.update(state)


# threads and tasks


class Activities:
    """The ids of threads or tasks.

    `current == former` is true if no thread or task was added. Some may have ended.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.ids = set(map(id, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activities) and self.ids <= other.ids

    __hash__ = None  # type: ignore[assignment]


def take_threads(module: Any) -> Any:
    """Return the threads that run code of the user."""
    return Activities(filter(is_users_thread, module.enumerate()))


def is_users_thread(thread: Any) -> bool:
    """Return whether the function or the class of a thread is from the user."""
    if scope.is_local(getattr(type(thread), "__module__", None)):
        return True
    target = getattr(thread, "_target", None)
    if type(target) is functools.partial:
        target = target.func
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
    """Return whether a task runs a coroutine function that a cell defined."""
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
