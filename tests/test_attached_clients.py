"""Real clients on stepper's kernels: a console and a Jupyter server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from stepper.kernels.backends.local.local_launcher import LocalLauncher
from stepper.notebooks import jupyter_saves
from stepper.policy.model import Limits, Outcome
from stepper.session.protocols import LaunchConfig
from tests.conftest import Notebook, Project, reuse_project, text_of
from tests.environments import environment
from tests.jupyterserver import TOKEN, JupyterServer

CONSOLE = ("jupyter_console>=6.6,<7", "ipykernel>=7,<8")
project = pytest.fixture(reuse_project)


@pytest.fixture
def notebook(project: Project) -> Notebook:
    """A notebook with a kernel in which `a` is 1."""
    new_notebook = project.new()
    new_notebook.insert("a = 1")
    return new_notebook


@contextlib.contextmanager
def connect_client(project: Project, file: str = "") -> Iterator[BlockingKernelClient]:
    """Connect another client to the kernel, with the file of `stepper attach`."""
    client = BlockingKernelClient()
    client.load_connection_file(file or project.json("attach")["file"])
    client.start_channels(stdin=False)
    try:
        client.wait_for_ready(120)
        yield client
    finally:
        client.stop_channels()


def run_externally(client: BlockingKernelClient, code: str, **options: bool) -> str:
    """Run code with another client; return the status of the reply."""
    return str(
        client.execute_interactive(
            code, timeout=120, output_hook=lambda _: None, **options
        )["content"]["status"]
    )


def wait_until_true(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def get_running_text(project: Project) -> str:
    """Return the text of the file of running cells, which status lines show."""
    with contextlib.suppress(FileNotFoundError):
        return (project.folder / ".stepper" / "running").read_text()
    return ""


# --- connecting a client --------------------------------------------------------------


def test_attach_prints_file_command_and_settings(
    project: Project, notebook: Notebook
) -> None:
    response = project.json("attach", notebook.path.name.removesuffix(".ipynb"))
    about = os.stat(response["file"])
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o600, os.getuid())
    assert os.path.dirname(response["file"]) == project.paths.runtime
    assert response["kernel"][:8] in os.path.basename(response["file"])
    assert response["console"] == f"jupyter console --existing {response['file']}"
    assert response["settings"] == [
        "--ServerApp.allow_external_kernels=True",
        f"--ServerApp.external_connection_dir={project.paths.runtime}",
    ]
    text = project.stepper("attach").stdout
    assert all(part in text for part in (response["console"], *response["settings"]))
    key = json.loads(Path(response["file"]).read_text())["key"]
    assert key not in text + json.dumps(response)

    project.stepper("restart")
    new_file = project.json("attach")["file"]
    # JupyterLab would not notice one that is rewritten
    assert new_file != response["file"]
    assert not os.path.exists(response["file"])
    project.stepper("shutdown", "--", notebook.path.name)
    assert not os.path.exists(new_file)


def test_attach_without_kernel_names_the_start_command(
    project: Project,
) -> None:
    new_notebook = project.new()
    result = project.stepper("attach", "--json", check=1)
    assert result.stdout == ""
    assert "the notebook has no running kernel" in result.stderr
    assert (
        f"stepper kernels wait {new_notebook.path.relative_to(project.folder)}"
        in result.stderr
    )
    project.stepper("kernels", "wait")
    project.stepper("attach")


def test_attach_without_console_names_the_package(
    project: Project, notebook: Notebook, monkeypatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    program = Path(sys.executable).with_name("jupyter-console")
    assert not program.exists()
    result = project.stepper("attach", "--console", check=1)
    assert "jupyter-console is not installed" in result.stderr
    assert "pip install jupyter-console" in result.stderr


@pytest.mark.nightly
def test_names_bound_in_jupyter_console_are_tracked(
    project: Project, notebook: Notebook, monkeypatch
) -> None:
    console = Path(environment(sys.executable, *CONSOLE)).parent
    main, side = pty.openpty()
    environ = {
        **os.environ,
        "PATH": f"{console}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
    }
    call = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        "attach",
        "--console",
    ]
    with subprocess.Popen(
        call, stdin=side, stdout=side, stderr=side, cwd=project.folder, env=environ
    ) as process:
        os.close(side)
        terminal_output = TerminalOutput(main)
        try:
            terminal_output.until("In [")
            os.write(main, b"b = a + 41\r")
            terminal_output.until("In [3]")
            os.write(main, b"print(f'b is {b}')\r")
            terminal_output.until("b is 42")
        finally:
            process.kill()
    _, response = notebook.insert("print(b + 1)")
    assert "ran ok" in response.text
    assert "2 executions by other clients; assigned variables: b." in response.text
    assert [
        text_of(cell) for cell in notebook.raw["cells"] if cell["cell_type"] == "code"
    ] == ["", "43\n"]


class TerminalOutput:
    """A program's output on a terminal."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.text = terminal, ""

    def until(self, text: str) -> None:
        """Read until the output contains a text."""
        end = time.monotonic() + 120
        while text not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self.terminal], [], [], 1)[0]:
                self.text += os.read(self.terminal, 65536).decode("utf-8", "replace")
                if "\x1b[6n" in self.text:  # the program requests the cursor position
                    self.text = self.text.replace("\x1b[6n", "")
                    os.write(self.terminal, b"\x1b[1;1R")


