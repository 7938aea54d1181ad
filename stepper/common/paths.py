"""Where things lie. Standard library only: install runs it before there is an environment."""

import contextlib
import os
import stat

from stepper.common import socket_path
from stepper.common.errors import DaemonError
from stepper.common.socket_path import HOME, HookPaths

if False:  # for the type checker alone: typing is not loaded
    from typing import Any

SCRIPT = ".claude/hooks/stepper"
LONGEST_PATH = 5000  # characters, and a word before it
VENV_PYTHON = ".venv/bin/python"
SOCKET_BYTES = 103  # of a socket's path, on macOS


def find_checkouts(folder: str) -> "tuple[str, ...]":
    """Return the checkout itself and, where it is a linked git worktree, the main one, which lends what it lacks.

    No git process: a linked worktree's `.git` is a file that names its place in the main checkout's `.git`.
    """
    try:
        told = _beginning(os.path.join(folder, ".git"), LONGEST_PATH)
    except OSError:  # a folder: the main checkout; or no repository
        return (folder,)
    main, found, _ = told.removeprefix("gitdir: ").rpartition("/.git/worktrees/")
    return (
        (folder, os.path.realpath(os.path.join(folder, main))) if found else (folder,)
    )


def _beginning(path: str, most: int, flags: int = 0) -> str:
    """Return what a file begins with; raise OSError. A FIFO's writer is not waited for, and a device has no end."""

    def at_once(name: str, usual: int) -> int:
        return os.open(name, usual | os.O_NONBLOCK | flags)

    with open(
        path, encoding="utf-8", errors="surrogateescape", opener=at_once
    ) as stream:
        return stream.read(most)


def record_root() -> str:
    """Return the folder below which this user's installs keep what they know of projects."""
    told = os.environ.get("XDG_STATE_HOME", "")
    state = told if os.path.isabs(told) else os.path.expanduser("~/.local/state")
    return os.path.join(state, "stepper", "projects")


def record_folder(project: str) -> str:
    """Return where this user's install keeps what it knows of a project: never in the project, which others write."""
    return os.path.join(record_root(), project.lstrip(os.sep), HOME)


