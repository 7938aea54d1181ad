"""Shell completion: what a TAB asks for, and the script with which a shell asks. No daemon is started or asked."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from click.shell_completion import CompletionItem, get_completion_class

from stepper.cli.main import main
from stepper.common.errors import StepperError
from stepper.common.paths import Paths, resolve_project
from stepper.common.text import one_line
from stepper.hook.client import current_folder

VARIABLE = "_STEPPER_COMPLETE"


def script(_: Paths, shell: str) -> dict[str, str]:
    """Return what the shell is to read."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    return {"text": kind(main, {}, "stepper", VARIABLE).source()}


def notebooks(_: Any, incomplete: str) -> list[CompletionItem]:
    """Return the notebooks, as `stepper` takes them in any folder: by what comes after the notebooks' folder."""
    paths, here = _paths(), current_folder()
    found = _known(paths) if paths else {}
    files = [os.path.relpath(path, here) for path in found.values()]
    fit = [name for name in [*found, *files] if name.startswith(incomplete or name)]
    return [CompletionItem(_typed(name)) for name in fit[: len(found)]]


def cells(ctx: Any, incomplete: str) -> list[CompletionItem]:
    """Return the code cells of the notebook: numbers with the first line, ids where one is begun."""
    paths = _paths()
    path = _path(paths, ctx.params.get("notebook")) if paths else None
    try:
        told = json.loads(Path(path or "").read_bytes())["cells"]
        code = [cell for cell in told if cell["cell_type"] == "code"]
        lines = [one_line("".join(cell["source"]), 80) for cell in code]
    except (OSError, ValueError, KeyError, TypeError):  # no notebook
        return []
    items = [
        CompletionItem(str(number), help=line) for number, line in enumerate(lines, 1)
    ]
    ids = [_typed(str(cell.get("id", ""))) for cell in code]
    items += [
        CompletionItem(name, help=line) for name, line in zip(ids, lines, strict=True)
    ]
    return [item for item in items if item.value.startswith(incomplete)][: len(code)]


def _typed(word: str) -> str:
    """Return a word as bash is to have it, which types it as it stands: anybody may have named a file `$(…)`."""
    return (
        re.sub(r"([^\w./@%+,:=-])", r"\\\1", word)
        if os.environ.get(VARIABLE, "").startswith("bash")
        else word
    )


def _paths() -> Paths | None:
    project = resolve_project(current_folder(), sys.prefix)
    return Paths(project) if project else None


def _path(paths: Paths, name: str | None) -> str | None:
    """Return the file of a notebook that is named, else of the current one."""
    if not name:
        try:
            noted = json.loads(Path(paths.state).read_bytes())
            name = (
                noted.get("sessions", {}).get(os.environ.get("STEPPER_SESSION", ""))
                or noted["current"]
            )
            return os.path.join(paths.project, str(name))
        except (OSError, ValueError, KeyError, AttributeError):
            return None
    stem = name.removesuffix(".ipynb")
    return next(
        (
            path
            for known, path in _known(paths).items()
            if f"/{known}".endswith(f"/{stem}")
        ),
        None,
    )


def _known(paths: Paths) -> dict[str, str]:
    """Return the path of each notebook, by what comes after its folder."""
    from stepper.daemon.config import Config
    from stepper.daemon.notebook_paths import Places

    try:
        places = Places(paths, Config(paths))
        found = [os.path.join(paths.project, name) for name in places.notebooks()]
        folders = sorted(places.folders(), key=len, reverse=True)
    except StepperError:
        return {}
    known = dict[str, str]()
    for path in found:
        folder = next(
            (folder for folder in folders if path.startswith(os.path.join(folder, ""))),
            paths.project,
        )
        name = os.path.relpath(path, folder)  # two folders may have one of that name
        known[
            (name if name[:-6] not in known else paths.relpath(path)).removesuffix(
                ".ipynb"
            )
        ] = path
    return known
