"""IPython's translation of `%magic`, `!command` and `name?`, without all of IPython.

`import IPython.core.inputtransformer2` runs IPython's `__init__`: with IPython 8 that
takes half a second and 21 MB, a third of the daemon's memory limit. The module itself
needs only the standard library and one sibling: 4 ms and 0.1 MB.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

PACKAGES = ("IPython", "IPython.core", "IPython.utils")
MODULE = "IPython.core.inputtransformer2"


@functools.cache
def get_transformer() -> Callable[[str], str]:
    """Return the function that turns a cell into Python.

    Raise ImportError if IPython is not installed. The usual import is the fallback if
    IPython is already imported, or if its packages need more than they do today.
    """
    module = _import_alone() or importlib.import_module(MODULE)
    transform: Callable[[str], str] = module.TransformerManager().transform_cell
    return transform


def _import_alone() -> ModuleType | None:
    """Import the module below empty packages.

    Return None if that is not possible. The packages only have a path. They are removed
    from `sys.modules` again, so that a later `import IPython` imports the real one.
    """
    if "IPython" in sys.modules:
        return None
    # find_spec() does not execute the package.
    spec = importlib.util.find_spec("IPython")
    if spec is None or not spec.submodule_search_locations:
        return None
    module = None
    with suppress(ImportError, AttributeError):
        for name in PACKAGES:
            package = ModuleType(name)
            sys.modules[name] = package
            subfolders = name.split(".")[1:]
            package.__path__ = [
                os.path.join(folder, *subfolders)
                for folder in spec.submodule_search_locations
            ]
        module = importlib.import_module(MODULE)
    for name in [*sys.modules]:
        if name.split(".")[0] == "IPython":
            del sys.modules[name]
    return module
