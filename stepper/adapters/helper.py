"""The helper that lives in the kernel: `stepper/inkernel/`, as text, and the code that sets it up there.

It is executed once, silently. Its modules have builtins of their own and leave `sys.modules` again: nothing of it is
in the user's namespace, `dir()`, `%who` or the history, and nothing that a cell redefines is in its way.
"""

from __future__ import annotations

from importlib.resources import files

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"
# In the order in which they import one another.
MODULES = (
    "base", "cells", "fault", "signatures", "namespace",
    "reach", "describe", "keys", "members", "calls", "values", "look", "changed",
    "tell",
)  # fmt: skip

SET_UP = """
import builtins, sys, types
name = "_stepper_helper"
sys.modules[name] = package = types.ModuleType(name)
package.__path__ = []
for own, source in SOURCES.items():
    module = types.ModuleType(name + "." + own)
    module.__dict__.update(__package__=name, __builtins__=dict(vars(builtins)))
    sys.modules[module.__name__] = module
    exec(compile(source, "<stepper helper>", "exec"), module.__dict__)
for own in SOURCES:
    module = sys.modules.pop(name + "." + own)
module.begin()
"""

SOURCES = {name: (files("stepper.inkernel") / f"{name}.py").read_text("utf-8") for name in MODULES}
# An expression statement: it binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({SET_UP!r}, '<stepper helper>', 'exec'),"
    f" {{'SOURCES': {SOURCES!r}, '__builtins__': dict(vars(__import__('builtins')))}})"
)
ASK = f"__import__('sys').modules[{MODULE!r}].tell()"
