"""The helper that lives in the kernel: `stepper/inkernel/`, as text, and the code that sets it up there.

It is executed once, silently. Its modules have builtins of their own and leave `sys.modules` again: nothing of it is
in the user's namespace, `dir()`, `%who` or the history, and nothing that a cell redefines is in its way.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"
ENTRY = "tell"
IMPORT = re.compile(r"^from \.(\w*) import (.*)", re.MULTILINE)

SET_UP = """
import builtins, sys, types
name = "_stepper_helper"
old = sys.modules.get(name)
if getattr(old, "version", None) != VERSION:  # a daemon that starts anew finds it there, with what it remembers
    getattr(old, "end", bool)()
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = []
    for own, source in SOURCES.items():
        module = types.ModuleType(name + "." + own)
        module.__dict__.update(__package__=name, __builtins__=dict(vars(builtins)))
        sys.modules[module.__name__] = module
        exec(compile(source, "<stepper helper>", "exec"), module.__dict__)
    for own in SOURCES:
        module = sys.modules.pop(name + "." + own)
    module.begin(VERSION, STACK)
"""


def sources(name: str, found: dict[str, str]) -> dict[str, str]:
    """Return the sources of a module and of all that it imports, each after what it needs."""
    text = (files("stepper.inkernel") / f"{name}.py").read_text("utf-8")
    for module, names in IMPORT.findall(text):
        for needed in [module] if module else names.split(", "):
            if needed not in found:
                sources(needed, found)
    found[name] = text
    return found


SOURCES = sources(ENTRY, {})
VERSION = hashlib.sha256("".join(SOURCES.values()).encode()).hexdigest()[:16]
ASK = f"__import__('sys').modules[{MODULE!r}].tell()"


def install(stack: str) -> str:
    """Return the code that sets it up; `stack` is the file for samples of what runs.

    It is an expression statement: it binds no name in the user's namespace.
    """
    given = f"'SOURCES': {SOURCES!r}, 'VERSION': {VERSION!r}, 'STACK': {stack!r}"
    return (
        f"__import__('builtins').exec(compile({SET_UP!r}, '<stepper helper>', 'exec'),"
        f" {{{given}, '__builtins__': dict(vars(__import__('builtins')))}})"
    )
