"""The journal on a full, unreadable or corrupt disk: no event is lost or duplicated."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.notebooks import background_io
from stepper.notebooks.journal_file import JournalFile, SyncMode
from tests.conftest import Project

NOBODY = 65534


@contextlib.contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Limit the size of files, which also works for root."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def unprivileged_folder() -> Iterator[Path]:
    """Run as a user without root's rights, with a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        root = os.geteuid() == 0
        if root:
            os.chown(name, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)


def read_numbers(path: Path) -> list[int]:
    """Return the events of the file; all lines must be complete."""
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_lines_pending_on_full_disk_are_written_in_order(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n.jsonl"
    journal = JournalFile(str(path))
    journal.append({"n": 1})
    with full_disk(path.stat().st_size + 4):  # room for a part of a line
        for n in (2, 3):
            with pytest.raises(OSError):
                journal.append({"n": n})
        with pytest.raises(OSError):
            journal.append({"n": 99}, keep=False)
        assert (journal.pending_count, read_numbers(path)) == (2, [1])
    journal.append({"n": 4}, sync=SyncMode.NONE)
    assert (journal.pending_count, read_numbers(path)) == (0, [1, 2, 3, 4])
    assert JournalFile(str(path)).load()[1] == ""


def test_flush_writes_pending_lines(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    journal = JournalFile(str(tmp_path / "folder" / "n.jsonl"))
    with pytest.raises(OSError):
        journal.append({"n": 1})
    with pytest.raises(OSError):
        journal.flush()
    (tmp_path / "folder").unlink()
    journal.flush()
    assert (journal.pending_count, read_numbers(Path(journal.path))) == (0, [1])
    journal.flush()
    assert read_numbers(Path(journal.path)) == [1]


def test_lines_pending_on_read_only_journal_are_written_later() -> None:
    with unprivileged_folder() as folder:
        path = folder / "n.jsonl"
        journal = JournalFile(str(path))
        journal.append({"n": 1})
        path.chmod(0o400)
        with pytest.raises(PermissionError):
            journal.append({"n": 2})
        path.chmod(0o600)
        journal.append({"n": 3})
        assert read_numbers(path) == [1, 2, 3]


@pytest.mark.parametrize(
    "tail",
    [b'{"n": 2', b'{"n": 2}garbage\n', b"\0" * 40, b"\xff\xfe\n", b'["n"]\n', b"12\n"],
    ids=repr,
)
def test_torn_or_invalid_line_is_reported_and_skipped(
    tmp_path: Path, tail: bytes
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"n":1}\n' + tail)
    journal = JournalFile(str(path))
    events, warning = journal.load()
    assert events == [{"n": 1}]
    assert warning == f"ignored 1 unreadable line of the journal {path}"
    journal.append({"n": 3})
    assert JournalFile(str(path)).load()[0] == [{"n": 1}, {"n": 3}]
    assert path.read_bytes().startswith(b'{"n":1}\n' + tail)


def test_complete_last_line_without_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2}')
    journal = JournalFile(str(path))
    assert journal.load() == ([{"n": 1}, {"n": 2}], "")
    with full_disk(path.stat().st_size + 3), pytest.raises(OSError):
        journal.append({"n": 3})
    journal.append({"n": 4})
    assert read_numbers(path) == [1, 2, 3, 4]


def test_unreadable_journal_is_moved_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    for number in (1, 2):
        path.mkdir()
        (path / "kept").touch()
        journal = JournalFile(str(path))
        events, warning = journal.load()
        assert events == []
        assert warning == (
            f"the journal {path} cannot be read (Is a directory), so earlier runs are unknown. "
            f"The file was renamed to {path}.unreadable-{number}"
        )
        assert Path(f"{path}.unreadable-{number}", "kept").exists()
        journal.append({"n": 1})
        assert read_numbers(path) == [1]
        path.unlink()


def test_journal_without_read_permission_keeps_its_bytes() -> None:
    with unprivileged_folder() as folder:
        path = folder / "n.jsonl"
        path.write_text('{"n":1}\n')
        path.chmod(0o200)  # for writing, not for reading
        journal = JournalFile(str(path))
        assert "Permission denied" in journal.load()[1]
        journal.append({"n": 2})
        aside = folder / "n.jsonl.unreadable-1"
        aside.chmod(0o600)
        assert (read_numbers(aside), read_numbers(path)) == ([1], [2])


def test_lines_stay_pending_if_journal_cannot_be_read_or_moved() -> None:
    with unprivileged_folder() as folder:
        path = folder / "journal" / "n.jsonl"
        path.parent.mkdir()
        path.write_text('{"n":1}\n')
        path.parent.chmod(0o000)
        journal = JournalFile(str(path))
        assert "The file cannot be renamed either" in journal.load()[1]
        with pytest.raises(PermissionError):
            journal.append({"n": 2})
        path.parent.chmod(0o700)
        journal.append({"n": 3})
        assert read_numbers(path) == [1, 2, 3]


def test_deleted_journal_is_recreated(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "n.jsonl"
    journal = JournalFile(str(path))
    journal.append({"n": 1})
    path.unlink()
    path.parent.rmdir()
    journal.append({"n": 2})
    assert (read_numbers(path), path.stat().st_mode & 0o777) == ([2], 0o600)


@pytest.mark.parametrize("value", ["\ud800", 10**30, {1: "a"}], ids=repr)
def test_values_rejected_by_orjson_are_journaled(tmp_path: Path, value: object) -> None:
    journal = JournalFile(str(tmp_path / "n.jsonl"))
    journal.append({"value": value})
    (event,), warning = journal.load()
    assert (event["value"], warning) == (json.loads(json.dumps(value)), "")


def test_invalid_foreign_lines_are_skipped_and_reported(project: Project) -> None:
    notebook = project.new("Load")
    notebook.insert("x = 1")
    project.stepper("shutdown")
    journal = next(Path(project.paths.journals).glob("*.jsonl"))
    journal.write_text(
        '{"event": "run"}\n{"event": "stop", "key": []}\n' + journal.read_text()
    )
    _, response = notebook.insert("print('ran')")
    assert (
        "| ran" in response.text
        and "ignored 2 invalid lines of the journal" in response.text
    )


@pytest.mark.nightly
def test_oversized_files_are_not_read(
    project: Project,
) -> None:
    """A cloned journal can contain large holes; reading them would block the daemon."""
    notebook = project.notebook("n.ipynb")
    (project.folder / ".stepper" / "journal").mkdir()
    for name in ("journal/n.jsonl", "state.json", "batch"):
        with open(project.folder / ".stepper" / name, "wb") as stream:
            stream.truncate(1 << 42)
    assert project.json("status", "n")["state"] == "ready"
    assert (
        "File too large" in (text := notebook.insert("print('ran')")[1].text)
        and "| ran" in text
    )


@pytest.mark.nightly
def test_fifo_as_journal_does_not_hang(project: Project) -> None:
    notebook = project.new("Load")
    project.stepper("shutdown")
    journal = next(Path(project.paths.journals).glob("*.jsonl"))
    journal.unlink()
    os.mkfifo(journal)
    _, response = notebook.insert("print('ran')")
    assert "| ran" in response.text
    assert "is a FIFO, not a regular file" in response.text
    assert "The file was renamed to " in response.text


@pytest.mark.parametrize("saved", [True, False])
def test_line_lost_in_delayed_write_is_written_once(
    tmp_path: Path, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server or quota can reject written data; the file then ends before it."""
    path = tmp_path / "n.jsonl"
    journal = JournalFile(str(path))
    journal.append({"n": 1})
    size = path.stat().st_size

    def refuse(handle: int) -> None:
        if not saved:
            os.ftruncate(handle, size)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        journal.append({"n": 2}, sync=SyncMode.BACKGROUND)
        background_io.EXECUTOR.submit(bool).result()
    journal.append({"n": 3}, keep=False)
    assert read_numbers(path) == [1, 2, 3] and journal.pending_count == 0
