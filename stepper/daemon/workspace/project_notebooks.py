"""A project's notebooks: their sessions, their names and the current notebooks.

Each request to the daemon uses the project's `Workspace`. It also records facts about
client sessions, such as whether an agent is working.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from stepper.common import secure_files
from stepper.common.errors import UsageError
from stepper.common.paths import Paths, is_possible_path
from stepper.common.program_name import find_program
from stepper.common.text import escape_controls
from stepper.daemon.config import Config
from stepper.daemon.launch_config import build_launch_config
from stepper.daemon.workspace.current_notebooks import CurrentNotebooks
from stepper.daemon.workspace.external_changes import ExternalChanges
from stepper.daemon.workspace.notebook_paths import NotebookPaths, UncoveredError
from stepper.daemon.workspace.notebook_rows import NotebookRows
from stepper.daemon.workspace.renamed_notebooks import RenamedNotebooks
from stepper.daemon.workspace.replay_slots import ReplaySlots
from stepper.daemon.workspace.restored_mtimes import RestoredMtimes
from stepper.notebooks import new_notebook
from stepper.notebooks.slim_copies import SlimCopies
from stepper.policy import plan as plans
from stepper.policy.commands.command_lines import PROGRAM, CommandLines
from stepper.policy.model import Limits, Plan, Step
from stepper.session import notebook_commands, replaced_notebook
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session
from stepper.session.session_state.background_call_states import BackgroundCall

# This marker is at the end of each of stepper's skills.
SKILL_MARKER = b"<!-- notebook-stepper"
MAX_SKILL_BYTES = 1 << 16  # more than a skill of stepper has
MAX_NAME_CHARACTERS = 100  # of an invalid path in a message
# The start of a journal line about a stop.
STOP_LINE = re.compile(rb'^\{"event": ?"stop"', re.MULTILINE)


class WorkProgress(NamedTuple):
    """The progress of the work in a notebook."""

    notebook: str
    done_count: int  # the number of steps that are done or skipped
    next_run: int | None  # the number of the next run if `State.is_failing` is true


class Workspace:
    """The notebooks of one project, each with its session."""

    def __init__(
        self,
        paths: Paths,
        open_session: Callable[[str, str], Session],
        open_replay: Callable[[str, str, str, LaunchConfig, Limits], Session],
    ) -> None:
        self.paths = paths
        self.config = Config(paths)
        self.notebook_paths = NotebookPaths(paths, self.config)
        self.resolve = self.notebook_paths.resolve
        self.sessions: dict[str, Session] = {}  # the open sessions, by notebook name
        self.currents = CurrentNotebooks(paths.state)
        self.restored_mtimes = RestoredMtimes(paths.batch_marker)
        # By client session: large notebooks that keep the restored time until the turn
        # ends, because the client can't read them to accept a new time.
        self.kept_mtimes: dict[str, set[str]] = {}
        self.rows = NotebookRows(self)
        self.slim_copies = SlimCopies(paths.project, paths.reads)
        # The timers that put notebooks back if no read follows, by path.
        self.restore_timers: dict[str, asyncio.TimerHandle] = {}
        self.renames = RenamedNotebooks(
            paths,
            self.notebook_paths,
            self.sessions,
            self._open,
            self.get_launch_config,
            self.currents.rename,
        )
        self.external_changes = ExternalChanges(
            paths,
            self.notebook_paths,
            lambda path: self.peek_session(self.resolve(path)),
        )
        self.environ: Mapping[str, str] = {}  # of the last caller
        self._open_session = open_session
        self.open_replay = open_replay
        # How the user's shell calls stepper, in the project's folder.
        self.program = PROGRAM
        self._searched_path: str | None = None  # the PATH that was searched for it
        # Whether more than one notebook is known, and the numbers of folder reads and
        # sessions when this was determined (see `has_several_notebooks`).
        self._has_several_notebooks = False
        self._counts = (-1, -1)
        # Whether the commands of the sessions name their notebooks.
        self._are_commands_named = False
        self.replay_slots = ReplaySlots()
        # Each replay stops when its event is set.
        self.replays = set[asyncio.Event]()
        # The following attributes contain or are keyed by client sessions.
        # Sessions that ran a cell or a command since the user's last prompt.
        self.active_clients = set[str]()
        # The progress of the current notebook at the last reminder of open work.
        self.continuations: dict[str, WorkProgress] = {}
        # Lines about slash commands that the user has not seen yet.
        self.command_lines: dict[str, list[str]] = {}
        # Sessions with a working agent, and a function that returns whether the client
        # is alive.
        self.running_turns: dict[str, Callable[[], bool]] = {}
        # Sessions in which the user limited the work of this turn.
        self.limited_clients = set[str]()
        # Session and text of each message that is shown only once.
        self.shown_messages = set[tuple[str, str]]()

    # Sessions.

    def open_session(self, path: str) -> Session:
        """Return the session of the notebook at a resolved path.

        If a notebook was renamed to this path, its session moves to the path first.
        """
        self.renames.update_session(self.get_session(path))
        session = self.get_session(path)
        self._set_commands(session)  # a rename may have changed the session's name
        return session

    def get_session(self, path: str) -> Session:
        """Return the session of the notebook at a path, and open it if necessary.

        Unlike `open_session`, this function does not check for renamed notebooks.
        """
        name = self.paths.relpath(path)
        if name not in self.sessions:
            self.sessions[name] = self._open(name, path)
        if self._are_commands_named != self.has_several_notebooks:
            self._are_commands_named = self.has_several_notebooks
            self._set_all_commands()
        return self.sessions[name]

    def peek_session(self, path: str, follow: bool = True) -> Session:
        """Return the session of the notebook at a resolved path, for reading.

        If no session is open, return a new one without adding it to the open sessions.
        If `follow` is true, check first whether the notebook was renamed.
        """
        name = self.paths.relpath(path)
        session = self.sessions.get(name)
        if session is None:
            session = self._open(name, path)
        if follow:
            self.renames.update_session(session)
        # A rename may have moved another session to this name, or `session` to another.
        if name in self.sessions:
            return self.sessions[name]
        if session.name == name:
            return session
        return self._open(name, path)

    def _open(self, name: str, path: str) -> Session:
        """Return a new session that suggests the current commands."""
        session = self._open_session(name, path)
        self._set_commands(session)
        return session

    def open_all_sessions(self) -> list[Session]:
        """Open the session of each notebook with a kernel record.

        Return all open sessions.
        """
        root = Path(self.paths.kernels)
        for record in root.rglob("*.json"):
            store = record.relative_to(root).with_suffix(".ipynb")
            path = self.notebook_paths.get_path_of_store(str(store))
            self.get_session(path)
        return list(self.sessions.values())

    def list_background_calls(self) -> list[BackgroundCall]:
        """Return the calls with cells that are running or queued in the background."""
        calls: list[BackgroundCall] = []
        for session in self.sessions.values():
            calls += session.background_calls
        return calls

    def get_figures_folder(self, session: Session) -> str:
        """Return the folder of a notebook's figures."""
        store = self.notebook_paths.get_store(session.file.path)
        return os.path.join(self.paths.figures, store)

    def has_file(self, session: Session) -> bool:
        """Return whether the file of a session's notebook exists."""
        return os.path.lexists(self._join(session.name))

    def _join(self, name: str) -> str:
        """Return the path of a notebook by its name."""
        return os.path.join(self.paths.project, name)

    # The commands that sessions suggest.

    @property
    def has_several_notebooks(self) -> bool:
        """Whether more than one notebook is known.

        If so, suggested commands include the notebook's name.
        """
        index = self.notebook_paths.index
        counts = (index.read_count, len(self.sessions))
        if counts != self._counts:
            self._counts = counts
            paths = {self._join(name) for name in self.sessions}
            paths.update(index.list_notebooks())
            self._has_several_notebooks = len(paths) > 1
        return self._has_several_notebooks

    def update_program(self, environ: Mapping[str, str], interface: str) -> None:
        """Update `program`, the user's command for stepper, from a caller's PATH.

        `interface` is the caller's interface, such as `cli`, `hook` or `mcp`. Commands
        in an agent's shell are ignored, because its PATH can differ from the user's.
        """
        is_agent = bool(environ.get("STEPPER_SESSION") or environ.get("CLAUDECODE"))
        search_path = environ.get("PATH", os.defpath)
        plugin = environ.get("CLAUDE_PLUGIN_ROOT")
        if plugin:
            # Clients add this folder to the PATH of the processes that they start.
            plugin_folder = os.path.join(plugin, "bin")
            folders = search_path.split(os.pathsep)
            user_folders = [folder for folder in folders if folder != plugin_folder]
            search_path = os.pathsep.join(user_folders)
        if search_path == self._searched_path:
            return
        if interface == "cli" and is_agent:
            return
        self._searched_path = search_path
        self.program = find_program(self.paths, search_path, self.paths.project)
        self._set_all_commands()

    def _set_all_commands(self) -> None:
        """Set the commands that the open sessions suggest."""
        for session in self.sessions.values():
            self._set_commands(session)

    def _set_commands(self, session: Session) -> None:
        """Set the commands that a session suggests, if they have changed."""
        notebook = session.name if self.has_several_notebooks else ""
        commands = CommandLines(notebook, self.program)
        if session.state.commands != commands:
            session.journal.set_command_lines(commands)

    # Notebooks by name.

    def list_notebooks(self) -> list[str]:
        """Return the resolved paths of all notebooks of the project, by name."""
        paths = []
        for name in self.notebook_paths.list_notebooks():
            # A command that names the notebook reports the problem.
            with contextlib.suppress(UsageError):
                paths.append(self.resolve(self._join(name)))
        return paths

    def find_session(self, name: str | None, cwd: str, owner: str = "") -> Session:
        """Return the session of a notebook by its name or path, relative to `cwd`.

        Without a name, return the session of the current notebook of the client session
        `owner`. Raise UsageError if there is no such notebook or its path is not valid.
        """
        if not name:
            return self._open_current(owner)
        if not is_possible_path(name):
            raise UsageError(f"{name[:MAX_NAME_CHARACTERS]!r} is not a valid path")
        try:
            return self.open_session(self.notebook_paths.find(name, cwd))
        except UncoveredError as error:
            raise self._add_rename(error) from None
        except UsageError as error:
            new_name = self._find_new_name(name, cwd)
            if new_name is None:
                raise
            raise UsageError(
                f"{error.message}: it was renamed to {escape_controls(new_name)}",
                CommandLines(new_name).shell("status"),
            ) from None

    def _open_current(self, owner: str) -> Session:
        """Return the session of the current notebook of a client session.

        Raise UsageError if there is no current notebook or its path is not valid.
        """
        current = self.currents.get(owner)
        if not current:
            hint = 'stepper new "PROBLEM"'
            raise UsageError("there is no current notebook", hint)
        name = self.renames.resolve_name(current)
        path = self.resolve(self._join(name))
        return self.open_session(path)

    def _find_new_name(self, name: str, cwd: str) -> str | None:
        """Return the new name of a notebook, or None if it was not renamed."""
        file_name = _add_suffix(name)
        folders = self.notebook_paths.list_folders()
        for folder in (cwd, self.paths.project, *folders):
            path = os.path.realpath(os.path.join(folder, file_name))
            former_name = self.paths.relpath(path)
            new_name = self.renames.resolve_name(former_name)
            if new_name != former_name:
                return new_name
        return None

    def _add_rename(self, error: UncoveredError) -> UncoveredError:
        """Add a note to an error if the notebook was probably renamed."""
        notice = self.renames.describe_uncovered(self._join(error.name))
        if notice:
            error.message = f"{error.message}. {notice}"
        return error

    def find_deleted(self, name: str | None) -> Session | None:
        """Return the session of a deleted notebook, or None if there is none.

        Sessions are opened for all notebooks with a kernel record. If the notebook was
        renamed, its session moves to the new name, and the result is None.
        """
        if not name:
            return None
        file_name = _add_suffix(name)
        for session in self.open_all_sessions():
            is_match = session.name == file_name
            if not is_match and not session.name.endswith(f"/{file_name}"):
                continue
            if self.has_file(session):
                continue
            if not self.renames.follow_missing(session):
                return session
        return None

    async def create_notebook(
        self, plan: Plan, slug: str, today: date, owner: str
    ) -> Session:
        """Create a notebook, and make it the current one of a client session.

        `slug` is a part of the file name. Raise UsageError if the notebook can't be
        created.
        """
        folder = os.path.realpath(self.notebook_paths.new_notebook_folder)
        path = folder
        try:
            os.makedirs(folder, exist_ok=True)
            for name in _iterate_file_names(slug, today):
                path = os.path.join(folder, name)
                # The journal of a renamed notebook may still have this name.
                self.renames.resolve_name(self.paths.relpath(path))
                with contextlib.suppress(FileExistsError):
                    new_notebook.create_notebook(self.resolve(path), plan)
                    break
        except OSError as error:
            message = f"{path} can't be created: {error.strerror}"
            raise UsageError(message) from error
        session = self.open_session(path)
        await notebook_commands.initialize_notebook(session, plan)
        self.currents.set(session.name, owner)
        return session

    # Stopped notebooks.

    async def open_stopped_sessions(self) -> list[Session]:
        """Open and return the sessions of all stopped notebooks, sorted by name."""
        # Reading many or long journals would block the event loop.
        for path in await asyncio.to_thread(self._list_with_stop_event):
            with contextlib.suppress(UsageError):  # the path is no longer allowed
                self.open_session(self.resolve(path))
        stopped = [
            session for session in self._list_stopped() if self.has_file(session)
        ]
        return sorted(stopped, key=lambda session: session.name)

    def _list_stopped(self) -> list[Session]:
        """Return the open sessions of stopped notebooks, including deleted ones."""
        sessions = self.sessions.values()
        return [session for session in sessions if session.state.stop is not None]

    def _list_with_stop_event(self) -> list[str]:
        """Return the paths of notebooks with a stop event in their journal.

        Some of these notebooks may have been resumed later.
        """
        root = Path(self.paths.journals)
        paths = []
        for journal in root.rglob("*.jsonl"):
            with contextlib.suppress(OSError):
                content = secure_files.read(str(journal))
                if STOP_LINE.search(content):
                    store = journal.relative_to(root).with_suffix(".ipynb")
                    path = self.notebook_paths.get_path_of_store(str(store))
                    paths.append(path)
        return paths

    def clear_replaced_stops(self, owner: str) -> list[str]:
        """Clear the stops of notebooks whose files were replaced by other notebooks.

        Return a message about each of them. An agent must not clear a stop by replacing
        the notebook, so call this only while the agent of the client session `owner` is
        not working. While another agent is working, only the current notebook of
        `owner` is checked, and none if `owner` is empty (a command in a terminal).
        """
        stopped = self._list_stopped()
        working = {
            client for client, is_alive in self.running_turns.items() if is_alive()
        }
        if working - {owner}:
            current = self.currents.get(owner) if owner else None
            stopped = [session for session in stopped if session.name == current]
        # First follow renames: a notebook that was only renamed keeps its stop.
        for session in stopped:
            self.renames.update_session(session)
        lines = []
        for session in stopped:
            if self.has_file(session):
                line = replaced_notebook.clear_stop_if_replaced(session)
                if line:
                    lines.append(line)
        return lines

    # Work in progress.

    def find_open_work(self, client: str = "") -> Session | None:
        """Return the session of a client's current notebook if it has open work.

        Return None if there is no current notebook or no open work.
        """
        name = self.currents.get(client)
        if not name:
            return None
        return self._get_unfinished(name)

    def get_unfinished_name(self, client: str) -> str | None:
        """Return the name of a client's current notebook if it has open work."""
        session = self.find_open_work(client)
        return session.name if session else None

    def _get_unfinished(self, recorded_name: str) -> Session | None:
        """Open the session of a notebook, and return it if the notebook has open work.

        Otherwise, return None. The notebook may have been renamed after its name was
        recorded.
        """
        name = self.renames.resolve_name(recorded_name)
        path = self._join(name)
        if not os.path.exists(path):
            return None
        session = self.sessions.get(name)
        if session is None:
            try:
                session = self.open_session(self.resolve(path))
            except UsageError:  # a command that names the notebook reports it
                return None
        return session if session.state.has_open_work else None

    def update_markers(self) -> None:
        """Create or remove the marker files that hooks check before a request.

        The background marker exists while background runs or undelivered reports exist.
        The active marker also exists while a current notebook has open work, a notebook
        is stopped or a large notebook must get a new modification time.
        """
        has_reports = any(
            session.state.background_calls or session.state.undelivered
            for session in self.sessions.values()
        )
        current_names = {*self.currents.get_all().values()}
        has_open_work = any(map(self._get_unfinished, current_names))
        # A prompt such as "continue notebook" can resume any stopped notebook.
        is_active = has_reports or has_open_work or bool(self._list_stopped())
        if self.kept_mtimes:  # the end of the turn must be known
            is_active = True
        _set_marker(self.paths.active_marker, is_active)
        _set_marker(self.paths.background_marker, has_reports)

    def take_once(self, client: str, message: str) -> str:
        """Return a message and record that the client session got it.

        Return an empty string if the session got the message before.
        """
        key = (client, message)
        if key in self.shown_messages:
            return ""
        self.shown_messages.add(key)
        return message

    # Kernels and skills.

    def get_launch_config(
        self, path: str, environ: Mapping[str, str], backend_name: str = ""
    ) -> LaunchConfig:
        """Return the launch configuration for the kernel of the notebook at `path`.

        `backend_name` replaces the backend from the project's configuration, unless it
        is empty. Raise KernelError if the backend or the interpreter does not exist, or
        if the user has not accepted it.
        """
        limits = self.config.load_limits()
        return build_launch_config(self.paths, limits, path, environ, backend_name)

    def has_other_skill(self, name: str) -> bool:
        """Return whether the project has a skill `name` that is not stepper's."""
        skills = os.path.join(self.paths.project, ".claude", "skills")
        path = os.path.join(skills, name, "SKILL.md")
        try:
            with open(path, "rb", opener=secure_files.open_regular) as stream:
                return SKILL_MARKER not in stream.read(MAX_SKILL_BYTES)
        except OSError:
            return False


