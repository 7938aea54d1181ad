"""The Python environments of the kernels that tests start.

Almost all tests share one environment. Others have old versions or JupyterLab.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests import forked_kernels

# The packages of the shared environment. Each further environment costs a new machine
# 30 s.
HOUSE = (
    "ipykernel>=7",
    "ipywidgets>=8",
    "anywidget",
    "matplotlib",
    "numpy",
    "pandas>=2.2,<4",
    "pillow",
    "plotly",
    "tqdm",
    "scikit-learn>=1.4,<2",
    "seaborn>=0.13,<1",
    "vega_datasets",
    "requests>=2.32,<3",
    "httpx>=0.28,<1",
    "aiohttp>=3.11,<4",
    "trustme>=1.1",
)


def name(requirement: str) -> str:
    """Return the name of the distribution in a requirement."""
    return re.split(r"[<>=]", requirement)[0]


def environment(python: str, *requirements: str) -> str:
    """Return the interpreter of a cached environment with these packages.

    It is the shared environment if that has them.
    """
    if python == sys.executable and {*requirements} <= {*HOUSE, *map(name, HOUSE)}:
        requirements = HOUSE
    version = subprocess.run(
        [python, "-VV"], capture_output=True, text=True, check=True
    ).stdout
    key = hashlib.sha256(
        "\n".join([version, *sorted(requirements)]).encode()
    ).hexdigest()[:12]
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "stepper-tests"
        / "environments"
    )
    home = cache / key
    path, inner = home / "made", str(home / "bin" / "python")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{key}.lock").open("w") as lock:
        # released when the file is closed or the process dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        # the Python that created it may have been deleted
        if not path.exists() or not os.path.exists(inner):
            messages = []
            for commands in list_install_commands(python, home, requirements):
                shutil.rmtree(home, ignore_errors=True)
                messages.append(failure(commands))
                if not messages[-1]:
                    break
            assert not messages[-1], "\n".join(messages)
            path.write_text(version + "\n".join(requirements) + "\n")
    if requirements == HOUSE:
        forked_kernels.start_server(inner)
    return inner


def list_install_commands(
    python: str, home: Path, requirements: tuple[str, ...]
) -> list[list[list[str]]]:
    """Return the commands that create an environment, with uv and with pip."""
    inner = str(home / "bin" / "python")
    results = [
        [
            [python, "-m", "venv", str(home)],
            [inner, "-m", "pip", "install", "--quiet", *requirements],
        ]
    ]
    uv = shutil.which(
        "uv",
        path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    )
    if uv:
        install = [uv, "pip", "install", "--quiet", "--python", inner, *requirements]
        results.insert(
            0,
            [[uv, "venv", "--quiet", "--seed", "--python", python, str(home)], install],
        )
    return results


def failure(commands: list[list[str]]) -> str:
    """Run the commands; return the error output of the first that fails, or ''."""
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            return f"{' '.join(command)}\n{result.stdout}{result.stderr}"
    return ""


def old_python() -> str:
    """Return the path of a Python 3.9 on this machine, or ''."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [
        shutil.which("python3.9"),
        *map(str, sorted(versions.glob("3.9*/bin/python3.9"))),
    ]
    for python in filter(None, candidates):  # a pyenv shim on the PATH may not work
        if (
            subprocess.run(
                [python, "-c", "import venv"], capture_output=True
            ).returncode
            == 0
        ):
            return python
    return ""
