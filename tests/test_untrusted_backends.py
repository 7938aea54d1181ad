"""Backends that were not accepted: no program is run and no host is contacted.

Fake `ssh` and SLURM commands on PATH and a server on loopback record all calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from stepper.common import secure_files
from stepper.install import trust
from stepper.kernels import backend_registry, sealed_kernel_records
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.mcp.server import ProjectServer
from stepper.policy.model import Death
from tests.conftest import Notebook, Project, code, scratch

TOKEN = "canary-token-5d1c"
PROGRAMS = ("ssh", "sbatch", "squeue", "scancel", "sinfo", "srun", "scontrol", "sacct")
KINDS = ("ssh", "slurm", "jupyter")
HEX = "0" * 31 + "1"


class CallRecorder:
    """Records executed programs and connections to its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        for name in PROGRAMS:
            # `sinfo` succeeds, because it runs before a job is submitted.
            exit_code = 0 if name == "sinfo" else 1
            (folder / name).write_text(
                f'#!/bin/sh\necho "{name} $*" >> {self.calls}\nenv >> {self.calls}\nexit {exit_code}\n'
            )
            (folder / name).chmod(0o755)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection, self.calls.open("a") as stream:
                connection.settimeout(2)
                stream.write(f"asked: {connection.recv(4000)!r}\n")

    def pop_calls(self) -> str:
        """Return the calls since the last one of this method."""
        text = self.calls.read_text() if self.calls.exists() else ""
        self.calls.unlink(missing_ok=True)
        return text

    @property
    def backends(self) -> dict[str, Any]:
        """Return the backends of the untrusted configuration."""
        return {
            "ssh": {
                "ssh": {
                    "host": "evil.example",
                    "extra": ["-o", "ProxyCommand=touch /nowhere"],
                }
            },
            "slurm": {
                "slurm": {"setup": "touch /nowhere", "python": "/nowhere/python"}
            },
            "jupyter": {
                "jupyter": {
                    "url": f"http://127.0.0.1:{self.port}/",
                    "token_env": "HUB_TOKEN",
                }
            },
        }


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallRecorder]:
    recorder = CallRecorder(tmp_path_factory.mktemp("programs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{recorder.folder}{os.pathsep}{os.environ['PATH']}")
        for name in ("HUB_TOKEN", "ANTHROPIC_API_KEY"):
            patch.setenv(name, TOKEN)
        yield recorder
    recorder.server.close()


@pytest.fixture(scope="module")
def project(
    recorder: CallRecorder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    yield from scratch(tmp_path_factory.mktemp("strangers") / "repo")


def create_untrusted_notebook(
    project: Project, recorder: CallRecorder, kind: str
) -> Notebook:
    """Add the files of an untrusted repository: configuration and notebook."""
    project.config(json.dumps({"kernels": recorder.backends}))
    return project.notebook(
        f"{kind}.ipynb", [code("print(1)", "a")], stepper={"kernel": kind}
    )


def make_forged_record(
    recorder: CallRecorder, kind: str, definition: Any = None
) -> dict[str, Any]:
    """Return a kernel record that points to the recorder's port."""
    ports = {
        f"{name}_port": recorder.port
        for name in ("shell", "iopub", "stdin", "control", "hb")
    }
    connection = {
        "transport": "tcp",
        "ip": "127.0.0.1",
        "key": "k",
        "signature_scheme": "hmac-sha256",
        **ports,
    }
    return {
        "kind": kind,
        "name": kind,
        "definition": definition or recorder.backends.get(kind),
        "kernel": HEX,
        "pid": 1,
        "job": 1,
        "python": "/nowhere/python",
        "stack": "/nowhere/stack",
        "connection": connection,
        "file": "/nowhere/file",
        "ports": [recorder.port] * 5,
    }


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_unaccepted_backend_is_unreachable_by_every_command(
    project: Project, recorder: CallRecorder, kind: str
) -> None:
    notebook = create_untrusted_notebook(project, recorder, kind)
    _, answer = notebook.insert("print(2)")
    assert (
        f"`kernels.{kind}` in .stepper/config.yaml was not accepted by you"
        in answer.text
    )
    assert "stepper trust" in answer.text and "NOT run" in answer.text
    for command in ("run", "restore", "restart"):
        output = project.stepper(command, kind, check=1).stderr
        assert "was not accepted by you" in output, output
    project.stepper("eval", "1", "--notebook", kind, check=1)
    for command in (
        "status",
        "list",
        "kernels",
        "doctor",
        "context",
        "interrupt",
        "report",
    ):
        arguments = [kind] if command in ("status", "interrupt", "report") else []
        project.stepper(command, *arguments, check=None)
    project.stepper("use", kind, "--kernel", kind)
    # Only the journal names the backend.
    notebook.path.write_text(json.dumps({**notebook.raw, "metadata": {}}))
    assert "was not accepted by you" in project.stepper("run", kind, check=1).stderr
    response = project.json("new", f"of {kind}", "--kernel", kind)
    project.json("run", response["notebook"], check=None)
    project.stepper("shutdown", kind)
    assert recorder.pop_calls() == ""


def test_agents_cannot_reach_unaccepted_backends(
    project: Project, recorder: CallRecorder
) -> None:
    create_untrusted_notebook(project, recorder, "jupyter")

    async def story() -> None:
        async with Client(ProjectServer(str(project.folder)).create_server()) as client:
            for kind in KINDS:
                tool_response = await client.call_tool(
                    "create_notebook",
                    {"problem": "p", "place": kind, "cells": [{"source": "print(1)"}]},
                )
                assert "was not accepted by you" in tool_response.content[0].text, (
                    tool_response
                )
                for action in ("start", "restart"):
                    response = await client.call_tool(
                        "kernel", {"action": action, "place": kind}
                    )
                    assert (
                        response.is_error
                        and "was not accepted by you" in response.content[0].text
                    )
            wrong = await client.call_tool(
                "kernel", {"action": "start", "place": "nowhere"}
            )
            assert (
                wrong.is_error
                and "there is no kernel backend 'nowhere'" in wrong.content[0].text
            )
            wrong = await client.call_tool(
                "kernel", {"action": "interrupt", "place": "ssh"}
            )
            assert wrong.is_error and "does not accept `place`" in wrong.content[0].text
            await client.call_tool("notebook_status", {})

    asyncio.run(asyncio.wait_for(story(), 300))
    assert recorder.pop_calls() == ""


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", [*KINDS, "kernelspec", "docker"])
def test_pulled_kernel_record_is_not_used(
    project: Project, recorder: CallRecorder, kind: str
) -> None:
    """This includes accepted backends: the record has untrusted hosts, jobs and ports."""
    notebook = create_untrusted_notebook(project, recorder, kind)
    trust.accept(
        project.paths, trust.examine(project.paths)
    )  # its definitions are accepted
    project.stepper("shutdown")
    path = Path(project.paths.kernels, f"{notebook.path.stem}.json")
    path.parent.mkdir(parents=True, exist_ok=True)  # no kernel has run yet
    for record in (
        make_forged_record(recorder, kind),
        {**make_forged_record(recorder, kind), "seal": "0" * 64},
        {**make_forged_record(recorder, kind), "seal": 1},
    ):
        path.write_text(json.dumps(record))
        # A daemon starts and searches for kernels of the previous one.
        project.stepper("status", kind)
        project.stepper("list")
        project.stepper("interrupt", kind)
        project.stepper("shutdown", kind)
        project.stepper("shutdown")
        # Only SLURM is asked, for jobs with the names of this project.
        calls = {
            line
            for line in recorder.pop_calls().splitlines()
            if line.startswith((*PROGRAMS, "asked"))
        }
        assert (
            calls <= {line for line in calls if line.startswith("squeue -h --me ")}
            and not path.exists()
        ), calls


@pytest.mark.parametrize(
    "message",
    [
        [],
        {"kind": []},
        {"kind": "ssh"},
        {"kind": "ssh", "definition": {"kernelspec": "x"}},
        7,
    ],
)
def test_invalid_kernel_record_is_a_dead_kernel(tmp_path: Path, message: Any) -> None:
    record = tmp_path / "kernel.json"
    record.write_text(json.dumps(message))
    kernel = asyncio.run(NotebookLauncher(str(record), str(tmp_path), {}).attach())
    assert isinstance(kernel, Death)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"kernel": "00000000-0000-4000-8000-000000000000", "connection": {},'
        ' "provisioner": {"pid": Infinity, "created": 1}}',
    ],
)
def test_local_record_with_extreme_json_is_a_dead_kernel(
    tmp_path: Path, text: str
) -> None:
    record = tmp_path / "kernel.json"
    record.write_text(text)
    kernel = asyncio.run(NotebookLauncher(str(record), str(tmp_path), {}).attach())
    assert isinstance(kernel, Death)
    assert not backend_registry.kill_recorded_kernel(str(record))