def _add_suffix(name: str) -> str:
    """Return a name with the suffix `.ipynb`, which may be missing."""
    return name if name.endswith(".ipynb") else f"{name}.ipynb"


def _iterate_file_names(slug: str, today: date) -> Iterator[str]:
    """Yield names for a new notebook, such as `2026_01_31_prices_2.ipynb`."""
    stem = f"{today:%Y_%m_%d}_{slug}"
    yield f"{stem}.ipynb"
    for number in itertools.count(2):
        yield f"{stem}_{number}.ipynb"


def _set_marker(path: str, is_needed: bool) -> None:
    """Create or remove a marker file."""
    if is_needed == os.path.exists(path):
        return
    if is_needed:
        secure_files.replace(path, b"")
    else:
        secure_files.remove(path)


def parse_plan(problem: str, steps: list[Any]) -> Plan:
    """Return a plan for a problem.

    Each step is a string or a mapping with the keys `title`, `criterion`, `kind` and
    `long`. Raise UsageError if a step is invalid.
    """
    try:
        plan_steps = [_parse_step(number, step) for number, step in enumerate(steps, 1)]
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Plan(" ".join(problem.split()), tuple(plan_steps))


def _parse_step(number: int, step: Any) -> Step:
    """Return the step of a plan; raise ValueError if it is not valid."""
    if not isinstance(step, dict):
        return plans.parse_step(number, str(step))
    return plans.make_checked_step(
        number,
        title=str(step.get("title", "")),
        criterion=str(step.get("criterion", "")),
        kind=step.get("kind", "step"),
        long=step.get("long") is True,
    )
