"""The paths of a project's files, and the record of its installation.

The installer uses this module before an environment exists, so it imports the standard
library only.
"""

import contextlib
import os
import stat

from stepper.common import hook_paths
from stepper.common.errors import DaemonError
from stepper.common.hook_paths import HOME, HookPaths

if False:  # only for the type checker: importing typing takes too long
    from typing import Any

SCRIPT = ".claude/hooks/stepper"
VENV_PYTHON = ".venv/bin/python"
# A `.git` file contains a path and a word before it.
GIT_FILE_CHARACTERS = 5000
TOKEN_CHARACTERS = 100
MAX_PATH_CHARACTERS = 4096
SOCKET_PATH_BYTES = 103  # the limit on macOS
OTHERS_MAY_WRITE = 0o022
OTHERS_MAY_USE = 0o077


def find_checkouts(folder: str) -> "tuple[str, ...]":
    """Return the checkout and, if it is a linked git worktree, the main checkout.

    This does not run git: the `.git` file of a linked worktree names its folder in the
    `.git` folder of the main checkout.
    """
    try:
        git_file = _read_start(os.path.join(folder, ".git"), GIT_FILE_CHARACTERS)
    except OSError:  # a folder: this is the main checkout, or no repository
        return (folder,)
    git_folder = git_file.removeprefix("gitdir: ")
    main_checkout, separator, _ = git_folder.rpartition("/.git/worktrees/")
    if not separator:
        return (folder,)
    # The path in the file may be relative to the worktree.
    main_checkout = os.path.join(folder, main_checkout)
    return (folder, os.path.realpath(main_checkout))


def _read_start(
    path: str,
    limit: int,
    flags: int = 0,
) -> str:
    """Return the first characters of a file; raise OSError if it cannot be read.

    `flags` are additional flags for `os.open`. The limit protects against devices, and
    O_NONBLOCK against FIFOs without a writer.
    """

    def open_nonblocking(name: str, default_flags: int) -> int:
        return os.open(name, default_flags | os.O_NONBLOCK | flags)

    with open(
        path,
        encoding="utf-8",
        errors="surrogateescape",
        opener=open_nonblocking,
    ) as stream:
        return stream.read(limit)


