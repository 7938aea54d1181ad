"""The helper that lives in the kernel: `kernels/in_kernel/` and the parts handed in, as text; what sets it up there.

It is executed once, silently. Its modules have builtins and an import of their own, and are in no `sys.modules`:
nothing of it is in the user's namespace, `dir()`, `%who` or the history, and nothing that a cell redefines is in its
way. The sources come beside the code, in the request's metadata: IPython goes over code so often that 200 kB of it
cost 0.1 s.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from stepper.kernels.message_decoding import read

MESSAGE = "stepper_facts"
# it tells how a run ended and what the namespace holds without any other part
INSIDE = "stepper.kernels.in_kernel"

SET_UP = """
import sys, types
from IPython import get_ipython
SOURCES, PARTS, VERSION, STACK = get_ipython().kernel.get_parent("shell")["metadata"]["stepper_helper"]
loaded = {}

def load(name):
    if name not in loaded:
        module = types.ModuleType("_stepper_helper")  # the name of one that is there: dataclasses look it up
        module.__dict__["__builtins__"] = BUILTINS
        exec(compile(SOURCES[name], f"<stepper helper {name}>", "exec"), module.__dict__)
        loaded[name] = module
    return loaded[name]

def bring(name, scope=None, local=None, wanted=(), level=0):
    if not name.startswith("stepper."):
        return __import__(name, scope, local, wanted, level)
    name = name.rpartition(".")[2]
    return load(name) if name in SOURCES else types.SimpleNamespace(**{name: load(name) for name in wanted})

BUILTINS = {**__builtins__, "__import__": bring}
old = sys.modules.get("_stepper_helper")
if getattr(old, "version", None) != VERSION:  # a daemon that starts anew finds it there, with what it remembers
    getattr(old, "end", bool)()
    load("run_hooks").begin(VERSION, STACK, load, PARTS)
else:
    old.come()
"""
# An expression statement: it binds no name in the user's namespace.
INSTALL = (
    f"__import__('builtins').exec(compile({SET_UP!r}, '<stepper helper>', 'exec'),"
    " {'__builtins__': dict(vars(__import__('builtins')))})"
)
THERE = "__import__('sys').modules['_stepper_helper']"
ASK = f"{THERE}.tell()"
RECALL = THERE + ".recall({!r})"  # what a request published and how it ended


def given(parts: Mapping[str, str], stack: str) -> dict[str, Any]:
    """Return the metadata of the request that sets it up; `stack` is the file for samples of what runs.

    `parts` are loaded there when they are needed: name → package.
    """
    sources, version = _sources(tuple(dict.fromkeys((INSIDE, *parts.values()))))
    return {"stepper_helper": [sources, [*parts], version, stack]}


@functools.cache
def _sources(packages: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Return the modules of these packages, which are one package there, and what tells them from other versions."""
    paths = sorted(
        (path for package in packages for path in files(package).iterdir()), key=str
    )
    modules = [
        path
        for path in paths
        if path.name.endswith(".py") and path.name != "__init__.py"
    ]
    texts = {path.name.removesuffix(".py"): path.read_text("utf-8") for path in modules}
    return texts, hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:16]


def recorded(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of the helper's record, as far as they can be read."""
    frames = iter(told.get("frames") or [])
    for count in (told.get("record") or {}).get("counts", []):
        message = read([frame for _, frame in zip(range(count), frames, strict=False)])
        if message is not None:
            yield message
