"""IPython's own reading of a cell (`%magic`, `!command`, `name?`), without the rest of IPython.

`import IPython.core.inputtransformer2` runs IPython's `__init__`: on IPython 8 half a second and 21 MB, a third of what
the daemon may take. The module itself needs the standard library and one neighbour: 4 ms and 0.1 MB.
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
def transformer() -> Callable[[str], str]:
    """Return the function that turns a cell into Python; ImportError where there is no IPython."""
    made: Callable[[str], str] = _module().TransformerManager().transform_cell
    return made


def _module() -> ModuleType:
    """Import the module below empty packages that only tell where it lies, and take them out of `sys.modules` again.

    They stand there for these milliseconds alone, so a later `import IPython` is the real one. Where IPython is there
    already, or a later version asks more of its packages, the usual import must do.
    """
    if "IPython" not in sys.modules:
        found = importlib.util.find_spec("IPython")  # of a package at the top it runs nothing
        folders = (found and found.submodule_search_locations) or ()
        try:
            for name in PACKAGES if folders else ():
                sys.modules[name] = package = ModuleType(name)
                package.__path__ = [os.path.join(folder, *name.split(".")[1:]) for folder in folders]
            return importlib.import_module(MODULE)
        except (ImportError, AttributeError):
            pass
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "IPython"]:
                del sys.modules[name]
    return importlib.import_module(MODULE)
