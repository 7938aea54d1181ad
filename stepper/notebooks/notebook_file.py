"""Reads and writes a notebook file.

Every write reads the file again, finds the cells by id and source, and replaces the
file atomically. If another program wrote the file meanwhile, the write starts over. By
default, a write preserves the modification time, because Claude Code refuses to edit a
file that changed since its last `Read`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from stepper.common import secure_files
from stepper.common.errors import NotebookError
from stepper.common.text import shell_quote
from stepper.notebooks import background_io, cell_list_writer, jupyter_saves
from stepper.notebooks.cell_updates import (
    add_language_info_change,
    add_tag,
    add_widget_change,
    apply_execution,
    clear_outputs,
    get_run_signature,
    remove_tag,
    replace_id,
    replace_outputs,
)
from stepper.notebooks.file_exchange import (
    exchange_files,
    make_temporary_name,
    remove_file,
    remove_file_later,
    stat_file,
)
from stepper.notebooks.file_state import FileState, get_file_signature, get_file_state
from stepper.notebooks.notebook_document import Document, validate_notebook
from stepper.notebooks.notebook_json import (
    Change,
    Changes,
    apply_changes,
    load_json,
)
from stepper.policy import plan as plans
from stepper.policy.execution_result import CellVersion, Execution, Outputs, WidgetState
from stepper.policy.model import Cell, KernelMetadata, Plan

ATTEMPTS = 5  # of a write, if other programs write at the same time
# A file that is not valid JSON may be a save in progress if it was changed this
# recently.
FRESH_SECONDS = 2.0
# Pauses in seconds before an invalid file is read again.
PAUSES = (0.01, 0.02, 0.04, 0.06)
# How long late outputs are checked after they were written.
LATE_OUTPUT_SECONDS = 10.0
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# The reason if outputs can never be written.
CELL_CHANGED = (
    "the cell was changed or deleted while it ran, so its outputs were not written"
)
NEW_ID_LENGTH = 8  # hexadecimal digits


class LateOutputs(NamedTuple):
    """Late outputs that were written to a cell."""

    deadline: float  # when to stop checking them (monotonic clock)
    before: Any  # the outputs of the cell before the write
    outputs: Sequence[dict[str, Any]]  # the outputs that were written


class IpynbFile:
    """A notebook file on disk, with a cache of the document that was read last."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)
        # The inode number of the file when it was last read or written; 0 before.
        self.inode = 0
        # The state of the file after this object wrote it last.
        self.last_written: FileState | None = None
        self._relocate: Callable[[], bool] = lambda: False
        self._restore_slim_copy: Callable[[str], object] = lambda path: None
        self._cached_document: Document | None = None
        # The removal of the last write's temporary file.
        self._removal: Future[None] | None = None
        self._monitor = jupyter_saves.RecentWriteMonitor(
            self._restore_dropped_executions,
            self._nudge_jupyter,
        )
        # The last state in which the file contained all outputs that were written.
        self._written_state: FileState | None = None
        # The late outputs of the last seconds, and the last state in which the file
        # contained them.
        self._late: dict[CellVersion, LateOutputs] = {}
        self._late_state: FileState | None = None

    def set_relocate(self, relocate: Callable[[], bool]) -> None:
        """Set a function to call if the file is missing.

        `relocate` searches for the renamed file and returns whether `path` has changed.
        """
        self._relocate = relocate

    def set_restore(self, restore: Callable[[str], object]) -> None:
        """Set a function to call before each access to the file.

        `restore` puts the notebook back if a slim copy takes its place.
        """
        self._restore_slim_copy = restore

    def read(self, pauses: Sequence[float] = PAUSES) -> Document:
        """Read the notebook, or return the cached document if the file is unchanged.

        Raise NotebookError if the file cannot be read or is not a valid notebook. If
        the file was changed recently, invalid JSON is read again after the `pauses`.
        """
        self._restore_slim_copy(self.path)
        try:
            with open(self.path, "rb", opener=secure_files.open_regular) as stream:
                status = os.fstat(stream.fileno())
                self.inode = status.st_ino
                cached_document = self._cached_document  # another thread may replace it
                signature = get_file_signature(status)
                if (
                    cached_document is not None
                    and cached_document.signature == signature
                ):
                    return cached_document
                data = stream.read()
            raw = load_json(data)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._relocate():
                return self.read(pauses)
            raise self._make_read_error(error) from None
        except ValueError as error:
            # Jupyter writes notebooks in place, so a save may be in progress.
            if pauses and abs(time.time() - status.st_mtime) < FRESH_SECONDS:
                time.sleep(pauses[0])
                return self.read(pauses[1:])
            raise NotebookError(
                f"{self.name} is not valid JSON ({error})",
                f"python -m json.tool {shell_quote(self.path)}",
            ) from None
        validate_notebook(raw, self.path)
        document = Document(data, raw, status)
        self._cached_document = document
        return document

    def move(self, path: str) -> None:
        """Set the new path after the notebook was renamed; do not rename the file."""
        self.path = path
        self.name = os.path.basename(path)

    def _make_read_error(self, error: OSError) -> NotebookError:
        """Return a NotebookError that explains why the notebook cannot be read."""
        if isinstance(error, FileNotFoundError):
            return self._make_missing_error()
        if isinstance(error, secure_files.UnsafeFileError):
            return NotebookError(error.message, error.hint)
        reason = f"{self.name} cannot be read: {error.strerror}"
        if isinstance(error, IsADirectoryError):
            reason = f"{self.name} is a folder, not a notebook"
        return NotebookError(reason, f"ls -l {shell_quote(self.path)}")

    def _make_missing_error(self) -> NotebookError:
        """Return the error for a file that does not exist."""
        return NotebookError(f"{self.name} no longer exists", "git status")

    def read_uncached(self) -> Document:
        """Read the notebook without caching it, because an idle daemon must stay small.

        Raise NotebookError if the file cannot be read or is not a valid notebook.
        """
        document = self.read()
        self._cached_document = None
        return document

    def parse(self, text: str) -> Document:
        """Parse the text of a notebook file.

        Raise NotebookError if the text is not a valid notebook.
        """
        try:
            raw = load_json(text.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise NotebookError(f"{self.name} is not valid JSON ({error})") from None
        validate_notebook(raw, self.path)
        return Document(b"", raw)

    def write_execution(
        self,
        cell: Cell,
        execution: Execution,
        step: int | None,
        keep_time: bool,
    ) -> str:
        """Write outputs, execution count and timings to a cell.

        Return an empty string, or the reason if the outputs can never be written. Raise
        NotebookError if they cannot be written now. With `keep_time`, the modification
        time is preserved. `step` is the ID of the plan step that the cell belongs to.

        Late outputs of earlier runs of the cell are no longer checked. If a Jupyter
        server may have the notebook open, the new outputs are checked for some seconds.
        """
        target = CellVersion.from_cell(cell)
        self._late = {
            late_target: late
            for late_target, late in self._late.items()
            if late_target.cell_id != cell.id
        }
        change = partial(apply_execution, execution=execution, step=step)

        def get_changes(document: Document) -> Changes:
            """Return the changes of the cell, the widget state and the language.

            Return no changes if the document does not contain the cell.
            """
            index = document.find_index(target)
            if index is None:
                return {}
            cells = document.raw["cells"]
            changes = add_widget_change(cells, {index: change}, execution.widgets)
            language_info = execution.language_info
            return add_language_info_change(document.raw, changes, language_info)

        before = self._change(get_changes, keep_time).get_raw_cell(target)
        if before is None:
            return CELL_CHANGED
        if jupyter_saves.is_server_running(self.path):
            old_run = get_run_signature(before)
            write = jupyter_saves.RecentWrite(cell, execution, step, old_run)
            self._monitor.add(write)
        return ""

    def write_late_outputs(
        self,
        outputs: Outputs,
        models: WidgetState | None,
        so_far: Outputs,
    ) -> set[CellVersion]:
        """Write outputs that arrived after the runs of their cells.

        Also write the widget state (`models`, or None if it is unchanged) and the
        outputs of the cell that is still running (`so_far`). Return the cells of
        `outputs` that were changed or deleted. Raise NotebookError if the file cannot
        be read or written.
        """
        all_outputs = {**outputs, **so_far}

        def get_changes(document: Document) -> Changes:
            """Return the changes of the outputs and of the widget state."""
            changes: dict[int | str, Change] = {}
            for target, cell_outputs in all_outputs.items():
                index = document.find_index(target)
                if index is not None:
                    changes[index] = partial(replace_outputs, outputs=cell_outputs)
            return add_widget_change(document.raw["cells"], changes, models)

        document = self._change(get_changes)
        self._late_state = self._written_state
        deadline = time.monotonic() + LATE_OUTPUT_SECONDS
        missing_cells = set[CellVersion]()
        for target, cell_outputs in outputs.items():
            before = document.get_raw_cell(target)
            if before is None:
                missing_cells.add(target)
            else:
                late = LateOutputs(deadline, before.get("outputs"), cell_outputs)
                self._late[target] = late
        return missing_cells

    def find_dropped_outputs(self) -> dict[CellVersion, Sequence[dict[str, Any]]]:
        """Return recent late outputs that another program has removed from the file.

        This happens if a program read the file before the outputs were written, and
        saved it afterwards. Each state of the file is examined only once: the result is
        empty if the file has not changed since. Raise NotebookError if the file cannot
        be read.
        """
        now = time.monotonic()
        self._late = {
            target: late for target, late in self._late.items() if late.deadline > now
        }
        if not self._late:
            return {}
        document = self._read_if_changed(self._late_state)
        if document is None:
            return {}
        self._late_state = document.file_state
        dropped_outputs = {}
        for target, late in self._late.items():
            raw = document.get_raw_cell(target)
            if raw is not None and raw.get("outputs") == late.before:
                dropped_outputs[target] = late.outputs
        return dropped_outputs

    def replace_duplicate_ids(self) -> list[tuple[str, Cell]]:
        """Give new ids to cells that have the id of a cell above them.

        For each of these cells, return the old id and the cell with its new id. Raise
        NotebookError if the file cannot be read or written.
        """
        new_ids: dict[int, str] = {}

        def get_changes(document: Document) -> Changes:
            """Return the changes of duplicate ids, and store them in `new_ids`."""
            new_ids.clear()
            used_ids = set[str]()
            for cell in document.cells:
                if cell.id in used_ids:
                    new_ids[cell.index] = uuid.uuid4().hex[:NEW_ID_LENGTH]
                used_ids.add(cell.id)
            return {
                index: partial(replace_id, cell_id=cell_id)
                for index, cell_id in new_ids.items()
            }

        old_cells = self._change(get_changes).cells
        return [
            (cell.id, replace(cell, id=new_ids[cell.index]))
            for cell in old_cells
            if cell.index in new_ids
        ]

    def _restore_dropped_executions(
        self,
        writes: Sequence[jupyter_saves.RecentWrite],
    ) -> None:
        """Write outputs again that a save by Jupyter removed.

        Raise NotebookError if the file cannot be read or written.
        """
        document = self._read_if_changed(self._written_state)
        if document is None:
            return
        self._written_state = document.file_state
        for write in writes:
            raw = document.get_raw_cell(CellVersion.from_cell(write.cell))
            if raw is not None and get_run_signature(raw) == write.before:
                self.write_execution(
                    write.cell,
                    write.execution,
                    write.step,
                    keep_time=True,
                )

    def _nudge_jupyter(self) -> None:
        """Increase the modification time just enough for Jupyter to notice the write.

        Do nothing if another program has changed the file since the last write.
        """
        status = self._stat_if_unchanged(self._written_state)
        if status is None:
            return
        mtime_ns = status.st_mtime_ns + jupyter_saves.NOTICED_NS
        times = (status.st_atime_ns, mtime_ns)
        with (
            contextlib.suppress(OSError),
            secure_files.open_parent(self.path) as (folder, name),
        ):
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
            self._written_state = _get_state(name, folder)

    def _read_if_changed(self, state: FileState | None) -> Document | None:
        """Return the notebook if the file is no longer in a state, otherwise None."""
        if self._stat_if_unchanged(state) is not None:
            return None
        return self.read_uncached()

    def _stat_if_unchanged(self, state: FileState | None) -> os.stat_result | None:
        """Return the file's status if its state is still `state`, or None."""
        self._restore_slim_copy(self.path)
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        if get_file_state(status) == state:
            return status
        return None

    def read_outputs(self, target: CellVersion) -> list[dict[str, Any]]:
        """Return the outputs of a cell, with late outputs that were written recently.

        Return an empty list if the cell was changed or deleted. Raise NotebookError if
        the file cannot be read.
        """
        raw = self.read().get_raw_cell(target) or {}
        outputs = raw.get("outputs")
        late = self._late.get(target)
        is_recent = late is not None and late.deadline > time.monotonic()
        if late is not None and is_recent and outputs == late.before:
            # Another program dropped the late outputs; they will be written again.
            return [*late.outputs]
        if not isinstance(outputs, list):
            return []
        return [output for output in outputs if isinstance(output, dict)]

    def add_tag(self, cell: Cell, tag: str) -> None:
        """Add a tag to a cell, unless the cell was changed or deleted.

        Raise NotebookError if the file cannot be read or written.
        """
        self._change_cells([cell], partial(add_tag, tag=tag))

    def remove_tag(self, cell: Cell, tag: str) -> None:
        """Remove a tag from a cell, unless the cell was changed or deleted.

        Raise NotebookError if the file cannot be read or written.
        """
        self._change_cells([cell], partial(remove_tag, tag=tag))

    def clear_outputs(self, cells: Sequence[Cell]) -> None:
        """Remove the outputs of the code cells among `cells`.

        Late outputs of these cells are no longer checked. A cell that was changed or
        deleted meanwhile is ignored. Raise NotebookError if the file cannot be read or
        written.
        """
        code_cells = [cell for cell in cells if cell.is_code]
        targets = set(map(CellVersion.from_cell, code_cells))
        self._late = {
            target: late for target, late in self._late.items() if target not in targets
        }
        self._change_cells(code_cells, clear_outputs)

    def _change_cells(self, cells: Sequence[Cell], change: Change) -> None:
        """Apply a change to the cells that still exist with the same source."""
        targets = list(map(CellVersion.from_cell, cells))

        def get_changes(document: Document) -> Changes:
            """Return the change for each target that a document contains."""
            changes: dict[int | str, Change] = {}
            for target in targets:
                index = document.find_index(target)
                if index is not None:
                    changes[index] = change
            return changes

        self._change(get_changes)

    def write_plan(self, plan: Plan, kernel: KernelMetadata | None = None) -> None:
        """Write the plan to `metadata.stepper`.

        With `kernel`, also write the metadata by which Jupyter selects the kernel.
        Raise NotebookError if the file cannot be read or written.
        """
        entries: dict[str, Any] = {"stepper": plans.to_json(plan)}
        if kernel is not None:
            entries["kernelspec"] = vars(kernel)
            entries["language_info"] = {"name": kernel.language}

        def update_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
            return {**metadata, **entries}

        self._change(lambda document: {"metadata": update_metadata})

    def rearrange_cells(
        self,
        order: Callable[[Sequence[Cell]], Sequence[Cell]],
    ) -> tuple[Sequence[Cell], list[Cell]]:
        """Replace the notebook's cells with the list that `order` returns for them.

        `order` is called again if another program wrote the file meanwhile. Return all
        cells after the write, and the new and changed cells among them. Raise the
        exceptions of `order`, and NotebookError if the file cannot be read or written.
        """
        changed_indices: list[int] = []

        def rewrite(document: Document) -> bytes | None:
            """Return the new bytes, and store the positions of changed cells."""
            cells = order(document.cells)
            changed_indices[:] = [
                index for index, cell in enumerate(cells) if cell not in document.cells
            ]
            return cell_list_writer.rewrite_cells(document, cells)

        self._rewrite(rewrite)
        cells = self.read().cells
        return cells, [cells[index] for index in changed_indices]

    def _change(
        self,
        get_changes: Callable[[Document], Changes],
        keep_time: bool = True,
    ) -> Document:
        """Apply changes to the file; return the document before the changes."""

        def rewrite(document: Document) -> bytes | None:
            """Return the new bytes, or None if there are no changes."""
            changes = get_changes(document)
            if not changes:
                return None
            return apply_changes(document.data, document.raw, changes)

        return self._rewrite(rewrite, keep_time)

    def _rewrite(
        self,
        rewrite: Callable[[Document], bytes | None],
        keep_time: bool = True,
    ) -> Document:
        """Write the bytes that `rewrite` returns; return the document before the write.

        If `rewrite` returns None, write nothing. If another program wrote the file
        meanwhile, start over. Raise NotebookError if the file cannot be read or
        written.
        """
        for _ in range(ATTEMPTS):
            document = self.read()
            data = rewrite(document)
            if data is None or self._write(document, keep_time, data):
                return document
        raise NotebookError(
            f"{self.name} was not written: another program keeps changing the file",
            f"lsof {shell_quote(self.path)}",
        )

    def _write(
        self,
        document: Document,
        keep_time: bool,
        data: bytes,
    ) -> bool:
        """Replace the file atomically; return whether it was replaced.

        Do not replace the file if another program has changed it since `document` was
        read. Raise NotebookError if the file cannot be written.
        """
        # An idle daemon must not hold notebooks in memory.
        self._cached_document = None
        try:
            with secure_files.open_parent(self.path) as (folder, name):
                return self._replace(folder, name, document, keep_time, data)
        except FileNotFoundError:
            raise self._make_missing_error() from None
        except OSError as error:
            folder_path = os.path.dirname(self.path)
            default_hint = f"ls -ld {shell_quote(folder_path)}"
            hint = getattr(error, "hint", "") or default_hint
            reason = f"{self.name} cannot be written: {error.strerror}"
            raise NotebookError(reason, hint) from error

    def _replace(
        self,
        folder: int,
        name: str,
        document: Document,
        keep_time: bool,
        data: bytes,
    ) -> bool:
        """Write data to a temporary file in an open folder, and exchange the files.

        Return whether the file was replaced; if so, store its new state. Do not replace
        the file if another program has changed it since `document` was read. The
        temporary file is removed in the background.
        """
        new_name = make_temporary_name(name)
        # The temporary file of the last write has the same name.
        if self._removal is not None:
            background_io.start_pending_jobs()
            wait([self._removal])
        status = stat_file(name, folder)
        remove_file(new_name, folder)
        try:
            handle = os.open(new_name, CREATE_FLAGS, 0o600, dir_fd=folder)
            with open(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(handle, stat.S_IMODE(status.st_mode))
                if keep_time:
                    self._preserve_time(handle, status, document)
                os.fsync(handle)
            current_status = stat_file(name, folder)
            if get_file_signature(current_status) != document.signature:
                return False
            if not exchange_files(new_name, name, folder):
                os.replace(new_name, name, src_dir_fd=folder, dst_dir_fd=folder)
            elif _get_state(new_name, folder) != document.file_state:
                # Another program wrote between the check and the exchange: restore its
                # file.
                exchange_files(new_name, name, folder)
                return False
            new_state = _get_state(name, folder)
            self._written_state = new_state
            self.last_written = new_state
            self.inode = new_state.inode
        finally:
            self._removal = remove_file_later(new_name, folder)
        return True

    def _preserve_time(
        self,
        handle: int,
        status: os.stat_result,
        document: Document,
    ) -> None:
        """Set the modification time of a new file (see `compute_preserved_mtime`)."""
        mtime_ns = jupyter_saves.compute_preserved_mtime(self.path, document.mtime_ns)
        os.utime(handle, ns=(status.st_atime_ns, mtime_ns))

    def touch(self) -> None:
        """Set the modification time to the current time, for programs that poll it.

        Raise NotebookError if this fails.
        """
        self._restore_slim_copy(self.path)
        try:
            with secure_files.open_parent(self.path) as (folder, name):
                os.utime(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            reason = (
                f"cannot set the modification time of {self.path}: {error.strerror}"
            )
            raise NotebookError(reason) from error


def _get_state(name: str, folder: int) -> FileState:
    """Return the state of a file in an open folder."""
    return get_file_state(stat_file(name, folder))
