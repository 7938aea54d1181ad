"""The search in the project's files and in the kernel's environment.

The project is untrusted: searches are limited in time and number, symbolic links are
not followed, and unreadable files are left out. Therefore a search may miss files, and
an empty result does not mean that a file does not exist.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from os.path import basename, dirname, isdir, isfile, join, realpath, relpath
from pathlib import Path
from typing import NamedTuple

from stepper.common.project_walk import SECONDS, TURN, Tree, walk
from stepper.diagnosis.distribution_names import CONDA_NAMES
from stepper.diagnosis.path_similarity import (
    MAX_PATH,
    measure_folder_distance,
    score_similar_names,
)

# Seconds for which the list of files is reused: one error needs it several times.
TREE_LIFETIME = 1.0
MAX_RESULTS = 3
MAX_WRITTEN = 20  # files in a list of written files
MAX_ENTRIES = 100_000  # names in a folder of sys.path
MAX_SOURCES = 500  # source files that are searched
MAX_CHARACTERS = 400_000  # of a source file
# Resolution of file times in ns: the clock of files advances once per tick.
TICK = 10_000_000
# Temporary files of stepper and of Python.
TEMPORARY = re.compile(r"\A\..*\.[0-9a-f]{8}\.tmp\Z|\.pyc\Z", re.DOTALL)
# Lock file → the tool that installs into the project's .venv.
LOCK_FILES = {"uv.lock": "uv", "poetry.lock": "poetry", "pdm.lock": "pdm"}
SITE_PACKAGES = "lib*/python3*/*-packages"  # also Debian's dist-packages
DEFINITION = r"^(?:(?:async +)?def|class) +({0})\b|^({0}) *(?::[^=\n]+)?=[^=]"


class SourceDefinition(NamedTuple):
    """A line of a source file of the project that defines a name."""

    path: str
    line: int
    name: str


class LocalModule(NamedTuple):
    """A module of the project, and the folder that sys.path needs for its import.

    `folder` is relative to the kernel's working directory.
    """

    path: str
    folder: str


class WrittenFile(NamedTuple):
    """A file of the project that was written during a run, and its size in bytes."""

    path: str
    size: int


class ProjectEnvironment:
    """The files and the environments of one project.

    `search` is the PATH on which installers are looked up, or None for stepper's PATH.
    """

    def __init__(self, project: str, search: str | None = None) -> None:
        self.given_root = os.path.abspath(project)
        self.root = realpath(project)
        self.search = search
        self._tree: Tree | None = None
        self._listed_at = 0.0

    def format_folder(self, folder: str) -> str:
        """Return a folder inside the project as a relative path, else its full path."""
        path = realpath(folder)
        project_prefix = self.root + os.sep
        is_inside = path.startswith(project_prefix)
        if is_inside or path == self.root:
            relative = relpath(path, self.root)
            path = relative + os.sep
        return _to_text(path)

    def get_relative_path(self, path: str) -> str:
        """Return a path relative to the project. The path must not contain links.

        Return an empty string if the path is outside the project.
        """
        root = self.root.rstrip(os.sep)
        base = root + os.sep
        full_path = self._get_full_path(path)
        if not full_path.startswith(base):
            return ""
        relative = full_path.removeprefix(base)
        return _to_text(relative)

    def _get_full_path(self, path: str) -> str:
        """Return the absolute path of a path that is relative to the project."""
        return join(self.root, path)

    def get_tree(self, refresh: bool = False) -> Tree:
        """Return the project's files and folders.

        A list that is not older than TREE_LIFETIME is reused, unless `refresh` is true.
        """
        now = time.monotonic()
        is_old = now - self._listed_at > TREE_LIFETIME
        if self._tree is None or refresh or is_old:
            self._tree = walk(self.root)
            self._listed_at = now
        return self._tree

    def find_similar_paths(self, path: str, cwd: str) -> list[str]:
        """Return the existing paths that are most similar to a missing path.

        The results are relative to `cwd`, or absolute if `path` is absolute.
        """
        if not path or len(path) > MAX_PATH:
            return []
        if not _are_valid_paths(path, cwd):
            return []
        here = realpath(cwd)
        tree = self.get_tree()
        full_path = os.path.normpath(join(here, path))
        target = Path(full_path)
        similar = self._rank_similar(target, tree.files + tree.folders)
        # If no path is similar, the name of a folder above may be misspelled.
        for parent in target.parents[:MAX_RESULTS]:
            if similar or isdir(parent):
                break
            similar = self._rank_similar(parent, tree.folders)
        is_absolute = os.path.isabs(path)
        results = []
        for other in similar:
            shown = other if is_absolute else relpath(other, here)
            results.append(_to_text(shown))
        return results

    def _rank_similar(self, target: Path, paths: list[str]) -> list[str]:
        """Return the existing paths whose names are most similar to the target's name.

        `paths` are relative to the project, and the results are full paths. Among
        equally similar names, paths in the nearest folders come first.
        """
        parent = realpath(target.parent)
        folder = relpath(parent, self.root)
        own_path = os.path.normpath(join(folder, target.name))
        distinct_names = dict.fromkeys(map(basename, paths))
        scores = score_similar_names(target.name, distinct_names)
        ranked = []
        for path in paths:
            name = basename(path)
            if name not in scores or path == own_path:
                continue
            distance = measure_folder_distance(folder, dirname(path))
            rank = -scores[name]
            ranked.append((rank, distance, path))
        ranked.sort()
        similar = []
        for _, _, path in ranked:
            full_path = self._get_full_path(path)
            # Skip deleted paths, and pipes, on which a reader would hang.
            if isdir(full_path) or isfile(full_path):
                similar.append(full_path)
            if len(similar) == MAX_RESULTS:
                break
        return similar

    def find_definitions(self, names: Sequence[str]) -> list[SourceDefinition]:
        """Return the first line that defines one of the names in each source file.

        The search stops after MAX_RESULTS definitions.
        """
        identifiers = filter(str.isidentifier, names)
        alternatives = "|".join(identifiers)
        if not alternatives:
            return []
        expression = DEFINITION.format(alternatives)
        pattern = re.compile(expression, re.MULTILINE)
        definitions: list[SourceDefinition] = []
        deadline = time.monotonic() + SECONDS
        for path in self._list_sources():
            is_late = time.monotonic() > deadline
            if is_late or len(definitions) >= MAX_RESULTS:
                break
            full_path = self._get_full_path(path)
            text = _read_start(full_path)
            match = pattern.search(text)
            if match:
                line_breaks = text.count("\n", 0, match.start())
                definition = SourceDefinition(
                    path=_to_text(path),
                    line=line_breaks + 1,
                    name=match[1] or match[2],
                )
                definitions.append(definition)
        return definitions

    def _list_sources(self) -> list[str]:
        """Return up to MAX_SOURCES Python files, those in the topmost folders first."""

        def sort_key(path: str) -> tuple[int, str]:
            depth = path.count("/")
            return depth, path

        sources = sorted(self._list_modules(), key=sort_key)
        return sources[:MAX_SOURCES]

    def _list_modules(self) -> set[str]:
        """Return the project's Python files."""
        modules = set()
        for path in self.get_tree().files:
            if path.endswith(".py"):
                modules.add(path)
        return modules

    def find_local_modules(self, name: str, cwd: str) -> list[LocalModule]:
        """Return the project's modules with this name, the nearest to `cwd` first.

        Modules that can be imported only as part of a package come last.
        """
        is_module_name = re.fullmatch(r"\w+(\.\w+)*", name)
        if not is_module_name or not _are_valid_paths(cwd):
            return []
        here = relpath(realpath(cwd), self.root)
        tail = name.replace(".", "/")
        modules = self._list_modules()
        # Python also imports packages without __init__.py.
        packages = set(map(dirname, modules))
        folders = {}
        for path in modules | packages:
            stem = path.removesuffix(".py")
            if f"/{stem}".endswith(f"/{tail}"):
                folder = stem.removesuffix(tail)
                folders[path] = folder.rstrip("/")

        def sort_key(path: str) -> tuple[bool, int, str]:
            folder = folders[path]
            in_package = f"{folder}/__init__.py" in modules
            distance = measure_folder_distance(here, folder)
            return in_package, distance, path

        results = []
        paths = sorted(folders, key=sort_key)
        for path in paths[:MAX_RESULTS]:
            folder = folders[path] or "."
            relative = relpath(folder, here)
            module = LocalModule(_to_text(path), _to_text(relative))
            results.append(module)
        return results

    def list_written_since(
        self,
        when_ns: int,
        exclude: Collection[str],
    ) -> list[WrittenFile]:
        """Return the project's files that were written since a time, the newest first.

        `when_ns` is in nanoseconds, and `exclude` contains paths that are left out. At
        most MAX_WRITTEN files are returned. Files that cannot be checked in time are
        left out.
        """
        written = []
        with suppress(TimeoutError):
            for path, status in self._iter_statuses(exclude):
                modified = status.st_mtime_ns
                # Programs can set a file's mtime, also to a future time.
                if min(modified, status.st_ctime_ns) >= when_ns:
                    written.append((modified, path, status.st_size))
        written.sort(reverse=True)
        newest = []
        for _, path, size in written[:MAX_WRITTEN]:
            file = WrittenFile(_to_text(path), size)
            newest.append(file)
        return newest

    def has_changed_since(
        self,
        when_ns: int,
        exclude: Collection[str],
        folders: Sequence[str],
    ) -> bool:
        """Return whether the project's files, or folders outside of it, have changed.

        Only changes since `when_ns` (in nanoseconds) count. Files in `exclude`, and
        `folders` inside the project, are ignored. Return True if not all files could be
        checked in time.
        """
        try:
            # The ctime, because a moved file keeps its mtime.
            for _, status in self._iter_statuses(exclude):
                if status.st_ctime_ns >= when_ns:
                    return True
        except TimeoutError:
            return True
        for folder in self._list_outside_folders(folders):
            folder_status = _get_status(folder)
            if folder_status and folder_status.st_ctime_ns >= when_ns:
                return True
        return self.get_tree().truncated

    def _list_outside_folders(self, folders: Sequence[str]) -> set[str]:
        """Return the folders that are not folders of the project.

        The project's folders change whenever stepper writes the notebook, so only their
        files are compared.
        """
        outside = set()
        for folder in folders:
            if folder and _are_valid_paths(folder):
                outside.add(realpath(folder))
        outside.discard(self.root)
        for folder in self.get_tree().folders:
            full_path = self._get_full_path(folder)
            outside.discard(full_path)
        return outside

    def _iter_statuses(
        self,
        exclude: Collection[str],
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and the status of each regular file, from a new list of files.

        Temporary files and the files in `exclude` are left out. Raise TimeoutError
        after SECONDS.
        """
        excluded = set()
        for path in exclude:
            if _are_valid_paths(path):
                full_path = self._get_full_path(path)
                excluded.add(realpath(full_path))
        tree = self.get_tree(refresh=True)
        deadline = time.monotonic() + SECONDS
        for number, path in enumerate(tree.files):
            is_turn = number % TURN == 0
            if is_turn and time.monotonic() > deadline:
                raise TimeoutError
            full_path = self._get_full_path(path)
            name = basename(path)
            if full_path in excluded or TEMPORARY.search(name):
                continue
            status = _get_status(full_path)
            if status and stat.S_ISREG(status.st_mode):
                yield path, status

    def can_import(self, name: str, search_path: Sequence[str], cwd: str) -> bool:
        """Return whether a kernel would find a module, or True if this is unknown.

        Only the top-level module or package is searched for. `search_path` is the
        kernel's sys.path, and `cwd` its working directory.
        """
        top_name, _, _ = name.partition(".")
        # Built-in modules such as `sys` have no file.
        if top_name in sys.stdlib_module_names:
            return True
        folders = []
        for entry in search_path:
            if _are_valid_paths(entry, cwd):
                folders.append(join(cwd, entry))
        for folder in folders:
            package = join(folder, top_name)
            if os.path.exists(package):
                return True
            if os.path.exists(f"{package}.py"):
                return True
        for folder in folders:
            names = _list_names(folder)
            if names is None:
                return True
            for file_name in names:
                stem, _, _ = file_name.partition(".")
                if stem == top_name:
                    return True
        return False

    def build_install_command(self, python: str, *distributions: str) -> str:
        """Return the command that installs distributions for an interpreter.

        `python` is the path of the interpreter. `distributions` may contain `-r` and a
        requirements file, which only pip and uv can install. The command must be run in
        the project's root. Return an empty string if neither pip nor another installer
        is available.
        """
        python = self._get_full_path(python)
        prefix = dirname(dirname(python))
        names = shlex.join(map(_to_text, distributions))
        has_file = "-r" in distributions
        conda_folder = join(prefix, "conda-meta")
        if isdir(conda_folder) and not has_file:
            conda_names = _format_conda_names(distributions)
            quoted_prefix = self._quote(prefix)
            return f"conda install --prefix {quoted_prefix} {conda_names}"
        manager = self._find_project_manager(prefix)
        if manager == "uv" or (manager and not has_file):
            return f"{manager} add {names}"
        quoted_python = self._quote(python)
        pip_command = f"{quoted_python} -m pip install {names}"
        if _has_pip(prefix):
            return pip_command
        uv = self._find_uv()
        if uv:
            return f"{uv} pip install --python {quoted_python} {names}"
        if _may_have_pip(prefix):
            return pip_command
        if _has_ensurepip(prefix):
            return f"{quoted_python} -m ensurepip && {pip_command}"
        return ""

    def _find_project_manager(self, prefix: str) -> str:
        """Return the tool that manages the environment at `prefix`, such as "uv".

        Return an empty string if this is not the project's `.venv`, or if the project
        has no lock file of an installed tool.
        """
        venv = self._get_full_path(".venv")
        if realpath(prefix) != realpath(venv):
            return ""
        for lock, manager in LOCK_FILES.items():
            lock_path = self._get_full_path(lock)
            if not isfile(lock_path):
                continue
            if shutil.which(manager, path=self.search):
                return manager
        return ""

    def _find_uv(self) -> str:
        """Return the name or path of uv, or an empty string if uv is not installed."""
        if shutil.which("uv", path=self.search):
            return "uv"
        for folder in (".local/bin", ".cargo/bin"):
            path = os.path.expanduser(f"~/{folder}/uv")
            if os.access(path, os.X_OK):
                return shlex.quote(_to_text(path))
        return ""

    def _quote(self, path: str) -> str:
        """Return a path quoted for a shell in the project's root.

        Links are not resolved, because `.venv/bin/python` links to an interpreter with
        other packages.
        """
        path = os.path.normpath(path)
        for base in (self.given_root, self.root):
            base_prefix = base.rstrip("/") + "/"
            if path.startswith(base_prefix):
                path = relpath(path, base)
        return shlex.quote(_to_text(path))


def _format_conda_names(distributions: Iterable[str]) -> str:
    """Return conda's names of distributions, quoted for a shell."""
    names = []
    for distribution in distributions:
        name = CONDA_NAMES.get(distribution, distribution)
        names.append(name.lower())  # all of conda's names are lower case
    return shlex.join(names)


def _has_pip(prefix: str) -> bool:
    """Return whether pip is installed in an environment."""
    return any(Path(prefix).glob(f"{SITE_PACKAGES}/pip"))


def _may_have_pip(prefix: str) -> bool:
    """Return whether an environment may have pip although `_has_pip` found none."""
    # An interpreter on another host has no files on this machine.
    is_local = any(Path(prefix).glob(SITE_PACKAGES))
    if not is_local:
        return True
    config = _read_venv_config(prefix)
    return config.get("include-system-site-packages") == "true"


def _has_ensurepip(prefix: str) -> bool:
    """Return whether the interpreter of an environment has the module ensurepip."""
    config = _read_venv_config(prefix)
    base_bin = config.get("home", "")
    if not base_bin:
        base_bin = join(prefix, "bin")
    base = Path(dirname(base_bin))
    return any(base.glob("lib*/python3*/ensurepip"))


def _read_venv_config(prefix: str) -> dict[str, str]:
    """Return the settings of pyvenv.cfg, or an empty dict if there is no such file."""
    settings = {}
    path = join(prefix, "pyvenv.cfg")
    text = _read_start(path)
    for line in text.splitlines():
        key, _, value = line.partition("=")
        name = key.strip()
        settings[name.lower()] = value.strip()
    return settings


def _list_names(folder: str) -> list[str] | None:
    """Return the names in a folder of sys.path.

    Return None if the names cannot be listed, because the folder is an archive, is not
    readable, or has too many names.
    """
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) == MAX_ENTRIES:
                    return None
    except FileNotFoundError:
        return []
    except OSError:  # for example an archive, which is a file
        return None
    return names


def _are_valid_paths(*paths: str) -> bool:
    """Return whether the operating system accepts these paths."""
    try:
        encoded_paths = list(map(os.fsencode, paths))
    except UnicodeEncodeError:
        return False
    return all(b"\0" not in path for path in encoded_paths)


def _to_text(path: str) -> str:
    """Return a path as valid Unicode, because a file name may contain any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _get_status(path: str) -> os.stat_result | None:
    """Return the status of a path itself, or None if the path cannot be read."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def _read_start(path: str) -> str:
    """Return the first MAX_CHARACTERS characters of a file.

    Return an empty string if the path is a symbolic link or not a readable regular
    file.
    """
    if os.path.islink(path):
        return ""
    if not isfile(path):  # reading a pipe would hang
        return ""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(MAX_CHARACTERS)
    return ""
