"""Shell completion: the script for the shell, and the completions of arguments.

Completions are read from files, without a request to the daemon.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from click.shell_completion import CompletionItem, get_completion_class

from stepper.cli.main import main
from stepper.common.errors import StepperError
from stepper.common.paths import Paths, resolve_project
from stepper.common.text import one_line
from stepper.hook.daemon_client import get_current_folder

VARIABLE = "_STEPPER_COMPLETE"
SUFFIX = ".ipynb"
UNSAFE_CHARACTER = re.compile(r"([^\w./@%+,:=-])")
LINE_CHARACTERS = 80


def make_script(_: Paths, shell: str) -> dict[str, str]:
    """Return the completion script for a shell."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, shell
    completion = completion_class(main, {}, "stepper", VARIABLE)
    return {"text": completion.source()}


def complete_notebooks(_: Any, incomplete: str) -> list[CompletionItem]:
    """Return the notebooks whose names start with `incomplete`.

    A notebook is completed by its name, or else by its path from the current folder.
    """
    paths = _get_paths()
    if paths is None:
        return []
    notebooks = _list_notebooks(paths)
    folder = get_current_folder()
    items = []
    for name, path in notebooks.items():
        for candidate in (name, os.path.relpath(path, folder)):
            if candidate.startswith(incomplete):
                items.append(CompletionItem(_escape(candidate)))
                break
    return items


def complete_cells(ctx: Any, incomplete: str) -> list[CompletionItem]:
    """Return the code cells whose numbers or ids start with `incomplete`.

    A cell is completed by its number, or else by its id.
    """
    paths = _get_paths()
    if paths is None:
        return []
    path = _find_notebook(paths, ctx.params.get("notebook"))
    if path is None:
        return []
    try:
        cells = _read_code_cells(path)
    except (OSError, ValueError, KeyError, TypeError):  # not a notebook
        return []
    items = []
    for number, cell in enumerate(cells, 1):
        for candidate in (str(number), _escape(cell.id)):
            if candidate.startswith(incomplete):
                items.append(CompletionItem(candidate, help=cell.first_line))
                break
    return items


class CodeCell(NamedTuple):
    """The id and the first line of a code cell, for completion."""

    id: str
    first_line: str


def _read_code_cells(path: str) -> list[CodeCell]:
    """Return the code cells of a notebook file.

    Raise OSError, ValueError, KeyError or TypeError if the file is not a notebook.
    """
    notebook = json.loads(Path(path).read_bytes())
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            cell_id = str(cell.get("id", ""))
            first_line = one_line(source, LINE_CHARACTERS)
            cells.append(CodeCell(cell_id, first_line))
    return cells


def _escape(word: str) -> str:
    """Return a completion, escaped for bash, which inserts completions verbatim.

    File names can contain shell syntax, such as `$(…)`.
    """
    request = os.environ.get(VARIABLE, "")
    if not request.startswith("bash"):
        return word
    return UNSAFE_CHARACTER.sub(r"\\\1", word)


def _get_paths() -> Paths | None:
    """Return the paths of the current project, or None if there is no project."""
    project = resolve_project(get_current_folder(), sys.prefix)
    return Paths(project) if project else None


def _find_notebook(paths: Paths, name: str | None) -> str | None:
    """Return the path of a notebook by its name, or None if it does not exist.

    The name may also be a path from the current folder. Without a name, return the path
    of the current notebook.
    """
    if not name:
        return _find_current_notebook(paths)
    stem = name.removesuffix(SUFFIX)
    for notebook_name, path in _list_notebooks(paths).items():
        # The name may leave out folders: `c` or `b/c` for `a/b/c`.
        if f"/{notebook_name}".endswith(f"/{stem}"):
            return path
    path_in_folder = os.path.join(get_current_folder(), stem + SUFFIX)
    return path_in_folder if os.path.isfile(path_in_folder) else None


def _find_current_notebook(paths: Paths) -> str | None:
    """Return the path of the current notebook of this client session or the project.

    Return None if there is no current notebook.
    """
    session = os.environ.get("STEPPER_SESSION", "")
    try:
        state = json.loads(Path(paths.state).read_bytes())
        sessions = state.get("sessions", {})
        name = sessions.get(session) or state.get("current")
    except (OSError, ValueError, AttributeError):  # no file, or an invalid one
        return None
    return os.path.join(paths.project, str(name)) if name else None


def _list_notebooks(paths: Paths) -> dict[str, str]:
    """Return the paths of the project's notebooks by name.

    A name is the path without the suffix, relative to the notebook folder, or relative
    to the project if two folders contain a notebook with the same name.
    """
    from stepper.daemon.config import Config
    from stepper.daemon.workspace.notebook_paths import NotebookPaths

    try:
        notebook_paths = NotebookPaths(paths, Config(paths))
        files = notebook_paths.list_notebooks()
        folders = sorted(notebook_paths.list_folders(), key=len, reverse=True)
    except StepperError:
        return {}
    notebooks = dict[str, str]()
    for file in files:
        path = os.path.join(paths.project, file)
        file_name = _get_relative_path(path, folders) or file
        name = file_name.removesuffix(SUFFIX)
        if name in notebooks:
            name = file.removesuffix(SUFFIX)
        notebooks[name] = path
    return notebooks


def _get_relative_path(path: str, folders: list[str]) -> str:
    """Return a path relative to the first folder that contains it.

    Return an empty string if no folder contains the path.
    """
    for folder in folders:
        prefix = os.path.join(folder, "")
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return ""
