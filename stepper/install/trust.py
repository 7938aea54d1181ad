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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import (
    SCRIPT,
    Paths,
    read_install_record,
    record_folder,
    record_root,
)
from stepper.common.text import escape_controls, shell_quote
from stepper.install.install_files import link
from stepper.policy.model import Limits

# the keys of the configuration, besides `python` and `kernels`, that decide what runs
SETTINGS = ("kernel", "auto_run", "verify", "notebooks", "notebooks_dir", "hide_env")


@contextlib.contextmanager
def report_write_errors(folder: str) -> Iterator[None]:
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
    with report_write_errors(folder):
        # with `.stepper/`; a session of the client watches it
        secure_files.make_folder(os.path.dirname(paths.notice))
        # the person's home may lie behind a link
        secure_files.make_folder(os.path.realpath(folder))


def save_record(paths: Paths, note: dict[str, Any]) -> None:
    """Record a project for this user; a note that is there already is left as it is. Raise StepperError."""
    folder, known = (
        os.path.realpath(record_folder(paths.project)),
        read_install_record(paths.project),
    )
    make_folders(paths)
    with report_write_errors(folder):
        if not known:
            token = secrets.token_hex(16).encode() + b"\n"
            for place in (folder, paths.home):
                secure_files.replace(os.path.join(place, "token"), token)
        if known != note:
            secure_files.replace(
                os.path.join(folder, "install.json"),
                json.dumps(note, indent=1).encode() + b"\n",
            )


def remove_record(paths: Paths) -> None:
    """Remove the record with the environment, and the folders that held nothing else; raise OSError."""
    folder, top = Path(record_folder(paths.project)), Path(record_root()).parent
    if folder.is_dir():
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # the first that is not empty ends it
        for above in folder.parents:
            if not above.is_relative_to(top):  # an empty home stays
                break
            above.rmdir()


@dataclass(frozen=True)
class Offer:
    """What a checkout names to run, and what of it `stepper trust` would accept."""

    python: str  # the interpreter of kernels, "" for none
    python_is_configured: bool  # by `python:`, not the project's usual one
    env: str  # stepper's environment, "" for none
    env_files: tuple[str, ...]  # what of it is run
    kernels: dict[str, dict[str, Any]]
    hooks: str  # the script that Claude Code runs, "" for none
    settings: dict[str, Any]  # further keys of the configuration that decide what runs
    known: dict[str, Any]  # what is recorded already

    @property
    def new_kernels(self) -> list[dict[str, Any]]:
        """The kernel backends that are not accepted yet."""
        accepted = self.known.get("kernels", [])
        return [each for each in self.kernels.values() if each not in accepted]

    @property
    def is_python_new(self) -> bool:
        """Whether the interpreter is not accepted yet."""
        accepted = [self.known.get("python"), *self.known.get("accepted", ())]
        return bool(self.python) and self.python not in accepted

    @property
    def is_new(self) -> bool:
        """Whether anything is not accepted yet, such as the checkout itself."""
        return not self.known or self.is_python_new or bool(self.new_kernels)


def examine(paths: Paths) -> Offer:
    """Return what the checkout names to run; nothing is run or recorded.

    An environment that install made is the one that runs, whatever the checkout holds. Raise StepperError where
    somebody else could change what would run.
    """
    from stepper.daemon import config

    limits = config.load(paths)
    asked = limits.python
    kernels = {name: dict(place.definition) for name, place in limits.kernels.items()}
    python = paths.find_python(asked)
    installed = os.path.isdir(paths.env) and not os.path.islink(paths.env)
    env = ""
    if os.path.exists(paths.env_link):
        env = paths.env if installed else paths.env_link
    if not os.path.exists(python):
        if asked or not (env or kernels):
            raise UsageError(
                f"there is no interpreter to accept: {python} is missing",
                "./install.sh  # makes one",
            )
        python = ""
    names = ("bin/python", "packages", "session.sh") if env else ()
    env_files = [os.path.join(env, name) for name in names]
    env_files = [path for path in env_files if os.path.lexists(path)]
    for path in filter(None, (python, env, *env_files)):
        check_ownership(path)
    hooks = os.path.join(paths.project, SCRIPT)
    default = Limits()
    settings = {
        name: getattr(limits, name)
        for name in SETTINGS
        if getattr(limits, name) != getattr(default, name)
    }
    return Offer(
        python,
        bool(asked),
        env,
        tuple(env_files),
        kernels,
        hooks if os.path.lexists(hooks) else "",
        settings,
        read_install_record(paths.project),
    )


def accept(paths: Paths, offer: Offer) -> dict[str, Any]:
    """Record what a checkout names as accepted, exactly as it was examined; return it. Raise StepperError."""
    note: dict[str, Any] = {**offer.known}
    if offer.python and not offer.python_is_configured:
        note["python"] = offer.python
    elif offer.python and offer.python not in note.get("accepted", ()):
        note["accepted"] = [*note.get("accepted", ()), offer.python]
    if offer.new_kernels:
        # those of a former configuration too: a kernel may live there
        note["kernels"] = [*note.get("kernels", []), *offer.new_kernels]
    save_record(paths, note or {"accepted": []})
    if offer.env == paths.env_link:
        with report_write_errors(paths.env):
            link(Path(paths.env), Path(os.path.realpath(offer.env)))
    interpreter, environment = None, None
    if offer.python:
        interpreter = {"path": offer.python, "is": os.path.realpath(offer.python)}
    if offer.env:
        real = os.path.realpath(paths.env)
        environment = {"path": paths.env_link, "is": real}
    return {
        "project": paths.project,
        "interpreter": interpreter,
        "environment": environment,
        "kernels": offer.kernels,
        "recorded": paths.install_record,
    }


def trust(paths: Paths) -> dict[str, Any]:
    """Accept what a checkout names to run, without a question; return it. Raise StepperError."""
    return accept(paths, examine(paths))


def check_ownership(path: str) -> None:
    """Raise StepperError where another user owns a path, or anybody could put something else in its place."""
    for place in map(Path, {path, os.path.realpath(path)}):
        if place.lstat().st_uid not in (0, os.getuid()):
            why = (
                f"{escape_controls(str(place))} belongs to another user: it is not"
                " accepted"
            )
            raise StepperError(why, f"ls -ld {shell_quote(str(place))}")
        for above in (place, *place.parents):
            mode = above.lstat().st_mode
            sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and above != place
            if mode & 0o002 and not stat.S_ISLNK(mode) and not sticky:
                why = (
                    f"anybody can write {escape_controls(str(above))}:"
                    f" {escape_controls(path)} is not accepted"
                )
                raise StepperError(why, f"chmod o-w {shell_quote(str(above))}")
