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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from stepper.diagnosis.definitions import defining, missing_folder
from stepper.diagnosis.distributions import CONDA
from stepper.diagnosis.tree import ENTRIES, SECONDS, TURN, Tree, distance, entries, likeness, walk

FRESH = 1.0  # seconds for which a walk serves: one fault asks several questions
FOUND, WRITTEN = 3, 20  # answers to a question
LISTED, LISTINGS = 100_000, 200  # names in a folder of sys.path, folders remembered
SETTLED = 2_000_000_000  # ns since a folder's last change, after which an equal time means an equal folder
TICK = 10_000_000  # ns: times of files come from a clock that stands still for up to a tick
READ = 1 << 20  # bytes of a file that is looked into
LONGEST = 4096  # a path that the system takes

PASSING = re.compile(r"\A\..*\.[0-9a-f]{8}\.tmp\Z|\.pyc\Z", re.DOTALL)  # stepper's own temporary files, and Python's

BONUS = 0.1  # for the same folder, and for the same extension, of names that are merely close


class Listing(NamedTuple):
    """A folder of sys.path."""

    mtime_ns: int
    names: set[str]  # before the first dot
    modules: set[str]  # those that are importable by their form
    finders: list[str]  # files of editable installs, which name modules that lie elsewhere


class Surroundings:
    """One project's. `search` is the PATH on which installers are looked for."""

    def __init__(self, project: str, search: str | None = None) -> None:
        self.given, self.root, self.search = os.path.abspath(project), os.path.realpath(project), search
        self._tree: tuple[float, Tree] | None = None
        self._listings: dict[str, Listing] = {}

    def named(self, folder: str) -> str:
        """Return a folder as reports name it: from the project's root where it lies inside."""
        real = os.path.realpath(folder)
        inside = real == self.root or real.startswith(self.root + os.sep)
        return _text(os.path.relpath(real, self.root) + os.sep if inside else real)

    def files(self) -> list[str]:
        """Return the project's files."""
        return self._walked().files

    def _walked(self, anew: bool = False) -> Tree:
        now = time.monotonic()
        if anew or self._tree is None or now - self._tree[0] > FRESH:
            self._tree = (now, walk(self.root))
        return self._tree[1]

    def paths_like(self, asked: str, cwd: str, count: int = FOUND) -> list[str]:
        """Return the existing paths nearest to one that is missing, as it would be written from `cwd`."""
        if not asked or len(asked) > LONGEST or not _usable(asked, cwd):
            return []
        here = os.path.realpath(cwd)
        spelled = asked if "/" in asked else asked.replace("\\", "/")  # as on Windows
        tree = self._walked()
        goal = Path(here, spelled)
        found = self._nearest(goal, [*tree.files, *tree.folders], count)
        for above in goal.parents[:FOUND]:  # where nothing is like the file, its folder may be misspelt
            if found or os.path.isdir(above):
                break
            found = self._nearest(above, tree.folders, count)
        if spelled != asked and os.path.isfile(goal):
            found = [str(goal)]
        return [_text(path if os.path.isabs(asked) else os.path.relpath(path, here)) for path in found]

    def _nearest(self, asked: Path, paths: Iterable[str], count: int) -> list[str]:
        folder, base = os.path.split(os.path.normpath(asked))
        parent, extension = os.path.relpath(os.path.realpath(folder), self.root), os.path.splitext(base)[1]
        goal = os.path.normpath(os.path.join(parent, base))
        by_name: dict[str, list[str]] = {}
        for path in paths:
            if path != goal:
                by_name.setdefault(os.path.basename(path), []).append(path)
        ranked = []
        for name, score in likeness(base, by_name).items():
            for path in by_name[name]:
                steps = distance(parent, os.path.dirname(path))
                bonus = BONUS * ((steps == 0) + (os.path.splitext(name)[1] == extension)) if score <= 1 else 0
                ranked.append((-score - bonus, steps, path))
        nearest = (os.path.join(self.root, path) for *_, path in sorted(ranked))
        # Still there, and no pipe, which would hang its reader.
        return list(islice((path for path in nearest if os.path.isfile(path) or os.path.isdir(path)), count))

    def defining(self, names: Sequence[str]) -> list[tuple[str, int, str]]:
        """Return which of the project's source files define one of the names: path, line, name."""
        return [(_text(path), line, name) for path, line, name in defining(self.root, self._walked().files, names)]

    def missing_folder(self, asked: str, cwd: str) -> tuple[str, str]:
        """Return the topmost folder of a path that is missing, and the one above it; '' for none."""
        return missing_folder(asked, cwd) if _usable(asked, cwd) else ("", "")

    def entries(self, folder: str, cwd: str) -> list[str]:
        """Return the names of what a folder holds, in order; empty where it can't be read."""
        return sorted(_text(entry.name) for entry in islice(entries(os.path.join(cwd, folder)), ENTRIES))

    def modules_like(self, name: str, cwd: str) -> list[tuple[str, str]]:
        """Return the local modules of exactly that name, and for each the folder that sys.path needs, from `cwd`.

        A module is written from the project's root, a package as its folder.
        """
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts) or not _usable(cwd):
            return []
        files, here, wanted = self._walked().files, os.path.realpath(cwd), "/".join(parts)
        modules = {path for path in files if path.endswith(".py")}
        packages = {os.path.dirname(path) for path in modules}  # Python takes those without __init__.py too
        found = []
        for path in modules | packages:
            bare = path.removesuffix(".py")
            if bare == wanted or bare.endswith("/" + wanted):
                folder = bare.removesuffix(wanted).rstrip("/")
                inner = f"{folder}/__init__.py" in modules  # a module of a package is rather imported as that
                found.append((inner, distance(os.path.relpath(here, self.root), folder), path, folder))
        return [
            (_text(path), _text(os.path.relpath(os.path.join(self.root, folder), here)))
            for *_, path, folder in sorted(found)[:FOUND]
        ]

    def written_since(self, when_ns: int, leave_out: Collection[str]) -> list[tuple[str, int]]:
        """Return the files written since then, the newest first, with their sizes.

        A file may carry the time of the tick before: what was written just before `when_ns` can be among them.
        """
        found = [
            (status.st_mtime_ns, path, status.st_size)
            for path, status in self._statuses(leave_out)
            if min(status.st_mtime_ns, status.st_ctime_ns) >= when_ns - TICK  # a time can be set, also to a future one
        ]
        return [(_text(path), size) for _, path, size in sorted(found, reverse=True)[:WRITTEN]]

    def changed_since(self, when_ns: int, leave_out: Collection[str], folders: Sequence[str]) -> bool:
        """Tell whether a file of the project, or one of `folders`, was written, moved or given other rights."""
        inside = self._statuses(leave_out)
        # A folder of the project changes whenever stepper writes its notebook: there, only the files count.
        walked = {os.path.join(self.root, folder) for folder in self._walked().folders} | {self.root}
        outside = {os.path.realpath(folder) for folder in folders if folder and _usable(folder)} - walked
        statuses = chain((status for _, status in inside), filter(None, map(_status, outside)))
        changed = any(
            status.st_ctime_ns >= when_ns for status in statuses
        )  # a file that was moved here keeps its mtime
        return changed or self._walked().cut

    def _statuses(self, leave_out: Collection[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the project's regular files as they are now: what a cell just wrote is not in an older walk."""
        left = {os.path.realpath(os.path.join(self.root, path)) for path in leave_out if _usable(path)}
        tree, until = self._walked(anew=True), time.monotonic() + SECONDS
        for number, path in enumerate(tree.files):
            if number % TURN == 0 and time.monotonic() > until:
                return
            whole = os.path.join(self.root, path)
            if whole in left or PASSING.search(os.path.basename(path)):
                continue
            status = _status(whole)
            if status and stat.S_ISREG(status.st_mode):
                yield path, status

    def findable(self, name: str, path: Sequence[str], cwd: str) -> bool:
        """Tell whether a kernel with that sys.path could import a module. In doubt: yes."""
        top = name.partition(".")[0]
        for folder in _folders(path, cwd):
            listing = self._listing(folder)
            if listing is None or top in listing.names:
                return True
            if any(top in _read(os.path.join(folder, finder)) for finder in listing.finders):
                return True
        return top in sys.stdlib_module_names  # the kernel's own are in its folders, but for those made of C

    def modules_close(self, name: str, path: Sequence[str], cwd: str, count: int = FOUND) -> list[str]:
        """Return importable top-level modules with names close to a missing one."""
        top = name.partition(".")[0]
        known = set(sys.stdlib_module_names)
        for folder in _folders(path, cwd):
            listing = self._listing(folder)
            known |= listing.modules if listing else set()
        folded = {one.casefold(): one for one in sorted(known) if one != top and not one.startswith("_")}
        return [_text(folded[one]) for one in get_close_matches(top[:100].casefold(), folded, count, cutoff=0.7)]

    def _listing(self, folder: str) -> Listing | None:
        """Return what a folder of sys.path holds; None where only the kernel knows: an archive, no access."""
        try:
            mtime = os.stat(folder).st_mtime_ns
            known = self._listings.get(folder)
            if known and known.mtime_ns == mtime:
                return known
            found = listing(folder, mtime)
        except FileNotFoundError:
            return Listing(0, set(), set(), [])
        except OSError:  # a file is an archive; below one, there is no folder
            return None
        # A change within the same tick as the last one would not be seen: only what has settled is remembered.
        if found and time.time_ns() - mtime > SETTLED:
            if len(self._listings) >= LISTINGS:
                self._listings.clear()
            self._listings[folder] = found
        return found

    def install_command(self, python: str, distribution: str) -> str:
        """Return the command that installs a distribution for the project's kernels, to be run from its root.

        What records the dependency goes before what only installs, where it installs into this environment.
        """
        python = os.path.join(self.root, python)
        prefix = os.path.dirname(os.path.dirname(python))
        name = shlex.quote(distribution)
        if os.path.isdir(os.path.join(prefix, "conda-meta")):
            name = shlex.quote(CONDA.get(distribution, distribution).lower())  # conda knows no capitals
            return f"conda install --prefix {self._quoted(prefix)} {name}"
        own = os.path.realpath(prefix) == os.path.realpath(os.path.join(self.root, ".venv"))
        uv = self._runs("uv")
        if own and uv and self._is_uvs():
            return f"uv add {name}"
        for manager, there in (("poetry", own or "pypoetry" in Path(prefix).parts), ("pdm", own)):
            if there and os.path.isfile(os.path.join(self.root, f"{manager}.lock")) and self._runs(manager):
                return f"{manager} add {name}"
        if uv and lacks_pip(prefix):
            return f"uv pip install --python {self._quoted(python)} {name}"
        return f"{self._quoted(python)} -m pip install {name}"

    def _is_uvs(self) -> bool:
        if os.path.isfile(os.path.join(self.root, "uv.lock")):
            return True
        text = _read(os.path.join(self.root, "pyproject.toml"))  # may be without a project, which `uv add` needs
        return all(re.search(rf"^\s*\[\[?\s*{table}\s*[].]", text, re.M) for table in (r"tool\s*\.\s*uv", "project"))

    def _runs(self, command: str) -> bool:
        return shutil.which(command, path=self.search) is not None

    def _quoted(self, path: str) -> str:
        """Return a path for a shell in the project's root. Links stay: behind `.venv/bin/python` is another Python."""
        path = os.path.normpath(path)
        for base in (self.given, self.root):
            if path.startswith(base.rstrip("/") + "/"):
                path = os.path.relpath(path, base)
        return shlex.quote(_text(path))


def listing(folder: str, mtime_ns: int) -> Listing | None:
    """Return what a folder holds; None where it is too much."""
    found = Listing(mtime_ns, set(), set(), [])
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= LISTED:
                return None
            top, _, ending = entry.name.partition(".")
            found.names.add(top)
            if top.isidentifier() and (entry.name.endswith((".py", ".so")) if ending else entry.is_dir()):
                found.modules.add(top)
            if "editable" in entry.name and ending == "py":
                found.finders.append(entry.name)
    return found


def lacks_pip(prefix: str) -> bool:
    """Tell whether an environment was made by uv, or pip can't run in it."""
    text = _read(os.path.join(prefix, "pyvenv.cfg"))
    if re.search(r"^uv\s*=", text, re.M):
        return True
    if re.search(r"^include-system-site-packages\s*=\s*true", text, re.M | re.I):
        return False
    try:
        found = Path(prefix).glob("lib*/python3*/*-packages/pip")  # site-packages, Debian's dist-packages
        return next(found, None) is None
    except OSError:
        return False


def _folders(path: Sequence[str], cwd: str) -> Iterator[str]:
    return (os.path.join(cwd, entry) for entry in path if _usable(entry, cwd))


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
    if os.path.isfile(path):  # a pipe would hang
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(READ)
    return ""
