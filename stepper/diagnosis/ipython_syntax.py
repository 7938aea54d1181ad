"""The translation of IPython's syntax (`%magic`, `!command`, `name?`) to Python.

`import IPython.core.inputtransformer2` runs IPython's `__init__`, which takes half a
second and 21 MB with IPython 8, a third of the daemon's memory limit. The module itself
needs only the standard library and one other module: 4 ms and 0.1 MB.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType

PACKAGES = ("IPython", "IPython.core", "IPython.utils")
MODULE = "IPython.core.inputtransformer2"


@functools.cache
def get_transformer() -> Callable[[str], str]:
    """Return the function that translates a cell's source to Python.

    If possible, import only IPython's module for this, without the rest of IPython.
    Raise ImportError if IPython is not installed.
    """
    module = _import_alone() or importlib.import_module(MODULE)
    transform: Callable[[str], str] = module.TransformerManager().transform_cell
    return transform


def _import_alone() -> ModuleType | None:
    """Import IPython's module without running the code of its packages.

    During the import, `sys.modules` contains empty packages instead of IPython's. All
    of IPython is then removed from `sys.modules`, so that a later `import IPython`
    imports the real packages. Return None if IPython has already been imported, or if
    the module cannot be imported in this way.
    """
    if "IPython" in sys.modules:
        return None
    # find_spec() does not execute the package.
    spec = importlib.util.find_spec("IPython")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        for name in PACKAGES:
            package = ModuleType(name)
            sys.modules[name] = package
            subfolders = name.split(".")[1:]
            package.__path__ = [
                os.path.join(folder, *subfolders)
                for folder in spec.submodule_search_locations
            ]
        return importlib.import_module(MODULE)
    except (ImportError, AttributeError):
        return None
    finally:
        for name in list(sys.modules):
            top_name, _, _ = name.partition(".")
            if top_name == "IPython":
                del sys.modules[name]
