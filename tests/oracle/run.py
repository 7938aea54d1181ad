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
    """Run a notebook with nbclient and return it."""
    folder.mkdir(parents=True)
    document = notebook(name)
    # ipykernel would not read the output of child processes
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    manager = AsyncKernelManager(transport="ipc", ip=str(folder / "k"))
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=argv, display_name="", language="python")
    client = NotebookClient(
        document,
        km=manager,
        timeout=60,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(cleanup_kc=True)
    return nbformat.reads(nbformat.writes(document), 4)


def project(python: str, name: str, folder: Path) -> Notebook:
    """Create a project with the notebook."""
    new_project = Project(folder)
    trust.save_record(new_project.paths, {"python": python})
    new_project.config(CONFIG)
    path = folder / "notebooks" / "n.ipynb"
    nbformat.write(notebook(name), path)
    return Notebook(new_project, path)


def run_with_stepper(python: str, name: str, folder: Path) -> Notebook:
    """Run a notebook with `stepper run` and return it."""
    notebook_in_project = project(python, name, folder)
    notebook_in_project.project.stepper("run", "notebooks/n.ipynb", check=None)
    return notebook_in_project


def run_with_hook(python: str, name: str, folder: Path) -> tuple[Notebook, list[str]]:
    """Edit a notebook cell by cell with the hook; return it and the reports."""
    notebook_in_project = project(python, name, folder)
    messages = []
    for cell in notebook_in_project.raw["cells"]:
        answer = notebook_in_project.replace(cell["id"], "".join(cell["source"]))
        messages.append(answer.text + answer.stop)
    return notebook_in_project, messages


def wait_for_late_outputs(notebook_in_project: Notebook) -> Any:
    """Wait for late outputs and return the notebook."""
    time.sleep(1)
    notebook_in_project.project.stepper("shutdown")
    return nbformat.read(notebook_in_project.path, 4)
