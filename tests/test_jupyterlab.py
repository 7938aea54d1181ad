"""The same notebook open in a real JupyterLab: autosave and collaboration rooms.

No output and no saved edit is lost, and the file is always a valid notebook. Two
limitations are Jupyter's own: it drops unsaved input if another program writes the
file, and it saves in place, so that a reader can see half a file. The tests repeat
such input and do not read while Jupyter saves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import Notebook, Project, code, text_of
from tests.test_kernel_helper import environment

PACKAGES = (
    "jupyterlab==4.6.6",
    "jupyter-server==2.21.1",
    "jupyter-collaboration==5.0.4",
    "jupyter-server-ydoc==3.0.4",
    "jupyter-ydoc==4.2.1",
    "pycrdt==0.14.13",
)
TOKEN = uuid.uuid4().hex
pytestmark = (
    pytest.mark.nightly
)  # a server of some hundred packages; the exchange itself is test_notebook.py's
ROOM = Path(__file__).with_name("jupyter_room.py")
ROUNDS = 5


@dataclass
class Lab:
    """A running JupyterLab; all that it writes of its own lies in `home`."""

    url: str
    root: Path
    home: Path
    python: str
    log: Path

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"token {TOKEN}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    python = environment(sys.executable, *PACKAGES)
    home, root = tmp_path_factory.mktemp("jupyter"), tmp_path_factory.mktemp("root")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        python,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
    ]
    command += [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}",
    ]
    command += [
        f"--IdentityProvider.token={TOKEN}",
        "--YDocExtension.document_save_delay=0.2",
        "--YDocExtension.file_poll_interval=0.2",
    ]
    folders = {
        f"JUPYTER_{name}_DIR": str(home / name.lower())
        for name in ("RUNTIME", "DATA", "CONFIG")
    }
    log = home / "log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            command,
            cwd=home,
            env={**os.environ, **folders, "HOME": str(home)},
            stdout=stream,
            stderr=stream,
        )
    lab = Lab(f"http://127.0.0.1:{port}/", root, home, python, log)
    try:
        wait_until_true(lambda: is_responding(lab), "the server", 60)
        yield lab
    finally:
        server.terminate()
        server.wait(20)


def is_responding(lab: Lab) -> bool:
    with contextlib.suppress(OSError):
        return bool(lab.ask("GET", "api"))
    return False


@pytest.fixture
def tmp_path(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the server shows; the project's daemon finds that server's record as the person's own."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(lab.home / "runtime"))
    folder = lab.root / uuid.uuid4().hex[:8]
    folder.mkdir()
    return folder


def wait_until_true(true: Callable[[], Any], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def source(raw: dict[str, Any], cell_id: str) -> str:
    return "".join(
        next("".join(cell["source"]) for cell in raw["cells"] if cell["id"] == cell_id)
    )


def valid(raw: dict[str, Any]) -> None:
    nbformat.validate(nbformat.from_dict(raw))


@dataclass
class Autosave:
    """A notebook in JupyterLab without collaboration; it saves as `Context._maybeSave` of docregistry does."""

    lab: Lab
    path: str
    model: dict[str, Any] = field(default_factory=dict)
    hash: str = ""
    conflicts: int = 0

    def open(self) -> None:
        told = self.lab.ask(
            "GET", f"api/contents/{self.path}?type=notebook&content=1&hash=1"
        )
        self.model, self.hash = told["content"], told["hash"]
        valid(self.model)

    def unchanged(self) -> bool:
        """What a save asks first; where the file has changed, the person is asked."""
        return (
            self.lab.ask("GET", f"api/contents/{self.path}?content=0&hash=1")["hash"]
            == self.hash
        )

    def put(self) -> None:
        self.lab.ask(
            "PUT",
            f"api/contents/{self.path}",
            {"type": "notebook", "format": "json", "content": self.model},
        )
        self.hash = self.lab.ask("GET", f"api/contents/{self.path}?content=0&hash=1")[
            "hash"
        ]

    def type(self, cell_id: str, text: str) -> None:
        cell = next(cell for cell in self.model["cells"] if cell["id"] == cell_id)
        cell["source"] = "".join(cell["source"]) + text

    def edit(self, cell_id: str, text: str) -> None:
        """Type, and save; the person answers "Revert" where the file has changed, and types it once more."""
        while True:
            self.type(cell_id, text)
            if self.unchanged():
                return self.put()
            self.conflicts += 1
            self.open()


@contextlib.contextmanager
def repeat_in_background(work: Callable[[int], None]) -> Iterator[None]:
    """Do the work again and again in a thread of its own; what it raises is raised here."""
    over = threading.Event()

    def loop() -> None:
        for number in count():
            work(number)
            if over.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop)
        try:
            yield
        finally:
            over.set()
        running.result(60)


def insert(notebook: Notebook, text: str, quiet: threading.Lock) -> str:
    """Insert a cell as Claude Code does, and run its hook; the client's own edit meets no save of Jupyter's."""
    with quiet:
        payload = notebook.edited("insert", text, notebook.raw["cells"][-1]["id"])
    assert "ok" in notebook.project.hook("PostToolUse", payload).text
    return payload["tool_response"]["cell_id"]


class Whole(type(Path())):
    """A path that is written in one go: the agent's edits here must not show Jupyter half a file."""

    def write_text(self, *values: Any, **how: Any) -> int:
        written = Path(f"{self}.edit").write_text(*values, **how)
        os.replace(f"{self}.edit", self)
        return written


