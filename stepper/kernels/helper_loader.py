"""Installation of the helper in a kernel.

The helper consists of the modules in `kernels/in_kernel/` and of parts from other
packages. Its sources are sent in the metadata of one silent request, because IPython's
transformation of 200 kB of code would take 0.1 s. The modules have their own builtins
and import function and are not in `sys.modules`. The helper therefore does not appear
in the user's namespace, `dir()`, `%who` or the history, and cells cannot redefine the
names that the helper uses.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any

from stepper.kernels.message_decoding import read_message

MESSAGE_TYPE = "stepper_facts"
HELPER_PACKAGES = ("stepper.kernels.in_kernel", "stepper.kernels.in_kernel.undo")

# All modules have the name of a module in `sys.modules`, because `dataclasses` looks up
# the module of a class by its name. A helper of the same version keeps its state.
INSTALLER = """
import sys, types
from IPython import get_ipython
REQUEST = get_ipython().kernel.get_parent("shell")
SOURCES, PARTS, VERSION, STACK = REQUEST["metadata"]["stepper_helper"]
loaded = {}

def load(name):
    if name not in loaded:
        module = types.ModuleType("_stepper_helper")
        module.__dict__["__builtins__"] = BUILTINS
        code = compile(SOURCES[name], f"<stepper helper {name}>", "exec")
        exec(code, module.__dict__)
        loaded[name] = module
    return loaded[name]

def import_module(name, globals=None, locals=None, fromlist=(), level=0):
    if not name.startswith("stepper."):
        return __import__(name, globals, locals, fromlist, level)
    name = name.rpartition(".")[2]
    if name in SOURCES:
        return load(name)
    return types.SimpleNamespace(**{name: load(name) for name in fromlist})

BUILTINS = {**__builtins__, "__import__": import_module}
installed = sys.modules.get("_stepper_helper")
if getattr(installed, "version", None) == VERSION:
    installed.on_reconnect()
else:
    getattr(installed, "end", bool)()
    load("run_hooks").install(VERSION, STACK, load, PARTS)
"""
# An expression statement binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({INSTALLER!r}, '<stepper helper>', 'exec'),"
    " {'__builtins__': dict(vars(__import__('builtins')))})"
)
HELPER = "__import__('sys').modules['_stepper_helper']"
PUBLISH_FACTS = f"{HELPER}.tell()"
# Publishes the recorded messages of the request with this message id.
PUBLISH_RECORD = HELPER + ".recall({!r})"
# Undoes runs and publishes the result. The argument is a RestoreRequest as JSON.
UNDO = HELPER + ".undo({!r})"


def build_metadata(parts: Mapping[str, str], stack_path: str) -> dict[str, Any]:
    """Return the metadata of the request that installs the helper.

    `parts` maps each module that the helper may load later to its package. `stack_path`
    is the file for stack samples.
    """
    packages = tuple(dict.fromkeys((*HELPER_PACKAGES, *parts.values())))
    sources, version = _read_sources(packages)
    return {"stepper_helper": [sources, [*parts], version, stack_path]}


@functools.cache
def _read_sources(packages: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Return the sources of the modules in the packages by name, and their hash."""
    paths = [path for package in packages for path in files(package).iterdir()]
    sources = {}
    for path in sorted(paths, key=str):
        if path.name.endswith(".py") and path.name != "__init__.py":
            sources[path.name.removesuffix(".py")] = path.read_text("utf-8")
    digest = hashlib.sha256("".join(sources.values()).encode()).hexdigest()
    return sources, digest[:16]


def iterate_recorded_messages(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages in the helper's record.

    `facts` is the content of the helper's message that contains the record. Messages
    that cannot be decoded are left out.
    """
    frames = iter(facts.get("frames") or [])
    record = facts.get("record") or {}
    # The record is so small that `read_message` decodes each message completely.
    for count in record.get("counts", []):
        message_frames = list(islice(frames, count))
        message = read_message(message_frames)
        if message is not None:
            yield message
