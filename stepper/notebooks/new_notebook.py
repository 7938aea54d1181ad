"""A new notebook file, as nbformat makes it."""

from __future__ import annotations

import os

from stepper.common import private_files
from stepper.notebooks.notebook_file import NEW
from stepper.policy import plan as plans
from stepper.policy.model import Plan


def create_notebook(path: str, plan: Plan) -> None:
    """Write a new notebook, the problem as its first cell; raise OSError, FileExistsError where there is one."""
    # it validates what it makes, and takes long to load: no step needs it
    import nbformat

    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(f"# {plan.problem}")],
        metadata={
            "kernelspec": {
                "name": "python3",
                "display_name": "Python 3",
                "language": "python",
            },
            "language_info": {"name": "python"},
            "stepper": plans.to_json(plan),
        },
    )
    nbformat.validate(notebook)
    text = nbformat.writes(notebook)
    with private_files.open_parent(path) as (folder, name):
        handle = os.open(name, NEW, 0o666, dir_fd=folder)
    with open(handle, "w", encoding="utf-8") as stream:
        stream.write(text if text.endswith("\n") else text + "\n")
