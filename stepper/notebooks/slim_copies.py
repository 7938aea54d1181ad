"""Slim copies of notebooks, for clients that refuse to read a large notebook.

Claude Code reads at most 256 KB of a notebook, and edits only a notebook that it has
read. For the moment of a read, a slim copy without outputs takes the place of the
notebook, which is moved into `.stepper/reads`. The two files are exchanged by a single
system call, so both exist at any moment. A record on disk lets the next daemon restore
the notebook. If another program changed the slim copy, the outputs are put back into
the changed file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from stepper.common import secure_files
from stepper.common.dataclass_decode import decode
from stepper.common.errors import NotebookError
from stepper.notebooks.file_exchange import (
    exchange_between,
    make_temporary_name,
    remove_file,
    stat_file,
)
from stepper.notebooks.file_state import FileState, get_file_signature, get_file_state
from stepper.notebooks.notebook_document import Document, validate_notebook
from stepper.notebooks.notebook_file import IpynbFile
from stepper.notebooks.notebook_json import apply_changes, load_json

# The client counts the sources and the outputs of at most 10 KB for each cell, as JSON.
# The limit is below 256 KB, because the count of this module is not exact.
CLIENT_BYTES = 230_000
CELL_OUTPUT_BYTES = 10_240
CELL_OVERHEAD_BYTES = 200
# Sources beyond this are also left out of the slim copy.
SOURCE_BYTES = 200_000
OUTPUT_MARK = (
    "[stepper: the outputs of this cell are left out while Claude Code reads the"
    " notebook, because the notebook is too large for it. They are not lost: the"
    " next stepper command puts them back.]"
)
SOURCE_MARK = (
    "# [stepper: the source of this cell is left out while Claude Code reads the"
    " notebook, because all sources together are too large for it. It is not lost: the"
    " next stepper command puts it back.]"
)
RECORD_SUFFIX = ".json"
FULL_SUFFIX = ".ipynb"
# Of a notebook whose outputs are not all in the file that replaced it.
KEPT_SUFFIX = ".kept"
KEY_LENGTH = 32  # hexadecimal digits
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
ATTEMPTS = 5


@dataclass(frozen=True)
class Record:
    """A slim copy that takes the place of a notebook.

    `notebook` is the path of the notebook, relative to the project. `full` and `slim`
    are the states of the notebook's file and of its slim copy.
    """

    notebook: str
    full: FileState
    slim: FileState


class ReadLocation(NamedTuple):
    """The descriptor of `.stepper/reads`, and the location of a notebook.

    `folder` is the descriptor of the notebook's folder, and `name` its name there.
    """

    reads: int
    folder: int
    name: str


class RestoredCopy(NamedTuple):
    """A changed slim copy with the omitted parts restored, as the file's bytes.

    `is_complete` is False if the original of a cell with omitted parts is not known.
    """

    data: bytes
    is_complete: bool


class Estimate(NamedTuple):
    """The estimated sizes of a notebook as the client counts them, in bytes."""

    sources: int
    total: int


def is_too_large(raw: Mapping[str, Any]) -> bool:
    """Return whether the client may refuse to read a notebook."""
    return estimate_size(raw).total > CLIENT_BYTES


def read_large_file(file: IpynbFile) -> Document | None:
    """Return the notebook in a file if the client may refuse to read it, else None.

    Also return None if the file's size is not known, for example because the file does
    not exist. Raise NotebookError if the content cannot be read.
    """
    try:
        size = os.stat(file.path).st_size
    except OSError:
        return None
    if size <= CLIENT_BYTES:
        return None
    document = file.read_uncached()
    if is_too_large(document.raw):
        return document
    return None


def estimate_size(raw: Mapping[str, Any]) -> Estimate:
    """Estimate the sizes of a notebook as the client counts them."""
    sources = 0
    total = 0
    for cell in raw["cells"]:
        source = _measure(cell.get("source", ""))
        sources += source
        outputs = _measure_outputs(cell.get("outputs") or [])
        total += source + outputs + CELL_OVERHEAD_BYTES
    return Estimate(sources, total)


def _measure_outputs(outputs: Any) -> int:
    """Return the size of outputs, or CELL_OUTPUT_BYTES if they are larger."""
    if not isinstance(outputs, list) or len(outputs) > CELL_OUTPUT_BYTES:
        return CELL_OUTPUT_BYTES
    size = 0
    for output in outputs:
        text = None
        if isinstance(output, dict):
            text = output.get("text")
        if isinstance(text, list) and len(text) > CELL_OUTPUT_BYTES:
            return CELL_OUTPUT_BYTES
        if _has_large_format(output):
            return CELL_OUTPUT_BYTES
        size += _measure(output)
        if size >= CELL_OUTPUT_BYTES:
            return CELL_OUTPUT_BYTES
    return size


def _has_large_format(output: Any) -> bool:
    """Return whether an output has a large format, such as an image.

    This is faster than to measure the output.
    """
    data = output.get("data") if isinstance(output, dict) else None
    if not isinstance(data, dict):
        return False
    return any(
        isinstance(content, str) and len(content) > CELL_OUTPUT_BYTES
        for content in data.values()
    )


def _measure(value: Any) -> int:
    """Return the size of a value as JSON, in bytes."""
    try:
        return len(orjson.dumps(value))
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        return len(json.dumps(value))


def make_slim(raw: Mapping[str, Any]) -> bytes:
    """Return the slim copy of a notebook.

    Outputs are replaced by OUTPUT_MARK. If the sources are too large for the client,
    the sources of the last cells are replaced by SOURCE_MARK. Attachments and the state
    of widgets are left out.
    """
    cells = []
    remaining_bytes = SOURCE_BYTES
    for cell in raw["cells"]:
        slim_cell = dict(cell)
        if cell.get("outputs"):
            slim_cell["outputs"] = [
                {"name": "stdout", "output_type": "stream", "text": [OUTPUT_MARK]}
            ]
        slim_cell.pop("attachments", None)
        remaining_bytes -= _measure(cell.get("source", "")) + CELL_OVERHEAD_BYTES
        if remaining_bytes < 0:
            slim_cell["source"] = SOURCE_MARK
        cells.append(slim_cell)
    metadata = dict(raw.get("metadata") or {})
    metadata.pop("widgets", None)
    slim = {**raw, "metadata": metadata, "cells": cells}
    return json.dumps(slim, indent=1).encode()


def restore_parts(document: Document, full: Mapping[str, Any]) -> RestoredCopy | None:
    """Return a changed slim copy with the omitted parts restored.

    `document` is the changed slim copy, `full` the original notebook. Return None if no
    cell has a mark: a program that had read the original notebook wrote the document.
    """
    cells = document.raw["cells"]
    if not any(map(_has_mark, cells)):
        return None
    originals = _map_cells(full["cells"])
    changes: dict[int | str, Any] = {}
    is_complete = True
    for index, key in enumerate(_list_cell_keys(cells)):
        cell = cells[index]
        original = originals.get(key)
        if original is None:
            is_complete = is_complete and not _has_mark(cell)
            continue
        omitted_parts = _find_omitted_parts(cell, original)
        if omitted_parts:
            changes[index] = _make_update(omitted_parts)
    widgets = (full.get("metadata") or {}).get("widgets")
    metadata = document.raw.get("metadata") or {}
    if widgets and "widgets" not in metadata:
        changes["metadata"] = _make_update({"widgets": widgets})
    data = apply_changes(document.data, document.raw, changes)
    return RestoredCopy(data, is_complete)


def _list_cell_keys(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each cell, by which the cell is found in another version.

    The key contains the cell's ID, or the source of a cell without an ID, and a number:
    cells with the same ID or source are numbered from the top.
    """
    keys = []
    counts = Counter[str]()
    for cell in cells:
        identity = str(cell.get("id") or "") or _join(cell.get("source"))
        counts[identity] += 1
        keys.append(f"{counts[identity]} {identity}")
    return keys


