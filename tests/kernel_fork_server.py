"""A process that has imported ipykernel and forks a kernel for each request.

`tests/forked_kernels.py` starts it with `python -c`. It imports nothing else, because
cells would see it in `sys.modules`. A request is JSON with the file descriptors of
standard output and standard error. The fork executes the code that the command would
pass to `python -c`. The response is the pid and later the exit code, each as 8 bytes.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import types

# Modules that a kernel has imported when its first cell runs.
MODULES = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "psutil",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
    "faulthandler",
    "runpy",
    "resource",
    # Modules that the helper loads after the first cell, while the kernel is idle.
    "stack_data",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "pygments.styles.default",
)
# The fields of /proc/PID/stat with the addresses of arguments and environment, counted
# after the name: see proc(5).
ADDRESSES = slice(45, 49)


def overwrite(start: int, end: int, strings: list[str]) -> None:
    """Replace the strings that /proc shows as arguments or environment."""
    data = b"".join(os.fsencode(string) + b"\0" for string in strings)
    if len(data) >= end - start:
        raise OSError("no room for the arguments or the environment of the kernel")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, data, len(data))


def become_kernel(request: dict, outputs: list[int]) -> None:
    """Turn this fork into the process that the command would start."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    devnull = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((devnull, *outputs)):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    environ = request["environ"]
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[ADDRESSES])
    overwrite(arg_start, arg_end, request["argv"])
    overwrite(env_start, env_end, [f"{name}={environ[name]}" for name in environ])
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["-c", *request["argv"][3:]]
    sys.orig_argv = request["argv"]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    exec(request["argv"][2], main.__dict__)


def receive(connection: socket.socket) -> tuple[dict, list[int]]:
    """Return a request and the file descriptors that came with it."""
    size, outputs, _, _ = socket.recv_fds(connection, 8, 2)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += connection.recv(1 << 16)
    return json.loads(text.decode("utf-8", "surrogateescape")), outputs


def answer(connection: socket.socket) -> bool:
    """Fork a kernel and send its pid and its exit code; return True in the kernel."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # a signal to the group of the tests does not reach it
    request, outputs = receive(connection)
    pid = os.fork()
    if pid == 0:
        connection.close()
        become_kernel(request, outputs)
        return True
    for output in outputs:
        os.close(output)
    # The daemon may have been killed: the exit of the kernel is still waited for.
    with contextlib.suppress(OSError):
        connection.sendall(pid.to_bytes(8, "big"))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(8, "big", signed=True))
    os._exit(0)


def serve(listener: int) -> None:
    """Fork for each request until the tests exit; return in the process of a kernel."""
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    parent = os.getppid()
    with socket.socket(fileno=listener) as accepting:
        accepting.settimeout(5)
        while os.getppid() == parent:
            try:
                connection, _ = accepting.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                accepting.close()
                connection.settimeout(None)
                answer(connection)
                return
            connection.close()
    os._exit(0)