def read_install_record(project: str) -> "dict[str, Any]":
    """Return what this user's install noted of the checkout; {} where it did not, or of another one at its place.

    The token in `.stepper/` tells this checkout from a stranger's that was cloned to the same path later.
    """
    import json

    folder, home = record_folder(project), os.path.join(project, HOME)
    # it might lead to the very folder whose token it must show
    if os.path.islink(home):
        return {}
    try:
        with open(os.path.join(folder, "install.json"), encoding="utf-8") as stream:
            about = os.fstat(stream.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o022:
                return {}
            data = json.load(stream)
        tokens = [
            _beginning(os.path.join(place, "token"), 100, os.O_NOFOLLOW).strip()
            for place in (folder, home)
        ]
    except (OSError, ValueError):
        return {}
    return (
        data if isinstance(data, dict) and tokens[0] and tokens[0] == tokens[1] else {}
    )


def ipykernel_folder(env: str, version: str = "") -> str:
    """Return where an environment of stepper's may hold ipykernel for a Python, or what all such folders begin with."""
    return os.path.join(env, "kernel-" + ".".join(version.split(".")[:2]))


class Paths(HookPaths):
    """The places of one project. `project` is resolved: every caller meets the same folder."""

    def __init__(self, project: str) -> None:
        super().__init__(os.path.realpath(project))
        self.checkouts = find_checkouts(self.project)
        # What this user's install noted of the project, and stepper's environment
        # beside it: no pull writes there.
        self.install_record = os.path.join(record_folder(self.project), "install.json")
        self.env = os.path.join(record_folder(self.project), "env")
        # The name by which people call the environment: a link to `env`, where a pull
        # may put anything.
        self.env_link = os.path.join(self.home, "env")
        self.daemon_json = os.path.join(self.home, "daemon.json")
        self.start_lock = os.path.join(self.home, "start.lock")
        self.daemon_lock = os.path.join(self.home, "daemon.lock")
        self.state = os.path.join(self.home, "state.json")
        self.journals = os.path.join(self.home, "journal")
        self.kernels = os.path.join(self.home, "kernels")
        self.figures = os.path.join(self.home, "figures")
        # a folder for each replay that is under way
        self.verify = os.path.join(self.home, "verify")
        # What runs for longer: for people's status lines, and what the hook prints
        # where Claude Code sees it change.
        self.running = os.path.join(self.home, "running")
        # the lines of status lines, by session
        self.statusline = os.path.join(self.home, "statusline")
        # there while something handed on is to be told
        self.background_marker = os.path.join(self.home, "handed")
        self.notice = os.path.join(self.home, "now", "line")
        # No notebook is newer than this while none was changed; its lines are the
        # folders in which they are looked for.
        self.scan_marker = os.path.join(self.home, "seen")
        # While this exists, files of some session keep an old mtime and PostToolBatch
        # must set them to now.
        self.batch_marker = os.path.join(self.home, "batch")

    def find_file(self, name: str) -> str:
        """Return where a file of the project lies: here or, for a linked worktree that has none, in the main one."""
        there = [os.path.join(folder, name) for folder in self.checkouts]
        return (
            there[0]
            if len(there) == 1
            else next(filter(os.path.lexists, there), there[0])
        )

    @property
    def environment_checkout(self) -> str:
        """The checkout whose environment is used, as the hook script finds it: this one, or the main one."""
        there = (
            folder
            for folder in self.checkouts
            if os.path.exists(os.path.join(folder, HOME, "env"))
        )
        return next(there, self.project)

    @property
    def active_env(self) -> str:
        """stepper's environment: `env`, or the main checkout's."""
        return os.path.join(record_folder(self.environment_checkout), "env")

    @property
    def config(self) -> str:
        """The configuration, or the main checkout's: the hooks that are committed are bound to its folder."""
        return self.find_file(os.path.join(HOME, "config.yaml"))

    def find_python(self, asked: "str | None") -> str:
        """Return the interpreter that kernels are to get: the configured one, else the recorded one, else `.venv`'s.

        Nothing of it may run before `accepts` says so.
        """
        if asked:
            return self.find_file(os.path.expanduser(asked))
        for folder in self.checkouts:
            usual = os.path.join(folder, VENV_PYTHON)
            python = str(read_install_record(folder).get("python") or usual)
            if python != usual or os.path.lexists(usual):
                return python
        return os.path.join(self.project, VENV_PYTHON)

    def trusts_python(self, python: str) -> bool:
        """Whether this user's install recorded the interpreter, or the user accepted it (`stepper trust`)."""
        notes = [read_install_record(folder) for folder in self.checkouts]
        return any(
            python == note.get("python") or python in note.get("accepted", ())
            for note in notes
        )

    def find_trusted_python(self, asked: "str | None") -> str:
        """Return the project's interpreter, '' where there is none that may run."""
        python = self.find_python(asked)
        return (
            python if os.access(python, os.X_OK) and self.trusts_python(python) else ""
        )

    def trusts_backend(self, definition: "Any") -> bool:
        """Whether the user accepted a place of `kernels:` as it stands there now, by whatever name."""
        return any(
            definition in read_install_record(folder).get("kernels", ())
            for folder in self.checkouts
        )

    def env_is_recorded(self) -> bool:
        """Whether this user's install recorded the environment that the hook runs."""
        return bool(read_install_record(self.environment_checkout))

    def find_dependent_worktrees(self) -> "list[str]":
        """Return the linked worktrees that work with this checkout's environment."""
        records, found = os.path.join(self.project, ".git", "worktrees"), set[str]()
        for name in os.listdir(records) if os.path.isdir(records) else ():
            with contextlib.suppress(OSError):  # removed by hand, not pruned yet
                told = _beginning(os.path.join(records, name, "gitdir"), LONGEST_PATH)
                found.add(
                    os.path.realpath(os.path.join(records, name, os.path.dirname(told)))
                )
        return [
            each
            for each in sorted(found)
            if is_installed_worktree(each)
            and Paths(each).environment_checkout == self.project
        ]

    def relpath(self, path: str) -> str:
        """Return `path` relative to the project, as reports and `--json` name it."""
        return os.path.relpath(path, self.project)

    def create_runtime_folder(self) -> None:
        """Make the socket's folder, the user's alone (0700); raise DaemonError if another user holds it."""
        if len(os.fsencode(self.socket)) > SOCKET_BYTES:
            held = " and ".join(
                f"{root}/stepper-{os.getuid()}" for root in socket_path.RUNTIME_ROOTS
            )
            raise DaemonError(
                f"another user holds {held}, and {self.socket} is too long for a socket",
                f"ask whoever made them to remove them: ls -ld {held.replace(' and', '')}",
            )
        for folder in (os.path.dirname(self.runtime), self.runtime):
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
            except OSError as error:
                raise DaemonError(
                    f"{folder} can't be made: {error.strerror}"
                ) from error
            about = os.lstat(folder)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                raise DaemonError(
                    f"{folder} belongs to another user",
                    f"ask its owner to remove it: ls -ld {folder}",
                )
            if about.st_mode & 0o077:
                os.chmod(folder, 0o700)

    def create_home_folder(self) -> None:
        """Make `.stepper/` with its folders (0700); raise OSError, also where a link or another user's is there."""
        from stepper.common import private_files

        for folder in (
            self.home,
            self.journals,
            self.kernels,
            self.figures,
            os.path.dirname(self.notice),
        ):
            private_files.make_folder(folder)


def is_installed_worktree(folder: str) -> bool:
    """Whether the folder is a linked worktree of a checkout that is set up, by a committed script or for the plugin."""
    has_script = os.path.isfile(os.path.join(folder, SCRIPT))
    mains = [
        main
        for main in find_checkouts(folder)[1:]
        if os.path.isdir(os.path.join(main, HOME))
    ]
    return any(has_script or read_install_record(main).get("plugin") for main in mains)


def find_project(start: str) -> "str | None":
    """Return the nearest folder at or above `start` that holds `.stepper`, or is a worktree of one, or None."""
    folder = os.path.realpath(start)
    while not os.path.isdir(os.path.join(folder, HOME)) and not is_installed_worktree(
        folder
    ):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder


def resolve_project(start: str, prefix: str) -> "str | None":
    """Return the project of the environment `prefix`; where it is gone, or lends it to a worktree, that of `start`."""
    own, here = os.path.realpath(os.path.join(prefix, "project")), find_project(start)
    gone = not os.path.isdir(os.path.join(own, HOME))
    return here if gone or (here and own in find_checkouts(here)) else own