def get_record_root() -> str:
    """Return the folder of this user's installation records of all projects."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state_home):
        state_home = os.path.expanduser("~/.local/state")
    return os.path.join(state_home, "stepper", "projects")


def get_record_folder(project: str) -> str:
    """Return the folder of this user's installation record of a project.

    The record is outside the project because other people can write to the project.
    """
    return os.path.join(
        get_record_root(),
        project.lstrip(os.sep),
        HOME,
    )


def read_install_record(project: str) -> "dict[str, Any]":
    """Return this user's installation record of a checkout.

    Return an empty dict if there is no valid record, or if the record belongs to
    another checkout that had the same path. The token in `.stepper/` must match the
    token in the record.
    """
    import json

    folder = get_record_folder(project)
    home = os.path.join(project, HOME)
    # A link could point to the record's folder, so that the tokens always match.
    if os.path.islink(home):
        return {}
    path = os.path.join(folder, "install.json")
    try:
        with open(path, encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid != os.getuid():
                return {}
            if status.st_mode & OTHERS_MAY_WRITE:
                return {}
            record = json.load(stream)
        recorded_token = _read_token(folder)
        project_token = _read_token(home)
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    if not recorded_token or recorded_token != project_token:
        return {}
    return record


def _read_token(folder: str) -> str:
    """Return the token in a folder; raise OSError if it cannot be read."""
    path = os.path.join(folder, "token")
    token = _read_start(path, TOKEN_CHARACTERS, os.O_NOFOLLOW)
    return token.strip()


def get_ipykernel_folder(env: str, version: str = "") -> str:
    """Return the folder of stepper's own ipykernel for a Python version.

    Without a version, return the common prefix of the paths of all these folders.
    """
    minor_version = ".".join(version.split(".")[:2])
    return os.path.join(env, "kernel-" + minor_version)


class Paths(HookPaths):
    """The paths of a project's files.

    Symbolic links in `project` are resolved, so that all processes use the same paths.
    `home` is the folder of stepper's own files, by default `.stepper` in the project.
    """

    def __init__(self, project: str, home: str = "") -> None:
        super().__init__(os.path.realpath(project), home)
        self.checkouts = find_checkouts(self.project)
        # The installation record and the environment are outside the project: a `git
        # pull` cannot change them.
        record = get_record_folder(self.project)
        self.install_record = os.path.join(record, "install.json")
        self.env = os.path.join(record, "env")
        # A link to `env` for users. A `git pull` may replace it, so nothing runs
        # through it.
        self.env_link = os.path.join(self.home, "env")
        self.daemon_json = os.path.join(self.home, "daemon.json")
        self.start_lock = os.path.join(self.home, "start.lock")
        self.daemon_lock = os.path.join(self.home, "daemon.lock")
        self.state = os.path.join(self.home, "state.json")
        self.journals = os.path.join(self.home, "journal")
        # The renamed notebooks, and the names of their journals.
        self.renames_file = os.path.join(self.home, "renamed.json")
        self.kernels = os.path.join(self.home, "kernels")
        self.figures = os.path.join(self.home, "figures")
        # Notebooks that Claude Code is reading as a slim copy (notebooks/slim_copies).
        self.reads = os.path.join(self.home, "reads")
        # Contains a folder for each running `verify`.
        self.verify = os.path.join(self.home, "verify")
        # The long-running cells, for users' status lines.
        self.running = os.path.join(self.home, "running")
        # The status lines, by session.
        self.statusline = os.path.join(self.home, "statusline")
        # Exists while a background run has a notification to deliver.
        self.background_marker = os.path.join(self.home, "handed")
        # The line that the hook prints when Claude Code reports that this file changed.
        self.notice = os.path.join(self.home, "now", "line")
        # No notebook is newer than this file unless it was changed. Its lines are the
        # folders that are searched for notebooks.
        self.scan_marker = os.path.join(self.home, "seen")
        # Exists while notebooks have a restored modification time. The PostToolBatch
        # hook then sets it to the current time.
        self.batch_marker = os.path.join(self.home, "batch")

    def find_file(self, name: str) -> str:
        """Return the path of a project file, which may not exist.

        If a linked worktree does not contain the file, but the main checkout does,
        return the path in the main checkout.
        """
        for folder in self.checkouts:
            path = os.path.join(folder, name)
            if os.path.lexists(path):
                return path
        return os.path.join(self.project, name)

    @property
    def environment_checkout(self) -> str:
        """The checkout whose environment is used: this one or the main checkout.

        The hook script applies the same rule.
        """
        for folder in self.checkouts:
            env_link = os.path.join(folder, HOME, "env")
            if os.path.exists(env_link):
                return folder
        return self.project

    @property
    def active_env(self) -> str:
        """The stepper environment in use: `env`, or the one of the main checkout."""
        record = get_record_folder(self.environment_checkout)
        return os.path.join(record, "env")

    @property
    def config(self) -> str:
        """The configuration file of this checkout, or of the main checkout."""
        return self.find_file(os.path.join(HOME, "config.yaml"))

    def find_python(self, configured_python: "str | None") -> str:
        """Return the path of the Python interpreter for kernels.

        This is the configured interpreter, or else the one in the installation record,
        or else the interpreter of `.venv`. In a linked worktree, the main checkout is
        searched after the worktree. If none of them has an interpreter, return the path
        of the missing interpreter of `.venv`. Check `trusts_python` before you run it.
        """
        if configured_python:
            return self.find_file(os.path.expanduser(configured_python))
        for folder in self.checkouts:
            venv_python = os.path.join(folder, VENV_PYTHON)
            recorded_python = read_install_record(folder).get("python")
            if recorded_python and recorded_python != venv_python:
                return str(recorded_python)
            if os.path.lexists(venv_python):
                return venv_python
        return os.path.join(self.project, VENV_PYTHON)

    def trusts_python(self, python: str) -> bool:
        """Return whether the user trusts an interpreter.

        The user either installed stepper with this interpreter, or accepted it with
        `stepper trust`.
        """
        for folder in self.checkouts:
            record = read_install_record(folder)
            if python == record.get("python"):
                return True
            if python in record.get("accepted", ()):
                return True
        return False

    def find_trusted_python(self, configured_python: "str | None") -> str:
        """Return the path of the Python interpreter for kernels.

        Return an empty string if the interpreter is missing or not trusted.
        """
        python = self.find_python(configured_python)
        is_executable = os.access(python, os.X_OK)
        if is_executable and self.trusts_python(python):
            return python
        return ""

    def trusts_backend(self, definition: "Any") -> bool:
        """Return whether the user accepted a kernel backend with this definition."""
        for folder in self.checkouts:
            record = read_install_record(folder)
            if definition in record.get("kernels", ()):
                return True
        return False

    def is_env_recorded(self) -> bool:
        """Return whether this user installed the environment that hooks use."""
        return bool(read_install_record(self.environment_checkout))

    def find_dependent_worktrees(self) -> "list[str]":
        """Return the folders of the linked worktrees that use this environment."""
        folder = os.path.join(self.project, ".git", "worktrees")
        if not os.path.isdir(folder):
            return []
        worktrees = set[str]()
        for name in os.listdir(folder):
            record = os.path.join(folder, name)
            git_dir = os.path.join(record, "gitdir")
            with contextlib.suppress(OSError):  # git removed the record meanwhile
                git_file = _read_start(git_dir, GIT_FILE_CHARACTERS)
                # This path may be relative to the record.
                worktree_path = os.path.dirname(git_file)
                worktree = os.path.join(record, worktree_path)
                worktrees.add(os.path.realpath(worktree))
        dependents = []
        for worktree in sorted(worktrees):
            if not is_installed_worktree(worktree):
                continue
            if Paths(worktree).environment_checkout == self.project:
                dependents.append(worktree)
        return dependents

    def relpath(self, path: str) -> str:
        """Return a path relative to the project, as in reports and JSON output."""
        return os.path.relpath(path, self.project)

    def create_runtime_folder(self) -> None:
        """Create the socket's folder with mode 0700.

        Raise DaemonError if the folder belongs to another user or cannot be created, or
        if the path of the socket is too long.
        """
        socket_bytes = os.fsencode(self.socket)
        if len(socket_bytes) > SOCKET_PATH_BYTES:
            raise self._make_socket_path_error()
        _create_own_folder(os.path.dirname(self.runtime))
        _create_own_folder(self.runtime)

    def _make_socket_path_error(self) -> DaemonError:
        """Return the error for a socket path that exceeds the system's limit.

        The socket is in the project only if the paths in /tmp and /var/tmp belong to
        other users or are not folders.
        """
        name = f"stepper-{os.getuid()}"
        folders = [f"{root}/{name}" for root in hook_paths.RUNTIME_ROOTS]
        return DaemonError(
            f"{' and '.join(folders)} are not folders of this user, and the path"
            f" {self.socket} is too long for a socket",
            "To fix this, remove one of these folders or ask the owner of the folder to"
            f" remove it. To see the owners, run: ls -ld {' '.join(folders)}",
        )

    def create_home_folder(self) -> None:
        """Create `.stepper/` and its folders with mode 0700.

        Raise OSError if one of them is a symbolic link or belongs to another user.
        """
        from stepper.common import secure_files

        folders = (
            self.home,
            self.journals,
            self.kernels,
            self.figures,
            os.path.dirname(self.notice),
        )
        for folder in folders:
            secure_files.create_folder(folder)


def _create_own_folder(folder: str) -> None:
    """Create a folder with mode 0700.

    Raise DaemonError if the folder cannot be created or belongs to another user, or if
    the path is not a folder.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    except OSError as error:
        message = f"can't create {folder}: {error.strerror}"
        raise DaemonError(message) from error
    status = os.lstat(folder)
    if status.st_uid != os.getuid():
        raise DaemonError(
            f"{folder} belongs to another user",
            "To fix this, ask the owner of the folder to remove it. To see the owner,"
            f" run: ls -ld {folder}",
        )
    if not stat.S_ISDIR(status.st_mode):
        raise DaemonError(
            f"{folder} is not a folder",
            f"To fix this, run: rm {folder}",
        )
    if status.st_mode & OTHERS_MAY_USE:
        os.chmod(folder, 0o700)


