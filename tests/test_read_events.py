"""Reads of notebooks by Claude Code: the digest, and the slim copy of a large notebook."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.daemon import read_events
from stepper.hook import daemon_client
from stepper.messages.digest import notebook_digest
from stepper.notebooks import file_exchange, slim_copies
from stepper.notebooks.notebook_document import Document
from stepper.notebooks.notebook_file import IpynbFile
from stepper.notebooks.slim_copies import OUTPUT_MARK, SOURCE_MARK, SlimCopies
from stepper.policy.model import Cell
from stepper.session.caller import Caller
from tests.conftest import CLIENTS, Answer, Notebook, Project, code, compiled_client


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def fill(count: int, size: int, source: str = "x = 1") -> list[dict[str, Any]]:
    """Return code cells with recorded outputs."""
    cells = []
    for number in range(count):
        cell = code(f"{source}  # {number}", f"c{number}")
        cell |= {"outputs": [printed(f"{number} " + "y" * size)], "execution_count": 1}
        cells.append(cell)
    return cells


def send(notebook: Notebook, event: str, **tool_input: Any) -> Answer:
    """Send an event of a read to the daemon, without the time limit of the hook."""
    names = {"BeforeRead": "PreToolUse", "AfterRead": "PostToolUse"}
    payload = notebook.payload(
        names.get(event, "PostToolUseFailure"),
        "Read",
        {"file_path": str(notebook.path), **tool_input},
        error="Notebook content (843.2KB) exceeds maximum allowed size (256KB).",
    )
    data = json.dumps(payload).encode()
    paths = notebook.project.paths
    return Answer(
        daemon_client.send_request(paths, b"hook " + event.encode(), data) or b""
    )


def get_text(answer: Answer) -> str:
    output = answer.data["hookSpecificOutput"]["updatedToolOutput"]
    assert output["type"] == "text"
    assert output["file"]["numLines"] == output["file"]["content"].count("\n") + 1
    return str(output["file"]["content"])


def get_state(path: Path) -> tuple[bytes, int, int, int]:
    status = path.stat()
    return path.read_bytes(), status.st_mtime_ns, status.st_ino, status.st_mode


def get_reads(project: Project) -> list[str]:
    reads = Path(project.paths.reads)
    return sorted(os.listdir(reads)) if reads.exists() else []


# --- the digest -----------------------------------------------------------------------


def test_agent_reads_a_digest(project: Project) -> None:
    notebook = project.notebook("a.ipynb", fill(3, 20))
    before = get_state(notebook.path)
    assert "hookSpecificOutput" not in send(notebook, "BeforeRead").data
    answer = send(notebook, "AfterRead")
    text = get_text(answer)
    assert text.startswith("stepper: notebooks/a.ipynb: ready (3 code cells).")
    assert "| x = 1  # 2\nOutput:\n| 2 yyyy" in text
    assert "Changed since" not in text
    file = answer.data["hookSpecificOutput"]["updatedToolOutput"]["file"]
    assert file["filePath"] == str(notebook.path)
    part = send(notebook, "AfterRead", offset=2, limit=3)
    file = part.data["hookSpecificOutput"]["updatedToolOutput"]["file"]
    assert (file["startLine"], file["numLines"]) == (2, 3)
    assert file["totalLines"] == text.count("\n") + 1
    assert file["content"] == "\n".join(text.split("\n")[1:4])
    assert get_state(notebook.path) == before


def test_digest_shows_the_execution_count_of_the_last_run(project: Project) -> None:
    notebook = project.new()
    cell_id, _ = notebook.insert("x = 1")
    notebook.replace(cell_id, "x = 2")
    assert " · ok · [2] · " in get_text(send(notebook, "AfterRead"))


def test_digest_names_changes_since_the_last_read_of_the_session(
    project: Project,
) -> None:
    notebook = project.notebook("a.ipynb", [code("x = 1", "a"), code("y = 2", "b")])
    send(notebook, "AfterRead")
    notebook.replace("a", "x = 3")
    raw = notebook.raw
    raw["cells"][1]["id"] = "c"
    notebook.path.write_text(json.dumps(raw))
    line = "Changed since this agent read the notebook last: edited: cell 1 (id a); new: cell 2 (id c); deleted: 1 cell."
    assert line in get_text(send(notebook, "AfterRead"))
    assert "read the notebook last: nothing." in get_text(send(notebook, "AfterRead"))
    other = Notebook(project, notebook.path, "session-2")
    assert "Changed since" not in get_text(send(other, "AfterRead"))


@pytest.mark.parametrize("client", CLIENTS)
def test_hook_process_prints_the_digest(project: Project, client: str) -> None:
    if client == "compiled":
        project.compiled = compiled_client()
    notebook = project.notebook("a.ipynb", fill(3, 20))
    project.stepper("status")  # starts the daemon
    payload = notebook.payload("PostToolUse", "Read", {"file_path": str(notebook.path)})
    deadline = time.monotonic() + 300  # the machine may be busy
    while not (answer := project.hook("AfterRead", payload)).stdout:
        assert time.monotonic() < deadline
    assert "| x = 1  # 2" in get_text(answer)


def test_raw_reads_are_left_alone(project: Project) -> None:
    project.config("read: raw\n")
    notebook = project.notebook("a.ipynb", fill(120, 7000))
    before = get_state(notebook.path)
    send(notebook, "BeforeRead")
    assert get_state(notebook.path) == before
    assert send(notebook, "AfterRead").stdout == b""
    assert "`read: digest`" in send(notebook, "ReadFailed").text


def test_other_notebooks_are_left_alone(project: Project, tmp_path: Path) -> None:
    """Notebooks of another folder or project, and files that are not notebooks."""
    other = tmp_path / "other"
    other.mkdir()
    paths = [project.folder / "elsewhere.ipynb", other / "b.ipynb"]
    for path in paths:
        path.write_text(
            json.dumps(
                {
                    "cells": fill(120, 7000),
                    "metadata": {},
                    "nbformat": 4,
                    "nbformat_minor": 5,
                }
            )
        )
    broken = project.notebook("broken.ipynb").path
    broken.write_text("{" * 300_000)
    missing = project.folder / "notebooks" / "missing.ipynb"
    for path in (*paths, broken, missing):
        notebook = Notebook(project, path)
        before = path.exists() and get_state(path)
        assert "hookSpecificOutput" not in send(notebook, "BeforeRead").data
        assert (path.exists() and get_state(path)) == before
        assert send(notebook, "AfterRead").stdout == b""
    assert get_reads(project) == []


@pytest.mark.parametrize("path", [None, 3, "", "a\0b", "x" * 9000])
def test_malformed_payloads(project: Project, path: Any) -> None:
    for event in ("BeforeRead", "AfterRead", "ReadFailed"):
        payload = {"session_id": "s", "tool_input": {"file_path": path}}
        assert project.hook(event, payload).stdout == b""


# --- the slim copy --------------------------------------------------------------------


@pytest.fixture
def large(project: Project) -> Notebook:
    return project.notebook("large.ipynb", fill(120, 7000))


def read_slim(notebook: Notebook) -> dict[str, Any]:
    """Send the event before a read, and return what the client would read."""
    send(notebook, "BeforeRead")
    raw = notebook.raw
    assert slim_copies.estimate_size(raw).total < 256 * 1024
    assert raw["cells"][3]["outputs"][0]["text"] == [OUTPUT_MARK]
    assert raw["cells"][3]["source"] == "x = 1  # 3"
    return raw


def test_slim_copy_takes_the_place_during_the_read(large: Notebook) -> None:
    before = get_state(large.path)
    read_slim(large)
    assert large.path.stat().st_mtime_ns == before[1]
    assert len(get_reads(large.project)) == 2
    text = get_text(send(large, "AfterRead"))
    assert text.count("<cell id=") == 120
    assert get_state(large.path) == before
    assert get_reads(large.project) == []


def test_failed_read_restores_the_notebook(large: Notebook) -> None:
    before = get_state(large.path)
    read_slim(large)
    assert "Read the notebook again" in send(large, "ReadFailed").text
    assert get_state(large.path) == before


@pytest.mark.nightly
def test_read_that_never_follows(large: Notebook) -> None:
    """The user denied the read, or the client and its hooks were killed."""
    before = get_state(large.path)
    read_slim(large)
    deadline = time.monotonic() + 120
    while get_state(large.path) != before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert get_reads(large.project) == []


def test_killed_daemon(large: Notebook) -> None:
    before = get_state(large.path)
    large.project.stepper("status")
    pid = large.project.json("status")["daemon"]["pid"]
    read_slim(large)
    os.kill(pid, 9)
    deadline = time.monotonic() + 120
    while (
        Path(f"/proc/{pid}/cmdline").exists()
        and Path(f"/proc/{pid}/cmdline").read_bytes()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert large.raw["cells"][3]["outputs"][0]["text"] == [OUTPUT_MARK]
    text = get_text(send(large, "AfterRead"))  # starts a daemon
    assert OUTPUT_MARK not in text
    assert get_state(large.path) == before
    assert get_reads(large.project) == []


def test_commands_see_the_whole_notebook(large: Notebook) -> None:
    before = get_state(large.path)
    read_slim(large)
    assert (
        "| 3 yyy"
        in large.project.stepper("output", "4", "--notebook", large.name).stdout
    )
    assert get_state(large.path) == before


def test_sources_that_are_too_large(project: Project) -> None:
    cells = fill(40, 10, "# " + "z" * 20_000)
    notebook = project.notebook("sources.ipynb", cells)
    before = get_state(notebook.path)
    send(notebook, "BeforeRead")
    sources = [cell["source"] for cell in notebook.raw["cells"]]
    assert slim_copies.estimate_size(notebook.raw).total < 256 * 1024
    assert sources[0] == cells[0]["source"]
    assert sources[-1] == SOURCE_MARK
    text = get_text(send(notebook, "AfterRead"))
    assert get_state(notebook.path) == before
    last_line = text.split("\n")[-1]
    assert last_line.startswith("… ")
    offset = int(last_line.rpartition("=")[2])
    rest = get_text(send(notebook, "AfterRead", offset=offset))
    assert len(text.encode()) < 256 * 1024
    assert rest.split("\n")[0] not in text.split("\n")[:-1]
    everything = text.split("\n")[:-1]
    while len(everything) < offset - 1 or rest:
        *lines, last_line = rest.split("\n")
        if not last_line.startswith("… "):
            everything += [*lines, last_line]
            break
        everything += lines
        offset = int(last_line.rpartition("=")[2])
        rest = get_text(send(notebook, "AfterRead", offset=offset))
    assert [line[2:] for line in everything if line.startswith("| # zz")] == [
        cell["source"] for cell in cells
    ]


def resave(raw: dict[str, Any]) -> bytes:
    return json.dumps(raw, indent=1).encode()


def change_whole(full: bytes, slim: bytes) -> bytes:
    """JupyterLab saves the notebook that it has had open."""
    raw = json.loads(full)
    raw["cells"][5]["source"] = "changed"
    for cell in raw["cells"]:
        for output in cell["outputs"]:
            output["text"] = output["text"].splitlines(keepends=True)
    return resave(raw)


def change_slim(full: bytes, slim: bytes) -> bytes:
    """A program reads the slim copy and writes it back with a change."""
    raw = json.loads(slim)
    raw["cells"][5]["source"] = "changed"
    del raw["cells"][7]
    raw["cells"].append(code("new", "new"))
    raw["cells"][0]["outputs"] = [printed("new output")]
    return resave(raw)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("change", [change_whole, change_slim])
def test_another_program_writes_meanwhile(
    large: Notebook, change: Callable[[bytes, bytes], bytes], in_place: bool
) -> None:
    full = large.path.read_bytes()
    read_slim(large)
    written = change(full, large.path.read_bytes())
    if in_place:
        large.path.write_bytes(written)
    else:
        temporary = large.path.with_suffix(".tmp")
        temporary.write_bytes(written)
        temporary.replace(large.path)
    text = get_text(send(large, "AfterRead"))
    assert "| changed" in text
    assert OUTPUT_MARK not in large.path.read_text()
    if change is change_whole:
        assert large.path.read_bytes() == written
    else:
        assert text.startswith(
            "stepper: large.ipynb: another program changed the notebook while Claude"
            " Code read it, and the outputs were put back into the changed notebook."
        )
        expected = json.loads(written)
        originals = {cell["id"]: cell for cell in json.loads(full)["cells"]}
        for cell in expected["cells"][1:-1]:
            cell["outputs"] = originals[cell["id"]]["outputs"]
        assert large.raw == expected
    assert get_reads(large.project) == []


def test_another_program_replaces_the_copy_by_an_older_version(
    large: Notebook,
) -> None:
    """`git stash` takes the copy away: the outputs must not be lost."""
    before = large.path.read_bytes()
    read_slim(large)
    older = large.raw
    older["cells"] = [{**cell, "outputs": []} for cell in older["cells"][:50]]
    large.path.unlink()
    large.path.write_bytes(resave(older))
    text = get_text(send(large, "AfterRead"))
    assert large.path.read_bytes() == resave(older)
    match = re.match(
        "stepper: large.ipynb: another program replaced the notebook while it was read,"
        r" and the previous notebook is kept in (\S+\.kept)\.\n",
        text,
    )
    assert match, text[:300]
    assert (large.project.folder / match[1]).read_bytes() == before
    large.project.stepper("status")
    assert len(get_reads(large.project)) == 1


def test_disk_is_full_while_outputs_are_put_back(
    copies: tuple[SlimCopies, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slim, path = copies
    full = json.loads(path.read_text())
    assert place_copy(slim, path)
    changed = json.loads(path.read_text())
    changed["cells"][5]["source"] = "changed"
    path.write_bytes(resave(changed))

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(slim_copies.os, "fsync", fail)
        assert slim.restore(str(path))
        assert slim.take_problems() == [
            "n.ipynb: it could not be restored yet (No space left on device)"
        ]
        assert path.read_bytes() == resave(changed)
    assert slim.restore(str(path))
    full["cells"][5]["source"] = "changed"
    assert json.loads(path.read_text()) == full
    assert os.listdir(path.parent / ".stepper" / "reads") == []


def test_failed_read_names_cells_if_no_copy_can_be_placed() -> None:
    text = notebook_digest.format_failed_read(
        "a.ipynb",
        is_raw=False,
        can_retry=False,
        cells=[Cell("c0", 0, 1, "code", "x")] * 50,
    )
    assert "after the script, run: stepper run\n" in text
    assert text.endswith("cell 1 (id c0), 10 more cells.")


def test_slim_copy_is_deleted_or_renamed_meanwhile(large: Notebook) -> None:
    before = large.path.read_bytes()
    read_slim(large)
    large.path.unlink()
    assert "another program deleted or moved" in get_text(send(large, "AfterRead"))
    assert large.path.read_bytes() == before
    assert large.path.stat().st_nlink == 1
    read_slim(large)
    renamed = large.path.with_name("renamed.ipynb")
    large.path.rename(renamed)
    send(large, "AfterRead")
    assert renamed.read_bytes() == before
    assert get_reads(large.project) == []


def test_notebook_is_half_written(large: Notebook) -> None:
    """The program that writes in place has not finished: later contacts restore it."""
    read_slim(large)
    written = change_slim(b"", large.path.read_bytes())
    large.path.write_bytes(written[: len(written) // 2])
    send(large, "AfterRead")
    assert len(get_reads(large.project)) == 2
    large.path.write_bytes(written)
    large.project.stepper("show", large.name)
    assert OUTPUT_MARK not in large.path.read_text()
    assert get_reads(large.project) == []


def test_time_of_a_large_notebook_is_kept_until_the_turn_ends(large: Notebook) -> None:
    """The client would have to read the notebook again to accept the new time."""
    for notebook, is_kept in (
        (large, True),
        (large.project.notebook("small.ipynb", fill(2, 10)), False),
    ):
        notebook.replace("c1", "x = 2")
        os.utime(notebook.path, (1, 1))
        notebook.batch_end("NotebookEdit")
        assert (notebook.path.stat().st_mtime == 1) is is_kept
    other = Notebook(large.project, large.path, "session-2")
    for notebook in (other, large):
        assert large.path.stat().st_mtime == 1
        payload = notebook.payload("Stop", "", {}, last_assistant_message="Done.")
        notebook.project.hook("Stop", payload)
    assert large.path.stat().st_mtime > time.time() - 60


# --- the module -----------------------------------------------------------------------


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[tuple[SlimCopies, Path]]:
    home = tmp_path / ".stepper"
    home.mkdir()
    path = tmp_path / "n.ipynb"
    raw = {"cells": fill(120, 7000), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(raw))
    yield SlimCopies(str(tmp_path), Paths(str(tmp_path)).reads), path


def place_copy(copies: SlimCopies, path: Path) -> bool:
    return copies.place(str(path), IpynbFile(str(path)).read())


def test_a_second_read_cancels_the_timer_of_the_first(
    copies: tuple[SlimCopies, Path],
) -> None:
    """The timer of the first read must not end the second read."""
    slim, path = copies
    session = SimpleNamespace(file=IpynbFile(str(path)))
    workspace: Any = SimpleNamespace(
        slim_copies=slim, restore_timers={}, open_session=lambda _: session
    )

    async def read_twice() -> None:
        for _ in range(2):
            slim.restore(str(path))
            await read_events._place_slim_copy(workspace, str(path), Caller({}))
            timers.append(workspace.restore_timers[str(path)])
        assert [timer.cancelled() for timer in timers] == [True, False]
        assert slim.restore(str(path))

    timers: list[asyncio.TimerHandle] = []
    asyncio.run(read_twice())


def test_exchange_is_not_supported(
    copies: tuple[SlimCopies, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slim, path = copies
    before = get_state(path)
    monkeypatch.setattr(file_exchange, "RENAMEAT2", None)
    assert not place_copy(slim, path)
    assert get_state(path) == before
    assert os.listdir(path.parent / ".stepper" / "reads") == []


def test_disk_is_full(
    copies: tuple[SlimCopies, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slim, path = copies
    before = get_state(path)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(slim_copies.os, "fsync", fail)
        assert not place_copy(slim, path)
    assert get_state(path) == before
    shutil.rmtree(path.parent / ".stepper" / "reads")
    (path.parent / ".stepper" / "reads").write_text("")
    assert not place_copy(slim, path)
    assert get_state(path) == before


def test_notebook_changes_before_the_copy_is_placed(
    copies: tuple[SlimCopies, Path],
) -> None:
    slim, path = copies
    document = IpynbFile(str(path)).read()
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    before = get_state(path)
    assert not slim.place(str(path), document)
    assert get_state(path) == before


def test_foreign_records_are_ignored(copies: tuple[SlimCopies, Path]) -> None:
    """A stranger may have committed the folder: no other file is replaced."""
    slim, path = copies
    victim = path.parent.parent / "victim.ipynb"
    reads = path.parent / ".stepper" / "reads"
    reads.mkdir()
    for name in ("../victim.ipynb", str(victim), "a/../../victim.ipynb", ".bashrc"):
        key = slim_copies._make_key(os.path.join(str(path.parent), name))
        record = {"notebook": name, "full": [1, 2, 3], "slim": [4, 5, 6]}
        (reads / f"{key}.json").write_text(json.dumps(record))
        (reads / f"{key}.ipynb").write_text("evil")
    slim.restore_all()
    assert not victim.exists()
    assert not (path.parent / ".bashrc").exists()


def test_invalid_original_of_a_foreign_record_is_kept(
    copies: tuple[SlimCopies, Path],
) -> None:
    slim, path = copies
    before = path.read_bytes()
    reads = path.parent / ".stepper" / "reads"
    reads.mkdir()
    key = slim_copies._make_key(str(path))
    record = {"notebook": path.name, "full": [1, 2, 3], "slim": [4, 5, 6]}
    (reads / f"{key}.json").write_text(json.dumps(record))
    for text in ("{", "[]", "{}"):
        (reads / f"{key}.ipynb").write_text(text)
        slim.restore_all()
        assert slim.take_problems() == [
            f"n.ipynb: it could not be restored yet (.stepper/reads/{key}.ipynb is not"
            " a valid notebook)"
        ]
        assert path.read_bytes() == before
        assert len(os.listdir(reads)) == 2


def test_unused_copies_are_removed_next_to_an_unreadable_file(
    copies: tuple[SlimCopies, Path],
) -> None:
    slim, path = copies
    reads = path.parent / ".stepper" / "reads"
    reads.mkdir()
    (reads / "folder.ipynb").mkdir()
    for number in range(50):
        (reads / f"{number}.ipynb").write_text(OUTPUT_MARK)
    slim.restore_all()
    assert os.listdir(reads) == ["folder.ipynb"]


def test_renamed_copy_that_cannot_be_exchanged(
    copies: tuple[SlimCopies, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    slim, path = copies
    before = path.read_bytes()
    assert place_copy(slim, path)
    renamed = path.with_name("renamed.ipynb")
    path.rename(renamed)
    with monkeypatch.context() as patch:
        patch.setattr(file_exchange, "RENAMEAT2", None)
        slim.restore(str(path))
        assert "could not be restored yet" in slim.take_problems()[0]
    slim.restore(str(path))
    assert renamed.read_bytes() == before


def test_each_state_before_and_after_the_exchange_is_restored(
    copies: tuple[SlimCopies, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is killed before or after each system call that changes a file."""
    path = copies[1]
    before = get_state(path)
    reads = str(path.parent / ".stepper" / "reads")

    class KilledError(BaseException):
        pass

    def kill_at(limit: int) -> bool:
        """Place and restore a copy; return whether the daemon was killed."""
        count = 0

        def intercept(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count > limit:
                    raise KilledError
                return function(*arguments, **options)

            return call

        current = SlimCopies(str(path.parent), reads)
        document = IpynbFile(str(path)).read()
        with monkeypatch.context() as patch:
            for name in ("open", "fsync", "utime", "fchmod"):
                patch.setattr(slim_copies.os, name, intercept(getattr(os, name)))
            for name in ("exchange_between", "remove_file"):
                patch.setattr(slim_copies, name, intercept(getattr(slim_copies, name)))
            try:
                current.place(str(path), document)
                current.restore(str(path))
            except KilledError:
                return True
        return False

    kills = 0
    for limit in range(30):
        kills += kill_at(limit)
        SlimCopies(str(path.parent), reads).restore_all()
        assert get_state(path) == before, limit
        assert not os.path.exists(reads) or os.listdir(reads) == []
    assert 8 < kills < 30
    assert os.listdir(reads) == []


def test_reads_and_writes_at_the_same_time(copies: tuple[SlimCopies, Path]) -> None:
    """Another program rewrites the notebook while copies are placed and restored."""
    slim, path = copies
    raw = json.loads(path.read_text())
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            raw["cells"][0]["source"] = f"version {number}"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(raw))
            temporary.replace(path)
            time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(60):
            place_copy(slim, path)
            slim.restore(str(path))
    finally:
        stop.set()
        thread.join()
    slim.restore_all()
    assert json.loads(path.read_text()) == raw


