"""npm packages that tests need, downloaded once into a cache outside the project."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
HERE = f"{sys.platform}-{MACHINES.get(platform.machine().lower(), 'unknown')}"  # npm's name, such as linux-x64
NODE = "24.21.0"


class Unavailable(Exception):  # noqa: N818 - skips a test, is not an error
    """The client, npm or tmux is not available on this machine."""


def unavailable(reason: Unavailable) -> NoReturn:
    """Skip the test, or fail it if CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))


def fetched(name: str, package: str, version: str, file: str) -> Path:
    """Return the path of a file of an npm package, which is downloaded once."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "stepper-tests"
        / name
    )
    path = cache / version / "node_modules" / file
    if path.exists():
        return path
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not on the PATH")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # released when the file is closed or the process dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder, version)
            fresh.mkdir()
            command = [
                npm,
                "install",
                "--prefix",
                ".",
                "--no-save",
                "--ignore-scripts",
                "--loglevel=error",
            ]
            command += [
                "--no-audit",
                "--no-fund",
                "--omit=optional",
                f"{package}@{version}",
            ]
            npm_run = subprocess.run(
                command,
                cwd=fresh,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            if npm_run.returncode != 0:
                raise Unavailable(
                    f"npm could not install {package}@{version}:\n{npm_run.stderr.decode()}"
                )
            if not (fresh / "node_modules" / file).exists():
                raise Unavailable(f"{package}@{version} holds no {file}")
            # the package is useless without the file
            shutil.rmtree(cache / version, ignore_errors=True)
            fresh.rename(cache / version)
    return path


def node(at_least: int = 20) -> Path:
    """Return a node of at least this major version: from the PATH, else from npm."""
    executable = shutil.which("node")
    if executable:
        output = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, check=False
        ).stdout
        major = re.match(r"v(\d+)\.", output)
        if major and int(major[1]) >= at_least:
            return Path(executable)
    package = f"node-bin-{HERE}" if HERE == "darwin-arm64" else f"node-{HERE}"
    return fetched("node", package, NODE, f"{package}/bin/node")