def open_notebook(project: Project) -> Notebook:
    cells = [
        {"cell_type": "markdown", "id": "hers", "metadata": {}, "source": "notes"},
        code("x = 1", "first"),
    ]
    notebook = project.notebook("n.ipynb", cells)
    notebook.path = Whole(notebook.path)
    return notebook


def make_lines(count: int) -> str:
    return "notes" + "".join(f"\nline {number}" for number in range(count))


def outputs_are_there(raw: dict[str, Any], ran: dict[str, str]) -> bool:
    texts = {
        cell["id"]: text_of(cell)
        for cell in raw["cells"]
        if cell["cell_type"] == "code" and cell["outputs"]
    }
    return texts == ran


def test_autosave_and_stepper_on_one_notebook(project: Project, lab: Lab) -> None:
    notebook = open_notebook(project)
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    jupyter.open()
    quiet, typed, ran = threading.Lock(), [], {}

    def person(number: int) -> None:
        with quiet:
            jupyter.edit("hers", f"\nline {number}")
        typed.append(number)
        time.sleep(0.02)

    def reader(number: int) -> None:
        with quiet:
            valid(json.loads(notebook.path.read_bytes()))
            valid(
                lab.ask("GET", f"api/contents/{jupyter.path}?type=notebook&content=1")[
                    "content"
                ]
            )

    with repeat_in_background(person), repeat_in_background(reader):
        for number in range(ROUNDS):
            ran[insert(notebook, f"print({number})", quiet)] = f"{number}\n"
    assert jupyter.conflicts >= 1, "a save noticed what stepper had written"
    wait_until_true(lambda: outputs_are_there(notebook.raw, ran), "the outputs")
    assert source(notebook.raw, "hers") == make_lines(len(typed))
    assert len(typed) > ROUNDS


def test_save_started_before_outputs_were_written(project: Project, lab: Lab) -> None:
    """It lands after them and drops them: they are put again, and the save's edit stays."""
    notebook = open_notebook(project)
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    ran = {insert(notebook, "print(1)", threading.Lock()): "1\n"}
    payload = notebook.edited("insert", "print(2)")
    jupyter.open()
    jupyter.type("hers", "\nline 0")
    assert jupyter.unchanged()
    project.hook("PostToolUse", payload)
    ran[payload["tool_response"]["cell_id"]] = "2\n"
    assert outputs_are_there(notebook.raw, ran)
    jupyter.put()
    assert not outputs_are_there(jupyter.model, ran)
    wait_until_true(lambda: outputs_are_there(notebook.raw, ran), "the outputs")
    assert source(notebook.raw, "hers") == make_lines(1)


def test_outputs_cleared_by_the_user_stay_cleared(project: Project, lab: Lab) -> None:
    notebook = project.new("one", "two")
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    cell_id = insert(notebook, "print(1)", threading.Lock())
    jupyter.open()
    cell = next(cell for cell in jupyter.model["cells"] if cell["id"] == cell_id)
    cell |= {"outputs": [], "execution_count": None}
    del cell["metadata"]["execution"]  # "Clear Outputs" does that
    jupyter.put()
    answer = insert(notebook, "print(2)", threading.Lock())
    with pytest.raises(AssertionError):
        wait_until_true(
            lambda: notebook.cell(cell_id)["outputs"], "outputs that must not come", 1
        )
    assert text_of(notebook.cell(answer)) == "2\n"


