"""What a kernel's first error needs, loaded while nothing runs.

Of an error that shows frames of a large library most of the time is IPython's own: it parses each file of the frames,
and keeps 40 MB of pandas'. That must not be paid where nothing ever fails. What can be had ahead for 3 MB are the
helper's part, Pygments' tables and what `inspect` knows of the modules' files; modules of a class of their own are not
asked. A step takes some 50 ms, and begins when no cell has run for a while.
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

from stepper.kernels.in_kernel.safe_inspect import call_safely, clock, own_names, shell

# seconds after a cell, between two steps; modules of a step
WAIT, PAUSE, FILES = 0.5, 0.1, 300
NEEDED = ("executing", "asttokens", "pure_eval", "stack_data", "pygments")
state: dict[str, Any] = {"busy": False, "ended": 0.0, "steps": None, "modules": 0}


def busy() -> None:
    """A cell begins."""
    state["busy"] = True


def idle(parts: Callable[[], Any]) -> None:
    """A cell has ended; `parts` loads the helper's own."""
    state.update(busy=False, ended=clock())
    if state["steps"] is None and len(sys.modules) != state["modules"]:
        state.update(steps=steps(parts), modules=len(sys.modules))
        shell.kernel.io_loop.call_later(WAIT, step)


def step() -> None:
    resting = not state["busy"] and clock() - state["ended"] >= WAIT
    if resting and call_safely(next, state["steps"], state) is state:
        state["steps"] = None
    else:
        shell.kernel.io_loop.call_later(PAUSE if resting else WAIT, step)


def steps(parts: Callable[[], Any]) -> Iterator[None]:
    if not all(map(by_ipython, NEEDED)):
        return
    parts()
    yield
    highlighted()
    yield
    known = [
        name for name, module in list(sys.modules.items()) if type(module) is ModuleType
    ]
    for first in range(0, len(known), FILES):
        located(known[first : first + FILES])
        yield


def by_ipython(name: str) -> bool:
    """Whether a module would come from where IPython lies: one of that name beside the notebook is the user's."""
    spec = None if name in sys.modules else PathFinder.find_spec(name)
    home = os.path.dirname(os.path.dirname(IPython.__file__))
    return name in sys.modules or bool(
        spec and (spec.origin or "").startswith(os.path.join(home, ""))
    )


def highlighted() -> None:
    """Have Pygments make its tables."""
    with suppress(ImportError):
        from pygments import highlight
        from pygments.formatters.terminal256 import Terminal256Formatter
        from pygments.lexers.python import PythonLexer

        highlight("x = 1", PythonLexer(), Terminal256Formatter())


def located(names: list[str]) -> None:
    """Tell `inspect` of the modules' files, as `inspect.getmodule` does for all of them at once."""
    known, modules = (
        vars(inspect).get(table, {}) for table in ("_filesbymodname", "modulesbyfile")
    )
    for name in names:
        module: Any = sys.modules.get(name)
        file, own = (own_names(module).get(key) for key in ("__file__", "__name__"))
        if (
            type(file) is str
            and type(own) is str
            and known.get(name) != file
            and os.path.isfile(file)
        ):
            source = inspect.getabsfile(module)
            modules[source] = modules[os.path.realpath(source)] = own
            known[name] = file
