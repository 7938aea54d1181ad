"""A user's server of a real JupyterHub, behind the hub's proxy: what is read where the hub, and not the server, answers."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Answer, Notebook, Project, scratch, text_of
from tests.jupyterhub import OTHER, USER, Hub
from tests.jupyterserver import VARIABLE
from tests.npm_packages import Unavailable, unavailable
from tests.test_run_on_edit import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
COUNTS = """\
# stepper: timeout=none
import os, time
n = 0
while not os.path.exists({0!r}):
    print(n, flush=True)
    n += 1
    if n == 5:
        open({0!r} + ".begun", "w").close()
    time.sleep(0.1)
print("over")
n"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    try:
        made = Hub()
    except Unavailable as reason:
        unavailable(reason)
    yield made
    made.close()


@pytest.fixture
def project(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project whose kernels are that user's; no token is in anything that was written of it."""
    monkeypatch.setenv(VARIABLE, hub.token()[1])
    for made in scratch(tmp_path / "repo"):
        made.config(f"kernels: {json.dumps({'hub': hub.definition})}\nkernel: hub\n")
        made.stepper("trust", "--yes")
        yield made
        made.stepper("shutdown", check=None)
        for folder in (made.folder, Path(os.environ["XDG_STATE_HOME"])):
            for path in folder.rglob("*"):
                written = (
                    path.read_bytes().decode("utf-8", "replace")
                    if path.is_file()
                    else ""
                )
                assert not [token for token in hub.tokens if token in written], path


@pytest.fixture
def running(hub: Hub, project: Project) -> Project:
    hub.server("POST")
    return project


def listed(project: Project) -> tuple[bool, str]:
    """What `stepper kernels` says of the hub: whether it can be reached; why not, and what mends that."""
    shown = project.json("kernels", check=None)[1]
    return shown["reachable"], f"{shown['why']} | {shown['mend']}"


def while_it_runs(
    notebook: Notebook, act: Callable[[], object], ends: bool = True
) -> Answer:
    """Have a cell count, do something when it is at it, let it end; return what is read of it."""
    file = notebook.path.with_suffix(f".{len(notebook.raw['cells'])}")
    payload, said = notebook.edited("insert", COUNTS.format(str(file))), list[Answer]()
    cell = threading.Thread(
        target=lambda: said.append(notebook.project.hook("PostToolUse", payload)),
        daemon=True,
    )
    cell.start()
    wait_until(Path(f"{file}.begun").exists, 60)
    act()
    if ends:
        file.touch()
    cell.join(120)
    return said[0]


def whole(cell: dict[str, Any]) -> bool:
    """Whether all that such a cell printed is on it, each line once, and its value."""
    *printed, value = cell["outputs"]
    counted = "".join(
        f"{n}\n" for n in range(int("".join(value["data"]["text/plain"])))
    )
    return "".join("".join(each["text"]) for each in printed) == f"{counted}over\n"


def trouble(project: Project) -> str:
    return project.json("status")["kernel"]["trouble"]


def test_killed_proxy_loses_no_output(hub: Hub, running: Project) -> None:
    reachable, _ = listed(running)
    assert reachable and "python3" in str(running.json("kernels")[1]["offers"])
    notebook = running.new()
    assert (
        "ran ok" in (said := notebook.insert("x = 20\nprint(x)")[1].text)
        and "| 20" in said
    )
    assert f"on {hub.url}, stepper does not limit memory" in said
    assert "ZeroDivisionError" in notebook.insert("1 / 0")[1].text
    assert running.json("status")["kernel"]["where"].endswith(hub.url)
    shown = subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert os.environ[VARIABLE] not in shown

    def killed() -> None:
        hub.kill_proxy()
        wait_until(
            lambda: trouble(running).startswith(
                f"the connection is down ({hub.url} can't be reached"
            ),
            60,
        )
        hub.proxy_again()
        wait_until(lambda: not trouble(running), 60)

    said = while_it_runs(notebook, killed).text
    assert (
        "ran ok" in said and "lost" not in said and whole(notebook.raw["cells"][0])
    ), said
    said = while_it_runs(
        running.new(), lambda: running.stepper("interrupt"), ends=False
    ).text
    assert "was CANCELLED" in said and "it was interrupted" in said, said
    assert "| 20" in notebook.insert("print(x)")[1].text
    assert (
        "the look into the kernel went wrong"
        not in (running.folder / ".stepper/daemon.log").read_text()
    )


def test_stopped_server_is_reported_with_start_instructions(
    hub: Hub, project: Project
) -> None:
    hub.server("DELETE")
    told, starts = (
        f"{hub.url} is not running (reported by its hub)",
        f"start the server at {hub.root}hub/spawn/{USER}",
    )
    assert listed(project) == (False, f"{told} | {starts}")
    notebook = project.new()
    said = notebook.insert("x = 1")[1]
    assert told in said.text + said.stop and starts in said.text + said.stop, (
        said.text,
        said.stop,
    )


def test_server_stopped_during_a_cell_is_reported(hub: Hub, running: Project) -> None:
    notebook = running.new()
    notebook.insert("x = 20")
    stop = while_it_runs(notebook, lambda: hub.server("DELETE"), ends=False).stop
    starts = f"start the server at {hub.root}hub/spawn/{USER}"
    assert (
        f"kernel died ({hub.url} is not running (reported by its hub); {starts}): all variables are lost"
        in stop
    ), stop
    assert "the cell did not cause the kernel's death: `stepper restore`" in stop, stop
    assert text_of(notebook.raw["cells"][0]).startswith("0\n")
    said = running.stepper("restore", check=1).stderr
    assert (
        f"{hub.url} is not running" in said
        and starts in said
        and "may live on" not in said
    ), said
    hub.server("POST")
    assert "ran ok" in running.stepper("restore").stdout
    running.stepper("shutdown")


def test_revoked_token_and_token_of_another_user_are_distinguished(
    hub: Hub, running: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = f"{hub.url} refuses the token that `token_env` names (403)"
    number, token = hub.token()
    monkeypatch.setenv(VARIABLE, token)
    notebook = running.new()
    assert "ran ok" in notebook.insert("x = 20")[1].text
    hub.ask(f"users/{USER}/tokens/{number}", "DELETE")
    wait_until(
        lambda: not listed(running)[0]
    )  # a server asks its hub again after a while
    assert listed(running) == (False, f"{refuses} | export {VARIABLE}=…")
    assert "| 20" in notebook.insert("print(x)")[1].text  # by the line that is there

    made = list[tuple[str, str]]()

    def cut() -> None:
        hub.kill_proxy()
        hub.proxy_again()
        wait_until(
            lambda: trouble(running) == f"the connection is down ({refuses})", 60
        )
        made.append(hub.token())
        monkeypatch.setenv(VARIABLE, made[0][1])
        wait_until(lambda: not trouble(running), 60)  # whoever asks has brought it

    said = while_it_runs(notebook, cut).text
    assert "ran ok" in said and whole(notebook.raw["cells"][0]), said
    hub.ask(f"users/{USER}/tokens/{made[0][0]}", "DELETE")
    wait_until(lambda: not listed(running)[0])
    said = running.stepper("shutdown").stderr
    assert (
        f"may still be running there: {hub.url} refuses the token" in said
        and "was NOT stopped and may still be running" in said
    ), said
    monkeypatch.setenv(VARIABLE, hub.token()[1])
    assert "1 kernel" in running.stepper("shutdown").stdout
    monkeypatch.setenv(VARIABLE, hub.token(OTHER)[1])
    reachable, why = listed(running)
    assert (
        not reachable
        and f"does not permit {OTHER}, the owner of the token that `token_env` names, to do this (403)"
        in why
    )
    hub.server("DELETE")
    assert (
        f"it is not running, or the token that `token_env` names is not for it | {hub.root}hub/home"
        in listed(running)[1]
    )
    monkeypatch.setenv(VARIABLE, "one-that-the-hub-never-gave")
    assert listed(running) == (False, f"{refuses} | export {VARIABLE}=…")


def test_hub_url_instead_of_server_url_is_reported(hub: Hub, project: Project) -> None:
    definition = {"jupyter": {"url": hub.root, "token_env": VARIABLE}}
    project.config(f"kernels: {json.dumps({'hub': definition})}\n")
    project.stepper("trust", "--yes")
    reachable, why = listed(project)
    assert (
        not reachable
        and why.startswith(f"{hub.root} is the URL of a hub")
        and "/user/NAME/" in why
    )