@pytest.mark.nightly
def test_jupyter_server_lists_the_kernel_and_keeps_it_running(
    project: Project, notebook: Notebook
) -> None:
    response = project.json("attach")
    server = JupyterServer("server", *response["settings"])
    try:
        (kernel,) = server.ask("kernels")
        assert kernel["name"] == "python3"
        document = {
            "path": "analysis.ipynb",
            "name": "analysis.ipynb",
            "type": "notebook",
        }
        opened = server.ask(
            "sessions", "POST", {**document, "kernel": {"id": kernel["id"]}}
        )
        assert opened["kernel"]["id"] == kernel["id"]
        # the request of JupyterLab's "Shut Down Kernel"
        with contextlib.suppress(OSError):
            server.ask(f"kernels/{kernel['id']}", "DELETE")
    finally:
        server.stop()
    assert "| 2\n" in notebook.insert("print(a + 1)")[1].text + "\n"


# --- code that clients run ------------------------------------------------------------


def test_external_execution_is_reported_once_and_journaled(
    project: Project, notebook: Notebook
) -> None:
    with connect_client(project) as client:
        run_externally(client, "x = a + 1")
        run_externally(client, "print('not the notebook\\'s')\ny = [x]")
        assert run_externally(client, "1/0") == "error"
        client.complete("prin", reply=True, timeout=120)
        client.inspect("print", reply=True, timeout=120)
        run_externally(client, "x", store_history=False)  # like a variable viewer
        run_externally(client, "hidden = 1", silent=True)
        _, response = notebook.insert("z = x + y[0]\nprint(z)")
        assert "ran ok" in response.text
        assert (
            "Note: 3 executions by other clients (1 failed); assigned variables: x, y."
            in response.text
        )
        assert "elsewhere" not in notebook.insert("print(z)")[1].text
        run_externally(client, "unseen = 2", silent=True)
        # the preflight check asks the kernel for names
        assert "ran ok" in notebook.insert("print(unseen)")[1].text
        run_externally(client, "x = 5", store_history=False)
        assert (
            "1 execution by other clients; assigned variables: x."
            in notebook.insert("print(x)")[1].text
        )
    outputs = [
        text_of(cell) for cell in notebook.raw["cells"] if cell["cell_type"] == "code"
    ]
    assert outputs == ["", "4\n", "4\n", "2\n", "5\n"]
    rows = project.json("history")
    assert [(row["run"], row["by"], row["outcome"], row["bound"]) for row in rows] == [
        (1, "hook", "ok", []),
        (0, "elsewhere", "ok", ["x"]),
        (0, "elsewhere", "ok", ["y"]),
        (0, "elsewhere", "error", []),
        (2, "hook", "ok", []),
        (3, "hook", "ok", []),
        (4, "hook", "ok", []),
        (0, "elsewhere", "ok", ["x"]),
        (5, "hook", "ok", []),
    ]
    assert rows[2]["source"] == "print('not the notebook\\'s')"  # the first line
    assert "elsewhere  ok" in project.stepper("history").stdout
    assert "x = a + 1" in project.stepper("history").stdout


