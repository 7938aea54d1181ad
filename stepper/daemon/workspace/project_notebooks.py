"""A project's notebooks: which one a name means, which one is current, which interpreter its kernels get."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.common.errors import KernelError, UsageError
from stepper.common.paths import Paths, ipykernel_folder
from stepper.common.program import find_program
from stepper.common.text import escape_controls, one_line
from stepper.daemon.config import Config
from stepper.daemon.kernel_environment import build_kernel_environ
from stepper.daemon.workspace.external_changes import ExternalChanges
from stepper.daemon.workspace.notebook_paths import NotebookPaths, UncoveredError
from stepper.daemon.workspace.notebook_rows import NotebookRows
from stepper.daemon.workspace.renamed_notebooks import RenamedNotebooks
from stepper.notebooks.new_notebook import create_notebook
from stepper.policy import plan as plans
from stepper.policy.commands.command_lines import PROGRAM, CommandLines
from stepper.policy.model import Limits, Plan, Step
from stepper.session import notebook_commands, replaced_notebook
from stepper.session.background_call_states import BackgroundCall
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session

if TYPE_CHECKING:
    from stepper.policy.configuration.kernel_config import BackendConfig

# by which a skill of stepper's is known, at its end; more than any of them has
SKILL_MARK, SKILL_BYTES = b"<!-- notebook-stepper", 1 << 16
SESSIONS_KEPT = 50  # of Claude Code, with their current notebooks
# a line of a journal on a stop
STOP_LINE = re.compile(rb'^\{"event": ?"stop"', re.MULTILINE)


class Workspace:
    """The notebooks of one project, each with its session."""

    def __init__(
        self,
        paths: Paths,
        open_session: Callable[[str, str], Session],
        replay: Callable[[str, str, str, LaunchConfig, Limits], Session],
    ) -> None:
        self.paths, self.config = paths, Config(paths)
        self.notebook_paths = NotebookPaths(paths, self.config)
        self.resolve = self.notebook_paths.resolve
        self.sessions: dict[str, Session] = {}
        self.rows = NotebookRows(self)
        self.renames = RenamedNotebooks(
            paths,
            self.notebook_paths,
            self.sessions,
            self._open,
            self.place,
            self.rename_currents,
        )
        self.environ: Mapping[str, str] = {}  # of who asked last
        self._open_session, self.replay = open_session, replay
        # what the number of known notebooks was last counted for, and the result
        self._counted: tuple[int, int] = (-1, -1)
        self._several = False
        self._path_searched: str | None = None
        self._program = PROGRAM
        self._are_named = False  # whether the sessions' commands name their notebooks
        # one at a time; what ends each
        self.replaying, self.replays = asyncio.Lock(), set[asyncio.Event]()
        # Sessions of Claude Code in which a cell ran or a command was given since the
        # person's last prompt; how many
        # steps were over in each when the agent was sent on.
        self.worked, self.sent_on = set[str](), dict[str, tuple[str, int]]()
        # a session's lines for its user on slash commands, not shown yet
        self.steered = dict[str, list[str]]()
        # the sessions of Claude Code whose agent is at work, with whether the client
        # lives
        self.turns = dict[str, Callable[[], bool]]()
        # sessions whose user limited what is to be done in this turn
        self.limited = set[str]()
        # what is said once a session: which, and about what
        self.told = set[tuple[str, str]]()
        # what stands in the files of our own, by path
        self._notes: dict[str, dict[str, Any]] = {}
        self.external_changes = ExternalChanges(
            paths, self.notebook_paths, lambda path: self.glance(self.resolve(path))
        )

    def session(self, path: str) -> Session:
        """Return the session of a notebook's resolved path, opened where it is new.

        The session of a notebook that was renamed to this path is the one.
        """
        self.renames.check(self.opened(path))
        session = self.opened(path)
        self._set_commands(session)  # it may have followed its notebook to this name
        return session

    def opened(self, path: str) -> Session:
        """Return the session that a path had last, opened where there is none."""
        name = self.paths.relpath(path)
        if name not in self.sessions:
            self.sessions[name] = self._open(name, path)
        if self._are_named != self.several:
            self._are_named = self.several
            self._set_all_commands()
        return self.sessions[name]

    @property
    def several(self) -> bool:
        """Whether more than one notebook of the project is known: commands name theirs then."""
        counted = (self.notebook_paths.index.read_count, len(self.sessions))
        if counted != self._counted:
            self._counted = counted
            open_now = (self._path(name) for name in self.sessions)
            known = {*open_now, *self.notebook_paths.index.list_notebooks()}
            self._several = len(known) > 1
        return self._several

    def _path(self, name: str) -> str:
        return os.path.join(self.paths.project, name)

    def _open(self, name: str, path: str) -> Session:
        session = self._open_session(name, path)
        self._set_commands(session)
        return session

    def note_caller(self, environ: Mapping[str, str], by: str) -> None:
        """Find out how stepper is called in the user's terminal, by the environment of a hook, a server or a command.

        The shells of agents have a PATH of their own.
        """
        in_agents_shell = environ.get("STEPPER_SESSION") or environ.get("CLAUDECODE")
        # the client adds a plugin's folder to the PATH of what it starts
        plugin = os.path.join(environ.get("CLAUDE_PLUGIN_ROOT", ""), "bin")
        folders = environ.get("PATH", os.defpath).split(os.pathsep)
        path = os.pathsep.join(each for each in folders if each != plugin)
        if path == self._path_searched or (by == "cli" and in_agents_shell):
            return
        self._path_searched = path
        self._program = find_program(self.paths, path, self.paths.project)
        self._set_all_commands()

    @property
    def program(self) -> str:
        """What calls stepper in the user's terminal, in the project's folder."""
        return self._program

    def _set_all_commands(self) -> None:
        for session in self.sessions.values():
            self._set_commands(session)

    def _set_commands(self, session: Session) -> None:
        named = session.name if self.several else ""
        commands = CommandLines(named, self._program)
        if session.state.commands != commands:
            session.state.commands = commands

    def glance(self, path: str, follow: bool = True) -> Session:
        """Return the session of a notebook's resolved path, for a look alone: one that is new is not kept.

        Unless it is to `follow`, it is not looked whether the notebook was renamed.
        """
        name = self.paths.relpath(path)
        session = self.sessions.get(name) or self._open(name, path)
        if follow:
            self.renames.check(session)
        if name in self.sessions:
            return self.sessions[name]
        return session if session.name == name else self._open(name, path)

    def notebooks(self) -> list[str]:
        """Return the resolved paths of all notebooks of the project, by name."""
        found = []
        for name in self.notebook_paths.list_notebooks():
            with contextlib.suppress(UsageError):  # whoever names it is told
                found.append(self.resolve(os.path.join(self.paths.project, name)))
        return found

    def all_sessions(self) -> list[Session]:
        """Return the sessions of all notebooks that have a kernel on record, opened where they are not."""
        root = Path(self.paths.kernels)
        for record in root.rglob("*.json"):
            self.opened(
                self.notebook_paths.get_path_of_store(
                    str(record.relative_to(root).with_suffix(".ipynb"))
                )
            )
        return list(self.sessions.values())

    def figures_of(self, session: Session) -> str:
        """Return the folder of a notebook's figures."""
        store = self.notebook_paths.get_store(session.file.path)
        return os.path.join(self.paths.figures, store)

    def is_another_skill(self, name: str) -> bool:
        """Return whether the project has a skill of that name that stepper did not install."""
        path = os.path.join(self.paths.project, ".claude", "skills", name, "SKILL.md")
        try:
            with open(path, "rb", opener=secure_files.open_regular) as stream:
                return SKILL_MARK not in stream.read(SKILL_BYTES)
        except OSError:
            return False

    def exists(self, session: Session) -> bool:
        """Return whether the notebook's file is there."""
        return os.path.lexists(os.path.join(self.paths.project, session.name))

    def deleted(self, name: str | None) -> Session | None:
        """Return the session of a deleted notebook that still has a kernel; None where there is none of that name."""
        stem = name if name and name.endswith(".ipynb") else f"{name}.ipynb"
        for session in self.all_sessions():
            same = session.name == stem or session.name.endswith(f"/{stem}")
            if (
                same
                and not self.exists(session)
                and not self.renames.follow_missing(session)
            ):
                return session
        return None

    def end_replaced_stops(self, owner: str) -> list[str]:
        """End the stops of replaced notebooks; return a sentence for each. The agent of `owner` is not at work.

        The agent of another session that is may have replaced them: then only the current notebook of `owner` is
        looked at, and none for a command in a terminal.
        """
        at_work = {session for session, lives in self.turns.items() if lives()}
        stopped = [*self.sessions.values()]
        if at_work - {owner}:
            current = self.sessions.get(self.current(owner) or "") if owner else None
            stopped = [current] if current else []
        stopped = [session for session in stopped if session.state.stop is not None]
        for session in stopped:
            self.renames.check(session)  # a renamed notebook takes its stop along
        lines = [
            replaced_notebook.clear_stop_if_replaced(session)
            for session in stopped
            if self.exists(session)
        ]
        return [line for line in lines if line]

    async def stopped(self) -> list[Session]:
        """Return the sessions of all stopped notebooks, by name, opened where they are not."""
        # of journals that have grown long, and of many
        for path in await asyncio.to_thread(self._with_stops):
            with contextlib.suppress(UsageError):  # not a notebook of ours any more
                self.session(self.resolve(path))
        found = [
            session
            for session in self.sessions.values()
            if session.state.stop is not None and self.exists(session)
        ]
        return sorted(found, key=lambda session: session.name)

    def _with_stops(self) -> list[str]:
        """Return the paths of the notebooks whose journal has a stop, which may have ended."""
        root, found = Path(self.paths.journals), list[str]()
        for journal in root.rglob("*.jsonl"):
            with contextlib.suppress(OSError):
                if STOP_LINE.search(secure_files.read(str(journal))):
                    name = journal.relative_to(root).with_suffix(".ipynb")
                    found.append(self.notebook_paths.get_path_of_store(str(name)))
        return found

    def calls(self) -> list[BackgroundCall]:
        """Return the edits whose cells run, or wait to."""
        return [
            call
            for session in self.sessions.values()
            for call in session.background_calls.values()
        ]

    def named(self, name: str | None, cwd: str, owner: str = "") -> Session:
        """Return the session of the notebook that a person named, or of the current one; raise UsageError."""
        if not name:
            name = self.current(owner)
            if not name:
                raise UsageError(
                    "there is no current notebook", 'stepper new "PROBLEM"'
                )
            name = self.renames.resolve_name(name)
            return self.session(self.resolve(os.path.join(self.paths.project, name)))
        try:
            return self.session(self.notebook_paths.find(name, cwd))
        except UncoveredError as error:
            raise self._uncovered(error) from None
        except UsageError as error:
            if renamed := self._renamed(name, cwd):
                raise UsageError(
                    f"{error.message}: it was renamed to {escape_controls(renamed)}",
                    CommandLines(renamed).shell("status"),
                ) from None
            raise

    def _renamed(self, name: str, cwd: str) -> str:
        """Return the name that a notebook has now which is gone under that name, '' where it was not renamed."""
        stem = name if name.endswith(".ipynb") else f"{name}.ipynb"
        for base in (cwd, self.paths.project, *self.notebook_paths.list_folders()):
            path = os.path.realpath(os.path.join(base, stem))
            former = self.paths.relpath(path)
            now = self.renames.resolve_name(former)
            if now != former:
                return now
        return ""

    def _uncovered(self, error: UncoveredError) -> UncoveredError:
        """Return the error on a notebook that no pattern covers; it says where that one looks like a renamed one."""
        path = os.path.join(self.paths.project, error.name)
        if renamed := self.renames.describe_uncovered(path):
            error.message = f"{error.message}. {renamed}"
        return error

    def _noted(self, path: str) -> dict[str, Any]:
        """Return what stands in a file that this daemon alone writes: it is read once."""
        if path not in self._notes:
            try:
                data = json.loads(secure_files.read(path))
            except (FileNotFoundError, ValueError):
                data = {}
            except OSError:
                return {}  # it may be read the next time
            self._notes[path] = data if isinstance(data, dict) else {}
        return self._notes[path]

    def _note(self, path: str, data: dict[str, Any]) -> None:
        secure_files.replace(path, json.dumps(data).encode())
        self._notes[path] = data

    def currents(self) -> dict[str, str]:
        """Return the current notebook of each session of Claude Code, and that of the project as `''`."""
        noted = self._noted(self.paths.state)
        own = noted.get("sessions")
        told = {"": noted.get("current"), **(own if isinstance(own, dict) else {})}
        return {
            session: name
            for session, name in told.items()
            if name and isinstance(name, str)
        }

    def current(self, session: str = "") -> str | None:
        """Return the current notebook of a session, else of the project, relative to it; None where there is none."""
        currents = self.currents()
        return currents.get(session) or currents.get("")

    def make_current(self, name: str, session: str = "") -> None:
        """Make the notebook the current one, of the session and of the project."""
        own = {key: value for key, value in self.currents().items() if key}
        if session:
            own.pop(session, None)
            own = {**{key: own[key] for key in [*own][-SESSIONS_KEPT:]}, session: name}
        if self._noted(self.paths.state) != {"current": name, "sessions": own}:
            self._note(self.paths.state, {"current": name, "sessions": own})

    def rename_currents(self, names: Mapping[str, str]) -> None:
        """Keep current notebooks current that were renamed."""
        before = self.currents()
        after = {key: names.get(name, name) for key, name in before.items()}
        if after != before:
            own = {key: name for key, name in after.items() if key}
            self._note(self.paths.state, {"current": after.get(""), "sessions": own})

    def restore_current(
        self, before: dict[str, str], name: str, session: str = ""
    ) -> None:
        """Make current again what was so before a refused call had made a notebook current."""
        now = self.currents()
        for key in {session, ""}:
            if now.get(key) != name:
                continue
            if key in before:
                now[key] = before[key]
            else:
                del now[key]
        own = {key: value for key, value in now.items() if key}
        self._note(self.paths.state, {"current": now.get(""), "sessions": own})

    def once(self, session: str, what: str) -> str:
        """Return what is to be said in a session of Claude Code, '' where it was."""
        if (session, what) in self.told:
            return ""
        self.told.add((session, what))
        return what

    def under_way(self, session: str = "") -> Session | None:
        """Return the current notebook where there is work to go on with."""
        name = self.current(session)
        return self._working(name) if name else None

    def _working(self, name: str) -> Session | None:
        name = self.renames.resolve_name(name)
        path = os.path.join(self.paths.project, name)
        try:
            found = (
                self.sessions.get(name) or self.session(self.resolve(path))
                if os.path.exists(path)
                else None
            )
        except UsageError:  # whoever names it is told
            return None
        return found if found is not None and found.state.has_open_work else None

    def mark(self) -> None:
        """Keep the marker file by which hooks know, without asking the daemon, that something is under way."""
        owed = any(
            session.state.background_calls or session.state.undelivered
            for session in self.sessions.values()
        )
        work = owed or any(map(self._working, set(self.currents().values())))
        marked = os.path.exists(self.paths.active_marker)
        if work and not marked:
            secure_files.replace(self.paths.active_marker, b"")
        elif marked and not work:
            secure_files.remove(self.paths.active_marker)
        if owed != os.path.exists(self.paths.background_marker):
            secure_files.replace(
                self.paths.background_marker, b""
            ) if owed else secure_files.remove(self.paths.background_marker)

    async def new(
        self, plan: Plan, slug: str, today: date, owner: str
    ) -> tuple[Session, str | None]:
        """Make a notebook, the current one of `owner`'s session; return its session and the unfinished one before."""
        before = self.under_way(owner)
        path = folder = os.path.realpath(self.notebook_paths.choose_new_notebook_folder)
        try:
            os.makedirs(folder, exist_ok=True)
            for number in itertools.count(1):
                ending = f"_{number}" if number > 1 else ""
                path = os.path.join(folder, f"{today:%Y_%m_%d}_{slug}{ending}.ipynb")
                # a renamed notebook's journal may still have that name
                self.renames.resolve_name(self.paths.relpath(path))
                with contextlib.suppress(FileExistsError):
                    create_notebook(self.resolve(path), plan)
                    break
        except OSError as error:
            raise UsageError(f"{path} can't be made: {error.strerror}") from error
        session = self.session(path)
        await notebook_commands.create_notebook(session, plan)
        self.make_current(session.name, owner)
        return session, before.name if before else None

    def place(
        self, path: str, environ: Mapping[str, str], kernel: str = ""
    ) -> LaunchConfig:
        """Return where the kernel of a notebook runs that names a place, or none; raise KernelError where nowhere."""
        limits = self.config.limits()
        at = self._accepted(path, limits, kernel)
        python = (
            self._interpreter(limits.python)
            if at is None
            else self.paths.find_trusted_python(limits.python)
        )
        cwd = (
            os.path.dirname(path)
            if limits.kernel_cwd == "notebook"
            else self.paths.project
        )
        own = self.paths.active_env
        # its own is the provider's
        tokens = [each.token_env for each in limits.kernels.values() if each is not at]
        given = build_kernel_environ(environ, python, own, [*limits.hide_env, *tokens])
        return LaunchConfig(python, cwd, given, ipykernel_folder(own), at)

    def _accepted(self, path: str, limits: Limits, kernel: str) -> BackendConfig | None:
        """Return the place where a kernel is to run, None for this machine's interpreter; raise KernelError."""
        name = kernel or limits.kernel
        if name == Limits.kernel:
            return None
        if name not in limits.kernels:
            known = ", ".join([*limits.kernels, Limits.kernel])
            commands = CommandLines(self.paths.relpath(path))
            raise KernelError(
                f"the notebook's kernel is to run in {one_line(name, 100)!r}, which is"
                " none of `kernels:` in"
                f" .stepper/config.yaml ({known})",
                f"add it there, or name another: {commands.shell('use --kernel NAME')}",
            )
        place = limits.kernels[name]
        if not self.paths.trusts_backend(place.definition):
            raise KernelError(
                f"`kernels.{name}` in .stepper/config.yaml was not accepted by you",
                "stepper trust",
            )
        return place

    def _interpreter(self, asked: str | None) -> str:
        python = self.paths.find_python(asked)
        if not os.access(python, os.X_OK) or os.path.isdir(python):
            there = shlex.quote(self.paths.project)
            ways = (
                f"./install.sh {there} (in a clone of stepper) or uvx"
                f" notebook-stepper install {there}"
            )
            mend = (
                f"{ways} makes .venv where none is there (--python PATH names another)"
            )
            raise KernelError(
                f"there is no interpreter for the kernel: {python} is missing or not"
                " executable",
                "correct `python:` in .stepper/config.yaml" if asked else mend,
            )
        if not self.paths.trusts_python(python):
            what = f"`python: {asked}` in .stepper/config.yaml" if asked else python
            raise KernelError(
                f"{what} was not accepted by you (it may be a stranger's)",
                "stepper trust",
            )
        return python

    # The files whose modification time was given back until the message ends, with the
    # session that edited them.

    def keep(self, path: str, session: str) -> None:
        """Remember that the file keeps an old time until the session's message ends."""
        waiting = self._noted(self.paths.batch_marker)
        if waiting.get(path) != session:
            self._note(self.paths.batch_marker, {**waiting, path: session})

    def release(self, session: str | None = None, path: str | None = None) -> list[str]:
        """Forget and return the files that waited for that session, or that file alone."""
        waiting = self._noted(self.paths.batch_marker)
        free = [
            each
            for each, owner in waiting.items()
            if (owner == session if path is None else each == path)
        ]
        rest = {each: owner for each, owner in waiting.items() if each not in free}
        if rest:
            self._note(self.paths.batch_marker, rest)
        else:
            secure_files.remove(self.paths.batch_marker)
            self._notes[self.paths.batch_marker] = {}
        return free


def plan_of(problem: str, steps: list[Any]) -> Plan:
    """Return the plan that the steps' texts or maps name; raise UsageError."""
    try:
        made = tuple(_step(number, item) for number, item in enumerate(steps, 1))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Plan(" ".join(problem.split()), made)


def _step(number: int, told: Any) -> Step:
    if isinstance(told, dict):
        title, criterion = str(told.get("title", "")), str(told.get("criterion", ""))
        return plans.make_checked_step(
            number, title, criterion, told.get("kind", "step"), told.get("long") is True
        )
    return plans.parse_step(number, str(told))
