"""Cells that take hours, in the real client: the agent goes on, and is woken. `docs/long-cells.md` shows what is read."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stepper.ground.paths import Paths
from stepper.setup import install, refuse
from tests.conftest import make_env

from .conftest import ClaudeFactory, InteractiveFactory, StreamFactory
from .model import Block, Message, ScriptedModel, text
from .test_main_job import history, insert, news, read, stepper, wait_until

Model = Callable[..., ScriptedModel]
pytestmark = pytest.mark.timeout(120)
LONG = """# stepper: timeout=2h
import pathlib, time
print("epoch 1/2: loss 0.5", flush=True)
while not pathlib.Path({!r}).exists(): time.sleep(0.02)
print("epoch 2/2: loss nan")"""
SUMMARY = "● stepper: a cell that went on has news"


@pytest.fixture(scope="module")
def project(claude_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository that is set up; a cell is handed on after a second."""
    folder = tmp_path_factory.mktemp("handed on") / "a répo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    install.apply(refuse.parse([str(folder), "--python", sys.executable, "--allow"]))
    configured(folder)
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # empty now


@pytest.fixture
def notebook(project: Path, request: pytest.FixtureRequest) -> Path:
    """A new notebook with two steps, the current one."""
    return made(project, request.node.name)


def made(project: Path, name: str) -> Path:
    path: str = json.loads(stepper(project, "new", name, "--step=Train", "--step=Test", "--json"))["notebook"]
    return project / path


def configured(project: Path, **keys: object) -> None:
    lines = {"report_after_seconds": 1, **keys}.items()
    (project / ".stepper" / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in lines))


def train(notebook: Path) -> Block:
    """The first step, whose cell ends when `finish` says so."""
    return insert(notebook, LONG.format(f"{notebook}.go"), "cell-0")


def finish(notebook: Path) -> None:
    Path(f"{notebook}.go").touch()


def second(notebook: Path) -> Callable[[list[Message]], list[Block]]:
    """The second step, below the first one's cell."""

    def step(messages: list[Message]) -> list[Block]:
        cells = json.loads(notebook.read_text())["cells"]
        trained = next(cell["id"] for cell in cells if cell["cell_type"] == "code")
        return [insert(notebook, "print('tested')", trained)]

    return step


def status(notebook: Path) -> list[str]:
    found = json.loads(stepper(notebook.parent.parent, "status", str(notebook), "--json"))
    return [found["state"], *(step["status"] for step in found["steps"])]


def flat(screen: str) -> str:
    return " ".join(screen.split())


def dump(model, client=None) -> None:
    import re

    if client:
        print("=== SCREEN\n" + re.sub(r"\n\n+", "\n", client.screen()).replace("─" * 20, ""))
    for i in range(1, len(model.requests)):
        print("--- REQ", i, news(model, i)[-2000:])


