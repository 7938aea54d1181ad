"""Notebook files: read, put outputs on a cell by id and source on a fresh read, write atomically.

nbformat makes and validates them off the hot path; here they are plain JSON. What is not touched keeps its bytes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from stepper.ground import private
from stepper.ground.errors import NotebookError
from stepper.notebook import jupyter
from stepper.notebook.document import Document, check, find, signature
from stepper.notebook.exchange import clear, look, remove, swap
from stepper.notebook.plainjson import Changes, load_json, rewrite
from stepper.notebook.rawcells import renamed, tagged, with_late, with_models, with_outputs, with_plan
from stepper.policy import plan as plans
from stepper.policy.changes import source_hash
from stepper.policy.model import Cell, Plan
from stepper.session.ports import Execution, Models, Target

ATTEMPTS = 5  # how often a write starts anew because somebody else wrote meanwhile
FRESH_SECONDS = 2.0  # since a file was written: what is no JSON may be a save half done
PAUSES = (0.01, 0.02, 0.04, 0.06)  # before it is read again, in seconds
LATE_COUNTS_SECONDS = 10.0  # for which it is looked whether what came late still stands there


class InvalidJsonError(NotebookError):
    """The file is no JSON; with `fresh` it may be half of a file that is being saved: Jupyter saves in place."""

    fresh = False


class IpynbFile:
    """A notebook on disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._last: Document | None = None
        self._cleared: Future[None] | None = None  # whether the last write's temporary file is gone
        self._seen: tuple[int, ...] = ()  # the file when it was known to hold what was put
        self._watch = jupyter.Watch(self._look_after, self._nudge)
        # What came late and was put in the last seconds: until when it counts, what had stood there, what stands there.
        self._late: dict[Target, tuple[float, Any, Sequence[dict[str, Any]]]] = {}
        self._late_seen: tuple[int, ...] = ()  # the file when it was known to hold that

    def read(self) -> Document:
        """Read it, or return what was read before where the file is still the same; raise NotebookError."""
        pauses = iter(PAUSES)
        while True:
            try:
                return self._read()
            except InvalidJsonError as error:
                pause = next(pauses, None)
                if pause is None or not error.fresh:
                    raise
                time.sleep(pause)

    def _read(self) -> Document:
        name = Path(self.path).name
        try:
            with open(self.path, "rb", opener=private.regular) as stream:
                about = os.fstat(stream.fileno())
                if self._last is not None and self._last.signature == signature(about):
                    return self._last
                data = stream.read()
                raw = load_json(data)
        except FileNotFoundError:
            raise NotebookError(f"{name} is gone", "git status  # was it moved or deleted?") from None
        except IsADirectoryError:
            raise NotebookError(f"{name} is a folder, not a notebook", "ls -l " + self.path) from None
        except private.PlaceError as error:
            raise NotebookError(error.why, error.hint) from None
        except OSError as error:
            raise NotebookError(f"{name} can't be read: {error.strerror}", "ls -l " + self.path) from error
        except ValueError as error:
            hint = f"python -m json.tool {self.path}  # shows the place"
            invalid = InvalidJsonError(f"{name} is not valid JSON ({error})", hint)
            invalid.fresh = abs(time.time() - about.st_mtime) < FRESH_SECONDS
            raise invalid from None
        check(raw, name)
        self._last = Document(data, raw, about)
        return self._last

    def parse(self, text: str) -> Document:
        """Return the notebook that the text would be; raise NotebookError."""
        name = Path(self.path).name
        try:
            raw = load_json(text.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise NotebookError(f"{name} is not valid JSON ({error})") from None
        check(raw, name)
        return Document(b"", raw)

    def put(self, cell: Cell, execution: Execution, step: int | None, keep_time: bool) -> str:
        """Put outputs, execution count and timings on the cell, by id and source, on a fresh read.

        With `keep_time` the file keeps its modification time (the client refuses the next edit of a message
        otherwise). Return '' or why they can never be put; raise NotebookError where they can't be put now.
        """
        for _ in range(ATTEMPTS):
            document = self.read()
            index = find(document, cell.id, source_hash(cell.source))
            if index is None:
                return "the cell was changed or deleted while it ran, so its outputs were not written"
            before = _run_of(document.raw["cells"][index])
            self._late = {target: late for target, late in self._late.items() if target.cell_id != cell.id}
            changes: Changes = {index: partial(with_outputs, execution=execution, step=step)}
            if self._write(document, keep_time, with_models(document.raw["cells"], changes, execution.widgets)):
                if jupyter.about(self.path):
                    self._watch.over(jupyter.Put(cell, execution, step, before))
                return ""
        raise self._kept_changing()

    def put_late(self, outputs: Mapping[Target, Sequence[dict[str, Any]]], models: Models | None) -> set[Target]:
        """Put what cells have got besides their runs, in one write; the file keeps its time.

        Return the cells that are gone or changed; raise NotebookError.
        """
        for _ in range(ATTEMPTS):
            document = self.read()
            places = {target: find(document, target.cell_id, target.source_hash) for target in outputs}
            changes: Changes = {index: partial(with_late, outputs=outputs[target])
                                for target, index in places.items() if index is not None}  # fmt: skip
            if (not changes and models is None) or self._write(
                document, True, with_models(document.raw["cells"], changes, models)
            ):
                until, self._late_seen = time.monotonic() + LATE_COUNTS_SECONDS, self._seen
                self._late |= {target: (until, document.raw["cells"][index].get("outputs"), outputs[target])
                               for target, index in places.items() if index is not None}  # fmt: skip
                return {target for target, index in places.items() if index is None}
        raise self._kept_changing()

    def dropped(self) -> dict[Target, Sequence[dict[str, Any]]]:
        """Return what came late and is gone again: who edits reads and then writes, and may not see what came between.

        Nothing is read where nobody has written since. Raise NotebookError.
        """
        now = time.monotonic()
        self._late = {target: late for target, late in self._late.items() if late[0] > now}
        if not self._late or self._is_as(self._late_seen):
            return {}
        document, found = self.read(), {}
        for target, (_, before, after) in self._late.items():
            index = find(document, target.cell_id, target.source_hash)
            if index is not None and document.raw["cells"][index].get("outputs") == before:
                found[target] = after
        self._last, self._late_seen = None, document.signature[:3]
        return found

    def _kept_changing(self) -> NotebookError:
        return NotebookError("the notebook kept changing while stepper wrote to it", f"lsof {self.path}")

    def mend_ids(self) -> list[tuple[str, Cell]]:
        """Give ids of their own to cells that have another one's, as nbformat does; return their former ids with them.

        Raise NotebookError where the file can't be read or written.
        """
        for _ in range(ATTEMPTS):
            document = self.read()
            seen, same = set[str](), list[int]()
            for cell in document.cells:
                same += [cell.index] if cell.id in seen else []
                seen.add(cell.id)
            if not same:
                return []
            fresh = {index: uuid.uuid4().hex[:8] for index in same}
            changes: Changes = {index: partial(renamed, name=name) for index, name in fresh.items()}
            if self._write(document, True, changes):
                mended = self.read().cells
                return [(document.cells[index].id, mended[index]) for index in same]
        raise self._kept_changing()

    def _look_after(self, puts: Sequence[jupyter.Put]) -> None:
        """Put again what a save that had begun before has dropped; raise NotebookError."""
        if self._is_as(self._seen):
            return
        document = self.read()
        self._last, self._seen = None, document.signature[:3]
        for put in puts:
            index = find(document, put.cell.id, source_hash(put.cell.source))
            if index is not None and _run_of(document.raw["cells"][index]) == put.before:
                self.put(put.cell, put.execution, put.step, keep_time=True)

    def _nudge(self) -> None:
        """Have the time grow by what Jupyter notices."""
        if about := self._is_as(self._seen):
            with contextlib.suppress(OSError), private.place(self.path) as (folder, name):
                times = (about.st_atime_ns, about.st_mtime_ns + jupyter.NOTICED_NS)
                os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
                self._seen = signature(look(name, folder))[:3]

    def _is_as(self, seen: tuple[int, ...]) -> os.stat_result | None:
        """Return what is known of the file where it is as it was seen; None where it is not."""
        with contextlib.suppress(OSError):
            about = os.lstat(self.path)
            return about if seen == signature(about)[:3] else None
        return None

    def outputs(self, cell: Cell) -> list[dict[str, Any]]:
        """Return a cell's outputs, as read anew; empty where it is gone. Raise NotebookError."""
        return self.outputs_of(Target(cell.id, source_hash(cell.source)))

    def outputs_of(self, target: Target) -> list[dict[str, Any]]:
        """Return a cell's outputs, as read anew; empty where it is gone or changed. Raise NotebookError."""
        document = self.read()
        index = find(document, target.cell_id, target.source_hash)
        found = document.raw["cells"][index].get("outputs") if index is not None else None
        until, before, after = self._late.get(target, (0.0, None, ()))
        if until > time.monotonic() and found == before:
            return [*after]  # it is put there again
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def mark(self, cell: Cell, tag: str) -> None:
        """Add a tag to the cell; do nothing where it is gone. Raise NotebookError."""
        for _ in range(ATTEMPTS):
            document = self.read()
            index = find(document, cell.id, source_hash(cell.source))
            if index is None or tag in document.cells[index].tags:
                return
            if self._write(document, True, {index: partial(tagged, tag=tag)}):
                return

    def set_plan(self, plan: Plan) -> None:
        """Put the plan into `metadata.stepper`; raise NotebookError."""
        for _ in range(ATTEMPTS):
            if self._write(self.read(), True, {"metadata": partial(with_plan, plan=plans.to_json(plan))}):
                return

    def _write(self, document: Document, keep_time: bool, changes: Changes) -> bool:
        """Replace the file atomically; return False, with nothing done, where somebody else wrote meanwhile."""
        self._last = None  # not kept: an idle daemon holds no notebook
        data = rewrite(document.data, document.raw, changes)
        try:
            with private.place(self.path) as (folder, name):
                return self._exchange(folder, name, document, keep_time, data)
        except FileNotFoundError:
            raise NotebookError(f"{Path(self.path).name} is gone", "git status  # was it moved or deleted?") from None
        except OSError as error:
            why = f"{Path(self.path).name} can't be written: {error.strerror}"
            hint = getattr(error, "hint", "") or f"ls -ld {os.path.dirname(self.path)}"
            raise NotebookError(why, hint) from error

    def _exchange(self, folder: int, name: str, document: Document, keep_time: bool, data: bytes) -> bool:
        # Always the same: what a daemon that was killed left behind goes with the next write.
        temporary = f".{name[:40]}.{zlib.crc32(os.fsencode(name)):08x}.tmp"
        if self._cleared is not None:
            wait([self._cleared])
        about = look(name, folder)
        remove(temporary, folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), stat.S_IMODE(about.st_mode))
                if keep_time:
                    kept = jupyter.kept_time(self.path, document.mtime_ns)
                    os.utime(stream.fileno(), ns=(about.st_atime_ns, kept))
                os.fsync(stream.fileno())
            if signature(look(name, folder)) != document.signature:
                return False
            if not swap(temporary, name, folder):
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            elif signature(look(temporary, folder))[:3] != document.signature[:3]:
                swap(temporary, name, folder)  # somebody wrote between the look and the swap: theirs stands again
                return False
            self._seen = signature(look(name, folder))[:3]
        finally:
            self._cleared = clear(temporary, folder)
        return True

    def touch(self) -> None:
        """Set the modification time to now, so that those who poll it notice what was written."""
        try:
            with private.place(self.path) as (folder, name):
                os.utime(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            raise NotebookError(f"{self.path} can't be touched: {error.strerror}") from error


def _run_of(raw: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one run's outputs from another's: a person may have cleared them, which is no loss."""
    metadata = raw.get("metadata", {})
    return raw.get("execution_count"), metadata.get("execution"), metadata.get("stepper")


def create(path: str, problem: str, plan: Plan) -> None:
    """Write a new notebook of nbformat 4.5: the problem as first cell, the plan in its metadata. Raise OSError.

    FileExistsError where there is one already: two callers never share a name.
    """
    import nbformat  # it validates what it makes, and takes long to load: no step needs it

    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(f"# {problem}")],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "stepper": plans.to_json(plan),
        },
    )
    nbformat.validate(notebook)
    text = nbformat.writes(notebook)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with private.place(path) as (folder, name):
        handle = os.open(name, flags, 0o666, dir_fd=folder)
    with open(handle, "w", encoding="utf-8") as stream:
        stream.write(text if text.endswith("\n") else text + "\n")
