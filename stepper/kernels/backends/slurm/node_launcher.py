"""A script that prepares a compute node and then becomes the kernel.

The script is called as `python FILE.py FILE ADDRESS COMMAND…`. It selects free ports,
reads the keys from a file that only the user can read, and writes the connection file
FILE. Then it replaces itself with the kernel, so that signals and the end of the job
reach the kernel directly. The script must run with Python 3.8 and the standard library
only.
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


def find_address(setting: str) -> str:
    """Return the IP address on which the kernel listens.

    `setting` is "auto", "hostname", "loopback" or the name of a network interface.
    "auto" is the address that is used to reach the host that submitted the job. If this
    host cannot be reached, the node's host name is tried, and then the loopback address
    is used. "hostname" is the address of the node's host name.
    """
    if setting == "loopback":
        return "127.0.0.1"
    if setting == "hostname":
        return socket.gethostbyname(socket.gethostname())
    if setting != "auto":
        return find_interface_address(setting)
    own_name = socket.gethostname()
    submit_host = os.environ.get("SLURM_SUBMIT_HOST") or own_name
    for host in (submit_host, own_name):
        # Connecting a UDP socket selects a route and sends nothing.
        route = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), route:
            route.connect((host, 9))
            return str(route.getsockname()[0])
    return "127.0.0.1"


def find_interface_address(interface: str) -> str:
    """Return the IPv4 address of a network interface, or exit if it has none."""
    result = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "dev", interface],
        stdout=subprocess.PIPE,
        check=False,
    )
    fields = result.stdout.decode().split()
    if len(fields) < 4:
        sys.exit(
            "the network interface %s has no IPv4 address on this node" % interface
        )
    network = fields[3]
    return network.partition("/")[0]


def find_free_ports(count: int, ip: str) -> list[int]:
    """Return `count` ports of an IP address that are currently free."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for port_socket in sockets:  # keep all open until each has its own port
            port_socket.bind((ip, 0))
        return [port_socket.getsockname()[1] for port_socket in sockets]
    finally:
        for port_socket in sockets:
            port_socket.close()


def supports_curve() -> bool:
    """Return whether ipykernel supports CurveZMQ, or exit if ipykernel is missing.

    An older ipykernel ignores the keys and does not encrypt its messages.
    """
    spec = importlib.util.find_spec("ipykernel")
    if spec is None or not spec.origin:
        sys.exit("No module named 'ipykernel' in " + sys.executable)
    folder = os.path.dirname(spec.origin)
    path = os.path.join(folder, "kernelapp.py")
    with open(path, encoding="utf-8") as source:
        return "curve_secretkey" in source.read()


def set_environment() -> None:
    """Set PATH and VIRTUAL_ENV, so that commands in cells use this interpreter.

    Otherwise, they would have the values of the host that submitted the job.
    """
    environ = os.environ
    folder = os.path.dirname(sys.executable)
    path = environ.get("PATH", os.defpath)
    environ["PATH"] = folder + os.pathsep + path
    environ.pop("VIRTUAL_ENV", None)
    if sys.prefix != sys.base_prefix:
        environ["VIRTUAL_ENV"] = sys.prefix


def main(file: str, address: str, command: list[str]) -> None:
    """Write the connection file, and replace this process with the kernel.

    `file` is the path of the connection file. `address` is a setting as in
    `find_address`, and `command` starts the kernel.
    """
    with open(file + ".key") as stream:
        keys = json.load(stream)
    if not supports_curve():
        keys = {"key": keys["key"]}
    ip = find_address(address)
    names = [channel + "_port" for channel in CHANNELS]
    ports = dict(zip(names, find_free_ports(len(CHANNELS), ip)))  # noqa: B905
    connection = dict(
        keys, **ports, transport="tcp", ip=ip, signature_scheme="hmac-sha256"
    )
    node = os.environ.get("SLURMD_NODENAME")
    connection["node"] = node or socket.gethostname()
    new_file = file + ".new"
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(connection, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(new_file, file)
    set_environment()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
