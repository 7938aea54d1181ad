"""Renamed notebooks: a session goes on under the name that its notebook has now, with kernel, journal and stop.

A notebook is taken for a renamed one if its cell ids are those of a journal whose own notebook is gone, or holds none
of the cells that ran. No kernel record, journal or figure moves on disk: see `renames_file`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepper.common.errors import NotebookError, UsageError
from stepper.common.paths import Paths
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.messages import external_changes as messages
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events, notebook_identity
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session

GONE_MOST = 10  # journals of notebooks that are gone, those used last
REPLACED_MOST = 3  # journals whose notebook may have been replaced by another
SEARCH_SECONDS = 0.5  # for the notebook of a journal
SEARCH_PAUSE = 0.5  # after a search that found none
SEARCH_SHARE = 20  # how many times what such a search took is waited at least
READ_MOST = 200  # notebooks of one search
READ_LEAST = 20  # … whatever the time

Hashes = Mapping[str, str]
Signature = tuple[int, ...]


@dataclass(frozen=True)
class Checked:
    """What was known of a notebook's file when it was checked last."""

    signature: Signature
    cell_ids: frozenset[str]


class RenamedNotebooks:
    """Notices that notebooks were renamed, and has their sessions follow."""

    def __init__(
        self,
        paths: Paths,
        notebook_paths: NotebookPaths,
        sessions: dict[str, Session],
        open_session: Callable[[str, str], Session],
        place: Callable[..., LaunchConfig],
        rename_currents: Callable[[Mapping[str, str]], None],
    ) -> None:
        self.paths = paths
        self.notebook_paths = notebook_paths
        self.sessions = sessions
        self._open = open_session
        self._place_of = place
        self._rename_currents = rename_currents
        # notebook → the notice that it looks like a renamed one, which is not certain,
        # and its next run then
        self.notices: dict[str, tuple[str, int]] = {}
        self._checked: dict[str, Checked] = {}
        # a file's path → its signature and what was read of it then
        self._cells_read: dict[str, tuple[Signature, Hashes]] = {}
        self._ran_read: dict[str, tuple[Signature, Hashes]] = {}
        self._search_again: dict[str, float] = {}

    # --- contact with a notebook that is there

    def check(self, session: Session) -> None:
        """Have the session of a renamed notebook follow to this notebook's path, if it is one.

        Cheap unless the file changed since the last check.
        """
        path = session.file.path
        signature = _signature(path)
        before = self._checked.get(session.name)
        written = session.file.last_written
        if not signature or signature == written:
            return
        self._search_again.pop(session.name, None)
        if before and before.signature == signature:
            return
        numbers = (*written[:1], before and before.signature[0])
        if signature[0] in numbers and _is_written_in_place(path):
            return
        if before is None and session.state.renamed_from:
            session.add_notice(self._followed(session))
        try:
            cells = session.file.read().cells
        except NotebookError:  # the run that comes reports it
            return
        ids = frozenset(cell.id for cell in cells if cell.is_code)
        if session.name in self.sessions:
            self._checked[session.name] = Checked(signature, ids)
        ran = notebook_identity.list_run_hashes(session.state)
        if ran:
            if not ids or not ids.isdisjoint(ran):
                return
        elif (
            not ids
            or self._has_kernel(session)
            or (before and not before.cell_ids.isdisjoint(ids))
        ):
            return
        hashes = notebook_identity.hash_code_cells(cells)
        if hashes:
            self._place(session, hashes, bool(ran))

    def _place(self, session: Session, cells: Hashes, has_run: bool) -> None:
        """Find the session that belongs to the cells at a path, and the place of the one that was there."""
        path = session.file.path
        moves = dict[str, Session]()
        former, is_only = self._former(path, cells)
        if former is not None:
            if not (is_only and self._is_certain(former, path, cells)):
                self._notify(self._put_aside(session) if has_run else session, former)
                return
            moves[path] = former
        if has_run:
            home = self._home(session, besides=path)
            if home is not None:
                moves[home] = session
        if moves:
            self._follow(moves)

    def _former(self, besides: str, cells: Hashes) -> tuple[Session | None, bool]:
        """Return the session whose cells these are, if any, and whether no other may be it."""
        best, most, is_only = "", 0, False
        for path in self._displaced(besides):
            unchanged = notebook_identity.count_unchanged(cells, self._ran(path))
            if unchanged > most:
                best, most, is_only = path, unchanged, True
            elif unchanged and unchanged == most:
                is_only = False
        return (self._session(best) if best else None), is_only

    def _displaced(self, besides: str) -> Iterator[str]:
        """Yield the paths whose notebook is gone, or was replaced by another, and that have a session or journal."""
        opened = [session.file.path for session in self.sessions.values()]
        for path in opened:
            if path != besides and self._is_displaced(path):
                yield path
        gone, replaced = 0, 0
        for path in self._journals():
            if path in opened or path == besides:
                continue
            is_there = os.path.lexists(path)
            if gone >= GONE_MOST or (is_there and replaced >= REPLACED_MOST):
                continue
            gone, replaced = gone + (not is_there), replaced + is_there
            if self._is_displaced(path):
                yield path

    def _is_displaced(self, path: str) -> bool:
        session = self.sessions.get(self.paths.relpath(path))
        number = session.file.inode if session is not None else 0
        if number and number == _number(path):
            return False
        ran = self._ran(path)
        if not ran or not os.path.lexists(path):
            return bool(ran)
        cells = self._cells(path)
        return cells is not None and notebook_identity.is_different_notebook(cells, ran)

    def _journals(self) -> list[str]:
        """Return the paths of the notebooks that have a journal, the last used first."""
        root = self.paths.journals
        found = list[tuple[float, str]]()
        for folder, _, names in os.walk(root):
            for name in names:
                if not name.endswith(".jsonl"):
                    continue
                file = os.path.join(folder, name)
                store = Path(os.path.relpath(file, root)).with_suffix(".ipynb")
                with contextlib.suppress(OSError):
                    path = self.notebook_paths.get_path_of_store(str(store))
                    found.append((os.stat(file).st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _is_certain(self, former: Session, path: str, cells: Hashes) -> bool:
        """Return whether no other notebook may be the renamed one as well: a copy has the same cells.

        The file's number decides where it is known: a rename keeps it.
        """
        number = former.file.inode
        if number and number == _number(path):
            return True
        rivals = self._homes(former, besides=path)
        if number and any(_number(rival) == number for rival in rivals):
            return False
        ran = notebook_identity.list_run_hashes(former.state)
        own = notebook_identity.count_unchanged(cells, ran)
        return all(unchanged < own for unchanged in rivals.values())

    def _put_aside(self, session: Session) -> Session:
        """Have the session of a notebook that was replaced go on under a name of its own; return one for the path."""
        name, path = session.name, session.file.path
        if not self._follow({next(self._replaced_names(path)): session}):
            return session
        self.sessions[name] = self._open(name, path)
        return self.sessions[name]

    def _notify(self, session: Session, former: Session) -> None:
        """Have it said that a notebook looks like a renamed one. The stop of that one holds here as well."""
        path, number = session.file.path, former.file.inode
        if number and number != _number(path):
            homes = self._homes(former, besides=path)
            if any(_number(home) == number for home in homes):
                return  # this one is the copy
        notice = messages.format_maybe_renamed(
            session.name, former.name, self._has_kernel(former)
        )
        self.notices[session.name] = notice, session.state.next_run
        session.add_notice(notice)
        stop = former.state.stop
        if stop is not None and session.state.stop is None:
            session.log(
                journal_events.Stopped(
                    at=format_now(),
                    key=None,
                    cell_id="",
                    block=stop.block,
                    error=stop.error,
                )
            )

    def notice(self, session: Session) -> str:
        """Return that a notebook was renamed, or looks so, '' once a cell of it has run since."""
        text, next_run = self.notices.get(session.name, ("", 0))
        if text and session.state.next_run == next_run:
            return text
        return self._followed(session) if session.state.renamed_from else ""

    # --- contact with a notebook that is gone

    def current_name(self, name: str) -> str:
        """Return the name that a notebook has now: another one where it was renamed."""
        path = os.path.join(self.paths.project, name)
        if os.path.lexists(path):
            self._search_again.pop(name, None)
            return name
        if time.monotonic() >= self._search_again.get(name, 0.0):
            session = self._session(path)
            if self.find(session):
                return session.name
            again = time.monotonic() + SEARCH_PAUSE
            self._search_again[name] = max(again, self._search_again.get(name, 0.0))
        renamed = self.notebook_paths.renames_file.get_new_name(name) or name
        is_there = os.path.lexists(os.path.join(self.paths.project, renamed))
        return renamed if is_there else name

    def find(self, session: Session) -> bool:
        """Have a session whose notebook is gone follow it to its new name; return whether it did."""
        name, path = session.name, session.file.path
        if threading.current_thread() is not threading.main_thread():
            return False
        if not notebook_identity.list_run_hashes(session.state) or os.path.lexists(
            path
        ):
            return False
        began = time.monotonic()
        if began < self._search_again.get(name, 0.0):
            return False
        home = self._home(session)
        if home is None:
            done = time.monotonic()
            pause = max(SEARCH_PAUSE, SEARCH_SHARE * (done - began))
            self._search_again[name] = done + pause
            return False
        return self._follow({home: session})

    def _home(self, session: Session, besides: str = "") -> str | None:
        """Return the path where a session's notebook is now, None where it is not found or several may be it."""
        homes = self._homes(session, besides)
        number = session.file.inode
        same = [path for path in homes if number and _number(path) == number]
        if same:
            return same[0]
        most = max(homes.values(), default=0)
        best = [path for path, unchanged in homes.items() if unchanged == most]
        return best[0] if len(best) == 1 else None

    def _homes(self, session: Session, besides: str = "") -> dict[str, int]:
        """Return the notebooks that may be a session's, with how many cells are as they ran."""
        ran = notebook_identity.list_run_hashes(session.state)
        until = time.monotonic() + SEARCH_SECONDS
        homes = dict[str, int]()
        for count, path in enumerate(self._near(session.file.path)):
            if count >= READ_LEAST and time.monotonic() > until:
                break
            if path in (session.file.path, besides):
                continue
            cells = self._cells(path) or {}
            unchanged = notebook_identity.count_unchanged(cells, ran)
            if unchanged and not self._is_taken(path, cells):
                homes[path] = unchanged
        return homes

    def _near(self, path: str) -> list[str]:
        """Return the covered notebooks of that folder and of the last search, those changed last first."""
        places, project = self.notebook_paths, self.paths.project
        known = (os.path.join(project, name) for name in places.list_known())
        names = list[str]()
        folder = os.path.dirname(path)
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(folder) if name.endswith(".ipynb")]
        found = dict[str, int]()
        for each in {*known, *(os.path.join(folder, name) for name in names)}:
            with contextlib.suppress(OSError, UsageError):
                resolved = places.resolve(each)
                found[resolved] = os.stat(resolved).st_ctime_ns
        return sorted(found, key=lambda each: found[each], reverse=True)[:READ_MOST]

    def _is_taken(self, path: str, cells: Hashes) -> bool:
        """Return whether a session of its own belongs to the notebook at a path."""
        ran = self._ran(path)
        if ran:
            return not notebook_identity.is_different_notebook(cells, ran)
        return self._has_kernel(self._session(path))

    def describe_uncovered(self, path: str) -> str:
        """Return that a notebook that no pattern covers looks like a renamed one, '' where it does not."""
        cells = self._cells(path)
        if not cells:
            return ""
        best, most = "", 0
        gone = (each for each in self._journals() if not os.path.lexists(each))
        for former in itertools.islice(gone, GONE_MOST):
            unchanged = notebook_identity.count_unchanged(cells, self._ran(former))
            if unchanged > most:
                best, most = self.paths.relpath(former), unchanged
        name = self.paths.relpath(path)
        return messages.format_renamed_outside(name, best) if best else ""

    # --- a session follows

    def _follow(self, moves: dict[str, Session]) -> bool:
        """Have sessions go on at other paths; return whether they did.

        A session that was at such a path keeps its journal and kernel under a name of its own.
        """
        places, project = self.notebook_paths, self.paths.project
        moves = {**moves, **self._replaced(moves)}
        stores = {
            path: places.get_store(session.file.path) for path, session in moves.items()
        }
        names = dict(places.renames_file.get_stores())
        for session in moves.values():
            names.pop(session.name, None)
        for path, store in stores.items():
            names[self.paths.relpath(path)] = store
        names = {
            name: store
            for name, store in names.items()
            if places.get_default_store(os.path.join(project, name)) != store
        }
        try:
            renamed = {
                session.name: self.paths.relpath(path)
                for path, session in moves.items()
                if os.path.lexists(path)
            }
            places.renames_file.replace(names, renamed)
        except OSError as error:
            for session in moves.values():
                session.add_notice(
                    messages.format_rename_failed(
                        session.name, error.strerror or str(error)
                    )
                )
            return False
        before = {path: session.name for path, session in moves.items()}
        for name in before.values():
            self.sessions.pop(name, None)
            self._checked.pop(name, None)
        for path, session in moves.items():
            self._move(session, path, before[path])
        self._rename_currents(
            {old: self.paths.relpath(path) for path, old in before.items()}
        )
        return True

    def _replaced(self, moves: Mapping[str, Session]) -> dict[str, Session]:
        """Return the sessions that others take the path of, by the names under which they can be ended."""
        moving = [each.name for each in moves.values()]
        replaced = dict[str, Session]()
        for path in moves:
            session = self._session(path)
            is_used = bool(self._ran(path)) or self._has_kernel(session)
            if session.name in moving or not is_used:
                continue
            replaced[next(self._replaced_names(path))] = session
        return replaced

    def _replaced_names(self, path: str) -> Iterator[str]:
        """Yield free paths for the session of a notebook that was replaced."""
        names = self.notebook_paths.renames_file.get_stores()
        stem = path.removesuffix(".ipynb")
        for number in itertools.count(1):
            free = f"{stem}.replaced-{number}.ipynb"
            is_named = self.paths.relpath(free) in names
            if not is_named and not os.path.lexists(free):
                yield free

    def _move(self, session: Session, path: str, former: str) -> None:
        name = self.paths.relpath(path)
        session.move(name, path, partial(self._place_of, path))
        self.sessions[name] = session
        self._search_again.pop(name, None)
        if not os.path.lexists(path):  # it was replaced
            return
        session.log(journal_events.Renamed(at=format_now(), former=former))
        session.add_notice(self._followed(session))

    def _followed(self, session: Session) -> str:
        """Return the notice that a session followed its notebook."""
        former = session.state.renamed_from
        moved_folder = os.path.dirname(former) != os.path.dirname(session.name)
        has_kernel = self._has_kernel(session)
        folder = ""
        if moved_folder and has_kernel and session.limits().kernel_cwd == "notebook":
            folder = os.path.dirname(former) or "."
        is_stopped = session.state.stop is not None
        return messages.format_renamed(
            session.name, former, has_kernel, is_stopped, folder
        )

    def _has_kernel(self, session: Session) -> bool:
        if session.kernel_manager.kernel is not None:
            return True
        store = self.notebook_paths.get_store(session.file.path)
        return os.path.lexists(os.path.join(self.paths.kernels, f"{store}.json"))

    def _cells(self, path: str) -> Hashes | None:
        """Return the code cells of a file with their hashes, None where it can't be read."""
        signature = _signature(path)
        known = self._cells_read.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        try:
            cells = IpynbFile(path).read_uncached().cells
        except NotebookError:
            return None
        hashes = notebook_identity.hash_code_cells(cells)
        if len(self._cells_read) > READ_MOST:
            self._cells_read.clear()
        self._cells_read[path] = signature, hashes
        return hashes

    def _ran(self, path: str) -> Hashes:
        """Return the cells that ran in the notebook of a path, by its session or journal."""
        session = self.sessions.get(self.paths.relpath(path))
        if session is not None:
            return notebook_identity.list_run_hashes(session.state)
        store = self.notebook_paths.get_store(path)
        signature = _signature(os.path.join(self.paths.journals, f"{store}.jsonl"))
        known = self._ran_read.get(store)
        if known is not None and known[0] == signature:
            return known[1]
        hashes = dict[str, str]()
        if signature:
            hashes = notebook_identity.list_run_hashes(self._session(path).state)
        if len(self._ran_read) > READ_MOST:
            self._ran_read.clear()
        self._ran_read[store] = signature, hashes
        return hashes

    def _session(self, path: str) -> Session:
        """Return the session of a path; one that is not open is not kept."""
        name = self.paths.relpath(path)
        return self.sessions.get(name) or self._open(name, path)


def _signature(path: str) -> tuple[int, ...]:
    """Return what changes with a file's content or name, () where it is gone."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return (about.st_ino, about.st_size, about.st_mtime_ns)


def _is_written_in_place(path: str) -> bool:
    """Return whether a file was written since it had its name: a rename changes one of its two times alone."""
    try:
        about = os.stat(path)
    except OSError:
        return False
    return about.st_ctime_ns == about.st_mtime_ns


def _number(path: str) -> int:
    """Return the number of a file (its inode), 0 where it is gone."""
    return next(iter(_signature(path)), 0)
