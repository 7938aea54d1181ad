"""System packages that tests need, installed once with apt-get if the user is root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from tests.npm_packages import Unavailable

PATH = os.pathsep.join(
    [os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
)
# Another process on this machine may hold dpkg's lock.
APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120")


def find_or_unpack_program(program: str, *packages: str, file: str = "") -> str:
    """Return the path of a program; install its packages if it or `file` is missing.

    Raises `Unavailable` if the packages cannot be installed.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "stepper-tests"
    )
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "apt.lock").open("w") as lock:
        # Lock before checking: dpkg unpacks a program before it configures it, and
        # sshd does not start until its user exists.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program_path := find_program(program, file):
            return program_path
        install_command = f"apt-get install {' '.join(packages)}"
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Unavailable(
                f"{program} is not installed, and only root can install it, by apt-get: {install_command}"
            )
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = [*APT, "install", "-y", "--no-install-recommends", *packages]
        text = ""
        for command in ([*APT, "update"], install):
            result = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            text += f"{' '.join(command)}: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        if not (program_path := find_program(program, file)):
            raise Unavailable(f"{program} could not be installed:\n{text}")
    return program_path


def find_program(program: str, file: str = "") -> str:
    """Return the path of a program, or '' if the program or `file` does not exist."""
    executable = shutil.which(program, path=PATH)
    return executable if executable and (not file or Path(file).exists()) else ""
