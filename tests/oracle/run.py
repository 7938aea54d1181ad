"""Run a notebook in three ways: nbclient, `stepper run`, and the hook edit by edit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from stepper.install import trust
from tests.conftest import Notebook, Project
from tests.oracle.cell_corpus import notebook

CONFIG = "cell_timeout_seconds: 60\nmax_cells: 1000\n"


def run_with_nbclient(python: str, name: str, folder: Path) -> Any:
    """Return the notebook as nbclient leaves it."""
    folder.mkdir(parents=True)
    made = notebook(name)
    os.environ.pop(
        "PYTEST_CURRENT_TEST", None
    )  # ipykernel would not read the output of child processes
    manager = AsyncKernelManager(transport="ipc", ip=str(folder / "k"))
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="", language="python")
    client = NotebookClient(
        made,
        km=manager,
        timeout=60,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(cleanup_kc=True)
    return nbformat.reads(nbformat.writes(made), 4)


def project(python: str, name: str, folder: Path) -> Notebook:
    """Return a project with the notebook in it."""
    new_project = Project(folder)
    trust.save_record(new_project.paths, {"python": python})
    new_project.config(CONFIG)
    path = folder / "notebooks" / "n.ipynb"
    nbformat.write(notebook(name), path)
    return Notebook(new_project, path)


def run_with_stepper(python: str, name: str, folder: Path) -> Notebook:
    """Return the notebook as `stepper run` leaves it."""
    opened = project(python, name, folder)
    opened.project.stepper("run", "notebooks/n.ipynb", check=None)
    return opened


def run_with_hook(python: str, name: str, folder: Path) -> tuple[Notebook, list[str]]:
    """Return the notebook as the hook leaves it, cell by cell, and the reports."""
    opened = project(python, name, folder)
    messages = []
    for cell in opened.raw["cells"]:
        answer = opened.replace(cell["id"], "".join(cell["source"]))
        messages.append(answer.text + answer.stop)
    return opened, messages


def wait_for_late_outputs(opened: Notebook) -> Any:
    """Return the notebook when all that was late is there."""
    time.sleep(1)
    opened.project.stepper("shutdown")
    return nbformat.read(opened.path, 4)
