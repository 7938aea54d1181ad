"""Renamed notebooks: detection, and the move of their sessions to the new names.

A session keeps its kernel, journal and stop. `rename_search` describes how renamed
notebooks are recognized. Kernel records, journals and figures don't move on disk:
`renames_file` maps the new name to their store.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stepper.common.errors import NotebookError
from stepper.common.paths import Paths
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.daemon.workspace.notebook_records import NotebookRecords
from stepper.daemon.workspace.rename_search import RenameSearch
from stepper.messages import external_changes as messages
from stepper.notebooks.file_state import FileState, read_file_state
from stepper.policy import journal_events, notebook_identity
from stepper.policy.model import Cell
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now

# The minimum pause after a search that found no notebook, in seconds.
SEARCH_PAUSE = 0.5
# The minimum pause as a multiple of the duration of the search.
SEARCH_PAUSE_FACTOR = 20


class CheckedFile(NamedTuple):
    """The state of a notebook's file at the last check for a rename."""

    state: FileState
    cell_ids: frozenset[str]  # the ids of its code cells


class RenameNotice(NamedTuple):
    """A notice that a notebook was probably renamed.

    The notice is valid while `next_run` is the number of the notebook's next run.
    """

    text: str
    next_run: int


class RenamedNotebooks:
    """Detects renamed notebooks, and moves their sessions to the new names."""

    def __init__(
        self,
        paths: Paths,
        notebook_paths: NotebookPaths,
        sessions: dict[str, Session],
        open_session: Callable[[str, str], Session],
        get_launch_config: Callable[..., LaunchConfig],
        rename_currents: Callable[[Mapping[str, str]], None],
    ) -> None:
        self.paths = paths
        self.notebook_paths = notebook_paths
        self.sessions = sessions
        self.records = NotebookRecords(paths, notebook_paths, sessions, open_session)
        self.search = RenameSearch(self.records)
        self._get_launch_config = get_launch_config
        self._rename_currents = rename_currents
        # The keys of the following dictionaries are notebook names.
        self.uncertain_renames: dict[str, RenameNotice] = {}
        self._checked_files: dict[str, CheckedFile] = {}
        self._next_searches: dict[str, float] = {}  # the times of the next searches

    # Notebooks whose file exists.

    def update_session(self, session: Session) -> None:
        """Detect whether another notebook was renamed to the path of a session.

        If so, move the session of the renamed notebook to this path. The first check of
        a notebook that was renamed earlier adds the notice of the rename again. A call
        is cheap unless the file has changed since the last call.
        """
        file_state = read_file_state(session.file.path)
        if file_state is None or file_state == session.file.last_written:
            return
        self._next_searches.pop(session.name, None)
        last_check = self._checked_files.get(session.name)
        if self._is_known_file(session, file_state, last_check):
            return
        if last_check is None and session.state.renamed_from:
            session.notices.add(self._format_renamed(session))
        try:
            cells = session.file.read().cells
        except NotebookError:  # the next run reports it
            return
        ids = frozenset(cell.id for cell in cells if cell.is_code)
        if session.name in self.sessions:
            self._checked_files[session.name] = CheckedFile(file_state, ids)
        if self._may_be_renamed(session, ids, last_check):
            self._match_with_session(session, cells)

    def _is_known_file(
        self,
        session: Session,
        file_state: FileState,
        last_check: CheckedFile | None,
    ) -> bool:
        """Return whether a notebook is the file that was last checked or written.

        The file's contents may have been changed in place.
        """
        known_inodes = []
        if session.file.last_written is not None:
            known_inodes.append(session.file.last_written.inode)
        if last_check is not None:
            if last_check.state == file_state:
                return True
            known_inodes.append(last_check.state.inode)
        has_known_inode = file_state.inode in known_inodes
        return has_known_inode and _was_written_in_place(session.file.path)

    def _may_be_renamed(
        self,
        session: Session,
        cell_ids: frozenset[str],
        last_check: CheckedFile | None,
    ) -> bool:
        """Return whether the cells of a notebook may have run in another session."""
        if not cell_ids:
            return False
        run_cells = notebook_identity.list_run_hashes(session.state)
        if run_cells:
            return cell_ids.isdisjoint(run_cells)
        if self.records.has_kernel(session):
            return False
        return last_check is None or last_check.cell_ids.isdisjoint(cell_ids)

    def _match_with_session(self, session: Session, cells: Sequence[Cell]) -> None:
        """Move sessions whose notebooks were renamed.

        If another session ran `cells`, move that session to the path of `session`. If
        the notebook of `session` was renamed, too, move `session` to its new path.

        If the first match is uncertain, move `session` to a free name if cells ran in
        it, and call `_notify_of_possible_rename` for the session of the path.
        """
        hashes = notebook_identity.hash_code_cells(cells)
        if not hashes:
            return
        path = session.file.path
        has_run = bool(notebook_identity.list_run_hashes(session.state))
        former = self.search.find_former_session(path, hashes)
        moves: dict[str, Session] = {}
        if former is not None:
            is_certain = former.is_only_match and self.search.is_certain(
                former.session, path, hashes
            )
            if not is_certain:
                own_session = self._set_aside(session) if has_run else session
                self._notify_of_possible_rename(own_session, former.session)
                return
            moves[path] = former.session
        if has_run:
            new_path = self.search.find_new_path(session, excluded=path)
            if new_path is not None:
                moves[new_path] = session
        if moves:
            self._move_sessions(moves)

    def _set_aside(self, session: Session) -> Session:
        """Move the session of a replaced notebook to a free name.

        Return the new session of the path, or `session` if the move fails.
        """
        path = session.file.path
        free_path = self._find_free_path(path)
        if not self._move_sessions({free_path: session}):
            return session
        return self.records.open_session(path)

    def _notify_of_possible_rename(self, session: Session, former: Session) -> None:
        """Add a notice that the notebook of `session` was probably renamed.

        If the notebook of `former` is stopped, also stop the notebook of `session`. Do
        nothing if the notebook of `session` is only a copy.
        """
        if self.search.is_copy(session.file.path, former):
            return
        has_kernel = self.records.has_kernel(former)
        notice = messages.format_maybe_renamed(session.name, former.name, has_kernel)
        next_run = session.state.next_run
        self.uncertain_renames[session.name] = RenameNotice(notice, next_run)
        session.notices.add(notice)
        stop = former.state.stop
        if stop is None or session.state.stop is not None:
            return
        event = journal_events.Stopped(
            at=format_now(),
            key=None,
            cell_id="",
            block=stop.block,
            error=stop.error,
        )
        session.journal.log(event)

    def get_notice(self, session: Session) -> str:
        """Return the notice that a notebook was renamed or probably renamed.

        Return an empty string if the notebook was not renamed. A notice about a
        probable rename is returned only until the next run.
        """
        uncertain = self.uncertain_renames.get(session.name)
        if uncertain is not None and uncertain.next_run == session.state.next_run:
            return uncertain.text
        if not session.state.renamed_from:
            return ""
        return self._format_renamed(session)

    # Notebooks whose file is missing.

    def resolve_name(self, name: str) -> str:
        """Return the current name of a notebook, which may have been renamed.

        If the notebook's file is missing but is found under another name, move the
        notebook's session to that name.
        """
        path = self._join(name)
        if os.path.lexists(path):
            self._next_searches.pop(name, None)
            return name
        if time.monotonic() >= self._get_next_search(name):
            session = self.records.get_session(path)
            if self.follow_missing(session):
                return session.name
            # `follow_missing` may have set a later time.
            next_search = time.monotonic() + SEARCH_PAUSE
            self._next_searches[name] = max(next_search, self._get_next_search(name))
        new_name = self.notebook_paths.renames_file.get_new_name(name)
        if new_name is not None and os.path.lexists(self._join(new_name)):
            return new_name
        return name

    def follow_missing(self, session: Session) -> bool:
        """Search for the notebook of a session if its file is missing.

        If the notebook is found under another name, move the session to that name.
        Return whether the session was moved. Only the main thread moves sessions.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        if not notebook_identity.list_run_hashes(session.state):
            return False
        if os.path.lexists(session.file.path):
            return False
        started = time.monotonic()
        if started < self._get_next_search(session.name):
            return False
        new_path = self.search.find_new_path(session)
        if new_path is None:
            finished = time.monotonic()
            duration = finished - started
            pause = max(SEARCH_PAUSE, SEARCH_PAUSE_FACTOR * duration)
            self._next_searches[session.name] = finished + pause
            return False
        return self._move_sessions({new_path: session})

    def _get_next_search(self, name: str) -> float:
        """Return the time from which a missing notebook may be searched for again."""
        return self._next_searches.get(name, 0.0)

    def describe_uncovered(self, path: str) -> str:
        """Return a notice if an uncovered notebook was probably renamed.

        Return an empty string if no missing notebook contained any of its cells.
        """
        original = self.search.find_missing_original(path)
        if original is None:
            return ""
        return messages.format_renamed_outside(
            self.paths.relpath(path),
            self.paths.relpath(original),
        )

    # Moves of sessions.

    def _move_sessions(self, moves: Mapping[str, Session]) -> bool:
        """Move sessions to new paths.

        Sessions that are at the new paths move to free names first. Return False, and
        add a notice to each session, if `renamed.json` can't be written.
        """
        all_moves = {**moves, **self._set_aside_replaced(moves)}
        try:
            self._write_renames(all_moves)
        except OSError as error:
            reason = error.strerror or str(error)
            for session in all_moves.values():
                notice = messages.format_rename_failed(session.name, reason)
                session.notices.add(notice)
            return False
        former_names = {path: session.name for path, session in all_moves.items()}
        # First remove all sessions, because two notebooks may have swapped names.
        for former_name in former_names.values():
            self.sessions.pop(former_name, None)
            self._checked_files.pop(former_name, None)
        for path, session in all_moves.items():
            self._move_session(session, path)
        new_names = {
            former_name: self.paths.relpath(path)
            for path, former_name in former_names.items()
        }
        self._rename_currents(new_names)
        return True

    def _write_renames(self, moves: Mapping[str, Session]) -> None:
        """Add moves to the renames file; raise OSError if it can't be written."""
        renames_file = self.notebook_paths.renames_file
        stores = dict(renames_file.get_stores())
        new_stores = {}
        renamed = {}
        for path, session in moves.items():
            new_name = self.paths.relpath(path)
            new_stores[new_name] = self.notebook_paths.get_store(session.file.path)
            if os.path.lexists(path):
                renamed[session.name] = new_name
        for session in moves.values():
            stores.pop(session.name, None)
        stores.update(new_stores)
        for name, store in list(stores.items()):
            if self.notebook_paths.get_default_store(self._join(name)) == store:
                del stores[name]
        renames_file.replace(stores, renamed)

    def _set_aside_replaced(self, moves: Mapping[str, Session]) -> dict[str, Session]:
        """Return the moves for sessions that are at the target paths of `moves`.

        Each of these sessions gets a free name, so that users can shut down its kernel.
        """
        moving_names = {session.name for session in moves.values()}
        replaced_moves: dict[str, Session] = {}
        for path in moves:
            session = self.records.get_session(path)
            if session.name in moving_names:
                continue
            has_run = bool(self.records.get_run_hashes(path))
            if has_run or self.records.has_kernel(session):
                free_path = self._find_free_path(path)
                replaced_moves[free_path] = session
        return replaced_moves

    def _find_free_path(self, path: str) -> str:
        """Return an unused path for the session of a replaced notebook.

        An example is `NAME.replaced-1.ipynb`.
        """
        stores = self.notebook_paths.renames_file.get_stores()
        stem = path.removesuffix(".ipynb")
        for number in itertools.count(1):
            free_path = f"{stem}.replaced-{number}.ipynb"
            is_renamed = self.paths.relpath(free_path) in stores
            if not is_renamed and not os.path.lexists(free_path):
                break
        return free_path

    def _move_session(self, session: Session, path: str) -> None:
        """Give a session its new name, log the rename and add a notice.

        If there is no file at the new path, only give the session its new name.
        """
        former_name = session.name
        new_name = self.paths.relpath(path)
        session.move(new_name, path, partial(self._get_launch_config, path))
        self.sessions[new_name] = session
        self._next_searches.pop(new_name, None)
        if not os.path.lexists(path):  # the session's notebook was replaced
            return
        event = journal_events.Renamed(at=format_now(), former=former_name)
        session.journal.log(event)
        session.notices.add(self._format_renamed(session))

    def _format_renamed(self, session: Session) -> str:
        """Return the notice that the notebook of a session was renamed."""
        former_name = session.state.renamed_from
        former_folder = os.path.dirname(former_name)
        has_kernel = self.records.has_kernel(session)
        has_moved = former_folder != os.path.dirname(session.name)
        runs_in_folder = session.limits().kernel_cwd == "notebook"
        kernel_folder = ""
        if has_kernel and has_moved and runs_in_folder:
            kernel_folder = former_folder or "."
        return messages.format_renamed(
            session.name,
            former_name,
            kernel_folder,
            has_kernel=has_kernel,
            is_stopped=session.state.stop is not None,
        )

    def _join(self, name: str) -> str:
        """Return the path of a notebook by its name."""
        return os.path.join(self.paths.project, name)


def _was_written_in_place(path: str) -> bool:
    """Return whether the last change of a file changed its contents, not its name.

    A rename changes a file's inode change time, but not its modification time.
    """
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_ctime_ns == status.st_mtime_ns