def save_changed_copy(
    copies: tuple[SlimCopies, Path],
    prepare: Callable[[list[dict[str, Any]]], None],
    change: Callable[[list[dict[str, Any]]], None],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Let another program change the slim copy; return the cells before and after."""
    slim, path = copies
    full = json.loads(path.read_text())
    prepare(full["cells"])
    path.write_text(json.dumps(full))
    assert place_copy(slim, path)
    changed = json.loads(path.read_text())
    change(changed["cells"])
    path.write_bytes(resave(changed))
    slim.restore(str(path))
    return full["cells"], json.loads(path.read_text())["cells"]


def test_attachments_of_markdown_cells_are_put_back(
    copies: tuple[SlimCopies, Path],
) -> None:
    attachments = {"map.png": {"image/png": "iVBORw0KGgo="}}

    def add_attachment(cells: list[dict[str, Any]]) -> None:
        text = "![map](attachment:map.png)"
        cells[3] = {
            "cell_type": "markdown",
            "id": "md",
            "metadata": {},
            "source": text,
            "attachments": attachments,
        }

    def edit(cells: list[dict[str, Any]]) -> None:
        assert "attachments" not in cells[3]
        cells[5]["source"] = "changed"

    _, after = save_changed_copy(copies, add_attachment, edit)
    assert after[3]["attachments"] == attachments
    assert after[5]["source"] == "changed"


def test_outputs_return_to_their_cells_in_a_notebook_without_ids(
    copies: tuple[SlimCopies, Path],
) -> None:
    def remove_ids(cells: list[dict[str, Any]]) -> None:
        for number, cell in enumerate(cells):
            del cell["id"]
            cell["source"] = f"print({number // 2})"
            cell["outputs"][0]["text"] += str(number)

    def insert_above(cells: list[dict[str, Any]]) -> None:
        new = {**cells[0], "source": "import math", "outputs": []}
        cells.insert(0, new)

    before, after = save_changed_copy(copies, remove_ids, insert_above)
    assert after[1:] == before
    assert after[0]["outputs"] == []


def test_notebook_is_kept_if_a_cell_with_omitted_outputs_is_unknown(
    copies: tuple[SlimCopies, Path],
) -> None:
    slim, path = copies

    def change_id(cells: list[dict[str, Any]]) -> None:
        cells[4]["id"] = "unknown"

    before, after = save_changed_copy(copies, lambda cells: None, change_id)
    assert after[5] == before[5]
    assert OUTPUT_MARK in str(after[4])
    (problem,) = slim.take_problems()
    assert "but not those of cells that it gave another id or source" in problem
    match = re.search(r"notebook is kept in (\S+\.kept)$", problem)
    assert match
    kept = json.loads((path.parent / match[1]).read_text())
    assert kept["cells"] == before


@pytest.mark.parametrize("cell_id", ["same", ""])
def test_outputs_of_cells_with_the_same_id_are_not_mixed_up(cell_id: str) -> None:
    cells = []
    for text in ("first", "second"):
        output = {"output_type": "stream", "name": "stdout", "text": [text]}
        cell = {"cell_type": "code", "source": "x", "metadata": {}, "outputs": [output]}
        if cell_id:
            cell["id"] = cell_id
        cells.append(cell)
    full = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    slim = slim_copies.make_slim(full)
    restored = slim_copies.restore_parts(Document(slim, json.loads(slim)), full)
    assert restored is not None
    assert restored.is_complete
    outputs = [cell["outputs"] for cell in json.loads(restored.data)["cells"]]
    assert [output["text"] for [output] in outputs] == [["first"], ["second"]]
