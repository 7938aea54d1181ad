"""Kernels of other packages: a toy backend and toy provisioners, installed as wheels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.common.paths import Paths
from stepper.install import trust
from tests.conftest import ROOT

TOYS = ROOT / "tests" / "toy_packages"
MAIN = "from stepper.cli.main import main; main()"
UV = str(Path(sys.executable).with_name("uv"))
NAMES = ("toy", "provisioned", "forgetful")


def run_uv(*arguments: str) -> None:
    result = subprocess.run(
        [UV, *arguments], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with stepper and wheels of the toy packages."""
    folder = tmp_path_factory.mktemp("third-party")
    wheels = folder / "wheels"
    for name in ("toy_backend", "toy_provisioner"):
        run_uv("build", "-q", "--wheel", "-o", str(wheels), str(TOYS / name))
    home = folder / "env"
    run_uv("venv", "-q", "--python", sys.executable, str(home))
    inner = str(home / "bin" / "python")
    packages = [f"--editable={ROOT}", "ipykernel", *map(str, wheels.glob("*.whl"))]
    run_uv("pip", "install", "-q", "--python", inner, *packages)
    return inner


class Project:
    """A project whose stepper is that of the environment with the toys."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        (folder / "notebooks").mkdir(parents=True)
        (folder / ".stepper").mkdir()
        self.paths = Paths(str(folder))
        trust.save_record(self.paths, {"python": python})
        self.environ = {**os.environ, "JUPYTER_PATH": str(folder / "jupyter")}
        for name in ("toy", "forgetful"):
            self.add_kernelspec(name, f"{name}-provisioner")
        self.kernels: dict[str, Any] = {
            "toy": {"toy": {"python": python, "greeting": "hello"}},
            "provisioned": {"kernelspec": "toy"},
            "forgetful": {"kernelspec": "forgetful"},
        }
        self.configure()

    def add_kernelspec(self, name: str, provisioner: str) -> None:
        folder = self.folder / "jupyter" / "kernels" / name
        folder.mkdir(parents=True)
        stanza: dict[str, Any] = {"provisioner_name": provisioner}
        if name == "toy":
            stanza["config"] = {"greeting": "hello"}
        spec = {
            "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": name,
            "language": "python",
            "metadata": {"kernel_provisioner": stanza},
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    def configure(self, **options: Any) -> None:
        config = json.dumps({"kernels": {**self.kernels, **options}})
        (self.folder / ".stepper" / "config.yaml").write_text(config)
        self.stepper("trust", "--yes")

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", MAIN, *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stepper(self, *arguments: str, check: int | None = 0) -> str:
        with self.popen(*arguments) as process:
            out, err = process.communicate(timeout=120)
        assert check is None or process.returncode == check, out + err
        return out + err

    def json(self, *arguments: str) -> Any:
        out = self.stepper(*arguments, "--json")
        return json.loads(out[out.index("[" if arguments[0] == "kernels" else "{") :])

    def write(self, name: str, kernel: str, *sources: str) -> Path:
        path = self.folder / "notebooks" / f"{name}.ipynb"
        cells = [
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for number, source in enumerate(sources)
        ]
        metadata = {"stepper": {"kernel": kernel}}
        document = {"cells": cells, "metadata": metadata, "nbformat": 4}
        path.write_text(json.dumps({**document, "nbformat_minor": 5}))
        return path

    def evaluate(self, name: str, code: str, check: int | None = 0) -> str:
        return self.stepper("eval", "--notebook", name, code, check=check)

    def get_pid(self, name: str) -> int:
        text = self.evaluate(name, "import os; print('pid', os.getpid())")
        return int(text.split("pid ")[1].split()[0])

    def kill_daemon(self) -> None:
        command = ["-m", "stepper.daemon", str(self.folder)]
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[-3:] == command:
                process.kill()
                process.wait(120)


@pytest.fixture(scope="module")
def project(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    new_project = Project(tmp_path_factory.mktemp("third") / "repo", python)
    yield new_project
    new_project.stepper("shutdown", check=None)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 120
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("kernel", NAMES)
def test_notebook_runs_and_its_kernel_survives_the_daemon(
    project: Project, kernel: str
) -> None:
    name = f"{kernel}_run"
    path = project.write(name, kernel, "x = 20", "print(x + 1)")
    project.stepper("run", name)
    outputs = json.loads(path.read_text())["cells"][1]["outputs"]
    assert "".join(outputs[0]["text"]) == "21\n"
    if kernel != "forgetful":
        greeting = project.evaluate(
            name, "import os; print(os.environ['TOY_GREETING'])"
        )
        assert "hello" in greeting
    pid = project.get_pid(name)
    project.kill_daemon()
    assert "21" in project.evaluate(name, "print(x + 1)")
    assert project.get_pid(name) == pid


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", NAMES)
def test_kernel_is_interrupted_restarted_and_restored(
    project: Project, kernel: str
) -> None:
    name = f"{kernel}_restart"
    project.write(name, kernel, "x = 20", "print(x + 1)")
    project.stepper("run", name)
    pid = project.get_pid(name)
    project.kill_daemon()
    # An interrupt, from the daemon that reconnected.
    with project.popen(
        "eval", "--notebook", name, "import time; print('begun')\ntime.sleep(100)"
    ) as waiting:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and waiting.poll() is None:
            time.sleep(0.5)
            project.stepper("interrupt", name, check=None)
        out, err = waiting.communicate(timeout=120)
    assert "CANCELLED" in out + err
    assert "21" in project.evaluate(name, "print(x + 1)")
    project.stepper("restart", name)
    wait_until_gone(pid)
    project.stepper("run", name)
    pid = project.get_pid(name)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        text = project.stepper("status", name, check=None)
        if "lost" in text or "died" in text or "dead" in text:
            break
        time.sleep(0.5)
    assert "lost" in text or "died" in text or "dead" in text
    project.stepper("restore", name, check=None)
    project.stepper("run", name, check=None)
    pid = project.get_pid(name)
    project.stepper("shutdown", name)
    wait_until_gone(pid)
    assert not [*Path(project.paths.kernels).rglob(f"{name}.json")]


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", NAMES)
def test_shutdown_without_a_daemon_ends_the_kernel(
    project: Project, kernel: str
) -> None:
    name = f"{kernel}_end"
    project.write(name, kernel, "x = 20")
    project.stepper("run", name)
    pid = project.get_pid(name)
    project.kill_daemon()
    project.stepper("shutdown")
    wait_until_gone(pid)
    assert not [*Path(project.paths.kernels).rglob("*.json")]


@pytest.mark.nightly
def test_cancelled_start_leaves_no_process(project: Project) -> None:
    project.write("slow", "provisioned", "x = 20")
    project.environ["TOY_SECONDS"] = "30"
    try:
        with project.popen("run", "slow") as waiting:
            time.sleep(9)  # so that the start counts as one that waits
            project.stepper("interrupt", "slow", check=None)
            out, err = waiting.communicate(timeout=120)
    finally:
        del project.environ["TOY_SECONDS"]
    assert "interrupted" in out + err, out + err
    assert not [*Path(project.paths.kernels).rglob("slow.json")]


def test_kernels_are_listed_and_errors_concern_one_backend(project: Project) -> None:
    project.add_kernelspec("absent", "no-such-provisioner")
    project.configure(
        crash={"toy": {"python": "/x", "greeting": "crash"}},
        broken={"broken": {}},
        absent={"kernelspec": "absent"},
        wrong={"toy": {"python": "/nowhere/python"}},
    )
    try:
        rows = {row["name"]: row for row in project.json("kernels")}
        texts = {name: json.dumps(row) for name, row in rows.items()}
        for name in NAMES:
            assert rows[name]["reachable"], rows[name]
        assert "the toy backend crashed" in texts["crash"]
        assert "could not be imported" in texts["broken"]
        assert "no-such-provisioner" in texts["absent"]
        assert "does not exist" in texts["wrong"]
        project.write("other", "local", "print('fine')")
        project.stepper("run", "other")
        project.write("broken", "broken", "print('never')")
        text = project.stepper("run", "broken", check=None)
        assert "could not be imported" in text
    finally:
        project.configure()


def test_backend_that_is_not_installed_is_an_unknown_key(project: Project) -> None:
    config = project.folder / ".stepper" / "config.yaml"
    text = config.read_text()
    config.write_text(json.dumps({"kernels": {"a": {"evil": {}}}}))
    try:
        assert "is not a known key" in project.stepper("kernels", check=None)
    finally:
        config.write_text(text)


@pytest.mark.nightly
def test_nothing_runs_on_an_unaccepted_backend(python: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "repo", python)
    config = project.folder / ".stepper" / "config.yaml"
    marker = tmp_path / "ran"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    config.write_text(json.dumps({"kernels": {"a": {"toy": {"python": str(program)}}}}))
    project.write("a", "a", "print(1)")
    try:
        assert "was not accepted" in project.stepper("run", "a", check=None)
        assert "have not accepted this backend" in project.stepper("kernels")
        assert not marker.exists()
    finally:
        project.stepper("shutdown", check=None)
