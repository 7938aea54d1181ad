"""The hook process: length of the script, message frames, and silence if nothing runs."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common import hook_paths, wire_format
from stepper.common.errors import DaemonError
from stepper.common.hook_paths import fnv1a
from stepper.common.paths import Paths
from stepper.daemon import claude_code_json
from stepper.hook import daemon_client, daemon_start, hook_output, hook_process
from stepper.install import installer
from tests.conftest import (
    CLIENT,
    CLIENTS,
    ONE_CLIENT,
    ROOT,
    STATE,
    Project,
    bare_env,
    code,
    mark_nightly,
    scratch,
)


def test_hook_script_is_executable_and_equals_the_committed_one() -> None:
    script = ROOT / "hooks" / "stepper"
    assert script.stat().st_mode & 0o111
    assert (ROOT / ".claude/hooks/stepper").read_bytes() == script.read_bytes()


@pytest.fixture(params=CLIENTS)
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    yield from scratch(tmp_path / "repo", request.param)


@pytest.fixture
def script(project: Project) -> Path:
    """The hook script in a checkout where stepper's environment is missing."""
    path = project.folder / ".claude" / "hooks" / "stepper"
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "hooks" / "stepper", path)
    return path


def run(
    script: Path, event: str, stdin: bytes = b"{}", env: dict[str, str] | None = None
) -> bytes:
    result = subprocess.run(
        [script, event],
        input=stdin,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": STATE, **(env or {})},
    )
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


def test_hook_without_installation_answers_only_edits(
    script: Path,
) -> None:
    answer = json.loads(run(script, "PostToolUse"))
    user_line = answer["systemMessage"]
    assert "NOT run" in user_line and "install.sh" in user_line
    hook_output = answer["hookSpecificOutput"]
    assert hook_output["hookEventName"] == "PostToolUse"
    assert (
        "NOT run" in hook_output["additionalContext"]
        and "install.sh" in hook_output["additionalContext"]
    )
    for event in (
        "PreToolUse",
        "PostToolBatch",
        "SessionStart",
        "Watch",
        "FileChanged",
        "UserPromptSubmit",
        "Stop",
    ):
        assert run(script, event) == b"", event


def test_hook_script_reports_progress_without_python(script: Path) -> None:
    folder, env = script.parents[2], bare_env(Paths(str(script.parents[2])))
    (env / "packages").symlink_to(ROOT)
    assert run(script, "FileChanged") == b""
    watched = json.loads(run(script, "Watch"))["hookSpecificOutput"]
    assert watched == {
        "hookEventName": "SessionStart",
        "watchPaths": [f"{folder}/.stepper/now"],
    }
    (folder / ".stepper" / "now" / "line").write_bytes(
        claude_code_json.format_notice('running "a\\b"\n')
    )
    assert json.loads(run(script, "FileChanged")) == {
        "systemMessage": 'running "a\\b"\n'
    }


def test_batch_or_turn_without_notebook_starts_no_python(
    script: Path,
) -> None:
    env = bare_env(Paths(str(script.parents[2])))
    (env / "packages").symlink_to(ROOT)
    python = env / "bin" / "python"
    python.write_text(f"#!/bin/sh\ntouch '{env}/started'\n")
    python.chmod(0o755)
    for event in ("PostToolBatch", "Stop"):
        assert run(script, event) == b""
        assert not (env / "started").exists(), event
    (script.parents[2] / ".stepper" / "batch").touch()
    run(script, "PostToolBatch")
    assert (env / "started").exists()  # shows that the test can fail


def test_events_of_a_read_reach_the_hook_process(script: Path) -> None:
    env = bare_env(Paths(str(script.parents[2])))
    (env / "packages").symlink_to(ROOT)
    python = env / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat >'{env}/given'\n")
    python.chmod(0o755)
    call = {"tool_input": {"file_path": "/a \\ $HOME `id` 'b'.ipynb"}}
    payload = json.dumps({"permission_mode": "auto", **call})
    for event in ("BeforeRead", "AfterRead", "ReadFailed"):
        assert run(script, event, payload.encode()) == b""
        assert (env / "given").read_text() == payload
        (env / "given").unlink()


