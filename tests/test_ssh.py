"""Kernels on a host over ssh, with a real sshd on loopback, cut connections and killed daemons."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.common.errors import KernelError, KernelUnreachableError
from stepper.kernels import backend_registry, client_base, execution, zmq_channels
from stepper.kernels.backends.ssh import ssh_connection
from stepper.kernels.backends.ssh import ssh_process as ssh_kernel
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.policy.configuration import kernel_config
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.protocols import Kernel, LaunchConfig
from tests import apt_packages
from tests.conftest import Notebook, mark_nightly, scratch
from tests.npm_packages import Unavailable, unavailable
from tests.sshd import Host
from tests.test_run_on_edit import (
    make_waiting_cell,
    release_cell,
    wait_for_output,
    wait_until,
)

LIMITS = Limits(max_memory_percent=100)
REQUEST = "c" * 32
SLOW = "import time\nprint('begun', flush=True)\ntime.sleep({})\nprint('over')"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="sshd"))
    try:
        host = Host(folder)
    except Unavailable as why:
        unavailable(why)
    yield host
    host.stop()
    shutil.rmtree(folder, ignore_errors=True)


class SshHarness:
    """A notebook's kernel on a host, and an event loop in place of the daemon."""

    def __init__(self, host: Host, **options: Any) -> None:
        self.host, self.folder = host, Path(tempfile.mkdtemp(prefix="ssh"))
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(
            host.make_backend(**{"folder": str(self.folder), **options})
        )

    def provider(self) -> NotebookLauncher:
        return NotebookLauncher(str(self.folder / "kernel.json"), str(self.folder), {})

    def begin(self, at: kernel_config.BackendConfig) -> Kernel:
        return self.wait(self.provider().start(LaunchConfig("", "/", {}, backend=at)))

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 120, request: str = "") -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS, request))

    def run_with(
        self, code: str, *acts: tuple[float, Callable[[], Any]], timeout: float = 60
    ) -> Any:
        """Run a cell, and actions after given delays; return the result or error."""

        async def both() -> Any:
            running = asyncio.create_task(
                self.kernel.execute(code, timeout, LIMITS, REQUEST)
            )
            for seconds, act in acts:
                await asyncio.sleep(seconds)
                if asyncio.iscoroutine(result := act()):
                    await result
            return (await asyncio.gather(running, return_exceptions=True))[0]

        return self.wait(both())

    def reattach(self) -> Kernel | Death | None:
        self.kernel.detach()
        self.kernel.process.link.close()  # a daemon's end closes the pipe
        kernel = self.wait(self.provider().attach())
        self.kernel = (
            kernel
            if kernel is not None and not isinstance(kernel, Death)
            else self.kernel
        )
        return kernel

    def wait_until(self, condition: Callable[[], Any], seconds: float = 120) -> None:
        """Wait for a condition while checking the kernel like an idle daemon."""

        async def poll() -> None:
            end = time.monotonic() + seconds
            while not condition():
                assert time.monotonic() < end, self.kernel.describe()
                await self.kernel.check_death()
                await asyncio.sleep(0.05)

        self.wait(poll())

    @property
    def pid(self) -> int:
        return int(self.kernel.process.remote_process["pid"])

    def close(self) -> None:
        self.wait(self.kernel.shutdown())
        self.wait(asyncio.sleep(0.1))
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    return (
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    )


def list_ssh_processes(folder: Path) -> list[int]:
    """Return the ssh processes with connections to the folder's kernels."""
    results = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "ssh"
    ]
    messages = [(process.pid, process.info["cmdline"] or []) for process in results]
    return [
        pid
        for pid, command in messages
        if "-M" in command and str(folder) in " ".join(command)
    ]


@pytest.fixture(scope="module")
def harness(host: Host) -> Iterator[SshHarness]:
    harness = SshHarness(host)
    yield harness
    harness.close()


def text(result: Execution) -> str:
    return "".join(
        out["text"] for out in result.outputs if out["output_type"] == "stream"
    )


