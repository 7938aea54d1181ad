"""What runs on the other host: it starts a kernel that outlives the line, looks whether it lives, ends it.

This module is sent there as text and reads on standard input what it is to do: nothing secret stands in a list of
processes, nothing need be installed there but ipykernel. Python 3.8 and the standard library.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# ipykernel's launcher, taken from the interpreter's own places and not from the folder
# in which cells run.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
TAIL = 8000  # bytes of what it wrote to stderr
END_SECONDS = 5.0


def places(kernel: str) -> list[str]:
    """Return where a kernel's connection file, what it writes to stderr and its samples lie."""
    folder = os.path.join(
        os.path.expanduser("~"), ".local", "state", "stepper", "kernels"
    )
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    return [
        os.path.join(folder, kernel + ending)
        for ending in (".json", ".stderr", ".stack")
    ]


def private(path: str, text: str) -> None:
    """Write a file that is the user's alone, and was not there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)


def free_ports(count: int) -> list[int]:
    """Return ports of this host that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:  # all are held until each has its own
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(told: dict[str, Any]) -> dict[str, Any]:
    """Start a kernel that leads a session of its own: it lives on when the line is cut."""
    found = importlib.util.find_spec("ipykernel")
    if found is None or not found.origin:
        return {
            "lacks": "No module named 'ipykernel'",
            "python": sys.executable,
            "installer": installer(),
        }
    with open(
        os.path.join(os.path.dirname(found.origin), "kernelapp.py"), encoding="utf-8"
    ) as source:
        # one that does not know of it would listen without it
        encrypts = "curve_secretkey" in source.read()
    file, stderr, stack = places(told["kernel"])
    folder = os.path.expanduser(told["folder"] or "~")
    if not os.path.isdir(folder):
        return {"error": "there is no folder " + folder}
    ports = dict(zip([name + "_port" for name in CHANNELS], free_ports(len(CHANNELS))))  # noqa: B905
    connection = dict(
        ports,
        transport="tcp",
        ip="127.0.0.1",
        key=told["key"],
        signature_scheme="hmac-sha256",
    )
    if encrypts:  # whoever is on the host, too, may listen at its ports
        connection.update(told["curve"])
    private(file, json.dumps(connection))
    private(stderr, "")
    private(stack, "")
    with open(stderr, "ab") as stream:
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                START,
                "--HistoryManager.hist_file=:memory:",
                "-f",
                file,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            cwd=folder,
            env=dict(os.environ, STEPPER_KERNEL=told["kernel"]),
            start_new_session=True,
        )
    return {
        "pid": child.pid,
        "ports": ports,
        "python": sys.executable,
        "stack": stack,
        "encrypts": encrypts,
        "boot": boot(),
    }


def boot() -> str:
    """Return what tells this start of the host from the one before, '' where it does not say so."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def lives(told: dict[str, Any]) -> bool:
    """Whether the process is the kernel's still, by the connection file that its command names; ps is everywhere."""
    shown = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-o", "args=", "-p", str(told["pid"])],
        stdout=subprocess.PIPE,
        check=False,
    )
    line = shown.stdout.decode("utf-8", "replace").strip()
    return told["kernel"] + ".json" in line and not line.startswith("Z")


def look(told: dict[str, Any]) -> dict[str, Any]:
    """Return whether the kernel lives, and what it wrote last where it does not."""
    alive = lives(told)
    said = ""
    if not alive:
        try:
            with open(places(told["kernel"])[1], "rb") as stream:
                said = stream.read()[-TAIL:].decode("utf-8", "replace")
        except OSError:
            said = ""
    return {"alive": alive, "said": said, "boot": boot()}


def about(told: dict[str, Any]) -> dict[str, Any]:
    """Return which Python this is, and which ipykernel it has, '' for none. Nothing is imported for it."""
    from importlib import metadata

    try:
        has = metadata.version("ipykernel")
    except metadata.PackageNotFoundError:
        has = ""
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "ipykernel": has,
        "installer": installer(),
    }


def installer() -> str:
    """Return what can add a package to this Python: `pip`, `uv` or `ensurepip`, '' if none is there."""
    import shutil

    if importlib.util.find_spec("pip") is not None:
        return "pip"
    if shutil.which("uv"):
        return "uv"
    return "ensurepip" if importlib.util.find_spec("ensurepip") is not None else ""


def end(told: dict[str, Any]) -> dict[str, Any]:
    """Kill the kernel with what it started in its group; remove its files."""
    until = time.monotonic() + END_SECONDS
    while lives(told) and time.monotonic() < until:
        with contextlib.suppress(OSError):
            os.killpg(told["pid"], signal.SIGKILL)
        time.sleep(0.02)
    gone = not lives(told)
    for path in places(told["kernel"]):
        if gone and os.path.exists(path):
            os.unlink(path)
    return {"gone": gone}


def main(told: dict[str, Any]) -> None:
    """Do what is asked, and say what came of it in one line."""
    print(
        "stepper:"
        + json.dumps(
            {"start": start, "look": look, "end": end, "about": about}[told["do"]](told)
        )
    )
