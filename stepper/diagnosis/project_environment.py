"""The project's files and the kernel's environment, as facts for a report.

The project is untrusted: searches are limited in time and number, symbolic links are
not followed, and unreadable files are left out. So a result says what exists, never
that something does not exist.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from stepper.common.project_files import SECONDS, TURN, Tree, walk
from stepper.diagnosis.distribution_names import CONDA_NAMES
from stepper.diagnosis.name_similarity import (
    MAX_PATH,
    folder_distance,
    score_similar_names,
)

# Seconds for which a file list is reused: one error needs it several times.
TREE_LIFETIME = 1.0
MAX_RESULTS = 3
MAX_WRITTEN = 20  # files in a list of written files
MAX_ENTRIES = 100_000  # names in a folder of sys.path
MAX_SOURCES = 500  # source files that are searched
MAX_BYTES = 400_000  # of a source file
# Resolution of file times in ns: the clock of files advances once per tick.
TICK = 10_000_000
# Temporary files of stepper and of Python.
TEMPORARY = re.compile(r"\A\..*\.[0-9a-f]{8}\.tmp\Z|\.pyc\Z", re.DOTALL)
# Lock file → the tool that installs into the project's .venv.
LOCK_FILES = {"uv.lock": "uv", "poetry.lock": "poetry", "pdm.lock": "pdm"}
SITE_PACKAGES = "lib*/python3*/*-packages"  # also Debian's dist-packages
DEFINITION = r"^(?:(?:async +)?def|class) +({0})\b|^({0}) *(?::[^=\n]+)?=[^=]"


class ProjectEnvironment:
    """The files and the environments of one project.

    `search` is the PATH on which installers are searched.
    """

    def __init__(self, project: str, search: str | None = None) -> None:
        self.given_root = os.path.abspath(project)
        self.root = os.path.realpath(project)
        self.search = search
        self._tree: tuple[float, Tree] | None = None

    def display_folder(self, folder: str) -> str:
        """Return a folder relative to the project if it is inside, else its path."""
        path = os.path.realpath(folder)
        if path == self.root or path.startswith(self.root + os.sep):
            path = os.path.relpath(path, self.root) + os.sep
        return _to_text(path)

    def relative_path(self, path: str) -> str:
        """Return a path without links relative to the project, '' if it is outside."""
        base = self.root.rstrip(os.sep) + os.sep
        full_path = os.path.join(self.root, path)
        if not full_path.startswith(base):
            return ""
        return _to_text(full_path[len(base) :])

    def get_tree(self, refresh: bool = False) -> Tree:
        """Return the project's files and folders."""
        now = time.monotonic()
        if refresh or self._tree is None or now - self._tree[0] > TREE_LIFETIME:
            self._tree = (now, walk(self.root))
        return self._tree[1]

    def find_similar_paths(self, path: str, cwd: str) -> list[str]:
        """Return existing paths most similar to a missing one, relative to `cwd`."""
        if not path or len(path) > MAX_PATH or not _are_valid_paths(path, cwd):
            return []
        here = os.path.realpath(cwd)
        tree = self.get_tree()
        target = Path(os.path.normpath(os.path.join(here, path)))
        similar = self._rank_similar(target, [*tree.files, *tree.folders])
        # If no path is similar, the name of a folder above may be misspelled.
        for parent in target.parents[:MAX_RESULTS]:
            if similar or os.path.isdir(parent):
                break
            similar = self._rank_similar(parent, tree.folders)
        if not os.path.isabs(path):
            similar = [os.path.relpath(other, here) for other in similar]
        return [_to_text(other) for other in similar]

    def _rank_similar(self, target: Path, paths: list[str]) -> list[str]:
        folder = os.path.relpath(os.path.realpath(target.parent), self.root)
        own_path = os.path.normpath(os.path.join(folder, target.name))
        names = {path: os.path.basename(path) for path in paths}
        scores = score_similar_names(target.name, dict.fromkeys(names.values()))
        ranked = []
        for path, name in names.items():
            if name in scores and path != own_path:
                distance = folder_distance(folder, os.path.dirname(path))
                ranked.append((-scores[name], distance, path))
        similar = []
        for _, _, path in sorted(ranked):
            full_path = os.path.join(self.root, path)
            # Skip deleted paths, and pipes, on which a reader would hang.
            if os.path.isfile(full_path) or os.path.isdir(full_path):
                similar.append(full_path)
            if len(similar) == MAX_RESULTS:
                break
        return similar

    def find_definitions(self, names: Sequence[str]) -> list[tuple[str, int, str]]:
        """Return (path, line, name) of source files that define one of the names."""
        alternatives = "|".join(name for name in names if name.isidentifier())
        if not alternatives:
            return []
        pattern = re.compile(DEFINITION.format(alternatives), re.MULTILINE)
        definitions: list[tuple[str, int, str]] = []
        deadline = time.monotonic() + SECONDS
        files = self.get_tree().files
        sources = [path for path in files if path.endswith(".py")]
        sources.sort(key=lambda path: (path.count("/"), path))
        for path in sources[:MAX_SOURCES]:
            if time.monotonic() > deadline or len(definitions) >= MAX_RESULTS:
                break
            text = _read_start(os.path.join(self.root, path))
            match = pattern.search(text)
            if match:
                line = text.count("\n", 0, match.start()) + 1
                definitions.append((_to_text(path), line, match[1] or match[2]))
        return definitions

    def find_local_modules(self, name: str, cwd: str) -> list[tuple[str, str]]:
        """Return the project's modules with a name, and the folder that sys.path needs.

        The folder is relative to `cwd`.
        """
        if not re.fullmatch(r"\w+(\.\w+)*", name) or not _are_valid_paths(cwd):
            return []
        here = os.path.relpath(os.path.realpath(cwd), self.root)
        tail = name.replace(".", "/")
        modules = {path for path in self.get_tree().files if path.endswith(".py")}
        # Python also imports packages without __init__.py.
        packages = {os.path.dirname(path) for path in modules}
        folders = {}
        for path in modules | packages:
            stem = path.removesuffix(".py")
            if f"/{stem}".endswith(f"/{tail}"):
                folders[path] = stem.removesuffix(tail).rstrip("/")

        def sort_key(path: str) -> tuple[bool, int, str]:
            # Modules inside a package come last: they need the package's name.
            in_package = f"{folders[path]}/__init__.py" in modules
            return in_package, folder_distance(here, folders[path]), path

        results = []
        for path in sorted(folders, key=sort_key)[:MAX_RESULTS]:
            folder = os.path.relpath(folders[path] or ".", here)
            results.append((_to_text(path), _to_text(folder)))
        return results

    def list_written_since(
        self, when_ns: int, exclude: Collection[str]
    ) -> list[tuple[str, int]]:
        """Return (path, size) of the files written since a time, the newest first."""
        written = []
        for path, status in self._iter_statuses(exclude):
            # Programs can set a file's mtime, also to a future time.
            if min(status.st_mtime_ns, status.st_ctime_ns) >= when_ns:
                written.append((status.st_mtime_ns, path, status.st_size))
        written.sort(reverse=True)
        return [(_to_text(path), size) for _, path, size in written[:MAX_WRITTEN]]

    def has_changed_since(
        self, when_ns: int, exclude: Collection[str], folders: Sequence[str]
    ) -> bool:
        """Whether a file of the project or one of `folders` changed since a time.

        True if not all files could be listed.
        """
        statuses = (status for _, status in self._iter_statuses(exclude))
        # The project's own folders change whenever stepper writes the notebook, so only
        # their files count.
        project_folders = {self.root}
        for folder in self.get_tree().folders:
            project_folders.add(os.path.join(self.root, folder))
        outside = set()
        for folder in folders:
            if folder and _are_valid_paths(folder):
                outside.add(os.path.realpath(folder))
        outside -= project_folders
        outside_statuses = filter(None, map(_get_status, outside))
        # The ctime, because a moved file keeps its mtime.
        for status in chain(statuses, outside_statuses):
            if status.st_ctime_ns >= when_ns:
                return True
        return self.get_tree().truncated

    def _iter_statuses(
        self, exclude: Collection[str]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the project's regular files, from a new list of files."""
        excluded = set()
        for path in exclude:
            if _are_valid_paths(path):
                excluded.add(os.path.realpath(os.path.join(self.root, path)))
        tree = self.get_tree(refresh=True)
        deadline = time.monotonic() + SECONDS
        for number, path in enumerate(tree.files):
            if number % TURN == 0 and time.monotonic() > deadline:
                return
            full_path = os.path.join(self.root, path)
            if full_path in excluded or TEMPORARY.search(os.path.basename(path)):
                continue
            status = _get_status(full_path)
            if status and stat.S_ISREG(status.st_mode):
                yield path, status

    def can_import(self, name: str, search_path: Sequence[str], cwd: str) -> bool:
        """Whether a kernel with a sys.path could import a module. True if unknown."""
        top_name = name.partition(".")[0]
        # Modules of the kernel's standard library are in its folders, except those
        # written in C.
        if top_name in sys.stdlib_module_names:
            return True
        folders = [
            os.path.join(cwd, entry)
            for entry in search_path
            if _are_valid_paths(entry, cwd)
        ]
        for folder in folders:
            base = os.path.join(folder, top_name)
            if os.path.exists(base) or os.path.exists(f"{base}.py"):
                return True
        for folder in folders:
            names = _list_names(folder)
            if names is None:
                return True
            if top_name in {name.partition(".")[0] for name in names}:
                return True
        return False

    def install_command(self, python: str, *distributions: str) -> str:
        """Return the command that installs distributions for an interpreter.

        The command must be run in the project's root. '' if neither pip nor another
        installer is available.
        """
        python = os.path.join(self.root, python)
        prefix = os.path.dirname(os.path.dirname(python))
        names = shlex.join(map(_to_text, distributions))
        if os.path.isdir(os.path.join(prefix, "conda-meta")):
            # conda's names are in lower case.
            conda_names = [
                CONDA_NAMES.get(name, name).lower() for name in distributions
            ]
            quoted_prefix = self._quote(prefix)
            return f"conda install --prefix {quoted_prefix} {shlex.join(conda_names)}"
        manager = self._find_project_manager(prefix)
        if manager:
            return f"{manager} add {names}"
        quoted_python = self._quote(python)
        pip_command = f"{quoted_python} -m pip install {names}"
        pip = next(Path(prefix).glob(f"{SITE_PACKAGES}/pip"), None)
        if pip is None:
            uv = self._find_uv()
            if uv:
                return f"{uv} pip install --python {quoted_python} {names}"
        # An interpreter of another host has no files here.
        is_local = any(Path(prefix).glob(SITE_PACKAGES))
        config = _read_venv_config(prefix)
        sees_base = config.get("include-system-site-packages") == "true"
        if pip is not None or not is_local or sees_base:
            return pip_command
        base = os.path.dirname(config.get("home", "") or os.path.join(prefix, "bin"))
        if any(Path(base).glob("lib*/python3*/ensurepip")):
            return f"{quoted_python} -m ensurepip && {pip_command}"
        return ""

    def _find_project_manager(self, prefix: str) -> str:
        """Return the tool that locked the environment at `prefix`, '' without one."""
        venv = os.path.join(self.root, ".venv")
        if os.path.realpath(prefix) != os.path.realpath(venv):
            return ""
        for lock, manager in LOCK_FILES.items():
            has_lock = os.path.isfile(os.path.join(self.root, lock))
            if has_lock and shutil.which(manager, path=self.search):
                return manager
        return ""

    def _find_uv(self) -> str:
        """Return the name or the path of uv, '' if it is not installed."""
        if shutil.which("uv", path=self.search):
            return "uv"
        for folder in (".local/bin", ".cargo/bin"):
            path = os.path.expanduser(f"~/{folder}/uv")
            if os.access(path, os.X_OK):
                return shlex.quote(_to_text(path))
        return ""

    def _quote(self, path: str) -> str:
        """Return a path quoted for a shell in the project's root.

        Links are kept: `.venv/bin/python` links to an interpreter with other packages.
        """
        path = os.path.normpath(path)
        for base in (self.given_root, self.root):
            if path.startswith(base.rstrip("/") + "/"):
                path = os.path.relpath(path, base)
        return shlex.quote(_to_text(path))


def _read_venv_config(prefix: str) -> dict[str, str]:
    """Return the settings of pyvenv.cfg, {} if there is no such file."""
    settings = {}
    for line in _read_start(os.path.join(prefix, "pyvenv.cfg")).splitlines():
        key, _, value = line.partition("=")
        settings[key.strip().lower()] = value.strip()
    return settings


def _list_names(folder: str) -> list[str] | None:
    """Return the names in a folder of sys.path.

    None if they cannot be listed: an archive, no permission, or too many.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MAX_ENTRIES)]
    except FileNotFoundError:
        return []
    except OSError:  # an archive is a file, and has no folder below
        return None
    return names if len(names) < MAX_ENTRIES else None


def _are_valid_paths(*paths: str) -> bool:
    """Whether the operating system accepts these paths."""
    try:
        return all(b"\0" not in os.fsencode(path) for path in paths)
    except UnicodeEncodeError:
        return False


def _to_text(path: str) -> str:
    """Return a path as encodable text: a file name may contain any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _get_status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _read_start(path: str) -> str:
    """Return the beginning of a file, '' if it is not a readable regular file."""
    if not os.path.isfile(path) or os.path.islink(path):
        return ""  # reading a pipe would hang
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(MAX_BYTES)
    return ""