def test_name_bound_by_external_client_is_hidden_state(project: Project) -> None:
    new_notebook = project.new("Set", "Read")
    new_notebook.insert("a = 1")
    with connect_client(project) as client:
        run_externally(client, "a, own = 2, 3")
        cell, response = new_notebook.insert("b = a + own\nprint(b)")
        assert (
            "Hidden state: cell 2 read `a` and `own` from code that another client executed."
            in response.text
        )
        assert (
            "not reproduce these results: cell 2 reads `own`, which was defined by code that another client executed."
            in response.text
        )
        (hidden,) = project.json("status")["hidden"]
        assert (hidden["cell_id"], hidden["why"]) == (
            cell,
            "hidden state: read `a` and `own` from code that another client executed",
        )
        run_externally(client, "a = 1")  # the same object that the cell returned
        new_notebook.insert("c = a")
        assert "Hidden" not in new_notebook.insert("print(c)")[1].text
    new_notebook.replace(cell, "b = a")
    assert project.json("status")["hidden"] == []


@pytest.mark.nightly
def test_same_source_reruns_after_external_execution_defined_the_name(
    project: Project, notebook: Notebook
) -> None:
    cell, response = notebook.insert("print(there)")
    assert "NameError" in response.text
    with connect_client(project) as client:
        run_externally(client, "there = 'now'")
    assert "| now" in notebook.replace(cell, "print(there)").text


@pytest.mark.nightly
def test_names_bound_while_daemon_was_down_are_tracked(
    project: Project, notebook: Notebook
) -> None:
    file = project.json("attach")["file"]
    project.kill_daemon()
    with connect_client(project, file) as client:
        run_externally(client, "meanwhile = 7")
        _, response = notebook.insert("print(meanwhile)")
        assert "| 7" in response.text
        run_externally(client, "afterwards = 8")
        assert (
            "1 execution by other clients; assigned variables: afterwards."
            in notebook.insert("print(afterwards)")[1].text
        )
    project.kill_daemon()
    assert [row["by"] for row in project.json("history")] == [
        "hook",
        "hook",
        "elsewhere",
        "hook",
    ]


