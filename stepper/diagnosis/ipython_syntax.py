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
from contextlib import suppress
from types import ModuleType

PACKAGES = ("IPython", "IPython.core", "IPython.utils")
MODULE = "IPython.core.inputtransformer2"


@functools.cache
def transformer() -> Callable[[str], str]:
    """Return the function that turns a cell into Python; ImportError where there is no IPython.

    The module is imported below empty packages that only tell where it lies, and that are taken out of `sys.modules`
    again, so a later `import IPython` is the real one. Where IPython is there already, or a later version asks more of
    its packages, the usual import must do.
    """
    # it runs nothing
    found = (
        importlib.util.find_spec("IPython") if "IPython" not in sys.modules else None
    )
    module = None
    if found and found.submodule_search_locations:
        with suppress(ImportError, AttributeError):
            for name in PACKAGES:
                sys.modules[name] = package = ModuleType(name)
                tail = name.split(".")[1:]
                package.__path__ = [
                    os.path.join(folder, *tail)
                    for folder in found.submodule_search_locations
                ]
            module = importlib.import_module(MODULE)
        for name in [name for name in sys.modules if name.split(".")[0] == "IPython"]:
            del sys.modules[name]
    made: Callable[[str], str] = (
        (module or importlib.import_module(MODULE)).TransformerManager().transform_cell
    )
    return made
