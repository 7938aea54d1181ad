"""A script for the remote host that starts, checks and kills kernels.

ssh_connection sends this module as text. The request is sent on standard input, so that
no secret appears in a list of processes. The module must run with Python 3.8 and the
standard library only; the host needs no package except ipykernel.
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
# ipykernel's launcher, imported from the interpreter's own folders and not from the
# folder in which cells run.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
CONNECTION_SUFFIX = ".json"
STDERR_SUFFIX = ".stderr"
STACK_SUFFIX = ".stack"  # of the file for stack samples
SUFFIXES = (CONNECTION_SUFFIX, STDERR_SUFFIX, STACK_SUFFIX)
STDERR_SIZE = 8000  # bytes of the kernel's stderr that are returned
END_SECONDS = 5.0  # how long to try to kill a kernel


def get_path(kernel_id: str, suffix: str) -> str:
    """Return the path of a kernel's file with one of SUFFIXES."""
    return os.path.join(get_kernel_folder(), kernel_id + suffix)


def get_kernel_folder() -> str:
    """Return the path of the folder with the files of all kernels."""
    home = os.path.expanduser("~")
    return os.path.join(home, ".local", "state", "stepper", "kernels")


def create_kernel_folder() -> None:
    """Create the folder of the kernels' files, which only the user can access."""
    folder = get_kernel_folder()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)


def write_private(path: str, text: str) -> None:
    """Create a file that only the user can read, and write a text to it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)


def find_free_ports(count: int) -> list[int]:
    """Return `count` ports of this host that are currently free."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for port_socket in sockets:  # keep all open until each has its own port
            port_socket.bind(("127.0.0.1", 0))
        return [port_socket.getsockname()[1] for port_socket in sockets]
    finally:
        for port_socket in sockets:
            port_socket.close()


def start_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Start a kernel that keeps running if the connection is lost.

    Return the kernel's pid, ports, stack file and interpreter, the host's boot id, and
    whether messages are encrypted. If ipykernel or the working folder is missing,
    return the reason instead.
    """
    spec = importlib.util.find_spec("ipykernel")
    if spec is None or not spec.origin:
        return {
            "lacks": "No module named 'ipykernel'",
            "python": sys.executable,
            "installer": find_installer(),
        }
    folder = os.path.expanduser(request["folder"] or "~")
    if not os.path.isdir(folder):
        return {"error": "the folder " + folder + " does not exist"}
    create_kernel_folder()
    kernel_id = request["kernel"]
    connection_file = get_path(kernel_id, CONNECTION_SUFFIX)
    stderr_file = get_path(kernel_id, STDERR_SUFFIX)
    stack_file = get_path(kernel_id, STACK_SUFFIX)
    names = [channel + "_port" for channel in CHANNELS]
    ports = dict(zip(names, find_free_ports(len(CHANNELS))))  # noqa: B905
    connection = dict(
        ports,
        transport="tcp",
        ip="127.0.0.1",
        key=request["key"],
        signature_scheme="hmac-sha256",
    )
    # Other users of the host can connect to the ports.
    encrypts = supports_curve(spec.origin)
    if encrypts:
        connection.update(request["curve"])
    write_private(connection_file, json.dumps(connection))
    write_private(stderr_file, "")
    write_private(stack_file, "")
    return {
        "pid": launch_ipykernel(kernel_id, connection_file, stderr_file, folder),
        "ports": ports,
        "python": sys.executable,
        "stack": stack_file,
        "encrypts": encrypts,
        "boot": get_boot_id(),
    }


def launch_ipykernel(
    kernel_id: str, connection_file: str, stderr_file: str, folder: str
) -> int:
    """Start ipykernel in its own session and working folder, and return its pid."""
    command = [
        sys.executable,
        "-c",
        START,
        "--HistoryManager.hist_file=:memory:",
        "-f",
        connection_file,
    ]
    with open(stderr_file, "ab") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            cwd=folder,
            env=dict(os.environ, STEPPER_KERNEL=kernel_id),
            start_new_session=True,
        )
    return process.pid


def supports_curve(origin: str) -> bool:
    """Return whether the ipykernel module at `origin` supports CurveZMQ.

    An older ipykernel ignores the keys and does not encrypt its messages.
    """
    path = os.path.join(os.path.dirname(origin), "kernelapp.py")
    with open(path, encoding="utf-8") as source:
        return "curve_secretkey" in source.read()


def get_boot_id() -> str:
    """Return an id that changes when the host is booted.

    Return an empty string if the host has no boot id.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def is_running(request: dict[str, Any]) -> bool:
    """Return whether the kernel is running.

    The process is identified by the connection file in its command line, which `ps`
    shows on all systems.
    """
    result = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-o", "args=", "-p", str(request["pid"])],
        stdout=subprocess.PIPE,
        check=False,
    )
    line = result.stdout.decode("utf-8", "replace").strip()
    is_zombie = line.startswith("Z")
    return request["kernel"] + CONNECTION_SUFFIX in line and not is_zombie


def query_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the kernel is running, the end of its stderr and the boot id.

    The stderr is an empty string while the kernel is running. The boot id shows whether
    the host was restarted.
    """
    is_alive = is_running(request)
    stderr = ""
    if not is_alive:
        stderr_file = get_path(request["kernel"], STDERR_SUFFIX)
        with contextlib.suppress(OSError), open(stderr_file, "rb") as stream:
            stderr = stream.read()[-STDERR_SIZE:].decode("utf-8", "replace")
    return {"alive": is_alive, "stderr": stderr, "boot": get_boot_id()}


def describe_python(request: dict[str, Any]) -> dict[str, Any]:
    """Return the path and version of Python, and the version of ipykernel.

    The version of ipykernel is an empty string if ipykernel is missing. `installer` is
    the result of `find_installer`. `request` is not used.
    """
    from importlib import metadata

    try:
        version = metadata.version("ipykernel")
    except metadata.PackageNotFoundError:
        version = ""
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "ipykernel": version,
        "installer": find_installer(),
    }


def find_installer() -> str:
    """Return the name of a tool that installs packages: "pip", "uv" or "ensurepip".

    "ensurepip" means that pip is missing but can be installed. Return an empty string
    if there is no tool.
    """
    import shutil

    if importlib.util.find_spec("pip") is not None:
        return "pip"
    if shutil.which("uv"):
        return "uv"
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    return "ensurepip" if has_ensurepip else ""


def kill_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Kill the kernel and its process group, and return whether the kernel has exited.

    The process group of a kernel that has already exited is not killed, because its pid
    may have been reused. The kernel's files are removed if the kernel has exited.
    """
    deadline = time.monotonic() + END_SECONDS
    while is_running(request) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.killpg(request["pid"], signal.SIGKILL)
        time.sleep(0.02)
    has_exited = not is_running(request)
    if has_exited:
        for suffix in SUFFIXES:
            path = get_path(request["kernel"], suffix)
            if os.path.exists(path):
                os.unlink(path)
    return {"has_exited": has_exited}


def main(request: dict[str, Any]) -> None:
    """Handle a request and print the response on one line."""
    handlers = {
        "start": start_kernel,
        "query": query_kernel,
        "kill": kill_kernel,
        "describe": describe_python,
    }
    response = handlers[request["do"]](request)
    print("stepper:" + json.dumps(response))