def is_installed_worktree(folder: str) -> bool:
    """Return whether a folder is a linked worktree of a checkout that uses stepper.

    Either the worktree contains the committed hook script, or stepper was installed as
    a plugin in the main checkout.
    """
    script = os.path.join(folder, SCRIPT)
    has_script = os.path.isfile(script)
    _, *main_checkouts = find_checkouts(folder)  # none if this is not a worktree
    for main_checkout in main_checkouts:
        if not _has_home(main_checkout):
            continue
        record = read_install_record(main_checkout)
        if has_script or record.get("plugin"):
            return True
    return False


def _has_home(folder: str) -> bool:
    """Return whether a folder contains the folder `.stepper`."""
    home = os.path.join(folder, HOME)
    return os.path.isdir(home)


def is_possible_path(path: str) -> bool:
    """Return whether the operating system may have a file with this path."""
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:  # surrogates that are not undecoded bytes
        return False
    return b"\0" not in data and 0 < len(path) < MAX_PATH_CHARACTERS


def find_project(start: str) -> "str | None":
    """Return the nearest project folder at or above `start`, or None.

    A project folder contains `.stepper`, or is a worktree of one that does.
    """
    folder = os.path.realpath(start)
    while not (_has_home(folder) or is_installed_worktree(folder)):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def resolve_project(start: str, prefix: str) -> "str | None":
    """Return the project that the command line acts on.

    This is the project of the environment `prefix`. If this project was deleted, or if
    the folder `start` is in a worktree that uses the same environment, it is the
    project of the folder `start`. Return None if there is no project.
    """
    project_link = os.path.join(prefix, "project")
    env_project = os.path.realpath(project_link)
    start_project = find_project(start)
    if not _has_home(env_project):
        return start_project
    if start_project and env_project in find_checkouts(start_project):
        return start_project
    return env_project
