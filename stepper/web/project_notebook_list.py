"""The list of a project's notebooks, with the progress from their journals."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.program_name import find_program
from stepper.daemon.config import Config
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.notebooks.notebook_json import load_json
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import StepStatus
from stepper.web.daemon_client import DaemonClient
from stepper.web.journal_reader import RunHistory
from stepper.web.notebook_view_state import NotebookView

Row = dict[str, Any]


class NotebookList:
    """The notebooks of a project, with cached views and histories.

    A cached view or history reads only the new parts of its files.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.notebook_paths = NotebookPaths(paths, Config(paths))
        # The command for stepper in the user's shell.
        search_path = os.environ.get("PATH", os.defpath)
        self.program = find_program(paths, search_path, paths.project)
        self.error = ""  # why the notebooks can't be listed
        self._views: dict[str, NotebookView] = {}
        self._histories: dict[str, RunHistory] = {}
        self._names: list[str] = []

    def find_current(self) -> str:
        """Return the name of the project's current notebook, or an empty string."""
        try:
            state = load_json(secure_files.read(self.paths.state))
        except (OSError, ValueError):
            return ""
        name = None
        if isinstance(state, dict):
            name = state.get("current")
        return name if isinstance(name, str) else ""

    def resolve_name(self, name: str, cwd: str) -> str:
        """Return the path of a notebook relative to the project, by its name.

        The folder `cwd` is searched first. Raise UsageError if the notebook does not
        exist or its path is not valid.
        """
        path = self.notebook_paths.find(name, cwd)
        return self.paths.relpath(path)

    def follow_rename(self, name: str) -> str:
        """Return the current name of a notebook whose file may have been renamed."""
        if os.path.lexists(os.path.join(self.paths.project, name)):
            return name
        new_name = self.notebook_paths.renames_file.get_new_name(name)
        return name if new_name is None else new_name

    def get_view(self, name: str) -> NotebookView | None:
        """Return the view of a notebook; `name` may be a former name.

        Return None if the notebook has neither a file nor a journal. Also return None,
        and set `error`, if its path is not valid.
        """
        name = self.follow_rename(name)
        if name in self._views:
            return self._views[name]
        project = self.paths.project
        try:
            path = self.notebook_paths.resolve(os.path.join(project, name))
        except StepperError as error:
            self.error = error.message
            return None
        journal = self._get_journal(path)
        if not os.path.exists(path) and not os.path.exists(journal):
            return None
        history = self._histories.pop(name, None)
        if history is None:
            history = RunHistory(partial(self._get_journal, path))
        view = NotebookView(
            project,
            name,
            history,
            DaemonClient(project),
            self.get_commands,
        )
        self._views[name] = view
        return view

    def get_commands(self, name: str, current: str) -> CommandLines:
        """Return the commands for a notebook.

        `current` is the name of the project's current notebook. The commands include
        the notebook's name unless it is the current notebook and no other one is known.
        """
        is_named = name != current or self._has_several_notebooks()
        notebook = name if is_named else ""
        return CommandLines(notebook, self.program)

    def _has_several_notebooks(self) -> bool:
        """Return whether more than one notebook of the project is known."""
        if not self._names:
            with contextlib.suppress(UsageError):
                self._names = self.notebook_paths.list_notebooks()
        return len({*self._names, *self._views}) > 1

    def _get_journal(self, path: str) -> str:
        """Return the path of the journal of the notebook at `path`."""
        journal_name = self.notebook_paths.get_store(path) + ".jsonl"
        return os.path.join(self.paths.journals, journal_name)

    def refresh_rows(self) -> list[Row]:
        """Search for notebooks, and return their progress, latest change first.

        If the search fails, set `error`, and return the progress of the notebooks that
        the last search found. A notebook whose file can't be accessed is left out.
        """
        try:
            self._names = self.notebook_paths.list_notebooks()
            self.error = ""
        except UsageError as error:
            self.error = error.message
        rows = []
        for name in self._names:
            row = self._make_row(name)
            if row is not None:
                rows.append(row)
        return sorted(rows, key=lambda row: (-row["changed"], row["notebook"]))

    def _make_row(self, name: str) -> Row | None:
        """Return the progress of a notebook.

        Return None if its file can't be accessed or its path is not valid.
        """
        history = self._get_history(name)
        if history is None:
            return None
        try:
            file_status = os.stat(os.path.join(self.paths.project, name))
        except OSError:
            return None
        with history.lock:
            state = history.state
            steps = state.plan.steps
            step_statuses = [state.get_step_status(step.id) for step in steps]
            skipped_count = step_statuses.count(StepStatus.SKIPPED)
            return {
                "notebook": name,
                "state": state.status_name,
                "done": len(steps) - len(state.open_steps) - skipped_count,
                "skipped": skipped_count,
                "of": len(steps),
                "runs": len(history.runs),
                "running": state.running is not None,
                "changed": round(file_status.st_mtime),
            }

    def _get_history(self, name: str) -> RunHistory | None:
        """Return the history of a notebook, updated from its journal.

        Return None if the notebook's path is not valid.
        """
        # Another thread may move the history to a view.
        history = self._histories.get(name)
        view = self._views.get(name)
        if view is not None:
            history = view.history
        if history is None:
            path = os.path.join(self.paths.project, name)
            try:
                real_path = self.notebook_paths.resolve(path)
            except UsageError:
                return None
            history = RunHistory(partial(self._get_journal, real_path))
            self._histories[name] = history
        history.refresh()
        return history
