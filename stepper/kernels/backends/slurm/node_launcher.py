"""What becomes the kernel on the compute node: `python node.py FILE ADDRESS COMMAND…`, the job's last process.

It picks ports there, takes the keys from a file that is the user's alone, writes the connection file beside it by
rename, and executes the kernel in its own place: what the job's end, a signal or the walltime do to the job they do to
the kernel. Python 3.8 and the standard library.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


def address(named: str) -> str:
    """Return by which address this node is reached: on its way to the host that submitted, by its name, or named."""
    if named == "loopback":
        return "127.0.0.1"
    if named == "hostname":
        return socket.gethostbyname(socket.gethostname())
    if named != "auto":
        shown = subprocess.run(
            ["ip", "-4", "-o", "addr", "show", "dev", named],
            stdout=subprocess.PIPE,
            check=False,
        )
        found = shown.stdout.decode().split()[3:4] or sys.exit(
            "the interface %s has no address here" % named
        )
        return found[0].partition("/")[0]
    for host in (os.environ.get("SLURM_SUBMIT_HOST"), socket.gethostname()):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way,
        ):
            way.connect((host or "", 9))  # nothing is sent
            return str(way.getsockname()[0])
    return "127.0.0.1"


def free_ports(count: int, ip: str) -> list[int]:
    """Return ports of that address that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:  # all are held until each has its own
            each.bind((ip, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def encrypts() -> bool:
    """Whether ipykernel here knows of CurveZMQ: one that does not would listen without it."""
    found = importlib.util.find_spec("ipykernel")
    if found is None or not found.origin:
        sys.exit("No module named 'ipykernel' in " + sys.executable)
    with open(
        os.path.join(os.path.dirname(found.origin), "kernelapp.py"), encoding="utf-8"
    ) as stream:
        return "curve_secretkey" in stream.read()


def main(file: str, named: str, command: list[str]) -> None:
    """Write the connection file, and become the kernel."""
    with open(file + ".key") as stream:
        told = json.load(stream)
    if not encrypts():
        told = {
            name: value for name, value in told.items() if not name.startswith("curve_")
        }
    ip = address(named)
    names = [name + "_port" for name in CHANNELS]
    ports = dict(zip(names, free_ports(len(CHANNELS), ip)))  # noqa: B905
    connection = dict(
        told, **ports, transport="tcp", ip=ip, signature_scheme="hmac-sha256"
    )
    connection["node"] = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    new = file + ".new"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as written:
        json.dump(connection, written)
        written.flush()
        os.fsync(written.fileno())
    os.rename(new, file)
    # What a cell calls by its name is this interpreter's: the environment came from
    # where the job was submitted.
    os.environ["PATH"] = (
        os.path.dirname(sys.executable)
        + os.pathsep
        + os.environ.get("PATH", os.defpath)
    )
    os.environ.pop("VIRTUAL_ENV", None)
    if sys.prefix != sys.base_prefix:
        os.environ["VIRTUAL_ENV"] = sys.prefix
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
