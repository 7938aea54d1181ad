"""The preparation of a kernel for its first error, while no cell runs.

The warm-up loads the helper's parts for errors, the tables of Pygments, and the table
of module files in `inspect`, together 3 MB. A step takes about 50 ms. IPython's parsing
of the files of all frames takes most of the time of a traceback, but it is not part of
the warm-up, because it allocates 40 MB for pandas. A module of a subclass of
`ModuleType` is skipped, because it may run the user's code.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, Callable, Iterator

import IPython

from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    get_own_attributes,
    missing,
    shell,
)

IDLE_SECONDS = 0.5  # after a cell, before the first step
PAUSE_SECONDS = 0.1  # between two steps
MODULES_PER_STEP = 300
IPYTHON_DEPENDENCIES = ("executing", "asttokens", "pure_eval", "stack_data", "pygments")
# "busy" is true while a cell runs, and "ended" is the time when the last cell ended.
# "steps" is the generator of a warm-up, which started when `sys.modules` contained
# "modules" modules.
state: dict[str, Any] = {"busy": False, "ended": 0.0, "steps": None, "modules": 0}


def pause() -> None:
    """Pause the warm-up while a cell runs."""
    state["busy"] = True


def resume(load_parts: Callable[[], Any]) -> None:
    """Schedule the warm-up after a cell, if modules were loaded since the last warm-up.

    `load_parts` is a function that loads the helper's parts for errors.
    """
    state["busy"] = False
    state["ended"] = clock()
    module_count = len(sys.modules)
    if state["steps"] is None and state["modules"] != module_count:
        state["steps"] = iterate_steps(load_parts)
        state["modules"] = module_count
        schedule(IDLE_SECONDS)


def schedule(seconds: float) -> None:
    """Run the next step after some seconds, in the event loop of the kernel."""
    loop = shell.kernel.io_loop
    loop.call_later(seconds, run_step)


def run_step() -> None:
    """Run the next step if the kernel is idle, and schedule the following step."""
    idle_seconds = clock() - state["ended"]
    if state["busy"] or idle_seconds < IDLE_SECONDS:
        schedule(IDLE_SECONDS)
        return
    result = call_safely(next, state["steps"], missing)
    if result is missing:  # after the last step
        state["steps"] = None
    else:
        schedule(PAUSE_SECONDS)


def iterate_steps(load_parts: Callable[[], Any]) -> Iterator[None]:
    """Run the warm-up in steps, and yield after each step.

    Do nothing unless all IPYTHON_DEPENDENCIES are loaded or installed next to IPython.
    """
    if not all(map(is_from_ipython, IPYTHON_DEPENDENCIES)):
        return
    load_parts()
    yield
    load_highlighting()
    yield
    names = []
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType:
            names.append(name)
    for first in range(0, len(names), MODULES_PER_STEP):
        register_module_files(names[first : first + MODULES_PER_STEP])
        yield


def is_from_ipython(name: str) -> bool:
    """Return whether a module is loaded or installed next to IPython.

    A module with this name in the notebook's folder is the user's and must not be
    imported.
    """
    if name in sys.modules:
        return True
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        return False
    package = os.path.dirname(IPython.__file__)
    folder = os.path.dirname(package)
    return spec.origin.startswith(os.path.join(folder, ""))


def load_highlighting() -> None:
    """Make Pygments build its tables by highlighting a short text."""
    with suppress(ImportError):
        from pygments import highlight
        from pygments.formatters.terminal256 import Terminal256Formatter
        from pygments.lexers.python import PythonLexer

        highlight("x = 1", PythonLexer(), Terminal256Formatter())


def register_module_files(names: list[str]) -> None:
    """Register the files of modules with `inspect`.

    `inspect.getmodule` would register all modules at once, which takes longer.
    """
    tables = vars(inspect)
    files_by_name = tables.get("_filesbymodname", {})
    names_by_file = tables.get("modulesbyfile", {})
    for name in names:
        module: Any = sys.modules.get(name)
        module_dict = get_own_attributes(module)
        file = module_dict.get("__file__")
        own_name = module_dict.get("__name__")
        if type(file) is not str or type(own_name) is not str:
            continue
        if files_by_name.get(name) != file and os.path.isfile(file):
            source = inspect.getabsfile(module)
            names_by_file[source] = own_name
            real_source = os.path.realpath(source)
            names_by_file[real_source] = own_name
            files_by_name[name] = file
