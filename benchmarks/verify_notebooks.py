"""Measure `stepper verify` and nbval on notebooks: false alarms and missed changes.

    python benchmarks/verify_notebooks.py PYTHON FOLDER [STEP OFFSET]

FOLDER has notebooks, such as those in source distributions of packages, and PYTHON has
the packages that they need, nbconvert and nbval. Each notebook is recorded with
nbconvert. Then the recorded outputs of up to three cells are changed in one place, as
in `benchmarks/verify_cells.py`, and `stepper verify` replays the changed notebook. A
cell that is flagged without a change is a false alarm.

nbval replays the changed notebook, too. With STEP and OFFSET, only each STEP-th
notebook is used. `benchmarks/verify_times.py` compares times.

The notebooks run in a copy of their folder. One line per notebook is printed as JSON,
and the sums at the end.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.verify_cells import change_outputs, invert_picture
from stepper.install import trust
from tests import forked_kernels
from tests.conftest import Project, scratch

CHANGES_PER_NOTEBOOK = 3
NOTEBOOK_SECONDS = 150  # notebooks that take longer are left out
NBVAL_CELL = re.compile(r"::Cell (\d+)")
FLAGS = ("changed", "failed", "unstable")


def join_texts(outputs: list[dict[str, Any]]) -> None:
    """Join the lines of texts, as in nbformat's memory format."""
    for output in outputs:
        if isinstance(output.get("text"), list):
            output["text"] = "".join(output["text"])
        data = output.get("data", {})
        for kind, content in data.items():
            if isinstance(content, list):
                data[kind] = "".join(content)


def record(python: str, path: Path) -> float | None:
    """Record a notebook with nbconvert; return the seconds, None if it takes long."""
    command = [python, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace"]
    command += ["--ExecutePreprocessor.kernel_name=python3", "--allow-errors"]
    command += ["--ExecutePreprocessor.timeout=120", path.name]
    started = time.monotonic()
    try:
        subprocess.run(
            command,
            cwd=path.parent,
            check=True,
            capture_output=True,
            timeout=NOTEBOOK_SECONDS,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return time.monotonic() - started


def change_notebook(path: Path, rng: random.Random) -> dict[int, str]:
    """Change the outputs of some cells; return the kinds of change by cell number."""
    raw = json.loads(path.read_text())
    cells = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
    candidates = {}
    for number, cell in enumerate(cells, 1):
        outputs = cell["outputs"]
        join_texts(outputs)
        found = [*change_outputs(outputs, rng), *invert_picture(outputs)]
        if found:
            candidates[number] = rng.choice(found)
    count = min(CHANGES_PER_NOTEBOOK, len(candidates))
    chosen = sorted(rng.sample(sorted(candidates), count))
    for number in chosen:
        cells[number - 1]["outputs"] = candidates[number][1]
    path.write_text(json.dumps(raw, indent=1))
    return {number: candidates[number][0] for number in chosen}


def run_nbval(python: str, path: Path) -> set[int] | None:
    """Return the numbers of the cells that nbval flags, None if it takes long."""
    command = [python, "-m", "pytest", "--nbval", "-q", "-rf", "-p", "no:cacheprovider"]
    command += ["--nbval-kernel-name=python3", "--nbval-cell-timeout=120", path.name]
    try:
        result = subprocess.run(
            command,
            check=False,
            cwd=path.parent,
            capture_output=True,
            text=True,
            timeout=NOTEBOOK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    return {
        int(match[1]) + 1
        for line in result.stdout.splitlines()
        if line.startswith("FAILED") and (match := NBVAL_CELL.search(line))
    }


def run_stepper(project: Project, *arguments: str) -> str:
    """Run a command; return its output, or an empty string if it takes long."""
    start = "from stepper.cli.main import main; main()"
    command = [sys.executable, "-c", start, *arguments]
    try:
        result = subprocess.run(
            command,
            check=False,
            cwd=project.folder,
            capture_output=True,
            text=True,
            timeout=2 * NOTEBOOK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ""
    if not result.stdout:
        print(result.stderr, file=sys.stderr)
    return result.stdout


def measure(
    project: Project, python: str, path: Path, rng: random.Random
) -> dict[str, Any] | None:
    """Return the figures of a notebook, None if it is left out."""
    recorded_seconds = record(python, path)
    if recorded_seconds is None:
        return None
    name = str(path.relative_to(project.folder))
    unchanged = path.read_bytes()
    changes = change_notebook(path, rng)
    text = run_stepper(project, "verify", name, "--json")
    if not text:
        return None
    result = json.loads(text)
    by_nbval = run_nbval(python, path)
    path.write_bytes(unchanged)
    flagged = {
        cell["number"]: cell for cell in result["cells"] if cell["verdict"] in FLAGS
    }
    return {
        "notebook": path.name,
        "cells": len(result["cells"]),
        "changes": changes,
        "missed": [number for number in changes if number not in flagged],
        "alarms": [
            [number, cell["verdict"], cell["difference"], cell["lines"]]
            for number, cell in flagged.items()
            if number not in changes
        ],
        "other": [
            cell["number"]
            for cell in result["cells"]
            if cell["verdict"] not in (*FLAGS, "same", "close")
        ],
        "kernels": result["kernels"],
        "nbconvert_s": round(recorded_seconds, 1),
        "verify_s": round(result["duration_s"], 1),
        "nbval_missed": None if by_nbval is None else [*({*changes} - by_nbval)],
        "nbval_alarms": None if by_nbval is None else [*(by_nbval - {*changes})],
    }


def main() -> None:
    """Print the figures of each notebook, and the sums."""
    python, folder = sys.argv[1], Path(sys.argv[2])
    step, offset = map(int, sys.argv[3:] or (1, 0))
    forked_kernels.spawn_kernels()
    os.environ["PATH"] = f"{Path(python).parent}:{os.environ['PATH']}"
    rng = random.Random(1)
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for project in scratch(Path(home) / "repo"):
            trust.save_record(project.paths, {"python": python})
            target = project.folder / "notebooks" / "corpus"
            shutil.copytree(folder, target)
            paths = sorted(target.rglob("*.ipynb"), key=os.path.getsize)
            for path in paths[offset::step]:
                row = measure(project, python, path, rng)
                if row is not None:
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    for key in ("changes", "missed", "alarms", "nbval_missed", "nbval_alarms"):
        print(key, sum(len(row[key] or ()) for row in rows))
    print("notebooks", len(rows), "cells", sum(row["cells"] for row in rows))


if __name__ == "__main__":
    main()
