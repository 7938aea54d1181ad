"""Kernels of other languages, installed from the registries where they are not there: what stands in a kernelspec."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import debian
from tests.environments import environment

R_PACKAGE = "/usr/lib/R/site-library/IRkernel"


def bash() -> dict[str, Any]:
    """bash_kernel, which is among the packages that tests need."""
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    return {"argv": argv, "display_name": "Bash", "language": "bash", "env": {"PS1": "$", "GREETING": "hello ${HOME}"}}


def r() -> dict[str, Any]:
    """R with IRkernel, both Debian's; raise Unavailable."""
    program = debian.installed("R", "r-base-core", "r-cran-irkernel", file=R_PACKAGE)
    argv = [program, "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
    return {"argv": argv, "display_name": "R", "language": "R"}


def deno() -> dict[str, Any]:
    """JavaScript and TypeScript: Deno with its own kernel, a program in PyPI's package of that name."""
    program = str(Path(environment(sys.executable, "deno>=2.9,<3")).parent / "deno")
    argv = [program, "jupyter", "--kernel", "--conn", "{connection_file}"]
    return {"argv": argv, "display_name": "Deno", "language": "typescript"}


SPECS: dict[str, Callable[[], dict[str, Any]]] = {"bash": bash, "ir": r, "deno": deno}


def put(folder: Path, *names: str) -> str:
    """Write the kernelspecs of these names below a folder; return what JUPYTER_PATH must be. Raise Unavailable."""
    for name in names:
        place = folder / "jupyter" / "kernels" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "kernel.json").write_text(json.dumps(SPECS[name]()))
    return str(folder / "jupyter")
