"""Installed kernelspecs: which there are for a notebook's kernel, what starts one.

They are looked for as Jupyter does that is started in the kernel's environment: what JUPYTER_PATH names, the user's,
the project's interpreter's, the system's. stepper's own environment, in which some are as well, is none of them.
Jupyter's own reader loads traitlets and looks beside the Python that runs it, which is stepper's.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepper.common.errors import KernelError
from stepper.policy.kernel_config import KERNELSPEC_NAME

LARGEST = 1 << 20  # bytes of a kernel.json
LOOPBACK = "127.0.0.1"
VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Spec:
    """An installed kernelspec."""

    name: str
    folder: str
    argv: tuple[str, ...]
    language: str
    display_name: str
    env: Mapping[str, str] = field(default_factory=dict)
    interrupt_mode: str = "signal"

    def command(self, connection_file: str, python: str) -> list[str]:
        """Return what starts its kernel; a bare `python` is the project's."""
        given = {
            "connection_file": connection_file,
            "resource_dir": self.folder,
            "prefix": sys.prefix,
        }
        told = [
            re.sub(r"\{(\w+)\}", lambda found: given.get(found[1], found[0]), part)
            for part in self.argv
        ]
        return (
            [python, *told[1:]] if python and told[0] in ("python", "python3") else told
        )

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of its kernel: `${NAME}` stands for what the kernel has anyway."""
        more = {
            name: VARIABLE.sub(lambda found: environ.get(found[1], found[0]), value)
            for name, value in self.env.items()
        }
        return {**environ, **more}


def folders(environ: Mapping[str, str], python: str) -> list[Path]:
    """Return where kernelspecs lie, the first first; `python` is the project's interpreter, '' for none."""
    home = environ.get("HOME") or os.path.expanduser("~")
    share = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
    usual = (
        os.path.join(home, "Library/Jupyter")
        if sys.platform == "darwin"
        else os.path.join(share, "jupyter")
    )
    prefix = (
        [os.path.join(os.path.dirname(os.path.dirname(python)), "share/jupyter")]
        if python
        else []
    )
    named = environ.get("JUPYTER_PATH", "").split(os.pathsep)
    usual = environ.get("JUPYTER_DATA_DIR") or usual
    found = [*named, usual, *prefix, "/usr/local/share/jupyter", "/usr/share/jupyter"]
    return [
        Path(folder, "kernels")
        for folder in dict.fromkeys(found)
        if os.path.isabs(folder)
    ]


def installed(environ: Mapping[str, str], python: str) -> dict[str, Spec]:
    """Return the kernelspecs that are installed, by name; what can't be read is none."""
    specs: dict[str, Spec] = {}
    for folder in folders(environ, python):
        for path in sorted(folder.glob("*/kernel.json")):
            name = path.parent.name.lower()
            if (
                KERNELSPEC_NAME.fullmatch(name)
                and name not in specs
                and (spec := _read(name, path))
            ):
                specs[name] = spec
    return specs


def named(name: str, environ: Mapping[str, str], python: str) -> Spec:
    """Return the kernelspec of that name; raise KernelError."""
    specs = installed(environ, python)
    if name.lower() not in specs:
        there = ", ".join(specs) or "none"
        raise KernelError(
            f"the kernelspec {name!r} is not installed; installed: {there}",
            "jupyter kernelspec list",
        )
    return specs[name.lower()]


def _read(name: str, path: Path) -> Spec | None:
    try:
        with path.open("rb") as stream:
            told = json.loads(stream.read(LARGEST))
        argv, env = told["argv"], told.get("env") or {}
        if not argv or not all(isinstance(part, str) for part in argv):
            return None
        language, shown = (
            str(told.get("language") or ""),
            str(told.get("display_name") or name),
        )
        texts = {str(key): str(value) for key, value in env.items()}
        mode = str(told.get("interrupt_mode") or "signal")
        return Spec(name, str(path.parent), tuple(argv), language, shown, texts, mode)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def loopback(channels: tuple[str, ...]) -> dict[str, Any]:
    """Return how a kernel is reached by ports of this machine that are free now: sockets that are files few can do."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in channels]
        for each in sockets:  # all are held until each has its own
            each.bind((LOOPBACK, 0))
        ports = {
            f"{name}_port": each.getsockname()[1]
            for name, each in zip(channels, sockets, strict=True)
        }
    return {**ports, "transport": "tcp", "ip": LOOPBACK}
