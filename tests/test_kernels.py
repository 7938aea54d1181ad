"""The `kernels:` configuration, accepted backends, and notebooks in other languages."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client

from stepper.cli import rendering
from stepper.common.errors import UsageError
from stepper.daemon import backend_commands as looks
from stepper.daemon import config
from stepper.install import trust
from stepper.kernels import backend_registry
from stepper.kernels.backends.jupyter import jupyter_settings
from stepper.kernels.backends.jupyter.jupyter_settings import JupyterSettings
from stepper.kernels.backends.kernelspec import kernelspecs
from stepper.kernels.backends.kernelspec.kernelspec_settings import KernelspecSettings
from stepper.kernels.backends.slurm import slurm_settings
from stepper.kernels.backends.slurm.slurm_settings import SlurmSettings
from stepper.kernels.backends.ssh import ssh_settings
from stepper.kernels.backends.ssh.ssh_settings import SshSettings
from stepper.mcp.server import ProjectServer
from stepper.policy import plan
from stepper.policy.model import Limits, Plan
from tests import backend_cases
from tests.conftest import Notebook, Project, code, scratch

EXAMPLE = """
kernels:
  gpu:     {slurm: {partition: gpu, time: "4:00:00", mem: 32G, cpus: 8, gres: "gpu:1", setup: "module load cuda", python: /shared/venv/bin/python, extra: ["--account=x"]}}
  mine:    {slurm: {jobid: 1234}}                      # an allocation that the user holds: srun --overlap
  hub:     {jupyter: {url: "https://hub.example.org/user/me/", token_env: HUB_TOKEN, kernel: python3}}
  box:     {ssh: {host: box, python: /opt/venv/bin/python}}
  r:       {kernelspec: ir}                            # any installed kernelspec, local