@pytest.mark.nightly
def test_cells_run_with_helper_data(harness: SshHarness) -> None:
    result = harness.run("import os\nx = 20\nprint(os.getcwd())")
    assert (
        result.outcome is Outcome.OK
        and text(result) == f"{harness.folder}\n"
        and result.namespace.variables["x"]
    )
    failed = harness.run("print('before')\n1 / 0")
    assert (
        failed.outcome is Outcome.ERROR
        and failed.fault is not None
        and failed.fault.line == 2
    )
    assert harness.kernel.describe().python.endswith(f"box:{sys.executable}")
    names = sorted(path.name for path in harness.folder.iterdir())
    assert "kernel.json" in names and all(
        path.stat().st_mode & 0o077 == 0 for path in harness.folder.iterdir()
    )


@pytest.mark.nightly
def test_timeout_interrupts(harness: SshHarness) -> None:
    harness.run("kept = 5")
    result = harness.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.death is None
        and text(result) == "begun\n"
    )
    assert text(harness.run("print(kept)")) == "5\n"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays of reconnecting and giving up."""
    monkeypatch.setattr(ssh_connection, "RETRY_SECONDS", (0.2, 0.4))
    monkeypatch.setattr(ssh_kernel, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(zmq_channels, "HEARTBEAT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(ssh_kernel, "CHECK_SECONDS", 0.3)
    for module in (client_base, execution):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 1.0)
        monkeypatch.setattr(module, "GRACE_SECONDS", 1.0)


def test_connection_cut_during_a_cell_loses_no_output(harness: SshHarness) -> None:
    source = "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)\nn"

    def end_here() -> None:
        harness.kernel.process.link.master.kill()

    result = harness.run_with(source, (0.6, harness.host.cut), (0.6, end_here))
    assert result.outcome is Outcome.OK and text(result) == "".join(
        f"{n}\n" for n in range(12)
    )
    assert (
        result.outputs[-1]["data"]["text/plain"] == "11"
        and not harness.kernel.describe().problem
    )
    assert text(harness.run("print('on the same sockets')")) == "on the same sockets\n"


@pytest.mark.nightly
def test_connection_down_for_longer_than_the_cell(
    harness: SshHarness, hasty: None
) -> None:
    harness.run("runs = 0")
    messages: list[str] = []
    record_problem = lambda: messages.append(harness.kernel.describe().problem)  # noqa: E731
    cell = SLOW.format(1) + "\nruns += 1"
    result = harness.run_with(
        cell, (0.5, harness.host.stop), (1.5, record_problem), (0, harness.host.start)
    )
    assert re.fullmatch(
        r"the connection to box has been down for [12] s; stepper does not know whether the"
        r" kernel is still running; box: .+ To check this, run: ssh -F \S+ box true",
        messages[0],
    )
    assert result.outcome is Outcome.OK and text(result) == "begun\nover\n"
    assert (
        text(harness.run("print(runs)")) == "1\n"
        and not harness.kernel.describe().problem
    )


@pytest.mark.nightly
@pytest.mark.parametrize("interruption", mark_nightly(("deadline", "user"), "deadline"))
def test_unreachable_host_is_not_a_kernel_death(
    harness: SshHarness, hasty: None, interruption: str
) -> None:
    harness.run("runs = 0")
    timeout = 1.5 if interruption == "deadline" else 60.0
    acts = [(0.5, harness.host.stop)] + (
        [(0.5, partial(harness.kernel.interrupt, "user"))]
        if interruption == "user"
        else []
    )
    began = time.monotonic()
    error = harness.run_with("runs += 1\n" + SLOW.format(60), *acts, timeout=timeout)
    assert (
        isinstance(error, KernelUnreachableError)
        and "does not know whether the kernel is still running" in error.message
    ), error
    assert time.monotonic() < began + 10 and is_alive(harness.pid)
    with pytest.raises(KernelUnreachableError):
        harness.wait(harness.kernel.wait_until_reachable())
    harness.host.start()
    harness.wait_until(lambda: not harness.kernel.describe().problem)
    result = harness.wait(
        harness.kernel.await_earlier_request(
            REQUEST, 30.0 if interruption == "user" else 0.0, LIMITS
        )
    )
    assert result.outcome is (
        Outcome.TIMEOUT if interruption == "deadline" else Outcome.CANCELLED
    ), result
    assert (
        text(result) == "begun\n"
        and result.death is None
        and text(harness.run("print(runs)")) == "1\n"
    )


@pytest.mark.nightly
def test_daemon_killed_while_disconnected(harness: SshHarness, hasty: None) -> None:
    async def lost() -> None:
        running = asyncio.create_task(
            harness.kernel.execute(SLOW.format(1), 60, LIMITS, REQUEST)
        )
        await asyncio.sleep(0.5)
        harness.host.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    harness.wait(lost())
    kernel = harness.reattach()
    assert kernel is not None and not isinstance(kernel, Death)
    with pytest.raises(KernelUnreachableError):
        harness.wait(kernel.await_earlier_request(REQUEST, 30, LIMITS))
    harness.host.start()
    harness.wait_until(lambda: not kernel.describe().problem)
    result = harness.wait(kernel.await_earlier_request(REQUEST, 30, LIMITS))
    assert result.outcome is Outcome.OK and text(result) == "begun\nover\n"
    assert len(list_ssh_processes(harness.folder)) == 1


def test_new_daemon_finds_the_kernel(harness: SshHarness) -> None:
    harness.run("kept = 7")
    kernel = harness.reattach()
    assert kernel is not None and not isinstance(kernel, Death)
    assert (
        harness.wait(kernel.take_over()) is None
        and text(harness.run("print(kept)")) == "7\n"
    )


def test_remote_notebook_survives_a_killed_daemon(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for project in scratch(tmp_path_factory.mktemp("ssh") / "repo"):
        backend = host.make_backend()
        project.config(f"kernels: {json.dumps({'box': backend.definition})}\n")
        assert project.json("kernels")[1]["reachable"] is None
        project.stepper("trust", "--yes")
        backend = project.json("kernels")[1]
        assert backend["reachable"] and backend["about"].endswith("on box over ssh"), (
            backend
        )
        response = project.json("new", "Look there", "--kernel", "box")
        notebook = Notebook(project, project.folder / response["notebook"])
        cell, report = notebook.insert("import os\nx = 3\nos.getcwd()")
        assert "ran ok" in report.text and str(host.home) in report.text, report.text
        assert project.json("context")["variables"]["x"]
        project.kill_daemon()
        assert "| 4" in notebook.insert("print(x + 1)")[1].text
        kernel = project.json("status")["kernel"]
        assert (
            kernel["state"] == "idle"
            and kernel["pid"] is None
            and "box:" in kernel["python"]
        )
        source = make_waiting_cell(notebook)
        payload = notebook.edited("insert", source, cell)
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        wait_for_output(project)
        project.kill_daemon()
        release_cell(notebook)
        running.join()
        text = project.json("report")["text"]
        assert "| begun" in text and "| over" in text and "the daemon exited" in text, (
            text
        )


@pytest.mark.nightly
def test_remote_kernel_death_is_detected_even_while_disconnected(
    harness: SshHarness, hasty: None
) -> None:
    result = harness.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and result.death.reason == "the kernel's process on box has exited"
    )
    assert result.death.cause == ""  # the cell may have ended it
    assert not (harness.folder / "kernel.json").exists()
    # killed processes exit soon
    wait_until(lambda: not list_ssh_processes(harness.folder))
    harness.kernel = harness.begin(
        harness.host.make_backend(folder=str(harness.folder))
    )
    harness.run("import sys\nprint('its last words', file=sys.__stderr__)")
    harness.host.stop()
    os.kill(harness.pid, 9)
    harness.kernel.process.data = {
        **harness.kernel.process.data,
        "boot": "the one before",
    }
    harness.wait_until(lambda: harness.kernel.describe().problem)
    assert harness.wait(harness.kernel.check_death()) is None  # unknown
    harness.host.start()
    harness.wait_until(lambda: harness.kernel.process.death)
    death = harness.wait(harness.kernel.check_death())
    assert death.reason == "box was restarted" and death.cause == "EndedOutside", death
    assert death.stderr.endswith("its last words")
    harness.wait(harness.kernel.shutdown())
    assert not (harness.folder / "kernel.json").exists()
    # killed processes exit soon
    wait_until(lambda: not list_ssh_processes(harness.folder))
    harness.kernel = harness.begin(
        harness.host.make_backend(folder=str(harness.folder))
    )


@pytest.mark.nightly
def test_remote_kernel_is_shut_down_now_or_later(
    harness: SshHarness, hasty: None
) -> None:
    second_harness = SshHarness(harness.host)
    pid = second_harness.pid
    assert len(list_ssh_processes(second_harness.folder)) == 1
    second_harness.wait(second_harness.kernel.shutdown())
    assert (
        not is_alive(pid)
        and not list_ssh_processes(second_harness.folder)
        and second_harness.reattach() is None
    )
    second_harness.kernel = second_harness.begin(
        harness.host.make_backend(folder=str(second_harness.folder))
    )
    pid = second_harness.pid
    harness.host.stop()
    with pytest.raises(
        KernelError,
        match=rf"the kernel on .* \(process {pid}\) was killed; it may still be running",
    ) as error:
        second_harness.wait(second_harness.kernel.shutdown())
    assert error.value.hint == f"ssh -F {harness.host.client} box kill -9 -- -{pid}"
    assert (
        is_alive(pid)
        and not list_ssh_processes(second_harness.folder)
        and second_harness.reattach() is None
    )
    harness.host.start()
    second_harness.wait(second_harness.provider().cancel_request())
    assert not is_alive(pid) and not (second_harness.folder / "kernel.json").exists()
    second_harness.loop.close()
    shutil.rmtree(second_harness.folder)
    assert text(harness.run("print('the other one lives on')"))


def get_start_error(
    harness: SshHarness, at: kernel_config.BackendConfig
) -> KernelError:
    folder = harness.folder / "other"
    folder.mkdir(mode=0o700, exist_ok=True)
    provider = NotebookLauncher(str(folder / "kernel.json"), str(folder), {})
    with pytest.raises(KernelError) as failed:
        harness.wait(provider.start(LaunchConfig("", "/", {}, backend=at)))
    assert not (folder / "kernel.json").exists() and not list_ssh_processes(folder)
    return failed.value


@pytest.mark.nightly
def test_ssh_errors_are_quoted(harness: SshHarness, host: Host) -> None:
    ssh = f"ssh -F {host.client} box"
    assert (
        "no_such_python"
        in get_start_error(harness, host.make_backend(python="/no_such_python")).message
    )
    assert (
        "the folder /nowhere does not exist"
        in get_start_error(harness, host.make_backend(folder="/nowhere")).message
    )
    odd = get_start_error(harness, host.make_backend(python="/bin/true"))
    assert (
        odd.message == "box: /bin/true printed nothing and may not be Python"
        and odd.hint == f"{ssh} /bin/true --version"
    )
    bare = venv(harness.folder / "bare")
    lacks = get_start_error(harness, host.make_backend(python=bare))
    by_pip = (
        f"{ssh} {bare} -m pip install ipykernel"  # the host may have uv instead of pip
    )
    by_uv = f"{ssh} uv pip install --python {bare} ipykernel"
    assert "does not have ipykernel" in lacks.message and lacks.hint in (
        by_uv,
        f"{ssh} {bare} -m ensurepip && {by_pip}",
    )
    (
        Path(bare).parent.parent
        / "lib"
        / f"python3.{sys.version_info.minor}"
        / "site-packages"
        / "pip"
    ).mkdir()
    assert get_start_error(harness, host.make_backend(python=bare)).hint == by_pip
    for key, message in (
        ("other", "Host key verification failed."),
        ("", "Host key verification failed."),
    ):
        host.write_known_hosts(key)
        try:
            refused = get_start_error(harness, host.make_backend())
        finally:
            host.write_known_hosts("host")
        assert message in refused.message, refused
        if key:
            assert (
                "the host key of box has changed" in refused.message
                and f"{host.folder}/known" in refused.message
            )
            assert refused.hint.startswith(
                f"ssh-keygen -f '{host.folder}/known' -R '[127.0.0.1]:{host.port}'; {ssh}"
            )
        else:
            assert refused.hint == f"{ssh} true"
    host_keys = (host.folder / "authorized").read_text()
    (host.folder / "authorized").write_text((host.folder / "other.pub").read_text())
    try:
        refused = get_start_error(harness, host.make_backend())
        assert (
            "Permission denied (publickey" in refused.message
            and refused.hint == f"{ssh} true"
        )
    finally:
        (host.folder / "authorized").write_text(host_keys)
    unknown = get_start_error(
        harness,
        backend_registry.parse_backends(
            {"x": {"ssh": {"host": "no-such-host.invalid"}}}
        )["x"],
    )
    assert "Could not resolve hostname no-such-host.invalid" in unknown.message


def venv(folder: Path) -> str:
    """A Python without any package."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    return str(folder / "bin" / "python")


