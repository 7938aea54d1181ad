"""The helper that lives in the kernel: `kernel/inside/` and the parts handed in, as text; what sets it up there.

It is executed once, silently. Its modules have builtins of their own and leave `sys.modules` again: nothing of it is
in the user's namespace, `dir()`, `%who` or the history, and nothing that a cell redefines is in its way. The sources
come beside the code, in the request's metadata: IPython goes over code so often that 200 kB of it cost 0.1 s.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

MESSAGE = "stepper_facts"
MODULE = "_stepper_helper"
OWN = {
    "tell": "stepper.kernel.inside",
    "fault": "stepper.kernel.inside",
}  # the first at once, the others when they are needed
ACROSS = re.compile(r"^from stepper(?:\.\w+)+\.inside(\.\w+)? import", re.MULTILINE)  # there they are one package
IMPORT = re.compile(r"^from \.(\w*) import (.*)", re.MULTILINE)

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
                exec(compile(SOURCES[own], f"<stepper helper {own}>", "exec"), module.__dict__)
                loaded[own] = module
    finally:  # nothing of it stays where a cell finds it
        for own in SOURCES:
            sys.modules.pop(name + "." + own, None)
        sys.modules[name] = shown
    return loaded[part]

old = sys.modules.get(name)
if getattr(old, "version", None) != VERSION:  # a daemon that starts anew finds it there, with what it remembers
    getattr(old, "end", bool)()
    load("tell").begin(VERSION, STACK, load, [*ORDERS])
"""


class Helper:
    """The sources of what the kernel is sent. `parts` are loaded there when they are needed: name → package.

    The kernel tells how a run ended and what the namespace holds without any of them.
    """

    def __init__(self, parts: Mapping[str, str] = {}) -> None:  # only read
        rooms = {**OWN, **parts}
        self.folders = list(dict.fromkeys(rooms.values()))
        found = {part: self._sources(part, {}) for part in rooms}
        self.orders = {part: list(texts) for part, texts in found.items()}
        self.sources = {name: text for texts in found.values() for name, text in texts.items()}
        self.version = hashlib.sha256("".join(self.sources.values()).encode()).hexdigest()[:16]

    def _sources(self, name: str, found: dict[str, str]) -> dict[str, str]:
        """Return the sources of a module and of all that it imports, each after what it needs."""
        paths = (files(folder) / f"{name}.py" for folder in self.folders)
        text = next(path for path in paths if path.is_file()).read_text("utf-8")
        text = ACROSS.sub(lambda match: f"from {match[1] or '.'} import", text)
        for module, names in IMPORT.findall(text):
            for needed in [module] if module else names.split(", "):
                if needed not in found:
                    self._sources(needed, found)
        found[name] = text
        return found

    def given(self, stack: str) -> dict[str, Any]:
        """Return the metadata of the request that sets it up; `stack` is the file for samples of what runs."""
        return {"stepper_helper": [self.sources, self.orders, self.version, stack]}


@functools.cache
def made(parts: tuple[tuple[str, str], ...]) -> Helper:
    """Return the helper with these parts; its files are read once."""
    return Helper(dict(parts))


def recall(request: str) -> str:
    """Return the code that asks for what a request published and how it ended."""
    return f"__import__('sys').modules[{MODULE!r}].recall({request!r})"


ASK = f"__import__('sys').modules[{MODULE!r}].tell()"


# An expression statement: it binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({SET_UP!r}, '<stepper helper>', 'exec'),"
    " {'__builtins__': dict(vars(__import__('builtins')))})"
)