kernel: gpu
"""


def test_backend_config_is_parsed() -> None:
    limits = config.parse(EXAMPLE, "config.yaml")
    assert limits.kernel == "gpu" and list(limits.kernels) == [
        "gpu",
        "mine",
        "hub",
        "box",
        "r",
    ]
    gpu, attached, hub, box, r = (
        backend.settings for backend in limits.kernels.values()
    )
    assert gpu == SlurmSettings(
        "gpu",
        time="4:00:00",
        mem="32G",
        cpus=8,
        gres="gpu:1",
        setup="module load cuda",
        python="/shared/venv/bin/python",
        extra=("--account=x",),
    )
    assert attached == SlurmSettings(jobid=1234)
    assert hub == JupyterSettings(
        "https://hub.example.org/user/me/", "python3", token_env="HUB_TOKEN"
    )
    assert box == SshSettings(
        "box", "/opt/venv/bin/python"
    ) and r == KernelspecSettings("ir")
    assert [backend.kind for backend in limits.kernels.values()] == [
        "slurm",
        "slurm",
        "jupyter",
        "ssh",
        "kernelspec",
    ]
    assert "partition gpu" in limits.kernels["gpu"].description.text
    assert "ir" in limits.kernels["r"].description.text
    assert config.parse("cell_timeout_seconds: 3\n", "config.yaml").kernels == {}
    assert Limits().kernel == "local"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("kernels: 3", 1, "`kernels` must be a mapping", ""),
        (
            "kernels:\n  a: ssh",
            2,
            "`kernels.a` must contain exactly one kind of backend: slurm, jupyter, ssh, kernelspec",
            "",
        ),
        ("kernels:\n  a: {}", 2, "must contain exactly one kind", ""),
        (
            "kernels:\n  a: {ssh: {host: x}, slurm: {}}",
            2,
            "must contain exactly one kind",
            "",
        ),
        (
            "kernels:\n  a: {slrum: {}}",
            2,
            "`kernels.a.slrum` is not a known key",
            "Did you mean `slurm`?",
        ),
        ("kernels:\n  local: {ssh: {host: x}}", 2, "Use another name", ""),
        (
            "kernels:\n  'a b': {ssh: {host: x}}",
            2,
            "is not a valid name for a kernel backend",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      partitoin: gpu",
            4,
            "`kernels.a.slurm.partitoin`",
            "`partition`",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      time: 4:00:00",
            4,
            "a walltime in quotes",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      time: '0:00:00'",
            4,
            "a walltime in quotes",
            "",
        ),
        ("kernels:\n  a:\n    slurm:\n      time: soon", 4, "not 'soon'", ""),
        (
            "kernels:\n  a:\n    slurm:\n      mem: lots",
            4,
            "an amount of memory such as 32G",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      cpus: 0",
            4,
            "a whole number above 0, not 0",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      extra: --account=x",
            4,
            "a list of flags",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      extra: ['--requeue']",
            4,
            "cannot contain `--requeue`: stepper sets this flag",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      extra: ['-Jx']",
            4,
            "cannot contain `-Jx`: stepper sets this flag",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      extra: ['-J=x']",
            4,
            "stepper sets this flag",
            "",
        ),
        (
            "kernels:\n  a: {slurm: {jobid: 5, mem: 3G}}",
            2,
            "job 5 already has its mem",
            "",
        ),
        ("kernels:\n  a: {slurm: {folder: tmp}}", 2, "an absolute path", ""),
        ("kernels:\n  a: {slurm: {via: http}}", 2, "must be `ssh`", ""),
        (
            "kernels:\n  a:\n    jupyter: {kernel: x}",
            3,
            "`kernels.a.jupyter` must have the key `url`: a URL",
            "",
        ),
        (
            "kernels:\n  a:\n    jupyter:\n      url: hub.org",
            4,
            "a URL that starts with http:// or https://",
            "",
        ),
        ("kernels:\n  a:\n    jupyter:\n      url: 'http://x:99999/'", 4, "a URL", ""),
        (
            "kernels:\n  a:\n    jupyter:\n      url: 'http://me:pw@x/'",
            4,
            "must not contain a token or password",
            "token_env",
        ),
        (
            "kernels:\n  a:\n    jupyter:\n      url: 'http://x/?token=1'",
            4,
            "must not contain a token or password",
            "token_env",
        ),
        (
            "kernels:\n  a:\n    jupyter: {url: 'http://x/', token: s3cret}",
            3,
            "must not contain a token: others can read this file",
            "token_env",
        ),
        (
            "kernels:\n  a: {jupyter: {url: 'http://x/', token_env: A, token_file: /b}}",
            2,
            "cannot be combined with `token_env`",
            "",
        ),
        (
            "kernels:\n  a: {jupyter: {url: 'http://x/', ca_file: ca.pem}}",
            2,
            "an absolute path",
            "",
        ),
        ("kernels:\n  a: {ssh: {}}", 2, "must have the key `host`", ""),
        (
            "kernels:\n  a: {ssh: {host: '-oProxyCommand=x'}}",
            2,
            "an SSH host",
            "",
        ),
        ("kernels:\n  a: {kernelspec: ../x}", 2, "the name of a kernelspec", ""),
        (
            "kernels:\n  r: {kernelspec: ir}\nkernel: gpu",
            3,
            "`kernel: gpu` is not defined in `kernels:`; available: r, local",
            "",
        ),
        ("kernel: ", 1, "the name of one of `kernels:`", ""),
        (
            "kernels:\n  a: {ssh: {host: x}}\n  b: {kernelspec: x}\n  a: {kernelspec: y}",
            4,
            "duplicate key `a`, first used on line 2",
            "",
        ),
        (
            "kernels:\n  a:\n    ssh:\n      host: x\n      host: y",
            5,
            "duplicate key `host`, first used on line 4",
            "",
        ),
        (
            "kernels:\n  r: {kernelspec: ir}\n  on: {kernelspec: ir}",
            3,
            "`kernels.True` is not a valid name for a kernel backend",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      8: x",
            4,
            "`kernels.a.slurm.8` is not a known key",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      cpus: true",
            4,
            "a whole number above 0, not True",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:\n      queue_seconds: .nan",
            4,
            "a number of seconds, at most a day",
            "",
        ),
        ('kernels:\n  a: {ssh: {host: x, setup: "\\ud800"}}', 2, "shell code", ""),
        (
            "kernels:\n  a: {jupyter: {url: 'http://x/', token_command: ' '}}",
            2,
            "must be a non-empty string on one line",
            "",
        ),
        (
            "kernels:\n  a: {jupyter: {url: 'http://x/', headers: {X: ﷺ}}}",
            2,
            "ASCII strings",
            "",
        ),
        (
            "kernels:\n  a:\n    slurm:",
            3,
            "must be a mapping; allowed keys: partition, ",
            "",
        ),
        ("kernels:\n  a:\n    jupyter: {url: 'http://a b/'}", 3, "a URL", ""),
        (
            "kernels:\n  a:\n    jupyter: {url: 'http://x/lab?reset'}",
            3,
            "must be the base URL of the server, without `?` or `#`",
            "",
        ),
        (
            "kernels:\n  a:\n    jupyter:\n      url: http://x/\n      token_env: s3cret-pw",
            5,
            "the name of an environment v",
            "",
        ),
        (
            "kernels:\n  a:\n    jupyter:\n      url: http://x/\n      headers:\n        Authorization: token s3cret",
            6,
            "`kernels.a.jupyter.headers.Authorization` must not contain credentials",
            "token_env",
        ),
        (
            "kernels:\n  a:\n    jupyter: {url: 'http://x/', headers: {'X Y': s3cret}}",
            3,
            "a mapping from header names",
            "",
        ),
        (
            "kernels:\n  a:\n    jupyter: {url: 'http://x/', env: {KERNEL_USERNAME: 5}}",
            3,
            "a mapping from names of environment variables",
            "",
        ),
        ("read: raw\n\n1: x", 3, "unknown key `1`", "known keys: "),
        ("read: raw\non: x", 2, "unknown key `True`", ""),
        (f"read: raw\n{'k' * 120}: x", 2, "unknown key `kkk", ""),
    ],
)
def test_config_error_names_its_line(
    text: str, line: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        config.parse(text, "config.yaml")
    assert (
        wrong.value.message.startswith(f"config.yaml, line {line}: ")
        and message in wrong.value.message
    )
    assert (
        hint in wrong.value.hint
        and "s3cret" not in str(wrong.value)
        and "pw" not in str(wrong.value)
    )


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.sampled_from(
        [
            "gpu",
            "4:00:00",
            "32G",
            "http://x/",
            "ssh",
            "-x",
            "~",
            "/a",
            "\x1b[1m",
            "x" * 500,
        ]
    ),
    lambda stored: (
        st.lists(stored, max_size=2)
        | st.dictionaries(st.text(max_size=4) | st.integers(), stored, max_size=2)
    ),
    max_leaves=3,
)
KEYS = sorted({*jupyter_settings.RULES, *slurm_settings.RULES, *ssh_settings.RULES})
PLACES = st.dictionaries(
    st.sampled_from(["a", "b-c", "local", "on", " ", "ü"]) | st.integers(),
    ODD
    | st.dictionaries(
        st.sampled_from([*backend_registry.CONFIGURABLE, "docker"]),
        ODD | st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4),
        max_size=2,
    ),
    max_size=3,
)


@settings(deadline=None)
@given(PLACES | ODD, ODD | st.sampled_from(["a", "local"]))
def test_invalid_configuration_raises_only_config_error(
    backends: Any, named: Any
) -> None:
    """Any entry is accepted or rejected with its line.

    There is no other error, and no terminal control character.
    """
    text = yaml.safe_dump({"kernels": backends, "kernel": named}, allow_unicode=True)
    try:
        limits = config.parse(text, "config.yaml")
    except UsageError as wrong:
        assert (match := re.match(r"config\.yaml, line (\d+): ", wrong.message)), (
            wrong.message
        )
        assert (
            1 <= int(match[1]) <= text.count("\n")
            and "\x1b" not in wrong.message + wrong.hint
        )
        assert len(wrong.message) < 1000
    else:
        assert limits.kernel == "local" or limits.kernel in limits.kernels
        for backend in limits.kernels.values():
            assert "\n" not in backend.description.text


def test_plan_keeps_its_kernel_name() -> None:
    new_plan = Plan("p", (plan.make_step(1, "Load"),), "gpu")
    assert plan.from_json(plan.to_json(new_plan)) == new_plan
    assert "kernel" not in plan.to_json(Plan("p"))
    assert (
        plan.from_json({"kernel": "r"}) == Plan(kernel="r")
        and plan.from_json({}) is None
    )
    assert plan.from_json({"kernel": None}) == Plan() and plan.from_json(
        {"kernel": ["r"]}
    ) == Plan(kernel="['r']")


def test_backend_list_fits_each_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {
        "kind": "ssh",
        "accepted": True,
        "usual": False,
        "why": "",
        "offers": [],
        "mend": "",
        "unchecked": [],
    }
    backends = [
        {
            **data,
            "name": "local",
            "about": "/p/.venv/bin/python",
            "reachable": True,
            "usual": True,
        },
        {
            **data,
            "name": "gpu",
            "about": "a SLURM job, partition gpu, time 4:00:00",
            "reachable": True,
            "offers": ["n"],
            "unchecked": ["python on the compute node"],
        },
        {
            **data,
            "name": "hub",
            "about": "x",
            "reachable": False,
            "why": "it is \x1b[1mdown\n",
            "mend": "ping hub",
        },
        {
            **data,
            "name": "box",
            "about": "y",
            "reachable": None,
            "why": "not accepted",
            "mend": "stepper trust",
        },
    ]
    text = rendering.RENDERINGS["kernels"].text(backends)
    assert text.splitlines() == [
        "✓ local  /p/.venv/bin/python (the project's default)",
        "✓ gpu    a SLURM job, partition gpu, time 4:00:00",
        "         n",
        "         not checked: python on the compute node",
        "✗ hub    x",
        "         it is down",
        "         To see the cause, run: ping hub",
        "· box    y",
        "         not accepted",
        "         To fix this, run: stepper trust",
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert (
        "✓ gpu    a SLURM job, partition gpu,\n         time 4:00:00\n"
        in rendering.RENDERINGS["kernels"].text(backends)
    )
    monkeypatch.setenv("COLUMNS", "10")  # narrower lines would have one word each
    assert rendering.RENDERINGS["kernels"].text(backends) == text


def test_backends_are_checked_concurrently_with_timeout(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three hosts that accept connections and send nothing; one is not accepted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen(10)
        port = silent.getsockname()[1]
        flags = json.dumps(["-F", "none", "-p", str(port)])
        backends = "".join(
            f"  {name}: {{ssh: {{host: 127.0.0.1, extra: {flags}}}}}\n"
            for name in ("a", "b", "c")
        )
        project.config(f"kernels:\n{backends}")
        trust.accept(project.paths, trust.examine(project.paths))
        project.config(f"kernels:\n{backends}  d: {{ssh: {{host: other}}}}\n")
        monkeypatch.setattr("stepper.daemon.backend_commands.CHECK_SECONDS", 0.5)
        limits = config.load(project.paths)
        began = time.monotonic()
        listed = asyncio.run(
            looks.check_backends(project.paths, limits, dict(os.environ))
        )
        assert time.monotonic() - began < 60
    assert [(entry.name, entry.reachable) for entry in listed] == [
        ("a", False),
        ("b", False),
        ("c", False),
        ("d", None),
    ]
    assert (
        listed[0].why == "a did not respond within 0.5 s"
        and listed[3].mend == "stepper trust"
    )


def test_backends_are_listed_without_ssh(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.config("kernels:\n  a: {ssh: {host: x}}\n  b: {kernelspec: BASH}\n")
    trust.accept(project.paths, trust.examine(project.paths))
    monkeypatch.setenv("PATH", "/nowhere")
    listed = asyncio.run(
        looks.check_backends(
            project.paths, config.load(project.paths), dict(os.environ)
        )
    )
    assert [(entry.name, entry.reachable) for entry in listed] == [
        ("a", False),
        ("b", True),
    ]
    assert (
        listed[0].why
        == "ssh cannot be executed on this machine: No such file or directory"
        and listed[0].mend
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a bash kernel for its user; one daemon for all tests."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "jupyter/kernels/bash").mkdir(parents=True)
    (folder / "jupyter/kernels/bash/kernel.json").write_text(
        json.dumps(backend_cases.BASH_KERNEL)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        yield from scratch(folder / "repo")


@pytest.fixture
def shell(project: Project) -> Notebook:
    """A bash notebook with an accepted backend."""
    project.config("kernels:\n  sh: {kernelspec: bash}\n  box: {ssh: {host: box}}\n")
    trust.accept(project.paths, trust.examine(project.paths))
    response = project.json(
        "new",
        "Count the files",
        "--step",
        "List :: 1 == 2",
        "--step",
        "Count",
        "--kernel",
        "sh",
    )
    return Notebook(project, project.folder / response["notebook"])


@pytest.mark.nightly
def test_unaccepted_backend_runs_nothing(
    project: Project,
) -> None:
    project.config("kernels: {sh: {kernelspec: bash}}\n")
    response = project.json("new", "A strangers", "--kernel", "sh")
    notebook = Notebook(project, project.folder / response["notebook"])
    marker = project.folder / "notebooks" / "ran"
    cell, report = notebook.insert("touch ran")
    assert (
        "was not accepted by you" in report.text
        and "stepper trust" in report.text
        and not marker.exists()
    )
    listed = {backend["name"]: backend for backend in project.json("kernels")}
    assert (
        listed["local"]["reachable"]
        and not listed["sh"]["accepted"]
        and listed["sh"]["reachable"] is None
    )
    output = project.stepper("trust", "--yes").stdout
    assert 'kernels.sh: {"kernelspec": "bash"}' in output
    assert "ran ok" in notebook.replace(cell, "touch ran; ls").text and marker.exists()
    listed = {backend["name"]: backend for backend in project.json("kernels")}
    assert listed["sh"]["reachable"] and listed["sh"]["offers"][0].startswith(
        "Bash (bash): "
    )
    # Only the accepted definition is valid, not another one with the same name.
    project.config("kernels: {sh: {kernelspec: evil}}\n")
    assert not {backend["name"]: backend for backend in project.json("kernels")}["sh"][
        "accepted"
    ]
    project.stepper("restart", notebook.path.stem, check=1)


def test_notebook_keeps_its_kernel_and_records_its_language(
    project: Project, shell: Notebook
) -> None:
    metadata = shell.raw["metadata"]
    assert (
        metadata["stepper"]["kernel"] == "sh"
        and metadata["language_info"]["name"] == "bash"
    )
    assert metadata["kernelspec"] == {
        "name": "bash",
        "display_name": "Bash",
        "language": "bash",
    }
    project.stepper("plan", "add", "One more")
    assert shell.raw["metadata"]["stepper"]["kernel"] == "sh"
    used = project.json("use", shell.path.stem, "--kernel", "local")
    assert used == {"notebook": f"notebooks/{shell.path.name}", "kernel": "local"}
    assert (
        shell.raw["metadata"]["kernelspec"]["name"] == "python3"
        and "kernel" not in shell.raw["metadata"]["stepper"]
    )
    wrong = project.stepper("use", shell.path.stem, "--kernel", "gpu", check=2).stderr
    assert "no kernel backend 'gpu'" in wrong and "available: sh, box, local" in wrong
    assert (
        "no kernel backend 'gpu'"
        in project.stepper("new", "x", "--kernel", "gpu", check=2).stderr
    )
    assert (
        "is now the current notebook. Its next kernel will run on sh."
        in project.stepper("use", shell.path.stem, "--kernel", "sh").stdout
    )


def test_new_notebook_on_a_local_kernel_beside_another_default(
    project: Project,
) -> None:
    project.config("kernel: sh\nkernels: {sh: {kernelspec: bash}}\n")
    trust.accept(project.paths, trust.examine(project.paths))
    response = project.json("new", "Python here", "--kernel", "local")
    notebook = Notebook(project, project.folder / response["notebook"])
    assert notebook.raw["metadata"]["stepper"]["kernel"] == "local"
    assert notebook.raw["metadata"]["kernelspec"]["name"] == "python3"
    assert "| 2" in notebook.insert("print(1 + 1)")[1].text


@pytest.mark.nightly
def test_bash_cells_have_outputs_attempts_and_stops(
    project: Project, shell: Notebook
) -> None:
    cell, response = shell.insert("x=3; echo three $x")
    # Python only; bash reports no such line
    assert 'Step 1 of 2 "List": done; criterion: 1 == 2.' in response.text
    assert (
        "ran ok" in response.text
        and "| three 3" in response.text
        and "is false" not in response.text
    )
    assert shell.raw["cells"][-1]["outputs"][0]["text"] == ["three 3\n"]
    cell, failed = shell.insert("echo $x; ls /nowhere")
    assert (
        "failed" in failed.text
        and "| 3" in failed.text
        and "No such file" in failed.text
    )
    for number in range(3):
        failed = shell.replace(cell, f"ls /nowhere/{number}")
    assert "Error Type: Error" in failed.stop and "Error Message: 2" in failed.stop
    status = project.json("status")
    assert (
        status["stop"]
        and status["steps"][1]["attempts"] == 3
        and status["kernel"]["state"] == "idle"
    )
    assert [run["outcome"] for run in project.json("history")] == ["ok", *["error"] * 4]
    assert project.json("context")["variables"] == {}


@pytest.mark.nightly
def test_bash_cell_times_out_and_may_die(project: Project, shell: Notebook) -> None:
    cell, response = shell.insert("# stepper: timeout=1\necho begun; sleep 60")
    assert (
        "Timeout" in response.text
        and "| begun" in response.text
        and "kernel keeps its variables" in response.text
    )
    response = shell.replace(cell, "kill -9 $PPID; sleep 60")
    assert "KernelDied" in response.stop and "SIGKILL" in response.stop


@pytest.mark.nightly
def test_bash_state_survives_a_killed_daemon(project: Project, shell: Notebook) -> None:
    shell.insert("x=4")
    project.kill_daemon()
    assert "| 4" in shell.insert("echo $x")[1].text


@pytest.mark.nightly
def test_cell_with_unknown_outcome_is_not_rerun(
    project: Project, shell: Notebook
) -> None:
    cell, _ = shell.insert("x=6")
    payload = shell.edited(
        "insert", "echo begun; sleep 2; echo x >> ran-once; echo over", cell
    )
    running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
    running.start()
    time.sleep(1)
    psutil.Process(project.json("status")["daemon"]["pid"]).kill()
    # the cell ends before or during the hook's request to the next daemon
    time.sleep(2)
    running.join()
    marker, text = (
        project.folder / "notebooks" / "ran-once",
        project.json("report")["text"],
    )
    assert marker.read_text() == "x\n" and "the daemon exited" in text, text
    ended = project.json("history")[-1]["outcome"]
    assert ended == "ok" or "the outcome of the run is unknown" in text, text


@pytest.mark.nightly
def test_python_notebook_never_runs_in_kernel_of_other_language(
    project: Project,
) -> None:
    project.config("kernels: {sh: {kernelspec: bash}}\nkernel: sh\n")
    trust.accept(project.paths, trust.examine(project.paths))
    notebook = project.notebook(
        "python.ipynb", [code("print(1)", "a")], language_info={"name": "python"}
    )
    output = project.stepper("run", "python", check=1).stderr
    assert "is a Python notebook, but its kernel runs bash" in output
    assert not project.json("history", "python")
    project.stepper("shutdown", "python")
    project.stepper("use", "python", "--kernel", "local")
    assert project.json("run", "python")["ok"] and notebook.cell("a")["outputs"][0][
        "text"
    ] == ["1\n"]


@pytest.mark.nightly
def test_missing_kernel_for_other_language_is_reported(project: Project) -> None:
    project.config("kernels: {sh: {kernelspec: bash}}\n")
    trust.accept(project.paths, trust.examine(project.paths))
    notebook = project.notebook(
        "made-elsewhere.ipynb", [code("echo hi", "a")], language_info={"name": "bash"}
    )
    output = project.stepper("run", "made-elsewhere", check=1).stderr
    assert (
        "is 'bash', but the selected kernel runs Python" in output
        and "stepper use notebooks/made-elsewhere.ipynb --kernel" in output
    )
    project.stepper("use", "made-elsewhere", "--kernel", "sh")
    assert project.json("run", "made-elsewhere")["ok"] and notebook.cell("a")[
        "outputs"
    ][0]["text"] == ["hi\n"]


@pytest.mark.nightly
def test_r_cells_show_figures_and_errors(project: Project) -> None:
    backend_cases.MAKERS["r"]("r", project.folder)  # installs it
    project.config("kernels: {r: {kernelspec: ir}}\nkernel: r\n")
    trust.accept(project.paths, trust.examine(project.paths))
    response = project.json("new", "Plot the wet days")
    notebook = Notebook(project, project.folder / response["notebook"])
    assert notebook.raw["metadata"]["kernelspec"]["language"] == "R"
    assert "kernel" not in notebook.raw["metadata"]["stepper"]  # it is the project's
    _, report = notebook.insert("days <- c(1, 5, 2)\nplot(days)")
    assert "ran ok" in report.text and ".png" in report.text, report.text
    cell, report = notebook.insert("mean(nothing)")
    assert "FAILED" in report.text and "object 'nothing' not found" in report.text, (
        report.text
    )
    report = notebook.replace(cell, "mean(days)")
    assert "ran ok" in report.text and "| [1] 2.666667" in report.text, report.text


def test_missing_kernelspec_is_reported(project: Project) -> None:
    project.config("kernels: {it: {kernelspec: cobol}}\n")
    trust.accept(project.paths, trust.examine(project.paths))
    output = project.stepper("new", "Count", "--kernel", "it", check=1).stderr
    assert (
        "'cobol' is not installed (installed kernelspecs: " in output
        and "bash" in output
    )


@pytest.mark.nightly
def test_removed_backend_is_reported_at_next_kernel_start(
    project: Project, shell: Notebook
) -> None:
    shell.insert("x=5")
    project.config("")
    assert "| 5" in shell.insert("echo $x")[1].text  # the kernel lives
    kernel = project.json("status")["kernel"]
    assert (
        kernel["state"] == "idle"
        and "the next kernel cannot start" in kernel["trouble"]
    )
    assert (
        "there is no kernel backend 'sh'; available: local (see" in kernel["trouble"]
        and f"stepper use {shell.path.relative_to(project.folder)} --kernel NAME"
        in kernel["trouble"]
    )
    output = project.stepper("restart", shell.path.stem, check=1).stderr
    assert (
        "there is no kernel backend 'sh'; available: local (see" in output
        and f"stepper use {shell.path.relative_to(project.folder)} --kernel NAME"
        in output
    )
    # the running kernel is kept if the new one can't start
    assert "| 5" in shell.insert("echo $x")[1].text
    project.kill_daemon()
    assert "| 5" in shell.insert("echo $x")[1].text


@pytest.mark.nightly
def test_mcp_agent_selects_backends(project: Project, shell: Notebook) -> None:
    async def story() -> None:
        async with Client(ProjectServer(str(project.folder)).create_server()) as client:
            tool_response = await client.call_tool(
                "create_notebook",
                {
                    "problem": "Say it",
                    "place": "sh",
                    "cells": [{"source": "x=7; echo said $x"}],
                },
            )
            assert "| said 7" in tool_response.content[0].text, tool_response.content[
                0
            ].text
            second_response = await client.call_tool(
                "kernel", {"action": "start", "place": "local"}
            )
            assert (
                "is already running (idle). The next kernel will run in local. To start it"
                in second_response.content[0].text
            )
            back = await client.call_tool("kernel", {"action": "start", "place": "sh"})
            assert back.content[0].text.endswith(" is already running (idle).")
            response = await client.call_tool("run_cell", {"source": "echo $x"})
            assert "| 7" in response.content[0].text
            await client.call_tool("kernel", {"action": "restart", "place": "sh"})
            shutdown_response = await client.call_tool(
                "run_cell", {"source": "echo [$x]"}
            )
            assert "| []" in shutdown_response.content[0].text

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.nightly
def test_changed_backend_applies_to_the_next_kernel(
    project: Project, shell: Notebook
) -> None:
    shell.insert("x=5")
    project.config("kernels: {sh: {ssh: {host: evil}}}\n")
    assert "| 5" in shell.insert("echo $x")[1].text
    assert (
        "was not accepted by you (stepper trust)"
        in project.json("status")["kernel"]["trouble"]
    )
    assert (
        "was not accepted"
        in project.stepper("restart", shell.path.stem, check=1).stderr
    )
    project.config("kernels: {sh: {kernelspec: bash}}\n")
    assert (
        project.json("status")["kernel"]["trouble"] == ""
        and "| 5" in shell.insert("echo $x")[1].text
    )


def test_local_kernel_imports_no_other_backends() -> None:
    script = "import sys, stepper.daemon.server, stepper.kernels.backends.local.local_launcher, stepper.kernels.client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    ).stdout.split()
    assert "stepper.kernels.client" in loaded
    assert not {
        "stepper.policy.configuration.kernel_config",
        "stepper.kernels.backends.kernelspec.kernelspecs",
        "stepper.daemon.backend_commands",
    } & {*loaded}


def test_kernelspecs_of_a_virtual_environment_precede_the_users(
    tmp_path: Path,
) -> None:
    environment = tmp_path / "env"
    environ = {"HOME": str(tmp_path), "JUPYTER_PATH": str(tmp_path / "first")}
    python = str(environment / "bin/python")
    (environment / "bin").mkdir(parents=True)

    def list_names(**variables: str) -> list[str]:
        folders = kernelspecs.list_folders({**environ, **variables}, python)
        return [str(folder.relative_to(tmp_path)) for folder in folders[:3]]

    user = ".local/share/jupyter/kernels"
    kernels_folder = "env/share/jupyter/kernels"
    assert list_names() == ["first/kernels", user, kernels_folder]
    assert list_names(JUPYTER_PREFER_ENV_PATH="1") == [
        "first/kernels",
        kernels_folder,
        user,
    ]
    (environment / "pyvenv.cfg").touch()
    assert list_names() == ["first/kernels", kernels_folder, user]
    assert list_names(JUPYTER_PREFER_ENV_PATH="no") == [
        "first/kernels",
        user,
        kernels_folder,
    ]