SHELLS = {
    "a profile that prints": 'echo welcome; echo "stepper: nothing of ours"; exec sh -c "$SSH_ORIGINAL_COMMAND"',
    "csh": 'echo welcome; exec csh -c "$SSH_ORIGINAL_COMMAND"',
    "fish": 'exec fish -c "$SSH_ORIGINAL_COMMAND"',
}


@pytest.mark.nightly
@pytest.mark.parametrize("shell", mark_nightly(SHELLS, "a profile that prints"))
def test_any_login_shell(harness: SshHarness, shell: str) -> None:
    if shell in ("csh", "fish"):
        try:
            apt_packages.find_or_unpack_program(shell, shell)
        except Unavailable as why:
            unavailable(why)
    with start_own_host(
        ForceCommand=SHELLS[shell],
        Banner="/etc/os-release",
        AllowStreamLocalForwarding="no",
    ) as host:
        second_harness = SshHarness(host)
        assert text(second_harness.run("print('it runs')")) == "it runs\n"
        second_harness.close()


@pytest.mark.nightly
def test_sshd_without_forwarding(harness: SshHarness) -> None:
    with start_own_host(AllowTcpForwarding="no") as host:
        began = time.monotonic()
        refused = get_start_error(harness, host.make_backend())
        assert (
            "forbids port forwarding" in refused.message
            and "AllowTcpForwarding" in refused.hint
        ), refused
        assert time.monotonic() < began + 20 and not os.listdir(
            host.home / ".local/state/stepper/kernels"
        )


