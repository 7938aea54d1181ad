"""A project's notebooks: which file a name means, which one is current, which interpreter its kernels get."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from stepper.daemon.config import Config
from stepper.daemon.environ import kernel_environ
from stepper.ground import private
from stepper.ground.errors import KernelError, UsageError
from stepper.ground.names import ODD, quoted, shown
from stepper.ground.paths import Paths
from stepper.policy import plan as plans
from stepper.policy.model import Plan
from stepper.session import steering
from stepper.session.ports import KernelPlace
from stepper.session.session import Session

SESSIONS_KEPT = 50  # of Claude Code, with their current notebooks


@dataclass
class Turns:
    """What happened in each session of Claude Code since the person's last prompt."""

    worked: set[str] = field(default_factory=set)  # a cell ran, or a command was given
    sent_on: dict[str, int] = field(default_factory=dict)  # how many steps were over when the agent was sent on


class Workspace:
    """The notebooks of one project, each with its session."""

    def __init__(
        self,
        paths: Paths,
        open_session: Callable[[str, str, Workspace], Session],
        create: Callable[..., None],
    ) -> None:
        self.paths, self.config = paths, Config(paths)
        self.sessions: dict[str, Session] = {}
        self.turns = Turns()
        self._open, self._create = open_session, create
        self._notes: dict[str, dict[str, Any]] = {}  # what stands in the files of our own, by path

    @property
    def folder(self) -> str:
        """The folder of the notebooks; notebooks anywhere else are refused."""
        return os.path.join(self.paths.project, self.config.limits().notebooks_dir)

    def session(self, path: str) -> Session:
        """Return the session of a notebook's resolved path, opened where it is new."""
        name = self.paths.relative(path)
        if name not in self.sessions:
            self.sessions[name] = self._open(name, path, self)
        return self.sessions[name]

    def all_sessions(self) -> list[Session]:
        """Return the sessions of all notebooks that have a kernel on record, opened where they are not."""
        root = Path(self.paths.kernels)
        for record in root.rglob("*.json"):
            name = record.relative_to(root).with_suffix(".ipynb")
            self.session(os.path.join(os.path.realpath(self.folder), name))
        return list(self.sessions.values())

    def store(self, path: str) -> str:
        """Return the name under which journal and kernel records of a notebook are kept."""
        return os.path.relpath(path, os.path.realpath(self.folder)).removesuffix(".ipynb")

    def resolve(self, path: str) -> str:
        """Return a notebook's real path; raise UsageError unless it lies in the notebooks' folder, a file like others.

        What is swapped in after this look is met by the one who opens it (private.py): the path holds no link any more.
        """
        told = shown(path)
        if ODD.search(os.path.relpath(path, self.paths.project)):
            plain = ODD.sub("_", path)
            raise UsageError(f"{told} has control characters in its name", f"mv {quoted(path)} {quoted(plain)}")
        real, folder = os.path.realpath(path), os.path.realpath(self.folder)
        if not real.endswith(".ipynb"):
            raise UsageError(f"{told} is not a notebook (.ipynb)", f"ls -l {quoted(path)}")
        if os.path.commonpath([real, folder]) != folder:
            raise UsageError(
                f"{told} lies outside of {self.paths.relative(self.folder)}/ (it is {shown(real)})",
                "move it there, or set notebooks_dir in .stepper/config.yaml and run install.sh again",
            )
        if os.path.commonpath([folder, self.paths.project]) != self.paths.project:
            raise UsageError(
                f"{self.folder} leads out of the project (it is {shown(folder)})",
                f"rm {quoted(self.folder)} && mkdir {quoted(self.folder)}",
            )
        if ODD.search(os.path.relpath(real, self.paths.project)):  # what the link is to
            return self.resolve(real)
        if os.path.islink(path) and not os.path.lexists(real):
            raise UsageError(
                f"{told} is a symbolic link, and what it is to is gone: {shown(real)}", f"rm {quoted(path)}"
            )
        try:
            private.look(real)
        except IsADirectoryError:
            raise UsageError(f"{told} is a folder, not a notebook", f"ls -ld {quoted(path)}") from None
        except private.PlaceError as error:
            raise UsageError(error.why, error.hint) from None
        return real

    def named(self, name: str | None, cwd: str, owner: str = "") -> Session:
        """Return the session of the notebook that a person named, or of the current one; raise UsageError."""
        if not name:
            name = self.current(owner)
            if not name:
                raise UsageError("there is no current notebook", 'stepper new "PROBLEM"')
            return self.session(self.resolve(os.path.join(self.paths.project, name)))
        stem = name if name.endswith(".ipynb") else name + ".ipynb"
        for base in (cwd, self.paths.project, self.folder):
            path = os.path.join(base, stem)
            if os.path.lexists(path):
                return self.session(self.resolve(path))
        raise UsageError(f"there is no notebook {name!r}", f"ls {self.paths.relative(self.folder)}/")

    def _noted(self, path: str) -> dict[str, Any]:
        """Return what stands in a file that this daemon alone writes: it is read once."""
        if path not in self._notes:
            try:
                data = json.loads(private.read(path))
            except (FileNotFoundError, ValueError):
                data = {}
            except OSError:
                return {}  # it may be read the next time
            self._notes[path] = data if isinstance(data, dict) else {}
        return self._notes[path]

    def _note(self, path: str, data: dict[str, Any]) -> None:
        write_private(path, json.dumps(data))
        self._notes[path] = data

    def current(self, session: str = "") -> str | None:
        """Return the current notebook of a session, else of the project, relative to it; None where there is none."""
        state = self._noted(self.paths.state)
        own = state.get("sessions")
        name = (own.get(session) if isinstance(own, dict) else None) or state.get("current")
        return name if isinstance(name, str) else None

    def make_current(self, name: str, session: str = "") -> None:
        """Make the notebook the current one, of the session and of the project."""
        state = self._noted(self.paths.state)
        told = state.get("sessions")
        own: dict[str, str] = told if isinstance(told, dict) else {}
        if session:
            own = {**{key: own[key] for key in [*own][-SESSIONS_KEPT:] if key != session}, session: name}
        if state != {"current": name, "sessions": own}:
            self._note(self.paths.state, {"current": name, "sessions": own})

    def under_way(self, session: str = "") -> Session | None:
        """Return the current notebook where there is work to go on with."""
        name = self.current(session)
        path = os.path.join(self.paths.project, name) if name else ""
        return self._working(path) if name and os.path.exists(path) else None

    def _working(self, path: str) -> Session | None:
        try:
            name = self.paths.relative(path)
            found = self.sessions[name] if name in self.sessions else self.session(self.resolve(path))
        except UsageError:  # whoever names it is told
            return None
        return found if found.state.under_way else None

    def mark(self) -> None:
        """Keep the marker file by which hooks know, without asking the daemon, that something is under way."""
        names = {self.current(), *(self._noted(self.paths.state).get("sessions") or {}).values()}
        paths = [os.path.join(self.paths.project, name) for name in names if name]
        work = any(os.path.exists(path) and self._working(path) for path in paths)
        if work != os.path.exists(self.paths.active):
            if work:
                write_private(self.paths.active, "")
            else:
                private.remove(self.paths.active)

    async def new(self, plan: Plan, slug: str, today: date, owner: str) -> tuple[Session, str | None]:
        """Make a notebook, the current one of `owner`'s session; return its session and the unfinished one before it.

        Raise UsageError where the folder can't be written.
        """
        before = self.under_way(owner)
        folder = os.path.realpath(self.folder)
        number = 1
        while True:
            ending = f"_{number}" if number > 1 else ""
            path = os.path.join(folder, f"{today:%Y_%m_%d}_{slug}{ending}.ipynb")
            try:
                os.makedirs(folder, exist_ok=True)
                self._create(self.resolve(path), plan.problem, plan)
                break
            except FileExistsError:
                number += 1
            except OSError as error:
                raise UsageError(f"{path} can't be made: {error.strerror}") from error
        session = self.session(path)
        await steering.create(session, plan)
        self.make_current(session.name, owner)
        return session, before.name if before else None

    def place(self, session_path: str, environ: Mapping[str, str]) -> KernelPlace:
        """Return where the kernel of a notebook runs; raise KernelError where there is no interpreter."""
        python = self.interpreter()
        limits = self.config.limits()
        cwd = os.path.dirname(session_path) if limits.kernel_cwd == "notebook" else self.paths.project
        return KernelPlace(python, cwd, kernel_environ(environ, python, self.paths.used_env, limits.hide_env))

    def interpreter(self) -> str:
        """Return the interpreter of the project's kernels: configured, recorded by install, `.venv`."""
        asked = self.config.limits().python
        python = self.paths.python(asked)
        if asked:
            mend = "correct `python:` in .stepper/config.yaml"
        else:
            mend = "run install.sh again: it makes .venv where none is there (--python PATH names another)"
        if not os.access(python, os.X_OK) or os.path.isdir(python):
            raise KernelError(f"there is no interpreter for the kernel: {python} is missing or not executable", mend)
        if not self.paths.accepts(python):
            what = f"`python: {asked}` in .stepper/config.yaml" if asked else python
            raise KernelError(f"{what} was not accepted by you (it may be a stranger's)", "stepper trust")
        return python

    # The files whose modification time was given back until the message ends, with the session that edited them.

    def kept(self) -> dict[str, str]:
        """Return path → session of the files that wait for PostToolBatch."""
        return self._noted(self.paths.batch)

    def keep(self, path: str, session: str) -> None:
        """Remember that the file keeps an old time until the session's message ends."""
        waiting = self.kept()
        if waiting.get(path) != session:
            self._note(self.paths.batch, {**waiting, path: session})

    def release(self, session: str | None = None, path: str | None = None) -> list[str]:
        """Forget and return the files that waited for that session, or that file alone."""
        waiting = self.kept()
        free = [p for p, owner in waiting.items() if (owner == session if path is None else p == path)]
        rest = {p: owner for p, owner in waiting.items() if p not in free}
        if rest:
            self._note(self.paths.batch, rest)
        else:
            private.remove(self.paths.batch)
            self._notes[self.paths.batch] = {}
        return free


def plan_of(problem: str, steps: list[Any]) -> Plan:
    """Return the plan that the steps' texts or maps name; raise UsageError."""
    made = []
    for number, item in enumerate(steps, 1):
        try:
            if isinstance(item, dict):
                made.append(
                    plans.step(
                        number,
                        str(item.get("title", "")),
                        str(item.get("criterion", "")),
                        item.get("kind", "step"),
                    )
                )
            else:
                made.append(plans.step_from_text(number, str(item)))
        except ValueError as error:
            raise UsageError(str(error)) from None
    return Plan(" ".join(problem.split()), tuple(made))


def write_private(path: str, text: str) -> None:
    """Replace a small file of stepper's own atomically, 0600."""
    private.replace(path, text.encode())