@pytest.mark.nightly
def test_cell_waits_for_external_execution(
    project: Project, notebook: Notebook, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    project.config("cell_timeout_seconds: 1\n")
    with connect_client(project) as client:
        waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\nwaited = 1"
        request = client.execute(waits)
        wait_until_true(
            lambda: (
                "busy with another client's execution"
                in project.stepper("status").stdout
            )
        )
        assert project.json("status")["kernel"]["state"] == "busy"
        responses = list[str]()
        work = threading.Thread(
            target=lambda: responses.append(notebook.insert("print(waited)")[1].text)
        )
        work.start()
        wait_until_true(
            lambda: get_running_text(project).startswith(
                "queued: the kernel is busy with another client's execution: the cell"
            )
        )
        time.sleep(1.5)  # longer than the timeout of the cell
        gate.touch()
        work.join(120)
        assert client.get_shell_msg(timeout=120)["parent_header"]["msg_id"] == request
        assert "ran ok" in responses[0]
        assert "| 1" in responses[0]

        gate.unlink()
        request = client.execute(waits)
        wait_until_true(
            lambda: (
                "busy with another client's execution"
                in project.stepper("status").stdout
            )
        )
        work = threading.Thread(
            target=lambda: responses.append(notebook.insert("print('never')")[1].text)
        )
        work.start()
        wait_until_true(
            lambda: "another client's execution" in get_running_text(project)
        )
        project.stepper("interrupt")
        work.join(120)
        assert "nothing ran, and that execution continues" in responses[1]
        gate.touch()
        reply = client.get_shell_msg(timeout=120)
        assert (reply["parent_header"]["msg_id"], reply["content"]["status"]) == (
            request,
            "ok",
        )


@pytest.mark.nightly
def test_new_daemon_does_not_interrupt_external_execution(
    project: Project, notebook: Notebook, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    file = project.json("attach")["file"]
    with connect_client(project, file) as client:
        request = client.execute(
            f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.1); print('works', flush=True)"
        )
        project.kill_daemon()
        response = notebook.insert("print('not yet')")[1]
        report_text = response.text + response.stop
        gate.touch()
        reply = client.get_shell_msg(timeout=120)
        assert (reply["parent_header"]["msg_id"], reply["content"]["status"]) == (
            request,
            "ok",
        )
        assert "NOT run" in report_text
        assert "the kernel is busy with another client's execution" in report_text
    assert "ran ok" in notebook.insert("print(a)")[1].text


@pytest.mark.nightly
def test_cell_queued_behind_failed_external_execution_runs(
    tmp_path: Path,
) -> None:
    """An error drops queued requests; the deadline counts only the cell's own time."""

    async def played() -> None:
        runtime = tmp_path / "r"
        runtime.mkdir()
        kernels = LocalLauncher(str(tmp_path / "kernel.json"), str(runtime))
        kernel = await kernels.start(
            LaunchConfig(sys.executable, str(tmp_path), dict(os.environ))
        )
        client = BlockingKernelClient()
        client.load_connection_file(kernel.ensure_connection_file())
        client.start_channels(stdin=False)
        try:
            await asyncio.to_thread(client.wait_for_ready, 30)
            client.execute("import time\nb = 1\ntime.sleep(2)\n1/0")
            while not kernel.external_executions.running_since:
                kernel.receive_pending()
                await asyncio.sleep(0.02)
            response = await kernel.execute("c = b + 1\nprint(c)", 0.5, Limits())
            assert (response.outcome, response.outputs[0]["text"]) == (
                Outcome.OK,
                "2\n",
            )
        finally:
            client.stop_channels()
            await kernel.shutdown()

    asyncio.run(played())


def test_lost_idle_of_external_execution_does_not_block_cells(tmp_path: Path) -> None:
    async def played() -> None:
        runtime = tmp_path / "r"
        runtime.mkdir()
        kernels = LocalLauncher(str(tmp_path / "kernel.json"), str(runtime))
        kernel = await kernels.start(
            LaunchConfig(sys.executable, str(tmp_path), dict(os.environ))
        )
        try:
            kernel.external_executions.busy["lost"] = time.monotonic()
            end = time.monotonic() + 120
            while kernel.external_executions.running_since:
                assert time.monotonic() < end
                kernel.receive_pending()
                await asyncio.sleep(0.02)
        finally:
            await kernel.shutdown()

    asyncio.run(played())


# --- a notebook that is open in JupyterLab --------------------------------------------


@pytest.mark.nightly
def test_jupyter_server_without_reload_is_reported(
    fresh_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = JupyterServer("server", f"--ServerApp.root_dir={fresh_project.folder}")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.folder / "run"))
    try:
        fresh_project.new()
        jupyter = fresh_project.json("status")["jupyter"]
        assert (
            f"http://127.0.0.1:{server.port}/" in jupyter
            or f"http://localhost:{server.port}/" in jupyter
        )
        assert "does not reload an open notebook" in jupyter
        assert "jupyter-collaboration" in jupyter
        assert TOKEN not in jupyter
        assert jupyter in fresh_project.stepper("status").stdout
        output = fresh_project.stepper("doctor", check=1).stdout
        assert f"BAD  jupyter: {jupyter}" in output
        assert "pip install jupyter-collaboration" in output
    finally:
        server.close()
    assert fresh_project.json("status")["jupyter"] == ""
    assert (
        "jupyter-collaboration"
        not in fresh_project.stepper("doctor", check=None).stdout
    )


def test_jupyter_server_with_an_ipv6_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    data = {"root_dir": str(tmp_path), "url": "http://[::1]:1/"}
    (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(data))
    servers = jupyter_saves.find_servers_without_reload(str(tmp_path))
    assert [server.url for server in servers] == ["http://[::1]:1/"]


def test_jupyter_server_of_other_folder_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    for root, expected_count in ((tmp_path, 1), (tmp_path / "other", 0)):
        data = {
            "root_dir": str(root),
            "url": f"http://u:p@localhost:1/base/?token={TOKEN}",
            "token": TOKEN,
        }
        (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(data))
        servers_without_reload = jupyter_saves.find_servers_without_reload(
            str(tmp_path / "a.ipynb")
        )
        assert [server.url for server in servers_without_reload] == [
            "http://localhost:1/base/"
        ] * expected_count
    dead_process = subprocess.Popen(["true"])
    dead_process.wait()
    (tmp_path / f"jpserver-{dead_process.pid}.json").write_text(
        json.dumps({"root_dir": "/", "url": "http://localhost:1/"})
    )
    assert jupyter_saves.find_servers_without_reload(str(tmp_path / "a.ipynb")) == []