@contextlib.contextmanager
def start_own_host(**options: str) -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="sshd"))
    host = Host(folder, **options)
    try:
        yield host
    finally:
        host.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.nightly
def test_shutdown_of_hanging_daemon_stops_remote_kernels(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with start_own_host() as host:
        for project in scratch(tmp_path_factory.mktemp("hangs") / "repo"):
            project.config(
                f"kernels: {json.dumps({'box': host.make_backend().definition})}\n"
            )
            project.stepper("trust", "--yes")
            project.stepper("shutdown")
            project.daemons = False  # visible by its command line
            response = project.json("new", "Look there", "--kernel", "box")
            assert (
                "ran ok"
                in Notebook(project, project.folder / response["notebook"])
                .insert("1")[1]
                .text
            )
            daemon = json.loads(Path(project.paths.daemon_json).read_text())["pid"]
            os.kill(daemon, signal.SIGSTOP)
            ended = project.stepper("shutdown")
            assert "Stopped the daemon and 1 kernel of this project." in ended.stdout, (
                ended
            )
            assert "shutdown" not in ended.stderr, ended.stderr
            assert not list((host.home / ".local/state/stepper/kernels").glob("*.json"))


@pytest.mark.nightly
def test_status_while_host_is_unreachable_and_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with start_own_host() as host:
        for project in scratch(tmp_path_factory.mktemp("away") / "repo"):
            project.config(
                f"kernels: {json.dumps({'box': host.make_backend().definition})}\n"
            )
            project.stepper("trust", "--yes")
            response = project.json("new", "Look there", "--kernel", "box")
            notebook = Notebook(project, project.folder / response["notebook"])
            notebook.insert("runs = 0")
            threading.Timer(2, host.stop).start()
            report = notebook.insert(
                "# stepper: timeout=4s\nruns += 1\n" + SLOW.format(8)
            )[1]
            assert (
                "may still be running or have finished: the connection to box has been down for"
                in report.text
            ), report.text
            assert (
                "NOT run" not in report.text
                and "does not know whether the kernel is still running" in report.text
            )
            kernel = project.json("status")["kernel"]
            assert kernel["where"] == "box" and re.match(
                r"the connection to box has been down for \d+ s;", kernel["trouble"]
            )
            refused = notebook.insert("print('not yet')")[1].text
            assert (
                "NOT run" in refused
                and "the result of run 2 (cell 2) is not known yet" in refused
            ), refused
            assert (
                "cell 2 will be interrupted when the connection is restored"
                in project.stepper("interrupt", check=1).stderr
            )
            host.start()
            until = time.monotonic() + 40
            while project.json("status")["running"] and time.monotonic() < until:
                time.sleep(0.5)
            text = project.json("report")["text"]
            assert (
                "| begun" in text
                and "continued after the connection to the kernel was lost" in text
                and "the daemon exited" not in text
            ), text
            assert "| runs 1" in notebook.insert("print('runs', runs)")[1].text
            host.stop()
            time.sleep(3)
            result = project.stepper("shutdown", response["notebook"], check=1)
            assert (
                "was killed; it may still be running there"
                in result.stdout + result.stderr
            ), result
            host.start()
            project.stepper("shutdown", response["notebook"])
            assert not list((host.home / ".local/state/stepper/kernels").glob("*.json"))
            assert not list_ssh_processes(project.folder)


@pytest.fixture
def remote_notebook(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Host, Notebook]]:
    """A separate host, and a notebook whose kernel runs there."""
    with start_own_host() as host:
        for project in scratch(tmp_path_factory.mktemp("there") / "repo"):
            project.config(
                f"kernels: {json.dumps({'box': host.make_backend().definition})}\n"
            )
            project.stepper("trust", "--yes")
            response = project.json("new", "Look there", "--kernel", "box")
            yield host, Notebook(project, project.folder / response["notebook"])


