"""Compare the time of `stepper verify --once` with that of `nbconvert --execute`.

    python benchmarks/verify_times.py PYTHON FOLDER [PER_PACKAGE] [ROUNDS]

FOLDER has one folder for each package, such as unpacked source distributions, and
PYTHON has the packages that the notebooks need, and nbconvert. The PER_PACKAGE (2)
smallest notebooks of each package run, smaller ones first.

Each notebook is recorded with nbconvert, which also fills caches. Then nbconvert,
`stepper verify --once` in a project with a running daemon, and
`notebook-stepper verify --once` without a daemon run in turn, ROUNDS (2) times. All
times are those of whole processes. One line per notebook is printed as JSON, and the
ratios at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.verify_notebooks import record
from stepper.install import trust
from tests import forked_kernels
from tests.conftest import Project, scratch

MAX_SECONDS = 60  # notebooks that nbconvert needs longer for are left out
MAIN = "from stepper.cli.main import main; main()"
STANDALONE = "from stepper.cli.notebook_stepper import main; main()"


def select_smallest(folder: Path, count: int) -> list[Path]:
    """Return the smallest notebooks of each package, smaller ones first."""
    selected: list[Path] = []
    for package in sorted(folder.iterdir()):
        notebooks = sorted(package.rglob("*.ipynb"), key=os.path.getsize)
        selected += notebooks[:count]
    return sorted(selected, key=os.path.getsize)


def measure_seconds(
    command: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> float:
    """Return the time of a process in seconds; raise RuntimeError if it fails.

    `verify` exits with 1 if cells differ. A replay that could not run is a failure.
    """
    started = time.monotonic()
    result = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    has_replayed = result.returncode == 1 and "fresh kernel" in result.stdout
    if result.returncode != 0 and not has_replayed:
        raise RuntimeError(f"{command}: {result.stderr}")
    return time.monotonic() - started


def get_commands(python: str, path: Path, project: Path) -> dict[str, list[str]]:
    """Return the commands to compare."""
    execute = [python, "-m", "nbconvert", "--to", "notebook", "--execute"]
    execute += ["--ExecutePreprocessor.kernel_name=python3", "--allow-errors"]
    execute += ["--output-dir", str(project / "executed"), str(path)]
    name = str(path.relative_to(project))
    arguments = ["verify", "--once", name]
    standalone = [sys.executable, "-c", STANDALONE, *arguments, "--python", python]
    return {
        "nbconvert": execute,
        "verify": [sys.executable, "-c", MAIN, *arguments],
        "standalone": standalone,
    }


def measure(
    project: Project, python: str, path: Path, rounds: int
) -> dict[str, Any] | None:
    """Return the times for a notebook, None if it is left out."""
    recorded_seconds = record(python, path)
    if recorded_seconds is None or recorded_seconds > MAX_SECONDS:
        return None
    environ = dict(os.environ)
    commands = get_commands(python, path, project.folder)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(rounds):
        # The tool that is first changes from round to round.
        names = [*commands]
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            seconds = measure_seconds(commands[name], project.folder, environ)
            times[name].append(round(seconds, 2))
    return {"notebook": path.name, **times}


def print_ratios(rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """Print the ratios of a tool's times to those of nbconvert."""
    own = [sum(row[name]) for row in rows]
    executed = [sum(row["nbconvert"]) for row in rows]
    ratios = [ours / theirs for ours, theirs in zip(own, executed, strict=True)]
    print(
        f"{name}: {sum(own) / sum(executed):.2f} in sum, median"
        f" {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f},"
        f" {len(rows)} notebooks"
    )


def main() -> None:
    """Print the times of each notebook, and the ratios."""
    python, folder = sys.argv[1], Path(sys.argv[2])
    per_package = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    forked_kernels.spawn_kernels()
    os.environ["PATH"] = f"{Path(python).parent}:{os.environ['PATH']}"
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for project in scratch(Path(home) / "repo"):
            trust.save_record(project.paths, {"python": python})
            corpus = project.folder / "notebooks"
            shutil.copytree(folder, corpus, dirs_exist_ok=True)
            paths = select_smallest(corpus, per_package)
            measure(project, python, paths[0], 1)  # compiles modules, starts the daemon
            for path in paths:
                row = measure(project, python, path, rounds)
                if row is not None:
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    print_ratios(rows, "verify")
    print_ratios(rows, "standalone")


if __name__ == "__main__":
    main()
