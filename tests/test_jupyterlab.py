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
# The server needs about a hundred packages. test_notebook.py tests the file exchange.
pytestmark = pytest.mark.nightly
CLIENT_SCRIPT = Path(__file__).with_name("collaboration_client.py")
ROUNDS = 5


@dataclass
class Lab:
    """A running JupyterLab, whose own files are in `home`."""

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
    """A folder that the server serves. The project's daemon finds the server's record."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(lab.home / "runtime"))
    folder = lab.root / uuid.uuid4().hex[:8]
    folder.mkdir()
    return folder


def wait_until_true(
    condition: Callable[[], Any], description: str, seconds: float = 120
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {description}"
        time.sleep(0.02)


def source(raw: dict[str, Any], cell_id: str) -> str:
    return "".join(
        next("".join(cell["source"]) for cell in raw["cells"] if cell["id"] == cell_id)
    )


def validate(raw: dict[str, Any]) -> None:
    nbformat.validate(nbformat.from_dict(raw))


@dataclass
class Autosave:
    """A notebook in JupyterLab without collaboration.

    It saves like `Context._maybeSave` of @jupyterlab/docregistry.
    """

    lab: Lab
    path: str
    model: dict[str, Any] = field(default_factory=dict)
    hash: str = ""
    conflicts: int = 0

    def open(self) -> None:
        response = self.lab.ask(
            "GET", f"api/contents/{self.path}?type=notebook&content=1&hash=1"
        )
        self.model = response["content"]
        self.hash = response["hash"]
        validate(self.model)

    def is_unchanged(self) -> bool:
        """Whether the file is unchanged; if not, a save asks the user what to do."""
        return (
            self.lab.ask("GET", f"api/contents/{self.path}?content=0&hash=1")["hash"]
            == self.hash
        )

    def save(self) -> None:
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
        """Type and save; if the file has changed, the user reverts and types again."""
        while True:
            self.type(cell_id, text)
            if self.is_unchanged():
                return self.save()
            self.conflicts += 1
            self.open()


@contextlib.contextmanager
def repeat_in_background(work: Callable[[int], None]) -> Iterator[None]:
    """Repeat the work in a thread; raise its exception in this one."""
    stop_event = threading.Event()

    def loop() -> None:
        for number in count():
            work(number)
            if stop_event.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop)
        try:
            yield
        finally:
            stop_event.set()
        running.result(60)


def insert(notebook: Notebook, text: str, save_lock: threading.Lock) -> str:
    """Insert a cell like Claude Code and run its hook; the edit overlaps no save."""
    with save_lock:
        payload = notebook.edited("insert", text, notebook.raw["cells"][-1]["id"])
    assert "ok" in notebook.project.hook("PostToolUse", payload).text
    return payload["tool_response"]["cell_id"]


class AtomicPath(type(Path())):
    """A path that is written atomically: Jupyter must not see half of an edit."""

    def write_text(self, *values: Any, **options: Any) -> int:
        length = Path(f"{self}.edit").write_text(*values, **options)
        os.replace(f"{self}.edit", self)
        return length


def create_test_notebook(project: Project) -> Notebook:
    cells = [
        {"cell_type": "markdown", "id": "hers", "metadata": {}, "source": "notes"},
        code("x = 1", "first"),
    ]
    notebook = project.notebook("n.ipynb", cells)
    notebook.path = AtomicPath(notebook.path)
    return notebook


def make_lines(count: int) -> str:
    return "notes" + "".join(f"\nline {number}" for number in range(count))


def has_outputs(raw: dict[str, Any], expected_outputs: dict[str, str]) -> bool:
    texts = {
        cell["id"]: text_of(cell)
        for cell in raw["cells"]
        if cell["cell_type"] == "code" and cell["outputs"]
    }
    return texts == expected_outputs


def test_autosave_and_stepper_on_one_notebook(project: Project, lab: Lab) -> None:
    notebook = create_test_notebook(project)
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    jupyter.open()
    save_lock, typed, expected_outputs = threading.Lock(), [], {}

    def type_repeatedly(number: int) -> None:
        with save_lock:
            jupyter.edit("hers", f"\nline {number}")
        typed.append(number)
        time.sleep(0.02)

    def read_repeatedly(number: int) -> None:
        with save_lock:
            validate(json.loads(notebook.path.read_bytes()))
            validate(
                lab.ask("GET", f"api/contents/{jupyter.path}?type=notebook&content=1")[
                    "content"
                ]
            )

    with repeat_in_background(type_repeatedly), repeat_in_background(read_repeatedly):
        for number in range(ROUNDS):
            expected_outputs[insert(notebook, f"print({number})", save_lock)] = (
                f"{number}\n"
            )
    assert jupyter.conflicts >= 1, "a save noticed what stepper had written"
    wait_until_true(lambda: has_outputs(notebook.raw, expected_outputs), "the outputs")
    assert source(notebook.raw, "hers") == make_lines(len(typed))
    assert len(typed) > ROUNDS


def test_save_started_before_outputs_were_written(project: Project, lab: Lab) -> None:
    """The save removes the outputs. They are written again, and its edit stays."""
    notebook = create_test_notebook(project)
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    expected_outputs = {insert(notebook, "print(1)", threading.Lock()): "1\n"}
    payload = notebook.edited("insert", "print(2)")
    jupyter.open()
    jupyter.type("hers", "\nline 0")
    assert jupyter.is_unchanged()
    project.hook("PostToolUse", payload)
    expected_outputs[payload["tool_response"]["cell_id"]] = "2\n"
    assert has_outputs(notebook.raw, expected_outputs)
    jupyter.save()
    assert not has_outputs(jupyter.model, expected_outputs)
    wait_until_true(lambda: has_outputs(notebook.raw, expected_outputs), "the outputs")
    assert source(notebook.raw, "hers") == make_lines(1)


def test_outputs_cleared_by_the_user_stay_cleared(project: Project, lab: Lab) -> None:
    notebook = project.new("one", "two")
    jupyter = Autosave(lab, str(notebook.path.relative_to(lab.root)))
    cell_id = insert(notebook, "print(1)", threading.Lock())
    jupyter.open()
    cell = next(cell for cell in jupyter.model["cells"] if cell["id"] == cell_id)
    cell |= {"outputs": [], "execution_count": None}
    del cell["metadata"]["execution"]  # as "Clear Outputs" does
    jupyter.save()
    answer = insert(notebook, "print(2)", threading.Lock())
    with pytest.raises(AssertionError):
        wait_until_true(
            lambda: notebook.cell(cell_id)["outputs"], "outputs that must not come", 1
        )
    assert text_of(notebook.cell(answer)) == "2\n"


class CollaborationRoom:
    """The document in a collaboration room: see collaboration_client.py."""

    def __init__(self, lab: Lab, path: str) -> None:
        command = [lab.python, str(CLIENT_SCRIPT), lab.url, TOKEN, path]
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
                "no response from the room"
            )
            data = json.loads(self.process.stdout.readline())
        validate(data["notebook"])
        self.saved = data["saved"]
        return data["notebook"]

    def __enter__(self) -> CollaborationRoom:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_collaboration_and_stepper_on_one_notebook(project: Project, lab: Lab) -> None:
    notebook = create_test_notebook(project)
    save_lock, typed, dropped, expected_outputs = threading.Lock(), [], [], {}
    with CollaborationRoom(lab, str(notebook.path.relative_to(lab.root))) as room:
        assert source(room.ask(), "hers") == "notes"

        def type_repeatedly(number: int) -> None:
            """Type a line until Jupyter has saved it; Jupyter may drop unsaved input.

            Wait first until the room has the agent's new cell: during a save, the room
            may write the notebook without it (`FileLoader.maybe_notify`).
            """
            with save_lock:
                wait_until_true(
                    lambda: list_ids(room.ask()) == list_ids(notebook.raw),
                    "the new cell in the room",
                )
                line = f"\nline {number}"
                deadline = time.monotonic() + 60
                room.ask(type=line, cell="hers")
                while not is_saved(notebook.path, line, room):
                    assert time.monotonic() < deadline, lab.log.read_text()[-3000:]
                    if line not in source(room.ask(), "hers"):
                        dropped.append(line)
                        room.ask(type=line, cell="hers")
                    time.sleep(0.02)
                typed.append(number)
            time.sleep(0.02)

        with (
            repeat_in_background(type_repeatedly),
            repeat_in_background(lambda number: validate(room.ask())),
        ):
            for number in range(ROUNDS):
                expected_outputs[insert(notebook, f"print({number})", save_lock)] = (
                    f"{number}\n"
                )
        wait_until_true(
            lambda: has_outputs(notebook.raw, expected_outputs), "the outputs"
        )
        wait_until_true(
            lambda: has_outputs(room.ask(), expected_outputs), "the outputs in the room"
        )
        assert (
            source(notebook.raw, "hers")
            == source(room.ask(), "hers")
            == make_lines(len(typed))
        ), dropped
        assert len(typed) > 1
    log = lab.log.read_text()
    assert "Error loading content" not in log and "Traceback" not in log, log[-3000:]


def list_ids(raw: dict[str, Any]) -> list[str]:
    return [cell["id"] for cell in raw["cells"]]


def is_saved(path: Path, line: str, room: CollaborationRoom) -> bool:
    """Whether the file has the line and Jupyter has finished the save.

    Jupyter reads the file again at the end of a save.
    """
    data = path.read_bytes()
    is_old = time.time() - path.stat().st_mtime > 1
    with contextlib.suppress(ValueError):  # half a file, in the middle of a save
        has_line = f"{line}\n" in source(json.loads(data), "hers") + "\n"
        return has_line and (is_old or room.saved == hashlib.sha256(data).hexdigest())
    return False


def test_collaboration_room_loads_outputs_before_message_end(
    project: Project, lab: Lab
) -> None:
    """The mtime grows by less than a millisecond: only Jupyter sees the change."""
    notebook = create_test_notebook(project)
    with CollaborationRoom(lab, str(notebook.path.relative_to(lab.root))) as room:
        payload = notebook.edited("insert", "print(1)")
        edit_time = time.time_ns() // 1_000_000 * 1_000_000 + 500_000
        os.utime(notebook.path, ns=(edit_time, edit_time))
        cell_id = payload["tool_response"]["cell_id"]
        wait_until_true(
            lambda: any(cell["id"] == cell_id for cell in room.ask()["cells"]),
            "the cell in the room",
        )
        project.hook("PostToolUse", payload)
        write_time = notebook.path.stat().st_mtime_ns
        assert edit_time < write_time < edit_time + 100_000
        wait_until_true(
            lambda: has_outputs(room.ask(), {cell_id: "1\n"}),
            "the outputs in the room",
        )


def test_server_with_reload_is_not_reported(lab: Lab, project: Project) -> None:
    project.new()
    assert project.json("status")["jupyter"] == ""