def test_seal_is_valid_for_one_user_and_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    record, other_record = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    sealed_kernel_records.write(record, {"kind": "ssh", "job": 5})
    data = json.loads(secure_files.read(record))
    assert sealed_kernel_records.is_sealed(
        record, data
    ) and not sealed_kernel_records.is_sealed(record, {**data, "job": 6})
    assert not sealed_kernel_records.is_sealed(other_record, data)
    # The seal does not include itself.
    sealed_kernel_records.write(record, {**data, "ending": True})
    assert sealed_kernel_records.is_sealed(
        record, json.loads(secure_files.read(record))
    )
    key = tmp_path / "state" / "stepper" / "key"
    assert (
        key.stat().st_mode & 0o777 == 0o600
        and key.read_text() not in Path(record).read_text()
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not sealed_kernel_records.is_sealed(record, data)


def test_accepted_backend_is_contacted(
    project: Project, recorder: CallRecorder
) -> None:
    """This shows that the recorder works, so that the tests above can fail."""
    create_untrusted_notebook(project, recorder, "ssh")
    trust.accept(project.paths, trust.examine(project.paths))
    backends = {backend["name"]: backend for backend in project.json("kernels")}
    log = recorder.pop_calls()
    assert "ssh " in log and "sinfo " in log
    assert not backends["ssh"]["reachable"]
    callers = {
        line.split()[0]
        for line in log.splitlines()
        if line.startswith((*PROGRAMS, "asked:"))
    }
    assert callers >= {"ssh", "sinfo", "asked:"}
    lines_with_token = [line for line in log.splitlines() if TOKEN in line]
    # Only the server gets its token; programs don't.
    assert [line.partition(" ")[0] for line in lines_with_token] == ["asked:"]


def test_kernels_never_get_a_backend_token(
    project: Project, recorder: CallRecorder
) -> None:
    """Local kernels and jobs don't; a job inherits the environment of sbatch."""
    create_untrusted_notebook(project, recorder, "slurm")
    trust.accept(project.paths, trust.examine(project.paths))
    notebook = project.notebook("here.ipynb", [], stepper={"kernel": "local"})
    _, answer = notebook.insert(
        "import os; print([name for name in os.environ if 'TOKEN' in name], os.environ['HOME'])"
    )
    assert "| [] " in answer.text, answer.text
    project.stepper("run", "slurm", check=1)
    calls = recorder.pop_calls()
    assert "sbatch --parsable" in calls and "HOME=" in calls
    assert TOKEN not in calls and "HUB_TOKEN" not in calls
