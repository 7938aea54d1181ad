"""A user's server behind the proxy of a real JupyterHub.

Tests include responses that come from the hub instead of the server.
"""

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
        hub = Hub()
    except Unavailable as reason:
        unavailable(reason)
    yield hub
    hub.close()


@pytest.fixture
def project(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project with kernels on the user's server.

    At the end, no file of the project contains a token.
    """
    monkeypatch.setenv(VARIABLE, hub.token()[1])
    for project in scratch(tmp_path / "repo"):
        project.config(f"kernels: {json.dumps({'hub': hub.definition})}\nkernel: hub\n")
        project.stepper("trust", "--yes")
        yield project
        project.stepper("shutdown", check=None)
        for folder in (project.folder, Path(os.environ["XDG_STATE_HOME"])):
            for path in folder.rglob("*"):
                file_content = (
                    path.read_bytes().decode("utf-8", "replace")
                    if path.is_file()
                    else ""
                )
                assert not [token for token in hub.tokens if token in file_content], (
                    path
                )


@pytest.fixture
def project_with_server(hub: Hub, project: Project) -> Project:
    hub.server("POST")
    return project


def get_listed_hub(project: Project) -> tuple[bool, str]:
    """Return the hub's `reachable`, problem and fix from `stepper kernels`."""
    backend = project.json("kernels", check=None)[1]
    return backend["reachable"], f"{backend['why']} | {backend['mend']}"


def act_during_cell(
    notebook: Notebook, act: Callable[[], object], ends: bool = True
) -> Answer:
    """Run a counting cell and an action during the run; return the cell."""
    file = notebook.path.with_suffix(f".{len(notebook.raw['cells'])}")
    payload, messages = (
        notebook.edited("insert", COUNTS.format(str(file))),
        list[Answer](),
    )
    cell = threading.Thread(
        target=lambda: messages.append(notebook.project.hook("PostToolUse", payload)),
        daemon=True,
    )
    cell.start()
    wait_until(Path(f"{file}.begun").exists, 60)
    act()
    if ends:
        file.touch()
    cell.join(120)
    return messages[0]


def is_complete(cell: dict[str, Any]) -> bool:
    """Return whether the cell has each printed line once, and its value."""
    *printed, value = cell["outputs"]
    counted = "".join(
        f"{n}\n" for n in range(int("".join(value["data"]["text/plain"])))
    )
    return "".join("".join(item["text"]) for item in printed) == f"{counted}over\n"


def get_kernel_trouble(project: Project) -> str:
    return project.json("status")["kernel"]["trouble"]


def test_killed_proxy_loses_no_output(hub: Hub, project_with_server: Project) -> None:
    reachable, _ = get_listed_hub(project_with_server)
    assert reachable and "python3" in str(
        project_with_server.json("kernels")[1]["offers"]
    )
    notebook = project_with_server.new()
    assert (
        "ran ok" in (response := notebook.insert("x = 20\nprint(x)")[1].text)
        and "| 20" in response
    )
    assert f"on {hub.url}, stepper does not limit memory" in response
    assert "ZeroDivisionError" in notebook.insert("1 / 0")[1].text
    assert project_with_server.json("status")["kernel"]["where"].endswith(hub.url)
    output = subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert os.environ[VARIABLE] not in output

    def killed() -> None:
        hub.kill_proxy()
        wait_until(
            lambda: get_kernel_trouble(project_with_server).startswith(
                f"the connection is down ({hub.url} can't be reached"
            ),
            60,
        )
        hub.proxy_again()
        wait_until(lambda: not get_kernel_trouble(project_with_server), 60)

    response = act_during_cell(notebook, killed).text
    assert (
        "ran ok" in response
        and "lost" not in response
        and is_complete(notebook.raw["cells"][0])
    ), response
    response = act_during_cell(
        project_with_server.new(),
        lambda: project_with_server.stepper("interrupt"),
        ends=False,
    ).text
    assert "was CANCELLED" in response and "it was interrupted" in response, response
    assert "| 20" in notebook.insert("print(x)")[1].text
    assert (
        "the diagnosis failed"
        not in (project_with_server.folder / ".stepper/daemon.log").read_text()
    )


def test_stopped_server_is_reported_with_start_instructions(
    hub: Hub, project: Project
) -> None:
    hub.server("DELETE")
    message, starts = (
        f"{hub.url} is not running (reported by its hub)",
        f"start the server at {hub.root}hub/spawn/{USER}",
    )
    assert get_listed_hub(project) == (False, f"{message} | {starts}")
    notebook = project.new()
    response = notebook.insert("x = 1")[1]
    assert (
        message in response.text + response.stop
        and starts in response.text + response.stop
    ), (
        response.text,
        response.stop,
    )


def test_server_stopped_during_a_cell_is_reported(
    hub: Hub, project_with_server: Project
) -> None:
    notebook = project_with_server.new()
    notebook.insert("x = 20")
    stop = act_during_cell(notebook, lambda: hub.server("DELETE"), ends=False).stop
    starts = f"start the server at {hub.root}hub/spawn/{USER}"
    assert (
        f"kernel died ({hub.url} is not running (reported by its hub); {starts}): all variables are lost"
        in stop
    ), stop
    assert "the cell did not cause the kernel's death: `stepper restore`" in stop, stop
    assert text_of(notebook.raw["cells"][0]).startswith("0\n")
    output = project_with_server.stepper("restore", check=1).stderr
    assert (
        f"{hub.url} is not running" in output
        and starts in output
        and "may still be running" not in output
    ), output
    hub.server("POST")
    assert "ran ok" in project_with_server.stepper("restore").stdout
    project_with_server.stepper("shutdown")


def test_revoked_token_and_token_of_another_user_are_distinguished(
    hub: Hub, project_with_server: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = f"{hub.url} refuses the token from `token_env` (403)"
    number, token = hub.token()
    monkeypatch.setenv(VARIABLE, token)
    notebook = project_with_server.new()
    assert "ran ok" in notebook.insert("x = 20")[1].text
    hub.ask(f"users/{USER}/tokens/{number}", "DELETE")
    # a server asks its hub again after a while
    wait_until(lambda: not get_listed_hub(project_with_server)[0])
    assert get_listed_hub(project_with_server) == (
        False,
        f"{refuses} | export {VARIABLE}=…",
    )
    # through the existing connection
    assert "| 20" in notebook.insert("print(x)")[1].text

    created = list[tuple[str, str]]()

    def cut() -> None:
        hub.kill_proxy()
        hub.proxy_again()
        wait_until(
            lambda: (
                get_kernel_trouble(project_with_server)
                == f"the connection is down ({refuses})"
            ),
            60,
        )
        created.append(hub.token())
        monkeypatch.setenv(VARIABLE, created[0][1])
        # sent by the client
        wait_until(lambda: not get_kernel_trouble(project_with_server), 60)

    text = act_during_cell(notebook, cut).text
    assert "ran ok" in text and is_complete(notebook.raw["cells"][0]), text
    hub.ask(f"users/{USER}/tokens/{created[0][0]}", "DELETE")
    wait_until(lambda: not get_listed_hub(project_with_server)[0])
    text = project_with_server.stepper("shutdown").stderr
    assert (
        f"may still be running there: {hub.url} refuses the token" in text
        and "was NOT stopped and may still be running" in text
    ), text
    monkeypatch.setenv(VARIABLE, hub.token()[1])
    assert "1 kernel" in project_with_server.stepper("shutdown").stdout
    monkeypatch.setenv(VARIABLE, hub.token(OTHER)[1])
    reachable, why = get_listed_hub(project_with_server)
    assert (
        not reachable
        and f"does not permit {OTHER}, the owner of the token from `token_env`, to do this (403)"
        in why
    )
    hub.server("DELETE")
    assert (
        "the server is not running, or the token from `token_env` is not valid for"
        f" it | your servers are listed at {hub.root}hub/home"
        in get_listed_hub(project_with_server)[1]
    )
    monkeypatch.setenv(VARIABLE, "one-that-the-hub-never-gave")
    assert get_listed_hub(project_with_server) == (
        False,
        f"{refuses} | export {VARIABLE}=…",
    )


def test_hub_url_instead_of_server_url_is_reported(hub: Hub, project: Project) -> None:
    definition = {"jupyter": {"url": hub.root, "token_env": VARIABLE}}
    project.config(f"kernels: {json.dumps({'hub': definition})}\n")
    project.stepper("trust", "--yes")
    reachable, why = get_listed_hub(project)
    assert (
        not reachable
        and why.startswith(f"{hub.root} is the URL of a hub")
        and "/user/NAME/" in why
    )