class Room:
    """The document open in a collaboration room: see jupyter_room.py."""

    def __init__(self, lab: Lab, path: str) -> None:
        command = [lab.python, str(ROOM), lab.url, TOKEN, path]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lock, self.saved = threading.Lock(), None

    def ask(self, **request: str) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        with self.lock:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            assert select.select([self.process.stdout], [], [], 30)[0], (
                "the room keeps silent"
            )
            data = json.loads(self.process.stdout.readline())
        valid(data["notebook"])
        self.saved = data["saved"]
        return data["notebook"]

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_collaboration_and_stepper_on_one_notebook(project: Project, lab: Lab) -> None:
    notebook = open_notebook(project)
    quiet, typed, dropped, ran = threading.Lock(), [], [], {}
    with Room(lab, str(notebook.path.relative_to(lab.root))) as room:
        assert source(room.ask(), "hers") == "notes"

        def person(number: int) -> None:
            """Type a line; it counts once Jupyter has saved it. Jupyter may drop it before: then it is typed again.

            It is typed once the room knows the agent's new cell: a room that learns of it in the middle of a save may
            write the notebook without it, whoever had written it (`FileLoader.maybe_notify`).
            """
            with quiet:
                wait_until_true(
                    lambda: ids(room.ask()) == ids(notebook.raw),
                    "the new cell in the room",
                )
                line, end = f"\nline {number}", time.monotonic() + 60
                room.ask(type=line, cell="hers")
                while not is_saved(notebook.path, line, room):
                    assert time.monotonic() < end, lab.log.read_text()[-3000:]
                    if line not in source(room.ask(), "hers"):
                        dropped.append(line)
                        room.ask(type=line, cell="hers")
                    time.sleep(0.02)
                typed.append(number)
            time.sleep(0.02)

        with (
            repeat_in_background(person),
            repeat_in_background(lambda number: valid(room.ask())),
        ):
            for number in range(ROUNDS):
                ran[insert(notebook, f"print({number})", quiet)] = f"{number}\n"
        wait_until_true(lambda: outputs_are_there(notebook.raw, ran), "the outputs")
        wait_until_true(
            lambda: outputs_are_there(room.ask(), ran), "the outputs in the room"
        )
        assert (
            source(notebook.raw, "hers")
            == source(room.ask(), "hers")
            == make_lines(len(typed))
        ), dropped
        assert len(typed) > 1
    log = lab.log.read_text()
    assert "Error loading content" not in log and "Traceback" not in log, log[-3000:]


def ids(raw: dict[str, Any]) -> list[str]:
    return [cell["id"] for cell in raw["cells"]]


def is_saved(path: Path, line: str, room: Room) -> bool:
    """Whether the file holds the line, and Jupyter is through with the save: it looks at the file once more."""
    data, settled = path.read_bytes(), time.time() - path.stat().st_mtime > 1
    with contextlib.suppress(ValueError):  # half a file, in the middle of a save
        there = f"{line}\n" in source(json.loads(data), "hers") + "\n"
        return there and (settled or room.saved == hashlib.sha256(data).hexdigest())
    return False


def test_collaboration_room_loads_outputs_before_message_end(
    project: Project, lab: Lab
) -> None:
    """The time stays, for Claude Code, within the millisecond; Jupyter sees that it grew."""
    notebook = open_notebook(project)
    with Room(lab, str(notebook.path.relative_to(lab.root))) as room:
        payload = notebook.edited("insert", "print(1)")
        before = time.time_ns() // 1_000_000 * 1_000_000 + 500_000
        os.utime(notebook.path, ns=(before, before))
        cell_id = payload["tool_response"]["cell_id"]
        wait_until_true(
            lambda: any(cell["id"] == cell_id for cell in room.ask()["cells"]),
            "the cell in the room",
        )
        project.hook("PostToolUse", payload)
        after = notebook.path.stat().st_mtime_ns
        assert before < after < before + 100_000
        wait_until_true(
            lambda: outputs_are_there(room.ask(), {cell_id: "1\n"}),
            "the outputs in the room",
        )


def test_server_with_reload_is_not_reported(lab: Lab, project: Project) -> None:
    project.new()
    assert project.json("status")["jupyter"] == ""
