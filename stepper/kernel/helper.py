"""The helper that lives in the kernel: the folders `inside/`, as text, and the code that sets it up there.

It is executed once, silently. Its modules have builtins of their own and leave `sys.modules` again: nothing of it is
in the user's namespace, `dir()`, `%who` or the history, and nothing that a cell redefines is in its way. The sources
come beside the code, in the request's metadata: IPython goes over code so often that 200 kB of it cost 0.1 s.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"
PARTS = ("tell", "failed", "doubts", "figures")  # the first at once, the others when they are needed
IMPORT = re.compile(r"^from stepper\.\w+\.inside(\.\w+|) import (.*)", re.MULTILINE)
FOLDERS = ("stepper.kernel.inside", "stepper.diagnosis.inside")

SET_UP = """
import builtins, sys, types
from IPython import get_ipython
kernel = get_ipython().kernel
request = kernel.get_parent("shell") if hasattr(kernel, "get_parent") else kernel._parent_header
SOURCES, ORDERS, VERSION, STACK = request["metadata"]["stepper_helper"]
name, loaded = "_stepper_helper", {}
package = types.ModuleType(name)
package.__path__ = []

def load(part):
    shown = sys.modules.get(name)
    sys.modules.update({name: package}, **{module.__name__: module for module in loaded.values()})
    try:
        for own in ORDERS[part]:
            if own not in loaded:
                module = types.ModuleType(name + "." + own)
                module.__dict__.update(__package__=name, __builtins__=dict(vars(builtins)))
                sys.modules[module.__name__] = module
                exec(compile(SOURCES[own], "<stepper helper>", "exec"), module.__dict__)
                loaded[own] = module
    finally:  # nothing of it stays where a cell finds it
        for own in SOURCES:
            sys.modules.pop(name + "." + own, None)
        sys.modules[name] = shown
    return loaded[part]

old = sys.modules.get(name)
if getattr(old, "version", None) != VERSION:  # a daemon that starts anew finds it there, with what it remembers
    getattr(old, "end", bool)()
    load("tell").begin(VERSION, STACK, load)
"""


def sources(name: str, found: dict[str, str]) -> dict[str, str]:
    """Return the sources of a module and of all that it imports, each after what it needs."""
    file = next(file for folder in FOLDERS if (file := files(folder) / f"{name}.py").is_file())
    text = file.read_text("utf-8")
    for module, names in IMPORT.findall(text):
        for needed in [module[1:]] if module else names.split(", "):
            if needed not in found:
                sources(needed, found)
    found[name] = IMPORT.sub(lambda line: f"from .{line[1][1:]} import {line[2]}", text)
    return found


ORDERS = {part: list(sources(part, {})) for part in PARTS}
SOURCES = {name: text for part in PARTS for name, text in sources(part, {}).items()}
VERSION = hashlib.sha256("".join(SOURCES.values()).encode()).hexdigest()[:16]


def recall(request: str) -> str:
    """Return the code that asks for what a request published and how it ended."""
    return f"__import__('sys').modules[{MODULE!r}].recall({request!r})"


ASK = f"__import__('sys').modules[{MODULE!r}].tell()"


# An expression statement: it binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({SET_UP!r}, '<stepper helper>', 'exec'),"
    " {'__builtins__': dict(vars(__import__('builtins')))})"
)


def given(stack: str) -> dict[str, Any]:
    """Return the metadata of the request that sets it up; `stack` is the file for samples of what runs."""
    return {"stepper_helper": [SOURCES, ORDERS, VERSION, stack]}