def get_kernel_trouble(notebook: Notebook) -> str:
    return str(notebook.project.json("status")["kernel"]["trouble"])


@pytest.mark.nightly
def test_changed_host_key_while_a_kernel_runs(
    remote_notebook: tuple[Host, Notebook],
) -> None:
    host, notebook = remote_notebook
    notebook.insert("x = 20")
    host.stop()
    host.start(HostKey=str(host.folder / "other"))
    changed = "the host key of box has changed"
    wait_until(lambda: changed in get_kernel_trouble(notebook), 30)
    unknown = "stepper does not know whether the kernel is still running"
    assert unknown in get_kernel_trouble(notebook)
    fix = r"To fix this, run: ssh-keygen -f \S+ -R \S+; ssh -F \S+ box true"
    assert re.search(fix, get_kernel_trouble(notebook))
    assert re.search(fix, notebook.project.stepper("status").stdout)
    refused = notebook.insert("print(x)")[1].text
    assert changed in refused and "NOT run" in refused
    assert re.search(fix, refused), refused
    assert "lives on" not in refused + get_kernel_trouble(notebook)
    host.stop()
    host.start()
    wait_until(lambda: not get_kernel_trouble(notebook), 40)
    assert "| 20" in notebook.insert("print(x)")[1].text


@pytest.mark.nightly
def test_run_duration_excludes_connection_outage(
    remote_notebook: tuple[Host, Notebook],
) -> None:
    host, notebook = remote_notebook
    notebook.insert("import time")
    timers = [threading.Timer(0.7, host.stop), threading.Timer(6, host.start)]
    for timer in timers:
        timer.start()
    text = notebook.insert("time.sleep(1.5); print('over')")[1].text
    assert re.search(r"ran ok in 1\.[5-9]\d s\.", text), text
    waited = r"Note: the time does not include (\d+\.\d) s while the connection"
    match = re.search(waited + " to the kernel was down", text)
    assert match and float(match[1]) >= 3, text
    assert 1.5 <= notebook.project.json("history")[-1]["duration_s"] < 2
    for timer in timers:
        timer.join()


@pytest.mark.parametrize(
    "output",
    [
        b'stepper:{"stderr": "# stepper: timeout=6h"}\n',
        b'Welcome!\nstepper:{"stderr": "# stepper: timeout=6h"}\n',
        b'Last login: today stepper:{"stderr": "# stepper: timeout=6h"}',
    ],
)
def test_response_of_the_launcher_may_contain_its_own_prefix(output: bytes) -> None:
    assert ssh_connection._parse_response(output) == {"stderr": "# stepper: timeout=6h"}


@pytest.mark.parametrize("output", [b"", b"Welcome!\n", b"stepper:[1]", b"stepper:{"])
def test_output_without_a_response_is_refused(output: bytes) -> None:
    with pytest.raises(ValueError):
        ssh_connection._parse_response(output)
