"""Creates notebook files with nbformat."""

from __future__ import annotations

import json
import os

from stepper.common import secure_files
from stepper.notebooks.file_exchange import remove_file
from stepper.notebooks.notebook_file import CREATE_FLAGS
from stepper.notebooks.notebook_json import dump_json
from stepper.policy import plan as plans
from stepper.policy.model import Plan

KERNELSPEC = {
    "name": "python3",
    "display_name": "Python 3",
    "language": "python",
}


def create_notebook(path: str, plan: Plan) -> None:
    """Write a new notebook with the problem of the plan as its first cell.

    Raise FileExistsError if the file exists, and another OSError if it cannot be
    written. If writing fails, the new file is removed.
    """
    # nbformat takes long to import, and is needed only here.
    import nbformat

    problem_cell = nbformat.v4.new_markdown_cell(f"# {plan.problem}")
    metadata = {
        "kernelspec": KERNELSPEC,
        "language_info": {"name": "python"},
        "stepper": plans.to_json(plan),
    }
    notebook = nbformat.v4.new_notebook(cells=[problem_cell], metadata=metadata)
    nbformat.validate(notebook)
    raw = json.loads(nbformat.writes(notebook))
    data = dump_json(raw) + b"\n"  # escapes lone surrogates
    with secure_files.open_parent(path) as (folder, name):
        handle = os.open(name, CREATE_FLAGS, 0o666, dir_fd=folder)
        try:
            with open(handle, "wb") as stream:
                stream.write(data)
        except OSError:
            remove_file(name, folder)
            raise
