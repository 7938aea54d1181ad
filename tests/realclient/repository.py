"""A repository with stepper installed, and helpers that run its commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.conftest import make_env


def stepper(project: Path, *arguments: str) -> str:
    """Run a command of stepper in a folder; return its output."""
    command = [project / ".stepper/env/bin/stepper", *arguments]
    return subprocess.run(
        command, cwd=project, check=True, capture_output=True, text=True
    ).stdout


@contextmanager
def repository(folder: Path) -> Iterator[Path]:
    """Yield a new repository with stepper installed without network access.

    Afterwards, shut down its daemon and assert that it left no files.
    """
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    installer.apply(
        install_options.parse_arguments(
            [str(folder), "--python", sys.executable, "--allow"]
        )
    )
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # fails unless it is empty
