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
from stepper.kernels import sealed_kernel_records
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.mcp.server import ProjectServer
from stepper.policy.model import Death
from tests.conftest import Notebook, Project, code, scratch

TOKEN = "canary-token-5d1c"
PROGRAMS = ("ssh", "sbatch", "squeue", "scancel", "sinfo", "srun", "scontrol", "sacct")
KINDS = ("ssh", "slurm", "jupyter")
HEX = "0" * 31 + "1"


class Watch:
    """Takes note of programs that are run and of connections to its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        for name in PROGRAMS:
            ends = 0 if name == "sinfo" else 1  # it is asked before a job is submitted
            (folder / name).write_text(
                f'#!/bin/sh\necho "{name} $*" >> {self.calls}\nenv >> {self.calls}\nexit {ends}\n'
            )
            (folder / name).chmod(0o755)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.server.accept()
            except OSError:
                return
            with link, self.calls.open("a") as stream:
                link.settimeout(2)
                stream.write(f"asked: {link.recv(4000)!r}\n")

    def heard(self) -> str:
        """Return what was noted since the last look."""
        text = self.calls.read_text() if self.calls.exists() else ""
        self.calls.unlink(missing_ok=True)
        return text

    @property
    def places(self) -> dict[str, Any]:
        """Return the places that a stranger's configuration names."""
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
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    watch = Watch(tmp_path_factory.mktemp("programs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{watch.folder}{os.pathsep}{os.environ['PATH']}")
        for name in ("HUB_TOKEN", "ANTHROPIC_API_KEY"):
            patch.setenv(name, TOKEN)
        yield watch
    watch.server.close()


@pytest.fixture(scope="module")
def project(
    watch: Watch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    yield from scratch(tmp_path_factory.mktemp("strangers") / "repo")


def stranger(project: Project, watch: Watch, kind: str) -> Notebook:
    """Put into the project what a stranger's repository holds: a configuration, a notebook that names its place."""
    project.config(json.dumps({"kernels": watch.places}))
    return project.notebook(
        f"{kind}.ipynb", [code("print(1)", "a")], stepper={"kernel": kind}
    )


def forged(watch: Watch, kind: str, definition: Any = None) -> dict[str, Any]:
    """Return a record that leads to whoever listens there."""
    ports = {
        f"{name}_port": watch.port
        for name in ("shell", "iopub", "stdin", "control", "hb")
    }
    reached = {
        "transport": "tcp",
        "ip": "127.0.0.1",
        "key": "k",
        "signature_scheme": "hmac-sha256",
        **ports,
    }
    return {
        "kind": kind,
        "name": kind,
        "definition": definition or watch.places.get(kind),
        "kernel": HEX,
        "pid": 1,
        "job": 1,
        "python": "/nowhere/python",
        "stack": "/nowhere/stack",
        "connection": reached,
        "file": "/nowhere/file",
        "ports": [watch.port] * 5,
    }


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_unaccepted_backend_is_unreachable_by_every_command(
    project: Project, watch: Watch, kind: str
) -> None:
    notebook = stranger(project, watch, kind)
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
        named = [kind] if command in ("status", "interrupt", "report") else []
        project.stepper(command, *named, check=None)
    project.stepper("use", kind, "--kernel", kind)
    notebook.path.write_text(
        json.dumps({**notebook.raw, "metadata": {}})
    )  # the journal names the place alone
    assert "was not accepted by you" in project.stepper("run", kind, check=1).stderr
    response = project.json("new", f"of {kind}", "--kernel", kind)
    project.json("run", response["notebook"], check=None)
    project.stepper("shutdown", kind)
    assert watch.heard() == ""


def test_agents_cannot_reach_unaccepted_backends(
    project: Project, watch: Watch
) -> None:
    stranger(project, watch, "jupyter")

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

    asyncio.run(asyncio.wait_for(story(), 60))
    assert watch.heard() == ""


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", [*KINDS, "kernelspec", "docker"])
def test_pulled_kernel_record_is_not_used(
    project: Project, watch: Watch, kind: str
) -> None:
    """Not even to a place that was accepted: which host, job, port and key it names is a stranger's word."""
    notebook = stranger(project, watch, kind)
    trust.trust(project.paths)  # its definitions are accepted
    project.stepper("shutdown")
    path = Path(project.paths.kernels, f"{notebook.path.stem}.json")
    for told in (
        forged(watch, kind),
        {**forged(watch, kind), "seal": "0" * 64},
        {**forged(watch, kind), "seal": 1},
    ):
        path.write_text(json.dumps(told))
        project.stepper(
            "status", kind
        )  # a daemon starts, and looks for kernels that were left
        project.stepper("list")
        project.stepper("interrupt", kind)
        project.stepper("shutdown", kind)
        project.stepper("shutdown")
        # SLURM alone is asked, for jobs that are this project's by their names.
        asked = {
            line
            for line in watch.heard().splitlines()
            if line.startswith((*PROGRAMS, "asked"))
        }
        assert (
            asked <= {line for line in asked if line.startswith("squeue -h --me ")}
            and not path.exists()
        ), asked


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


def test_seal_is_valid_for_one_user_and_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here, there = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    sealed_kernel_records.write(here, {"kind": "ssh", "job": 5})
    data = json.loads(secure_files.read(here))
    assert sealed_kernel_records.is_sealed(
        here, data
    ) and not sealed_kernel_records.is_sealed(here, {**data, "job": 6})
    assert not sealed_kernel_records.is_sealed(there, data)
    sealed_kernel_records.write(
        here, {**data, "ending": True}
    )  # the seal does not cover itself
    assert sealed_kernel_records.is_sealed(here, json.loads(secure_files.read(here)))
    key = tmp_path / "state" / "stepper" / "key"
    assert (
        key.stat().st_mode & 0o777 == 0o600
        and key.read_text() not in Path(here).read_text()
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not sealed_kernel_records.is_sealed(here, data)


def test_accepted_backend_is_contacted(project: Project, watch: Watch) -> None:
    """The watch does hear: without this the tests above would say nothing."""
    stranger(project, watch, "ssh")
    trust.trust(project.paths)
    listed = {backend["name"]: backend for backend in project.json("kernels")}
    log = watch.heard()
    assert "ssh " in log and "sinfo " in log
    assert not listed["ssh"]["reachable"]
    asked = {
        line.split()[0]
        for line in log.splitlines()
        if line.startswith((*PROGRAMS, "asked:"))
    }
    assert asked >= {"ssh", "sinfo", "asked:"}
    elsewhere = [line for line in log.splitlines() if TOKEN in line]
    assert [line.partition(" ")[0] for line in elsewhere] == [
        "asked:"
    ]  # the server, and no program, has its token


def test_kernels_never_get_a_backend_token(project: Project, watch: Watch) -> None:
    """Neither one of this machine, nor a job: what sbatch is given of the environment is what the job inherits."""
    stranger(project, watch, "slurm")
    trust.trust(project.paths)
    here = project.notebook("here.ipynb", [], stepper={"kernel": "local"})
    _, answer = here.insert(
        "import os; print([name for name in os.environ if 'TOKEN' in name], os.environ['HOME'])"
    )
    assert "| [] " in answer.text, answer.text
    project.stepper("run", "slurm", check=1)
    heard = watch.heard()
    assert "sbatch --parsable" in heard and "HOME=" in heard
    assert TOKEN not in heard and "HUB_TOKEN" not in heard