@pytest.mark.parametrize("shell", ["dash", "bash", "bash --posix"])
def test_each_shell_runs_the_script(script: Path, shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed")

    def run_in_shell(event: str, stdin: str = "{}") -> str:
        result = subprocess.run(
            [*shell.split(), script, event],
            input=stdin,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": STATE},
        )
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    folder = script.parents[2]
    assert "NOT run" in run_in_shell("PostToolUse")
    assert run_in_shell("PreToolUse", '{"tool_name":"Write"}') == ""
    trust = '{"tool_name":"Bash","tool_input":{"command":"stepper trust"}}'
    assert '"ask"' in run_in_shell("PreToolUse", trust)
    env = bare_env(Paths(str(folder)))
    (env / "packages").symlink_to(ROOT)
    (env / "bin/python").write_text("#!/bin/sh\nprintf '%s ' \"$@\"\ncat\n")
    (env / "bin/python").chmod(0o755)
    assert run_in_shell("Watch").startswith('{"hookSpecificOutput"')
    assert run_in_shell("FileChanged") == ""
    for event in ("Stop", "Rearm", "PostToolBatch"):
        assert run_in_shell(event) == "", event
    payload = '{"permission_mode":"auto","a":"$HOME \\\\ `id`"}\n'
    for event in ("BeforeRead", "AfterRead", "ReadFailed"):
        assert run_in_shell(event, payload).endswith(f"{event} {payload}")
    notebook = folder / "a b" / "n.ipynb"
    notebook.parent.mkdir()
    notebook.touch()
    marker = folder / ".stepper/seen"
    for path, is_checked in ((".", True), ("/.", False), ("a b", True)):
        marker.write_text(f"{path}\n")
        os.utime(marker, (1, 1))
        assert bool(run_in_shell("PostToolBatch")) is is_checked, path


def test_script_prefers_the_compiled_client(script: Path) -> None:
    env = bare_env(Paths(str(script.parents[2])))
    for name, kind in (("python", "interpreted"), ("hook", "compiled")):
        (env / "bin" / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {kind} \"$@\"\n")
        (env / "bin" / name).chmod(0o755)
    (env / "packages").symlink_to(ROOT)
    expected = [
        "compiled",
        *map(str, (env / "bin/python", env / "packages", script.parents[2])),
        "PostToolUse",
    ]
    assert run(script, "PostToolUse").decode().splitlines() == expected
    (env / "bin" / "python").rename(env / "bin" / "gone")
    # The interpreter of the environment was deleted.
    answer = json.loads(run(script, "PostToolUse"))
    assert (
        "NOT run" in answer["systemMessage"]
        and "is incomplete" in answer["systemMessage"]
    )
    (env / "bin" / "gone").rename(env / "bin" / "python")
    (env / "bin" / "hook").unlink()
    assert run(script, "PostToolUse").decode().splitlines()[::5] == [
        "interpreted",
        str(env / "packages"),
    ]


@pytest.mark.parametrize(
    "compiler",
    ["", "exit 1", "touch no-output", "shift; echo 'exit 1' >$7; chmod +x $7"],
)
def test_failed_compilation_leaves_no_client(
    tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "env").mkdir()
    if compiler:
        (tmp_path / "bin" / "cc").write_text(f"#!/bin/sh\n{compiler}\n")
        (tmp_path / "bin" / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")
    assert not installer.compile_client(tmp_path / "env" / "hook")
    assert list((tmp_path / "env").iterdir()) == []


def test_session_start_exports_path_and_session(script: Path, tmp_path: Path) -> None:
    env = bare_env(Paths(str(script.parents[2])))
    (env / "session.sh").write_text('export PATH=/x:"$PATH"\n')
    target = tmp_path / "env file"
    run(
        script,
        "SessionStart",
        env={
            "CLAUDE_ENV_FILE": str(target),
            "CLAUDE_CODE_SESSION_ID": "ab-1'; touch x",
        },
    )
    assert (
        target.read_text()
        == "export PATH=/x:\"$PATH\"\nexport STEPPER_SESSION='ab-1'\n"
    )


def test_frames_round_trip() -> None:
    parts = [b"", b"x" * 70000, b"\0\1"]
    frame = wire_format.pack(*parts)
    stream = io.BytesIO(frame)
    sizes = wire_format.parse_part_lengths(
        stream.read(8 * wire_format.parse_part_count(stream.read(wire_format.PREFIX)))
    )
    assert [*map(stream.read, sizes), stream.read()] == [*parts, b""]
    environ = {b"A": b"1=2", b"EMPTY": b"", b"BYTES": b"\xff"}
    assert wire_format.unpack_environ(wire_format.pack_environ(environ)) == {
        "A": "1=2",
        "EMPTY": "",
        "BYTES": "\udcff",
    }


@pytest.mark.parametrize("bad", [b"", b"STP1", b"STP2\x01", b"STP1\x00", b"STP1\x09"])
def test_invalid_frame_is_rejected(bad: bytes) -> None:
    with pytest.raises(wire_format.FrameError):
        wire_format.parse_part_count(bad)


def test_oversized_frame_is_rejected() -> None:
    with pytest.raises(wire_format.FrameError):
        wire_format.parse_part_lengths((1 << 32).to_bytes(8, "big"))


def test_socket_path_fits_and_depends_only_on_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("é" * 60) / ("x" * 80)
    deep.mkdir(parents=True)
    socket_path = Paths(str(deep)).socket
    assert len(socket_path.encode()) <= 103
    for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "link").symlink_to(deep)
    assert Paths(str(tmp_path / "link")).socket == socket_path
    assert Paths(str(tmp_path)).socket != socket_path
    # the published test vectors
    assert fnv1a(b"") == "cbf29ce484222325"
    assert fnv1a(b"a") == "af63dc4c8601ec8c"


def make_payload(**options: object) -> bytes:
    tool_response = {
        "new_source": "x",
        "cell_id": "ab",
        "error": "",
        **options,
        "original_file": 'a"}\\',
        "updated_file": "b" * 99,
    }
    payload = {
        "tool_name": "NotebookEdit",
        "tool_input": {"notebook_path": "/n"},
        "tool_response": tool_response,
        "tool_use_id": "t",
    }
    return json.dumps(payload, separators=(",", ":")).encode()


def test_notebook_copies_are_dropped_from_the_payload() -> None:
    reduced = hook_output.remove_notebook_copies(make_payload())
    assert len(reduced) < len(make_payload()) - 99
    assert (
        claude_code_json.Event(json.loads(reduced)).change
        == claude_code_json.Event(json.loads(make_payload())).change
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"tool_response":{',
        make_payload().replace(b'"cell_id":"ab",', b""),
        make_payload()[:-20],
        make_payload(new_source='"original_file":"', old_source='"},"tool_use_id":"'),
        json.dumps(json.loads(make_payload())).encode(),
    ],
)
def test_payload_of_another_shape_is_unchanged(data: bytes) -> None:
    try:
        original = json.loads(data)
    except ValueError:
        return  # the daemon reports invalid JSON
    reduced = json.loads(hook_output.remove_notebook_copies(data))
    for item in (original, reduced):
        if isinstance(item, dict) and "tool_response" in item:
            item["tool_response"].pop("updated_file", None)
            item["tool_response"].pop("original_file", None)
    assert reduced == original


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for a condition; the timeout only prevents a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def make_sleep_payload(project: Project) -> bytes:
    """Return the payload of a cell that sleeps, below a cell that has run."""
    notebook = project.new("One", "Sleep")
    notebook.insert("x = 1")
    return json.dumps(
        notebook.edited("insert", "import time\nfor _ in range(6000): time.sleep(0.1)")
    ).encode()


def assert_cancelled(project: Project) -> None:
    """Assert that the run is cancelled without an attempt and that `x` still exists."""
    wait_until(lambda: len(project.json("history")) == 2)
    assert project.json("history")[-1]["outcome"] == "cancelled"
    assert project.json("status")["steps"][1]["attempts"] == 0
    assert project.json("eval", "x")["text"].endswith("1")


@pytest.mark.nightly
@ONE_CLIENT
@pytest.mark.parametrize("pair", mark_nightly([os.pipe, socket.socketpair], os.pipe))
def test_hook_exits_when_its_output_is_closed(
    project: Project, pair: Callable[[], tuple[Any, Any]]
) -> None:
    payload = make_sleep_payload(project)
    reading_end, writing_end = pair()
    with subprocess.Popen(
        project.client("PostToolUse"), stdin=subprocess.PIPE, stdout=writing_end
    ) as hook:
        close(writing_end)
        hook.stdin.write(payload)
        hook.stdin.close()
        wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
        assert hook.poll() is None
        close(reading_end)
        assert hook.wait(120) == 0
    assert_cancelled(project)


def close(stream: Any) -> None:
    os.close(stream if isinstance(stream, int) else stream.detach())


@ONE_CLIENT
def test_hook_exits_when_its_parent_is_dead(project: Project, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(make_sleep_payload(project))
    command = '"$@" <payload >response & wait'
    with subprocess.Popen(
        ["sh", "-c", command, "sh", *project.client("PostToolUse")], cwd=tmp_path
    ) as parent:
        wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
        parent.kill()
    assert_cancelled(project)
    assert (tmp_path / "response").read_bytes() == b""


def count_daemons(project: Project) -> int:
    """Return how many daemons have listened so far."""
    return (project.folder / ".stepper/daemon.log").read_text().count(") is listening")


@pytest.mark.nightly
@ONE_CLIENT
@pytest.mark.parametrize(
    "number", mark_nightly([signal.SIGTERM, signal.SIGKILL], signal.SIGKILL)
)
def test_hook_exiting_after_a_retry_cancels_the_cell(
    project: Project, number: signal.Signals
) -> None:
    payload = make_sleep_payload(project)
    with subprocess.Popen(
        project.client("PostToolUse"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as hook:
        hook.stdin.write(payload)
        hook.stdin.close()
        wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
        project.kill_daemon()
        wait_until(lambda: count_daemons(project) == 2)
        wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
        assert hook.poll() is None
        hook.send_signal(number)
    assert_cancelled(project)


@pytest.mark.nightly
@ONE_CLIENT
def test_hook_retries_once(project: Project) -> None:
    payload = make_sleep_payload(project)
    answers: list[str] = []
    thread = threading.Thread(
        target=lambda: answers.append(project.hook("PostToolUse", payload).text)
    )
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    project.kill_daemon()
    wait_until(lambda: count_daemons(project) == 2)
    assert answers == []
    project.kill_daemon()
    thread.join(120)
    assert (
        "may or may not have run" in answers[0]
        and "the stepper daemon exited" in answers[0]
    )
    project.stepper("interrupt")
    assert_cancelled(project)


@pytest.mark.nightly
@ONE_CLIENT
def test_connection_lost_to_an_exiting_daemon_is_retried(project: Project) -> None:
    notebook = project.new()
    project.stepper("shutdown")
    payload = notebook.edited("insert", "print('ran', 'once')")
    project.paths.create_runtime_folder()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(project.paths.socket)
        listener.listen()

        def die() -> None:
            connection, _ = listener.accept()
            os.unlink(project.paths.socket)
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        answer = project.hook("PostToolUse", payload)
        thread.join()
    assert "| ran once" in answer.text


@ONE_CLIENT
def test_hook_waits_if_the_daemon_backlog_is_full(project: Project) -> None:
    project.paths.create_runtime_folder()
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(project.paths.socket)
        listener.listen(0)
        # Fill the listener's backlog.
        with pytest.raises(BlockingIOError):
            for _ in range(10):
                client = sockets.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(project.paths.socket)
        with subprocess.Popen(
            project.client("PostToolUse"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as hook:
            hook.stdin.write(b"{}")
            hook.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                hook.wait(0.5)
            sockets.enter_context(listener.accept()[0])
            with listener.accept()[0] as connection:
                assert connection.recv(1000).startswith(wire_format.MAGIC)
                connection.sendall(wire_format.pack(wire_format.OK, b"its turn"))
                assert hook.stdout.read() == b"its turn"


@pytest.mark.nightly
@ONE_CLIENT
def test_broken_stdin_or_stdout_is_not_a_failure(
    project: Project,
) -> None:
    notebook = project.notebook("a.ipynb", [code("x = 1", "a")])
    payload = json.dumps(notebook.edited("replace", "print('ran')", "a")).encode()
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *project.client("PostToolUse")]
    result = subprocess.run(closed, capture_output=True)
    assert (result.returncode, result.stderr) == (
        0,
        b"",
    ) and b"NOT run" in result.stdout
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            project.client("PostToolUse"),
            input=payload,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert (result.returncode, result.stderr) == (0, b"")
    # The request with unreadable input did not reach the daemon.
    assert len(project.json("history")) == 1


@pytest.mark.nightly
@ONE_CLIENT
def test_inherited_kernel_variables_are_not_passed_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    notebook = project.notebook("a.ipynb", [code("x = 1", "a")])
    assert (
        "| None"
        in notebook.replace(
            "a", "import os; print(os.environ.get('JPY_PARENT_PID'))"
        ).text
    )


def test_clients_and_script_have_the_same_constants() -> None:
    compiled = (ROOT / "stepper/hook/client.c").read_text()
    (seconds,) = re.findall(r"#define SILENCE_SECONDS (\d+)", compiled)
    assert float(seconds) == daemon_client.SILENCE_SECONDS
    (shift,) = re.findall(r"#define MAX_BYTES \(1u << (\d+)\)", compiled)
    assert 1 << int(shift) == wire_format.MAX_BYTES
    (roots,) = re.findall(r"roots\[\] = \{(.*?)\}", compiled)
    assert tuple(json.loads(f"[{roots}]")) == hook_paths.RUNTIME_ROOTS
    assert set(re.findall(r'"(STP\d)', compiled)) == {wire_format.MAGIC.decode()}
    kinds = set(re.findall(r'strcmp\(kind, "(\w+)"\)', compiled))
    # the compiled client leaves other kinds to Python
    assert kinds == {
        kind.decode()
        for kind in (
            wire_format.OK,
            wire_format.PROGRESS,
            wire_format.STALE,
            wire_format.FAILED,
        )
    }
    matches = re.findall(r'strcmp\(event, "(\w+)"\)', compiled)
    assert {*matches} == {
        *hook_process.ONLY_IN_PROGRESS,
        *hook_process.READS,
        "Wake",
        "Rearm",
    }
    (read_seconds,) = re.findall(r"#define READ_SECONDS (\d+)", compiled)
    assert int(read_seconds) == hook_process.READ_SECONDS
    naps = re.findall(r"#define (?:RETRY|DAEMON_WAIT)_SECONDS ([\d.]+)", compiled)
    assert [*map(float, naps)] == [
        hook_process.RETRY_SECONDS,
        hook_process.DAEMON_WAIT_SECONDS,
    ]
    constants = {int(item, 16) for item in re.findall(r"0x[0-9A-F]{10,}", compiled)}
    assert constants == {
        int(item, 16)
        for item in re.findall(r"0x[0-9A-F]{10,}", inspect.getsource(hook_paths))
    } - {(1 << 64) - 1}
    (line,) = re.findall(r'RUN =\s+"(.*)";', compiled)
    assert line in (ROOT / "hooks/stepper").read_text() and line == CLIENT


def test_failed_start_of_the_daemon_leaves_no_file_open(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path))
    paths.create_home_folder()
    Path(paths.log).mkdir()  # in the place of the file
    for _ in range(2):
        open_files = os.listdir("/proc/self/fd")
        with pytest.raises(DaemonError, match="can't be written"):
            daemon_start.open_lock_and_log(paths)
    assert len(os.listdir("/proc/self/fd")) == len(open_files)