def _map_cells(cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return cells by their keys."""
    keys = _list_cell_keys(cells)
    return {key: cells[index] for index, key in enumerate(keys)}


def _has_mark(cell: Mapping[str, Any]) -> bool:
    """Return whether parts of a cell are omitted, as in a slim copy."""
    return _is_marked(cell.get("outputs")) or _join(cell.get("source")) == SOURCE_MARK


def _find_omitted_parts(
    cell: Mapping[str, Any], original: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parts of a cell that its slim copy left out, by their keys.

    `cell` is the cell in the slim copy.
    """
    parts = {}
    if _is_marked(cell.get("outputs")):
        parts["outputs"] = original.get("outputs") or []
    if _join(cell.get("source")) == SOURCE_MARK:
        parts["source"] = original.get("source", "")
    if "attachments" in original and "attachments" not in cell:
        parts["attachments"] = original["attachments"]
    return parts


def _has_all_outputs(document: Document, full: Mapping[str, Any]) -> bool:
    """Return whether a document has all outputs and attachments of a notebook."""
    cells = _map_cells(document.raw["cells"])
    for key, original in _map_cells(full["cells"]).items():
        cell = cells.get(key, {})
        for part in ("outputs", "attachments"):
            before = _join_lines(original.get(part))
            if before and _join_lines(cell.get(part)) != before:
                return False
    return True


def _join_lines(value: Any) -> Any:
    """Return JSON in which each list of texts is one text.

    nbformat may store a text in both ways.
    """
    if isinstance(value, dict):
        return {key: _join_lines(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, str) for item in value):
        return "".join(value)
    return list(map(_join_lines, value))


def _make_update(parts: Mapping[str, Any]) -> Any:
    """Return a function that returns an object with `parts` added or replaced."""

    def update(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, **parts}

    return update


def _is_marked(outputs: Any) -> bool:
    """Return whether the outputs of a cell are those of a slim copy."""
    if not isinstance(outputs, list) or len(outputs) != 1:
        return False
    output = outputs[0]
    return isinstance(output, dict) and _join(output.get("text")) == OUTPUT_MARK


def _join(value: Any) -> str:
    """Return a text that nbformat may store as a list of lines."""
    if isinstance(value, list):
        return "".join(map(str, value))
    return str(value)


class SlimCopies:
    """The slim copies that take the place of notebooks of a project.

    `folder` is the path of `.stepper/reads`.
    """

    def __init__(self, project: str, folder: str) -> None:
        self._project = project
        self._folder = folder
        # By the path of the notebook. Records of former daemons are only on disk.
        self._records: dict[str, Record] = {}
        # The contents of the notebooks that are being read.
        self._documents: dict[str, Document] = {}
        # Notebooks that are too large, but could not be replaced by a slim copy.
        self.unplaced = set[str]()
        self._lock = threading.RLock()
        # Sentences on notebooks that could not be restored as they were.
        self._problems: list[str] = []

    def take_problems(self) -> list[str]:
        """Return the sentences on notebooks that could not be restored as they were.

        Each sentence is returned only once.
        """
        problems = self._problems
        self._problems = []
        return problems

    def place(self, path: str, document: Document) -> bool:
        """Put a slim copy in the place of a notebook; return whether this succeeded.

        `document` is the contents of the notebook. If another program changes the
        notebook meanwhile, or the file system does not support it, nothing changes.
        """
        with self._lock, contextlib.suppress(OSError):
            if path in self._records:
                return True
            slim = make_slim(document.raw)
            if self._place(path, document, slim):
                self._documents[path] = document
                return True
        return False

    def _place(self, path: str, document: Document, slim: bytes) -> bool:
        """Exchange a notebook for the slim copy `slim`; return whether this succeeded.

        The copy is first written under the name that the notebook will have in
        `.stepper/reads`.
        """
        key = _make_key(path)
        full_name = key + FULL_SUFFIX
        secure_files.create_folder(self._folder)
        with self._open_folders(path) as (reads, folder, name):
            self._remove_unused(key, reads)
            if _exists(full_name, reads):
                return False  # the notebook of the previous copy was not restored
            status = stat_file(name, folder)
            if get_file_signature(status) != document.signature:
                return False
            try:
                # The copy gets the notebook's modification time, because the client
                # refuses to edit a file that was modified after it was read.
                _write_like(full_name, reads, status, slim)
                slim_state = _read_state(full_name, reads)
                full_state = get_file_state(status)
                notebook = os.path.relpath(path, self._project)
                record = Record(notebook, full_state, slim_state)
                _write_record(key + RECORD_SUFFIX, reads, record)
                is_exchanged = exchange_between(reads, full_name, folder, name)
                if is_exchanged and _read_state(full_name, reads) != full_state:
                    # Another program wrote the notebook just before the exchange.
                    exchange_between(reads, full_name, folder, name)
                    is_exchanged = False
            except FileExistsError:
                raise  # another daemon created the file, which may be the notebook
            except OSError:
                self._remove(key, reads)
                raise
            if not is_exchanged:
                self._remove(key, reads)
                return False
            self._records[path] = record
            return True

    def restore_read(self, path: str) -> Document | None:
        """Put a notebook back in its place, and return its contents.

        Return None if no copy was there, or if another program changed the copy.
        """
        with self._lock:
            document = self._documents.get(path)
            record = self._records.get(path)
            if document is None or record is None:
                self.restore(path)
                return None
            self.restore(path)
        with contextlib.suppress(OSError):
            if get_file_state(os.lstat(path)) == record.full:
                return document
        return None

    def restore(self, path: str) -> bool:
        """Put a notebook back in place of its slim copy; return whether there was one.

        A failure is reported (`take_problems`), and a later call tries again. If
        another program changed the copy, put the outputs back into the changed file.
        """
        self._documents.pop(path, None)
        if path not in self._records:
            return False
        with self._lock:
            record = self._records.pop(path, None)
            if record is None:
                return False
            try:
                is_restored = self._restore(record)
            except OSError as error:
                is_restored = False
                reason = error.strerror or str(error)
                self._report(record, f"it could not be restored yet ({reason})")
            if not is_restored:
                self._records[path] = record
            return True

    def restore_all(self) -> None:
        """Put all notebooks back in their places, also those of a former daemon.

        Also remove slim copies that never took the place of a notebook.
        """
        names = secure_files.list_names(self._folder)
        keys = {name.partition(".")[0] for name in names}
        for key in keys:
            record = self._load_record(key)
            if record is not None:
                self._records.setdefault(self._get_path(record), record)
        for path in list(self._records):
            self.restore(path)
        inside = os.path.join(self._folder, ".")
        with contextlib.suppress(OSError), secure_files.open_parent(inside) as parent:
            for key in keys:
                with contextlib.suppress(OSError):
                    self._remove_unused(key, parent.folder)

    def _get_path(self, record: Record) -> str:
        """Return the path of a notebook; raise ValueError if it is not valid.

        A stranger may have written the record: no other file may be replaced.
        """
        notebook = record.notebook
        parts = notebook.split("/")
        is_inside = not os.path.isabs(notebook) and os.pardir not in parts
        if not is_inside or not notebook.endswith(".ipynb"):
            raise ValueError(f"not a notebook of the project: {notebook!r:.100}")
        return os.path.join(self._project, notebook)

    def _restore(self, record: Record) -> bool:
        """Restore a notebook; return whether nothing is left to do.

        If the slim copy was renamed in its folder, the notebook gets the new name.
        Raise OSError if this fails.
        """
        path = self._get_path(record)
        key = _make_key(path)
        full_name = key + FULL_SUFFIX
        with self._open_folders(path) as (reads, folder, name):
            if not _exists(full_name, reads):
                self._remove(key, reads)
                return True
            if _read_state(full_name, reads) == record.slim:
                # The files were not exchanged, or are exchanged back.
                self._remove(key, reads)
                return True
            copy_name = name
            for _ in range(ATTEMPTS):
                if not _exists(copy_name, folder):
                    # The copy may have been renamed in the same folder.
                    copy_name = _find_state(folder, record.slim)
                if not copy_name:
                    self._restore_deleted(record, reads, folder, name)
                    return True
                if _read_state(copy_name, folder) != record.slim:
                    return self._merge(record, reads, folder, copy_name)
                if not exchange_between(reads, full_name, folder, copy_name):
                    raise OSError(0, "the file system cannot exchange two files")
                if _read_state(full_name, reads) == record.slim:
                    self._remove(key, reads)
                    return True
                # Another program wrote the copy just before the exchange.
                exchange_between(reads, full_name, folder, copy_name)
        return False

    def _restore_deleted(
        self, record: Record, reads: int, folder: int, name: str
    ) -> None:
        """Put back a notebook whose slim copy was deleted or moved to another folder.

        The notebook is not deleted as well, because its outputs exist nowhere else.
        """
        key = _make_key(self._get_path(record))
        full_name = key + FULL_SUFFIX
        # `link` fails if another program creates the file now; `rename` would not.
        os.link(full_name, name, src_dir_fd=reads, dst_dir_fd=folder)
        self._remove(key, reads)
        self._report(
            record,
            "another program deleted or moved the notebook while the agent read it, and"
            " stepper put the notebook back",
        )

    def _merge(self, record: Record, reads: int, folder: int, name: str) -> bool:
        """Put the outputs into a copy that another program changed.

        Return whether this succeeded: the program may still be writing. Raise OSError
        if a file cannot be read or written, or if the original notebook is not valid.
        """
        key = _make_key(self._get_path(record))
        full_name = key + FULL_SUFFIX
        try:
            full = load_json(_read(full_name, reads))
            validate_notebook(full, full_name)
        except (ValueError, NotebookError):
            full_path = self._get_display_path(full_name)
            raise OSError(0, f"{full_path} is not a valid notebook") from None
        for _ in range(ATTEMPTS):
            status = stat_file(name, folder)
            try:
                data = _read(name, folder)
                document = Document(data, load_json(data), status)
                restored_copy = restore_parts(document, full)
            except (ValueError, KeyError, TypeError, AttributeError):
                return False
            if restored_copy is None:  # the program did not write the slim copy
                if not _has_all_outputs(document, full):
                    kept_path = self._keep(record, reads)
                    self._report(
                        record,
                        "another program replaced the notebook while it was read, and"
                        f" the previous notebook is kept in {kept_path}",
                    )
                self._remove(key, reads)
                return True
            if _replace(folder, name, status, restored_copy.data):
                self._report_merge(record, reads, restored_copy)
                self._remove(key, reads)
                return True
        return False

    def _report_merge(
        self, record: Record, reads: int, restored_copy: RestoredCopy
    ) -> None:
        """Report that a changed slim copy was restored, and keep what is not in it."""
        if restored_copy.is_complete:
            self._report(
                record,
                "another program changed the notebook while Claude Code read it, and"
                " the outputs were put back into the changed notebook",
            )
            return
        kept_path = self._keep(record, reads)
        self._report(
            record,
            "another program changed the notebook while it was read, and the outputs"
            " were put back, but not those of cells that it gave another id or source."
            f" The previous notebook is kept in {kept_path}",
        )

    def _keep(self, record: Record, reads: int) -> str:
        """Keep a notebook whose outputs are not all in its file; return the new path.

        The path is relative to the project.
        """
        key = _make_key(self._get_path(record))
        kept_name = f"{key}-{time.time_ns()}{KEPT_SUFFIX}"
        full_name = key + FULL_SUFFIX
        os.rename(full_name, kept_name, src_dir_fd=reads, dst_dir_fd=reads)
        return self._get_display_path(kept_name)

    def _get_display_path(self, name: str) -> str:
        """Return the path of a file in `.stepper/reads`, relative to the project."""
        folder = os.path.relpath(self._folder, self._project)
        return os.path.join(folder, name)

    def _report(self, record: Record, text: str) -> None:
        """Add a sentence on a notebook for the next report, if it is new."""
        name = os.path.basename(record.notebook)
        problem = f"{name}: {text}"
        if problem not in self._problems:
            self._problems.append(problem)

    @contextlib.contextmanager
    def _open_folders(self, path: str) -> Iterator[ReadLocation]:
        """Open `.stepper/reads` and the folder of a notebook."""
        inside = os.path.join(self._folder, ".")
        with (
            secure_files.open_parent(inside) as (reads, _),
            secure_files.open_parent(path) as (folder, name),
        ):
            yield ReadLocation(reads, folder, name)

    def _remove_unused(self, key: str, reads: int) -> None:
        """Remove a slim copy that a killed daemon did not exchange for the notebook.

        Such a copy has no complete record. To be safe, a file without a mark is kept.
        """
        full_name = key + FULL_SUFFIX
        if self._load_record(key) is not None:
            return
        if _exists(full_name, reads):
            data = _read(full_name, reads)
            is_slim = OUTPUT_MARK.encode() in data or SOURCE_MARK.encode() in data
            if not is_slim:
                return
        self._remove(key, reads)

    def _load_record(self, key: str) -> Record | None:
        """Return the record with a key, or None if it is missing or not valid.

        A record that names a notebook with another key is not valid.
        """
        record_path = os.path.join(self._folder, key + RECORD_SUFFIX)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            values = load_json(secure_files.read(record_path))
            record = decode(Record, values)
            path = self._get_path(record)
            if key == _make_key(path):
                return record
        return None

    def _remove(self, key: str, reads: int) -> None:
        """Remove a notebook's files from `.stepper/reads`.

        `key` is their name without a suffix.
        """
        remove_file(key + FULL_SUFFIX, reads)
        remove_file(key + RECORD_SUFFIX, reads)


def _write_record(name: str, reads: int, record: Record) -> None:
    """Write a record to disk before the files are exchanged."""
    remove_file(name, reads)
    handle = os.open(name, CREATE_FLAGS, 0o600, dir_fd=reads)
    with open(handle, "wb") as stream:
        stream.write(json.dumps(asdict(record)).encode())
        stream.flush()
        os.fsync(handle)


def _make_key(path: str) -> str:
    """Return the name of a notebook's files in `.stepper/reads`, without a suffix."""
    digest = hashlib.sha256(os.fsencode(path))
    return digest.hexdigest()[:KEY_LENGTH]


def _read_state(name: str, folder: int) -> FileState:
    """Return the state of a file in an open folder."""
    return get_file_state(stat_file(name, folder))


def _exists(name: str, folder: int) -> bool:
    """Return whether an open folder contains a file with this name."""
    try:
        stat_file(name, folder)
    except FileNotFoundError:
        return False
    return True


def _find_state(folder: int, state: FileState) -> str:
    """Return the name of the file with a state, or an empty string."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        for name in os.listdir(handle):
            with contextlib.suppress(OSError):
                if _read_state(name, folder) == state:
                    return name
    finally:
        os.close(handle)
    return ""


def _read(name: str, folder: int) -> bytes:
    """Return the contents of a file in an open folder; links are refused."""
    handle = os.open(name, os.O_RDONLY | secure_files.SAFE_FLAGS, dir_fd=folder)
    with open(handle, "rb") as stream:
        return stream.read()


def _replace(folder: int, name: str, status: os.stat_result, data: bytes) -> bool:
    """Replace a file unless it has changed since `status`.

    Return whether the file was replaced.
    """
    new_name = make_temporary_name(name + ".merged")
    remove_file(new_name, folder)
    is_unused = True  # `new_name` is no longer needed
    try:
        _write_like(new_name, folder, status, data)
        if not exchange_between(folder, new_name, folder, name):
            return False
        if _read_state(new_name, folder) != get_file_state(status):
            # Another program wrote the file just before the exchange. Until the files
            # are exchanged back, its version has the new name.
            is_unused = False
            is_unused = exchange_between(folder, new_name, folder, name)
            return False
        return True
    finally:
        if is_unused:
            remove_file(new_name, folder)


def _write_like(name: str, folder: int, status: os.stat_result, data: bytes) -> None:
    """Write a new file with the permissions and times of the file with `status`."""
    handle = os.open(name, CREATE_FLAGS, 0o600, dir_fd=folder)
    with open(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(handle, stat.S_IMODE(status.st_mode))
        os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(handle)