def test_the_agent_goes_on_by_itself_when_its_long_cell_has_ended(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        [text("Still at it.")],
        second(notebook),
        [text("That is the end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.send("How is it going?")
    client.wait_for("Still at it.")
    client.keys("Escape")
    assert status(notebook)[1:] == ["running", "pending"]
    finish(notebook)
    screen = flat(client.wait_for("That is the end."))
    assert '▶ step 1 of 2 "Train" · still running after ' in screen and "| epoch 1/2: loss 0.5" in screen
    assert screen.count(SUMMARY) == 1 and "problem" not in screen
    assert "| epoch 1/2: loss 0.5" in news(model, 2) and "you are woken with its report when it ends" in news(model, 2)
    assert "Train" not in news(model, 3)
    assert "NOT USER INPUT" in news(model, 4) and "ran ok in" in news(model, 4)
    assert "| epoch 2/2: loss nan" in news(model, 4) and 'Next: step 2 of 2 "Test"' in news(model, 4)
    assert "epoch" not in news(model, 5)
    assert status(notebook) == ["complete", "done", "done"] and len(history(notebook)) == 2


@pytest.mark.nightly
def test_the_agent_is_woken_where_prompts_come_as_a_stream(
    project: Path, notebook: Path, scripted_model: Model, stream_claude: StreamFactory
) -> None:
    model = scripted_model(
        [read(notebook)], [train(notebook)], [text("It trains.")], [text("Yes.")], second(notebook), [text("The end.")]
    )
    client = stream_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.send("Still there?")
    client.wait_for("Yes.")
    finish(notebook)
    client.wait_for("The end.")
    dump(model)
    assert "still running after" in news(model, 2) and "ran ok in" in news(model, 4)
    assert status(notebook) == ["complete", "done", "done"]


@pytest.mark.nightly
def test_a_stream_that_is_over_and_a_single_prompt_wait_for_the_end(
    project: Path, notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    """Nobody could wake that agent."""
    source = LONG.format(f"{notebook}.go").replace(
        "while not", "until = time.time() + 4\nwhile time.time() < until and not"
    )
    model = scripted_model([read(notebook)], [insert(notebook, source, "cell-0")], second(notebook), [text("The end.")])
    assert claude(model).prompt("Begin.").text == "The end."
    dump(model)
    assert "still running" not in model.shown() and "ran ok in 4." in news(model, 2)
    assert status(notebook) == ["complete", "done", "done"]


@pytest.mark.nightly
def test_a_stream_that_is_over(
    project: Path, notebook: Path, scripted_model: Model, stream_claude: StreamFactory
) -> None:
    """Nobody could wake that agent."""
    source = LONG.format(f"{notebook}.go").replace(
        "while not", "until = time.time() + 4\nwhile time.time() < until and not"
    )
    model = scripted_model([read(notebook)], [insert(notebook, source, "cell-0")], second(notebook), [text("The end.")])
    client = stream_claude(model)
    client.send("Begin.")
    client.process.stdin.close()
    client.wait_for("The end.")
    dump(model)
    assert "still running" not in model.shown() and "ran ok in 4." in news(model, 2)
    assert status(notebook) == ["complete", "done", "done"]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["words", "command"])
def test_the_person_ends_a_long_cell(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory, how: str
) -> None:
    model = scripted_model(
        [read(notebook)], [train(notebook)], [text("It trains.")], [text("It was stopped.")], [text("more")]
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    if how == "words":
        client.send("Stop the cell.")
    else:
        stepper(project, "interrupt", str(notebook))
    client.wait_for("It was stopped.")
    time.sleep(2)
    dump(model, client)
    assert "CANCELLED" in news(model, 3)
    assert len(model.requests) == 4 and status(notebook)[1] == "interrupted"


@pytest.mark.nightly
def test_a_daemon_that_dies_loses_nothing(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    model = scripted_model(
        [read(notebook)], [train(notebook)], [text("It trains.")], second(notebook), [text("The end.")]
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    os.kill(daemon(project), signal.SIGKILL)
    time.sleep(2)
    finish(notebook)
    try:
        client.wait_for("The end.")
    finally:
        dump(model, client)
    assert "| epoch 2/2: loss nan" in news(model, 3)
    assert status(notebook) == ["complete", "done", "done"] and len(history(notebook)) == 2


@pytest.mark.nightly
def test_a_kernel_that_dies_wakes_the_agent(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    model = scripted_model(
        [read(notebook)], [train(notebook)], [text("It trains.")], [text("It is lost.")], [text("The end.")]
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    kernel = json.loads(stepper(project, "status", str(notebook), "--json"))["kernel"]["pid"]
    os.kill(kernel, signal.SIGKILL)
    t = time.time()
    wait_until(lambda: len(model.requests) > 3)
    print("after", time.time() - t)
    client.wait_for("It is lost.")
    time.sleep(1)
    dump(model, client)


@pytest.mark.nightly
@pytest.mark.parametrize("ended", ["before", "after"])
def test_it_goes_on_when_the_session_ends_and_the_next_one_is_told(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory, ended: str
) -> None:
    model = scripted_model([read(notebook)], [train(notebook)], [text("It trains.")])
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.send("/exit")
    time.sleep(2)
    print(status(notebook))
    client.close()
    if ended == "before":
        finish(notebook)
        wait_until(lambda: status(notebook)[1] == "done")
        model.then([text("I see.")], [text("more")])
    else:
        model.then([text("Woken.")], [text("I see.")])
    client = interactive_claude(model, "--continue")
    if ended == "after":
        time.sleep(3)
        dump(model, client)
        finish(notebook)
        client.wait_for("Woken.")
    client.send("Go on.")
    client.wait_for("I see.")
    time.sleep(1)
    dump(model, client)


@pytest.mark.nightly
def test_a_line_that_matches_wakes_the_agent_and_the_cell_goes_on(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    source = (
        LONG.format(f"{notebook}.go")
        .replace("timeout=2h", 'timeout=2h wake="loss.*nan"')
        .replace("while", 'time.sleep(4)\nprint("loss nan now", flush=True)\nwhile')
    )
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, source, "cell-0")],
        [text("It trains.")],
        [text("It went wrong, it may go on.")],
        second(notebook),
        [text("The end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.wait_for("It went wrong")
    time.sleep(1)
    print(status(notebook))
    finish(notebook)
    try:
        client.wait_for("The end.")
    finally:
        dump(model, client)


@pytest.mark.nightly
@pytest.mark.parametrize("queue", [False, True])
def test_further_cells_and_another_notebook(
    project: Path, notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory, queue: bool
) -> None:
    configured(project, queue=queue)
    other = made(project, "another one")
    model = scripted_model(
        [read(notebook), read(other)],
        [train(notebook)],
        second(notebook),
        [insert(other, "print('other')", "cell-0")],
        [text("Both under way.")],
        [text("woken one")],
        [text("woken two")],
        [text("woken three")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("Both under way.")
    dump(model, client)
    finish(notebook)
    client.wait_for("woken two" if queue else "woken one")
    time.sleep(2)
    dump(model, client)
    configured(project)


def daemon(project: Path) -> int:
    (found,) = [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if "stepper.daemon" in " ".join(p.info["cmdline"] or []) and str(project) in " ".join(p.info["cmdline"] or [])
    ]
    return found
