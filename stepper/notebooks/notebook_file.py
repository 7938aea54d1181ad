"""Notebook files: read, put outputs on a cell by id and source on a fresh read, write atomically.

(A few lines over 300: one file, and all that is done to it.)
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from stepper.common import private_files
from stepper.common.errors import NotebookError
from stepper.notebooks import background_io, cell_reorder, jupyter_saves
from stepper.notebooks.atomic_write import (
    exchange_files,
    make_temporary_name,
    remove_file,
    remove_file_later,
    stat_file,
)
from stepper.notebooks.cell_json import (
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
from stepper.notebooks.document import Document, get_file_signature, validate_notebook
from stepper.notebooks.notebook_json import Change, Changes, apply_changes, load_json
from stepper.policy import plan as plans
from stepper.policy.model import Cell, Plan
from stepper.session.protocols import Execution, KernelMetadata, Models, Outputs, Target

ATTEMPTS = 5  # how often a write starts anew because somebody else wrote meanwhile
FRESH_SECONDS = 2.0  # since a file was written: what is no JSON may be a save half done
PAUSES = (0.01, 0.02, 0.04, 0.06)  # before it is read again, in seconds
# for which it is looked whether what came late still stands there
LATE_COUNTS_SECONDS = 10.0
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class IpynbFile:
    """A notebook on disk."""

    def __init__(self, path: str) -> None:
        self.path, self.name = path, os.path.basename(path)
        self._last: Document | None = None
        # whether the last write's temporary file is gone
        self._cleared: Future[None] | None = None
        # the file when it was known to hold what was put
        self._seen: tuple[int, ...] = ()
        self._watch = jupyter_saves.RecentWriteMonitor(self._look_after, self._nudge)
        # What came late and was put in the last seconds: until when it counts, what had
        # stood there, what stands there.
        self._late: dict[Target, tuple[float, Any, Sequence[dict[str, Any]]]] = {}
        self._late_seen: tuple[int, ...] = ()  # the file when it was known to hold that

    def read(self, pauses: Sequence[float] = PAUSES) -> Document:
        """Read it, or return what was read before where the file is still the same; raise NotebookError."""
        try:
            with open(self.path, "rb", opener=private_files.open_regular) as stream:
                about = os.fstat(stream.fileno())
                last = self._last  # another thread may read, too
                if last is not None and last.signature == get_file_signature(about):
                    return last
                data = stream.read()
                raw = load_json(data)
        except FileNotFoundError:
            raise self._gone() from None
        except IsADirectoryError:
            raise NotebookError(
                f"{self.name} is a folder, not a notebook", "ls -l " + self.path
            ) from None
        except private_files.UnsafeFileError as error:
            raise NotebookError(error.why, error.hint) from None
        except OSError as error:
            raise NotebookError(
                f"{self.name} can't be read: {error.strerror}", "ls -l " + self.path
            ) from error
        except ValueError as error:
            # Jupyter saves in place
            if pauses and abs(time.time() - about.st_mtime) < FRESH_SECONDS:
                time.sleep(pauses[0])
                return self.read(pauses[1:])
            hint = f"python -m json.tool {self.path}  # shows the place"
            raise NotebookError(
                f"{self.name} is not valid JSON ({error})", hint
            ) from None
        validate_notebook(raw, self.name)
        self._last = found = Document(data, raw, about)
        return found

    def read_uncached(self) -> Document:
        """Read it without keeping it: an idle daemon holds no notebook. Raise NotebookError."""
        document, self._last = self.read(), None
        return document

    def _gone(self) -> NotebookError:
        return NotebookError(
            f"{self.name} is gone", "git status  # was it moved or deleted?"
        )

    def parse(self, text: str) -> Document:
        """Return the notebook that the text would be; raise NotebookError."""
        try:
            raw = load_json(text.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise NotebookError(f"{self.name} is not valid JSON ({error})") from None
        validate_notebook(raw, self.name)
        return Document(b"", raw)

    def write_execution(
        self, cell: Cell, execution: Execution, step: int | None, keep_time: bool
    ) -> str:
        """Put outputs, execution count and timings on the cell; return '' or why they can never be put.

        With `keep_time` the file keeps its modification time: the client refuses the next edit of a message otherwise.
        """
        target = Target.of(cell)
        self._late = {
            late: told for late, told in self._late.items() if late.cell_id != cell.id
        }

        def changes(document: Document) -> Changes:
            index = document.find_index(target)
            if index is None:
                return {}
            made: Changes = {
                index: partial(apply_execution, execution=execution, step=step)
            }
            made_with_models = add_widget_change(
                document.raw["cells"], made, execution.widgets
            )
            return add_language_info_change(
                document.raw, made_with_models, execution.language_info
            )

        before = self._change(changes, keep_time).get_raw_cell(target)
        if before is None:
            return "the cell was changed or deleted while it ran, so its outputs were not written"
        if jupyter_saves.is_server_running(self.path):
            self._watch.add(
                jupyter_saves.RecentWrite(
                    cell, execution, step, get_run_signature(before)
                )
            )
        return ""

    def write_late_outputs(
        self, outputs: Outputs, models: Models | None, so_far: Outputs
    ) -> set[Target]:
        """Put what cells have got besides their runs, and what a running one has; return those gone or changed."""

        def changes(document: Document) -> Changes:
            places = [
                (document.find_index(target), shown)
                for target, shown in {**outputs, **so_far}.items()
            ]
            made: Changes = {
                index: partial(replace_outputs, outputs=shown)
                for index, shown in places
                if index is not None
            }
            return add_widget_change(document.raw["cells"], made, models)

        document, gone = self._change(changes), set[Target]()
        until, self._late_seen = time.monotonic() + LATE_COUNTS_SECONDS, self._seen
        for target, shown in outputs.items():
            before = document.get_raw_cell(target)
            if before is None:
                gone.add(target)
            else:
                self._late[target] = (until, before.get("outputs"), shown)
        return gone

    def find_dropped_outputs(self) -> dict[Target, Sequence[dict[str, Any]]]:
        """Return what came late and is gone again: who edits may not see what came between read and write."""
        self._late = {
            target: late
            for target, late in self._late.items()
            if late[0] > time.monotonic()
        }
        document = self._rewritten(self._late_seen) if self._late else None
        if document is None:
            return {}
        self._late_seen, found = document.signature[:3], {}
        for target, (_, before, after) in self._late.items():
            raw = document.get_raw_cell(target)
            if raw is not None and raw.get("outputs") == before:
                found[target] = after
        return found

    def replace_duplicate_ids(self) -> list[tuple[str, Cell]]:
        """Give cells with another one's id ids of their own, as nbformat does; return them with their former ids."""
        fresh: dict[int, str] = {}

        def changes(document: Document) -> Changes:
            seen = set[str]()
            fresh.clear()
            for cell in document.cells:
                if cell.id in seen:
                    fresh[cell.index] = uuid.uuid4().hex[:8]
                seen.add(cell.id)
            return {
                index: partial(replace_id, name=name) for index, name in fresh.items()
            }

        before = self._change(changes).cells
        mended = self.read().cells if fresh else ()
        return [(before[index].id, mended[index]) for index in fresh]

    def _look_after(self, puts: Sequence[jupyter_saves.RecentWrite]) -> None:
        """Put again what a save that had begun before has dropped; raise NotebookError."""
        document = self._rewritten(self._seen)
        if document is None:
            return
        self._seen = document.signature[:3]
        for put in puts:
            raw = document.get_raw_cell(Target.of(put.cell))
            if raw is not None and get_run_signature(raw) == put.before:
                self.write_execution(put.cell, put.execution, put.step, keep_time=True)

    def _nudge(self) -> None:
        """Have the time grow by what Jupyter notices."""
        if about := self._is_as(self._seen):
            with (
                contextlib.suppress(OSError),
                private_files.open_parent(self.path) as (folder, name),
            ):
                times = (
                    about.st_atime_ns,
                    about.st_mtime_ns + jupyter_saves.NOTICED_NS,
                )
                os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
                self._seen = get_file_signature(stat_file(name, folder))[:3]

    def _rewritten(self, seen: tuple[int, ...]) -> Document | None:
        """Return the notebook where somebody has written since it was seen; else nothing is read."""
        if self._is_as(seen):
            return None
        return self.read_uncached()

    def _is_as(self, seen: tuple[int, ...]) -> os.stat_result | None:
        """Return what is known of the file where it is as it was seen; None where it is not."""
        with contextlib.suppress(OSError):
            about = os.lstat(self.path)
            return about if seen == get_file_signature(about)[:3] else None
        return None

    def read_outputs(self, target: Target) -> list[dict[str, Any]]:
        """Return a cell's outputs, as read anew; empty where it is gone or changed. Raise NotebookError."""
        found = (self.read().get_raw_cell(target) or {}).get("outputs")
        until, before, after = self._late.get(target, (0.0, None, ()))
        if until > time.monotonic() and found == before:
            return [*after]  # it is put there again
        return (
            [one for one in found if isinstance(one, dict)]
            if isinstance(found, list)
            else []
        )

    def add_tag(self, cell: Cell, tag: str) -> None:
        """Add a tag to the cell; do nothing where it is gone. Raise NotebookError."""
        self._change_cells([cell], partial(add_tag, tag=tag))

    def remove_tag(self, cell: Cell, tag: str) -> None:
        """Remove a tag from the cell; do nothing if the cell no longer exists. Raise NotebookError."""
        self._change_cells([cell], partial(remove_tag, tag=tag))

    def clear_outputs(self, cells: Sequence[Cell]) -> None:
        """Take the outputs of code cells away; raise NotebookError."""
        code = [cell for cell in cells if cell.is_code]
        self._late = {
            late: told
            for late, told in self._late.items()
            if late not in map(Target.of, code)
        }
        self._change_cells(code, clear_outputs)

    def _change_cells(self, cells: Sequence[Cell], change: Change) -> None:
        targets = [Target.of(cell) for cell in cells]
        self._change(
            lambda document: {
                index: change
                for target in targets
                if (index := document.find_index(target)) is not None
            }
        )

    def write_plan(self, plan: Plan, kernel: KernelMetadata | None = None) -> None:
        """Put the plan into `metadata.stepper`, and what its kernel is where Jupyter has that; raise NotebookError."""
        told: dict[str, Any] = {"stepper": plans.to_json(plan)}
        if kernel is not None:
            told |= {
                "kernelspec": vars(kernel),
                "language_info": {"name": kernel.language},
            }
        self._change(
            lambda document: {"metadata": lambda metadata: {**metadata, **told}}
        )

    def rearrange_cells(
        self, order: Callable[[Sequence[Cell]], Sequence[Cell]]
    ) -> tuple[Sequence[Cell], list[Cell]]:
        """Write the cells in another order, with others among them; return all as they are then, and those others.

        `order` is called again where somebody else wrote meanwhile; what it raises is raised. The time is kept.
        """
        others: list[int] = []

        def arranged(document: Document) -> bytes | None:
            cells = order(document.cells)
            others[:] = [
                place for place, cell in enumerate(cells) if cell not in document.cells
            ]
            return cell_reorder.rewrite_cells(document, cells)

        self._rewrite(arranged)
        after = self.read().cells
        return after, [after[place] for place in others]

    def _change(
        self, changes: Callable[[Document], Changes], keep_time: bool = True
    ) -> Document:
        """Write what is to be changed of a fresh read; return what it was."""

        def changed(document: Document) -> bytes | None:
            made = changes(document)
            return apply_changes(document.data, document.raw, made) if made else None

        return self._rewrite(changed, keep_time)

    def _rewrite(
        self, change: Callable[[Document], bytes | None], keep_time: bool = True
    ) -> Document:
        """Write what a fresh read becomes, anew where somebody else wrote meanwhile; return what it was."""
        for _ in range(ATTEMPTS):
            document = self.read()
            data = change(document)
            if data is None or self._write(document, keep_time, data):
                return document
        raise NotebookError(
            "the notebook kept changing while stepper wrote to it", f"lsof {self.path}"
        )

    def _write(self, document: Document, keep_time: bool, data: bytes) -> bool:
        """Replace the file atomically; return False, with nothing done, where somebody else wrote meanwhile."""
        self._last = None  # not kept: an idle daemon holds no notebook
        try:
            with private_files.open_parent(self.path) as (folder, name):
                return self._exchange(folder, name, document, keep_time, data)
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            hint = getattr(error, "hint", "") or f"ls -ld {os.path.dirname(self.path)}"
            raise NotebookError(
                f"{self.name} can't be written: {error.strerror}", hint
            ) from error

    def _exchange(
        self, folder: int, name: str, document: Document, keep_time: bool, data: bytes
    ) -> bool:
        new = make_temporary_name(name)
        if self._cleared is not None:
            background_io.start_pending_jobs()
            wait([self._cleared])
        about = stat_file(name, folder)
        remove_file(new, folder)
        try:
            with open(os.open(new, NEW, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), stat.S_IMODE(about.st_mode))
                if keep_time:
                    times = (
                        about.st_atime_ns,
                        jupyter_saves.compute_preserved_mtime(
                            self.path, document.mtime_ns
                        ),
                    )
                    os.utime(stream.fileno(), ns=times)
                os.fsync(stream.fileno())
            if get_file_signature(stat_file(name, folder)) != document.signature:
                return False
            if not exchange_files(new, name, folder):
                os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            elif (
                get_file_signature(stat_file(new, folder))[:3] != document.signature[:3]
            ):
                # somebody wrote between the look and the swap: theirs stands again
                exchange_files(new, name, folder)
                return False
            self._seen = get_file_signature(stat_file(name, folder))[:3]
        finally:
            self._cleared = remove_file_later(new, folder)
        return True

    def touch(self) -> None:
        """Set the modification time to now, so that those who poll it notice what was written."""
        try:
            with private_files.open_parent(self.path) as (folder, name):
                os.utime(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            raise NotebookError(
                f"{self.path} can't be touched: {error.strerror}"
            ) from error
