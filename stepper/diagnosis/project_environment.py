"""What lies around a cell: the project's files and the kernel's environment, as facts for a report.

The tree is a stranger's: it is read with bounds in time and number, symbolic links are not followed, and what can't be
read is left out. So an answer says what is there, never that something is not.
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
from stepper.diagnosis.distribution_names import CONDA
from stepper.diagnosis.name_similarity import LONGEST, distance, likeness

FRESH = 1.0  # seconds for which a walk serves: one fault asks several questions
FOUND, WRITTEN = 3, 20  # answers to a question
LISTED = 100_000  # names in a folder of sys.path
SOURCES = 500  # files that are looked into
# ns: times of files come from a clock that stands still for up to a tick
TICK = 10_000_000
READ = 400_000  # bytes of a file that is looked into
# stepper's own temporary files, and Python's
PASSING = re.compile(r"\A\..*\.[0-9a-f]{8}\.tmp\Z|\.pyc\Z", re.DOTALL)
# who installs into the project's .venv
RECORDED = {"uv.lock": "uv", "poetry.lock": "poetry", "pdm.lock": "pdm"}


class Surroundings:
    """One project's. `search` is the PATH on which installers are looked for."""

    def __init__(self, project: str, search: str | None = None) -> None:
        self.given, self.root, self.search = (
            os.path.abspath(project),
            os.path.realpath(project),
            search,
        )
        self._tree: tuple[float, Tree] | None = None

    def named(self, folder: str) -> str:
        """Return a folder as reports name it: from the project's root where it lies inside."""
        real = os.path.realpath(folder)
        inside = real == self.root or real.startswith(self.root + os.sep)
        return _text(os.path.relpath(real, self.root) + os.sep if inside else real)

    def inside(self, path: str) -> str:
        """Return a path without links as written from the project's root, '' where it lies elsewhere."""
        base = self.root.rstrip(os.sep) + os.sep
        whole = os.path.join(self.root, path)
        return _text(whole[len(base) :]) if whole.startswith(base) else ""

    def tree(self, anew: bool = False) -> Tree:
        """Return the project's files and folders."""
        now = time.monotonic()
        if anew or self._tree is None or now - self._tree[0] > FRESH:
            self._tree = (now, walk(self.root))
        return self._tree[1]

    def paths_like(self, asked: str, cwd: str) -> list[str]:
        """Return the existing paths nearest to one that is missing, as it would be written from `cwd`."""
        if not asked or len(asked) > LONGEST or not _usable(asked, cwd):
            return []
        here, tree = os.path.realpath(cwd), self.tree()
        goal = Path(os.path.normpath(os.path.join(here, asked)))
        found = self._nearest(goal, [*tree.files, *tree.folders])
        # where nothing is like the file, its folder may be misspelt
        for above in goal.parents[:FOUND]:
            if found or os.path.isdir(above):
                break
            found = self._nearest(above, tree.folders)
        return [
            _text(path if os.path.isabs(asked) else os.path.relpath(path, here))
            for path in found
        ]

    def _nearest(self, asked: Path, paths: list[str]) -> list[str]:
        folder = os.path.relpath(os.path.realpath(asked.parent), self.root)
        goal, names = (
            os.path.normpath(os.path.join(folder, asked.name)),
            {path: os.path.basename(path) for path in paths},
        )
        alike = likeness(asked.name, dict.fromkeys(names.values()))
        ranked = sorted(
            (-alike[name], distance(folder, os.path.dirname(path)), path)
            for path, name in names.items()
            if name in alike and path != goal
        )
        nearest = (os.path.join(self.root, path) for *_, path in ranked)
        # Still there, and no pipe, which would hang its reader.
        return list(
            islice(
                (
                    path
                    for path in nearest
                    if os.path.isfile(path) or os.path.isdir(path)
                ),
                FOUND,
            )
        )

    def defining(self, names: Sequence[str]) -> list[tuple[str, int, str]]:
        """Return which of the project's source files define one of the names: path, line, name."""
        one = "|".join(name for name in names if name.isidentifier())
        line = re.compile(
            rf"^(?:(?:async +)?def|class) +({one})\b|^({one}) *(?::[^=\n]+)?=[^=]",
            re.MULTILINE,
        )
        found: list[tuple[str, int, str]] = []
        until = time.monotonic() + SECONDS
        sources = sorted(
            (path.count("/"), path)
            for path in self.tree().files
            if path.endswith(".py")
        )
        for _, path in sources[:SOURCES] if one else ():
            if time.monotonic() > until or len(found) >= FOUND:
                break
            text = _read(os.path.join(self.root, path))
            if match := line.search(text):
                found.append(
                    (
                        _text(path),
                        text.count("\n", 0, match.start()) + 1,
                        match[1] or match[2],
                    )
                )
        return found

    def modules_like(self, name: str, cwd: str) -> list[tuple[str, str]]:
        """Return the local modules of exactly that name, and for each the folder that sys.path needs, from `cwd`."""
        if not re.fullmatch(r"\w+(\.\w+)*", name) or not _usable(cwd):
            return []
        here, wanted = (
            os.path.relpath(os.path.realpath(cwd), self.root),
            name.replace(".", "/"),
        )
        modules = {path for path in self.tree().files if path.endswith(".py")}
        # Python takes those without __init__.py too
        packages = {os.path.dirname(path) for path in modules}
        fits = [
            path
            for path in modules | packages
            if f"/{path.removesuffix('.py')}".endswith(f"/{wanted}")
        ]
        folders = {
            path: path.removesuffix(".py").removesuffix(wanted).rstrip("/")
            for path in fits
        }
        # A module of a package is rather imported as that.
        fits.sort(
            key=lambda path: (
                f"{folders[path]}/__init__.py" in modules,
                distance(here, folders[path]),
                path,
            )
        )
        return [
            (_text(path), _text(os.path.relpath(folders[path] or ".", here)))
            for path in fits[:FOUND]
        ]

    def written_since(
        self, when_ns: int, leave_out: Collection[str]
    ) -> list[tuple[str, int]]:
        """Return the files written since then, the newest first, with their sizes."""
        found = [
            (status.st_mtime_ns, path, status.st_size)
            for path, status in self._statuses(leave_out)
            # a time can be set, also to a future one
            if min(status.st_mtime_ns, status.st_ctime_ns) >= when_ns
        ]
        return [
            (_text(path), size)
            for _, path, size in sorted(found, reverse=True)[:WRITTEN]
        ]

    def changed_since(
        self, when_ns: int, leave_out: Collection[str], folders: Sequence[str]
    ) -> bool:
        """Tell whether a file of the project, or one of `folders`, was written, moved or given other rights."""
        statuses = self._statuses(leave_out)
        # A folder of the project changes whenever stepper writes its notebook: there,
        # only the files count.
        walked = {os.path.join(self.root, folder) for folder in self.tree().folders} | {
            self.root
        }
        outside = {
            os.path.realpath(folder) for folder in folders if folder and _usable(folder)
        } - walked
        # A file that was moved here keeps its mtime.
        every = chain(
            (status for _, status in statuses), filter(None, map(_status, outside))
        )
        return (
            any(status.st_ctime_ns >= when_ns for status in every)
            or self.tree().truncated
        )

    def _statuses(
        self, leave_out: Collection[str]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the project's regular files as they are now: what a cell just wrote is not in an older walk."""
        left = {
            os.path.realpath(os.path.join(self.root, path))
            for path in leave_out
            if _usable(path)
        }
        tree, until = self.tree(anew=True), time.monotonic() + SECONDS
        for number, path in enumerate(tree.files):
            if number % TURN == 0 and time.monotonic() > until:
                return
            whole = os.path.join(self.root, path)
            status = (
                None
                if whole in left or PASSING.search(os.path.basename(path))
                else _status(whole)
            )
            if status and stat.S_ISREG(status.st_mode):
                yield path, status

    def findable(self, name: str, path: Sequence[str], cwd: str) -> bool:
        """Tell whether a kernel with that sys.path could import a module. In doubt: yes."""
        top, folders = name.partition(".")[0], _folders(path, cwd)
        return (
            # the kernel's own are in its folders, but for those made of C
            top in sys.stdlib_module_names
            or any(
                os.path.exists(os.path.join(folder, top + end))
                for folder in folders
                for end in ("", ".py")
            )
            or any(
                names is None or top in {one.partition(".")[0] for one in names}
                for names in map(_listed, folders)
            )
        )

    def install_command(self, python: str, *distributions: str) -> str:
        """Return the command that installs distributions for the project's kernels, to be run from its root.

        '' where neither pip nor anything that could install it is there.
        """
        python = os.path.join(self.root, python)
        prefix, name = (
            os.path.dirname(os.path.dirname(python)),
            shlex.join(map(_text, distributions)),
        )
        if os.path.isdir(os.path.join(prefix, "conda-meta")):
            # conda knows no capitals
            name = shlex.join(CONDA.get(each, each).lower() for each in distributions)
            return f"conda install --prefix {self._quoted(prefix)} {name}"
        if os.path.realpath(prefix) == os.path.realpath(
            os.path.join(self.root, ".venv")
        ):
            for lock, manager in RECORDED.items():
                if os.path.isfile(os.path.join(self.root, lock)) and shutil.which(
                    manager, path=self.search
                ):
                    return f"{manager} add {name}"
        # site-packages, Debian's dist-packages
        pip = next(Path(prefix).glob("lib*/python3*/*-packages/pip"), None)
        by_pip = f"{self._quoted(python)} -m pip install {name}"
        # of a kernel on another host nothing is here
        known = any(Path(prefix).glob("lib*/python3*/*-packages"))
        if pip is None and (uv := self._uv()):
            return f"{uv} pip install --python {self._quoted(python)} {name}"
        if (
            pip is not None
            or not known
            or _config(prefix).get("include-system-site-packages") == "true"
        ):
            return by_pip
        home = os.path.dirname(
            _config(prefix).get("home", "") or os.path.join(prefix, "bin")
        )
        if any(Path(home).glob("lib*/python3*/ensurepip")):
            return f"{self._quoted(python)} -m ensurepip && {by_pip}"
        return ""

    def _uv(self) -> str:
        """Return how uv is called: by its name, or by its path where it was installed; '' for none."""
        if shutil.which("uv", path=self.search):
            return "uv"
        places = [
            os.path.expanduser(f"~/{folder}/uv")
            for folder in (".local/bin", ".cargo/bin")
        ]
        return next(
            (shlex.quote(_text(path)) for path in places if os.access(path, os.X_OK)),
            "",
        )

    def _quoted(self, path: str) -> str:
        """Return a path for a shell in the project's root. Links stay: behind `.venv/bin/python` is another Python."""
        path = os.path.normpath(path)
        for base in (self.given, self.root):
            if path.startswith(base.rstrip("/") + "/"):
                path = os.path.relpath(path, base)
        return shlex.quote(_text(path))


def _config(prefix: str) -> dict[str, str]:
    """Return what pyvenv.cfg says of a virtual environment; nothing where there is none."""
    lines = [
        line.partition("=")
        for line in _read(os.path.join(prefix, "pyvenv.cfg")).splitlines()
    ]
    return {key.strip().lower(): value.strip() for key, _, value in lines}


def _folders(path: Sequence[str], cwd: str) -> list[str]:
    return [os.path.join(cwd, entry) for entry in path if _usable(entry, cwd)]


def _listed(folder: str) -> list[str] | None:
    """Return the names in a folder of sys.path; None where only the kernel knows: an archive, no access, too many."""
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in islice(found, LISTED)]
    except FileNotFoundError:
        return []
    except OSError:  # a file is an archive; below one, there is no folder
        return None
    return names if len(names) < LISTED else None


def _usable(*paths: str) -> bool:
    """Tell whether the system takes these as paths at all."""
    try:
        return all(b"\0" not in os.fsencode(path) for path in paths)
    except UnicodeEncodeError:
        return False


def _text(path: str) -> str:
    """Return a path as text that can be written: a name may be no text at all."""
    return os.fsencode(path).decode("utf-8", "replace")


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _read(path: str) -> str:
    """Return the beginning of a file, '' where there is none."""
    if os.path.isfile(path) and not os.path.islink(path):  # a pipe would hang
        with (
            suppress(OSError),
            open(path, encoding="utf-8", errors="replace") as stream,
        ):
            return stream.read(READ)
    return ""
