"""All notebooks of a project, as those see them who look on."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from stepper.common import private_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.program import find_program
from stepper.daemon.config import Config
from stepper.daemon.notebook_paths import Places
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import StepStatus
from stepper.web.daemon_client import Daemon
from stepper.web.notebook_view import Book
from stepper.web.run_history import Past


class Shelf:
    """The notebooks of one project; what is read of each is kept."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.places = paths, Places(paths, Config(paths))
        path = os.environ.get("PATH", os.defpath)
        self.program = find_program(paths, path, paths.project)
        self.books: dict[str, Book] = {}
        self.pasts: dict[str, Past] = {}
        self.names: list[str] = []
        self.trouble = ""  # why they can't be found

    def current(self) -> str:
        """Return the project's current notebook, '' for none."""
        try:
            told = json.loads(private_files.read(self.paths.state))
        except (OSError, ValueError):
            return ""
        name = told.get("current") if isinstance(told, dict) else None
        return name if isinstance(name, str) else ""

    def named(self, name: str, cwd: str) -> str:
        """Return the name in the project of a notebook that a person names; raise UsageError."""
        return self.paths.relpath(self.places.find(name, cwd))

    def book(self, name: str) -> Book | None:
        """Return a notebook by its name in the project, None where none is or was there."""
        if name not in self.books:
            try:
                path = self.places.resolve(os.path.join(self.paths.project, name))
            except StepperError as error:
                self.trouble = error.message
                return None
            journal = os.path.join(
                self.paths.journals, self.places.store(path) + ".jsonl"
            )
            if not (os.path.exists(path) or os.path.exists(journal)):
                return None
            past = self.pasts.pop(name, None) or Past(journal)
            project = self.paths.project
            self.books[name] = Book(project, name, past, Daemon(project), self.commands)
        return self.books[name]

    def commands(self, name: str, current: str) -> CommandLines:
        """Return how commands for a notebook are written for the user who looks on."""
        is_named = name != current or self._has_several()
        return CommandLines(name if is_named else "", self.program)

    def _has_several(self) -> bool:
        """Return whether the project has more than one notebook, as far as they were looked for."""
        if not self.names:
            with contextlib.suppress(UsageError):
                self.names = self.places.notebooks()
        return len({*self.names, *self.books}) > 1

    def rows(self) -> list[dict[str, Any]]:
        """Return all notebooks, those changed last first, with how each stands by its journal."""
        try:
            self.names, self.trouble = self.places.notebooks(), ""
        except UsageError as error:
            self.trouble = error.message
        rows = []
        for name in self.names:
            past = self._past(name)
            try:
                changed = os.stat(os.path.join(self.paths.project, name)).st_mtime
            except OSError:
                continue
            if past is None:
                continue
            with past.lock:
                state, steps = past.state, past.state.plan.steps
                skipped = sum(
                    state.standing(step.id) is StepStatus.SKIPPED for step in steps
                )
                done = len(steps) - len(state.left) - skipped
                rows.append(
                    {
                        "notebook": name,
                        "state": state.name,
                        "done": done,
                        "skipped": skipped,
                        "of": len(steps),
                        "runs": len(past.runs),
                        "running": state.running is not None,
                        "changed": round(changed),
                    }
                )
        return sorted(rows, key=lambda row: (-row["changed"], row["notebook"]))

    def _past(self, name: str) -> Past | None:
        if name in self.books:
            past = self.books[name].past
        elif name in self.pasts:
            past = self.pasts[name]
        else:
            try:
                path = self.places.resolve(os.path.join(self.paths.project, name))
            except UsageError:
                return None
            past = self.pasts[name] = Past(
                os.path.join(self.paths.journals, self.places.store(path) + ".jsonl")
            )
        past.refresh()
        return past
