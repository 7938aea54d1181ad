"""Whose code may run in a checkout: what this user's install records, and what `stepper trust` accepts.

The record lies in the user's own state folder. A checkout may hold anything that a stranger put there, so nothing in
it says who made it; its token only tells it from another checkout that comes to lie at the same path.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepper.common import private_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, read_install_record, record_folder, record_root
from stepper.common.text import escape_controls, shell_quote
from stepper.install.file_edits import link


@contextlib.contextmanager
def writing(folder: str) -> Iterator[None]:
    """Raise StepperError, with the mend, where something in the folder can't be written."""
    try:
        yield
    except OSError as error:
        hint = getattr(error, "hint", "")
        raise StepperError(
            f"{error.filename or folder} can't be written: {error.strerror}", hint
        ) from error


def make_folders(paths: Paths) -> None:
    """Make `.stepper/` and the record's folder, with those above it the user's alone. Raise StepperError."""
    folder = record_folder(paths.project)
    with writing(folder):
        # with `.stepper/`; a session of the client watches it
        private_files.make_folder(os.path.dirname(paths.notice))
        # the person's home may lie behind a link
        private_files.make_folder(os.path.realpath(folder))


def remember(paths: Paths, note: dict[str, Any]) -> None:
    """Record a project for this user; a note that is there already is left as it is. Raise StepperError."""
    folder, known = (
        os.path.realpath(record_folder(paths.project)),
        read_install_record(paths.project),
    )
    make_folders(paths)
    with writing(folder):
        if not known:
            token = secrets.token_hex(16).encode() + b"\n"
            for place in (folder, paths.home):
                private_files.replace(os.path.join(place, "token"), token)
        if known != note:
            private_files.replace(
                os.path.join(folder, "install.json"),
                json.dumps(note, indent=1).encode() + b"\n",
            )


def forget(paths: Paths) -> None:
    """Remove the record with the environment, and the folders that held nothing else; raise OSError."""
    folder, top = Path(record_folder(paths.project)), Path(record_root()).parent
    if folder.is_dir():
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # the first that is not empty ends it
        for above in folder.parents:
            if not above.is_relative_to(top):  # an empty home stays
                break
            above.rmdir()


def trust(paths: Paths) -> dict[str, Any]:
    """Record the interpreter, the hook environment and the kernels' places that the checkout names as accepted.

    Return what they are.

    An environment that install made is the one that runs, whatever the checkout holds. Raise StepperError, with nothing
    recorded, where somebody else could change what would run.
    """
    from stepper.daemon import config

    limits = config.load(paths)
    asked, places = (
        limits.python,
        {name: dict(place.definition) for name, place in limits.kernels.items()},
    )
    python, known = paths.find_python(asked), read_install_record(paths.project)
    installed = os.path.isdir(paths.env) and not os.path.islink(paths.env)
    env = (
        (paths.env if installed else paths.env_link)
        if os.path.exists(paths.env_link)
        else ""
    )
    if not os.path.exists(python):
        if asked or not (env or places):
            raise UsageError(
                f"there is no interpreter to accept: {python} is missing",
                "./install.sh  # makes one",
            )
        python = ""
    inside = (
        [os.path.join(env, name) for name in ("bin/python", "packages", "session.sh")]
        if env
        else []
    )
    for path in (python, env, *inside):
        if path and os.path.lexists(path):
            check(path)
    note: dict[str, Any] = {**known}
    if python and not asked:
        note["python"] = python
    elif python and python not in note.get("accepted", ()):
        note["accepted"] = [*note.get("accepted", ()), python]
    held = note.get("kernels", [])
    if new := [each for each in places.values() if each not in held]:
        # those of a former configuration too: a kernel may live there
        note["kernels"] = [*held, *new]
    remember(paths, note or {"accepted": []})
    if env == paths.env_link:
        with writing(paths.env):
            link(Path(paths.env), Path(os.path.realpath(env)))
    return {
        "project": paths.project,
        "interpreter": {"path": python, "is": os.path.realpath(python)}
        if python
        else None,
        "environment": {"path": paths.env_link, "is": os.path.realpath(paths.env)}
        if env
        else None,
        "kernels": places,
        "recorded": paths.install_record,
    }


def check(path: str) -> None:
    """Raise StepperError where another user owns a path, or anybody could put something else in its place."""
    for place in map(Path, {path, os.path.realpath(path)}):
        if place.lstat().st_uid not in (0, os.getuid()):
            why = f"{escape_controls(str(place))} belongs to another user: it is not accepted"
            raise StepperError(why, f"ls -ld {shell_quote(str(place))}")
        for above in (place, *place.parents):
            mode = above.lstat().st_mode
            sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and above != place
            if mode & 0o002 and not stat.S_ISLNK(mode) and not sticky:
                why = f"anybody can write {escape_controls(str(above))}: {escape_controls(path)} is not accepted"
                raise StepperError(why, f"chmod o-w {shell_quote(str(above))}")
