"""Cells that run for hours in the real client: the agent continues and is notified.

`docs/development/long-cells.md` shows the reports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.conftest import make_env

from .client import InteractiveClaude
from .conftest import ClaudeFactory, InteractiveFactory, StreamFactory
from .model import Block, Message, ScriptedModel, collect_text, text, tool
from .test_run_on_edit import get_new_text, history, insert, read, stepper, wait_until

Model = Callable[..., ScriptedModel]
pytestmark = pytest.mark.timeout(600)
LONG = """# stepper: timeout=2h
import pathlib, time
print("epoch 1/2: loss 0.5", flush=True)
while not pathlib.Path({!r}).exists(): time.sleep(0.02)
print("epoch 2/2: loss nan")"""
SUMMARY = "● stepper: report on a background cell"


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A repository with stepper installed. Cells move to the background after 1 s."""
    folder = tmp_path_factory.mktemp("handed on") / "a répo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    installer.apply(
        install_options.parse_arguments(
            [str(folder), "--python", sys.executable, "--allow"]
        )
    )
    configured(folder)
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # fails unless it is empty


@pytest.fixture
def notebook(project: Path, request: pytest.FixtureRequest) -> Path:
    """A new current notebook with two steps."""
    return create_notebook(project, request.node.name)


def create_notebook(project: Path, name: str) -> Path:
    path: str = json.loads(
        stepper(project, "new", name, "--step=Train", "--step=Test", "--json")
    )["notebook"]
    return project / path


def configured(project: Path, **keys: object) -> None:
    lines = {"report_after_seconds": 1, **keys}.items()
    (project / ".stepper" / "config.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines)
    )


def train(notebook: Path) -> Block:
    """Start the first step, whose cell runs until `finish` is called."""
    return insert(notebook, LONG.format(f"{notebook}.go"), "cell-0")


def finish(notebook: Path) -> None:
    Path(f"{notebook}.go").touch()


def second(notebook: Path) -> Callable[[list[Message]], list[Block]]:
    """Insert the second step below the first one's cell."""

    def step(_: list[Message]) -> list[Block]:
        cells = json.loads(notebook.read_text())["cells"]
        return [
            insert(
                notebook,
                "print('tested')",
                next(cell["id"] for cell in cells if cell["cell_type"] == "code"),
            )
        ]

    return step


def bash(command: str) -> Block:
    return tool("Bash", {"command": command, "description": "Call it"})


def status(notebook: Path) -> list[str]:
    status = json.loads(
        stepper(notebook.parent.parent, "status", str(notebook), "--json")
    )
    return [status["state"], *(step["status"] for step in status["steps"])]


def join_lines(screen: str) -> str:
    return " ".join(screen.split())


@pytest.mark.nightly
def test_agent_continues_when_its_long_cell_finishes(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    """Meanwhile the user sends a prompt and interrupts the agent's turn."""
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        [bash("sleep 20")],
        second(notebook),
        [text("That is the end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.send("How is it going?")
    client.wait_for("$ sleep 20")
    client.keys("Escape")
    client.wait_for("Interrupted")
    assert status(notebook)[1:] == ["running", "pending"]
    finish(notebook)
    screen = join_lines(client.wait_for("That is the end."))
    assert (
        '▶ step 1 of 2 "Train" · still running after ' in screen
        and "`stop the cell` | epoch 1/2: loss" in screen
    )
    assert (
        screen.count(SUMMARY) == 1
        and f'{SUMMARY} ⎿ UserPromptSubmit says: ✓ step 1 of 2 "Train" · ok' in screen
    )
    message = get_new_text(model, 2)
    assert (
        "is still running after" in message
        and "| epoch 1/2: loss 0.5" in message
        and "you are notified with its report" in message
    )
    assert "Train" not in get_new_text(model, 3) and "stepper" not in get_new_text(
        model, 3
    )
    message = get_new_text(model, 4)
    assert (
        "NOT USER INPUT" in message
        and "ran ok in" in message
        and "| epoch 2/2: loss nan" in message
    )
    assert 'Next: step 2 of 2 "Test"' in message and "epoch" not in get_new_text(
        model, 5
    )
    assert (
        status(notebook) == ["complete", "done", "done"] and len(history(notebook)) == 2
    )


@pytest.mark.nightly
def test_agent_is_notified_in_stream_input_mode(
    project: Path, notebook: Path, scripted_model: Model, stream_claude: StreamFactory
) -> None:
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        [text("Yes.")],
        second(notebook),
        [text("The end.")],
    )
    client = stream_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    client.send("Still there?")
    client.wait_for("Yes.")
    finish(notebook)
    client.wait_for("The end.")
    assert client.results == ["It trains.", "Yes.", "The end."]
    assert "still running after" in get_new_text(
        model, 2
    ) and "ran ok in" in get_new_text(model, 4)
    assert status(notebook) == ["complete", "done", "done"]


@pytest.mark.nightly
@pytest.mark.parametrize("streamed", [False, True])
def test_agent_without_notifications_waits_for_the_cell(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    claude: ClaudeFactory,
    stream_claude: StreamFactory,
    streamed: bool,
) -> None:
    """With `claude -p PROMPT`, and with a stream that ends after its only prompt."""
    slow = insert(notebook, "import time\ntime.sleep(4)\nprint('trained')", "cell-0")
    model = scripted_model(
        [read(notebook)], [slow], second(notebook), [text("The end.")]
    )
    if streamed:
        client = stream_claude(model)
        client.send("Begin.", last=True)
        client.wait_for("The end.")
    else:
        assert claude(model).prompt("Begin.").text == "The end."
    assert "still running" not in model.shown() and "ran ok in 4." in get_new_text(
        model, 2
    )
    assert status(notebook) == ["complete", "done", "done"]


@pytest.mark.nightly
def test_subagent_waits_for_the_cell(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    """The client would notify the main agent instead."""
    slow = insert(notebook, "import time\ntime.sleep(4)\nprint('trained')", "cell-0")
    task = {
        "description": "Train",
        "prompt": "SUBTASK",
        "subagent_type": "general-purpose",
    }
    main_turns = [
        [tool("Agent", task)],
        [text("Under way.")],
        [text("That is the end.")],
    ]
    its = [[read(notebook)], [slow], [text("It is trained.")]]
    subagents: list[list[Message]] = []

    def either(messages: list[Message]) -> list[Block]:
        if "Begin." in collect_text(messages):
            return main_turns.pop(0)
        subagents.append(messages)
        return its.pop(0)

    model = scripted_model(*[either] * 6)
    client = interactive_claude(model)
    client.send("Begin.")
    screen = client.wait_for("That is the end.")
    assert "ran ok in 4." in collect_text(subagents[-1]) and SUMMARY not in screen
    assert not any(
        "is still running after" in collect_text(request) for request in model.requests
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "how", ["Stop the cell.", "/notebook-status stop", "stepper interrupt"]
)
def test_user_interrupts_a_long_cell(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
    how: str,
) -> None:
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        [text("It was stopped.")],
    )
    model.then([text("Nothing new.")])
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    if how.startswith("stepper"):
        stepper(project, "interrupt", str(notebook))
    else:
        client.send(how)
    screen = client.wait_for("It was stopped.")
    assert "was CANCELLED after" in get_new_text(
        model, 3
    ) and "| epoch 1/2: loss 0.5" in get_new_text(model, 3)
    assert (SUMMARY in screen) is how.startswith("stepper")
    client.send("And now?")  # reported once; the agent is not asked to continue
    client.wait_for("Nothing new.")
    assert "CANCELLED" not in get_new_text(model, 4) and len(model.requests) == 5
    assert status(notebook) == ["ready", "interrupted", "pending"]
    wait_until(lambda: not sleepers(project))


@pytest.mark.nightly
def test_shutdown_cancels_long_cell_and_starts_nothing(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        [text("It was ended.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    wait_until(lambda: len(sleepers(project)) == 1)
    stepper(project, "shutdown")
    client.wait_for("It was ended.")
    wait_until(lambda: not sleepers(project))
    assert "was CANCELLED after" in get_new_text(model, 3)
    wait_until(lambda: not os.listdir(Paths(str(project)).runtime))


@pytest.mark.nightly
def test_killed_daemon_loses_no_output(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    model = scripted_model(
        [read(notebook)],
        [train(notebook)],
        [text("It trains.")],
        second(notebook),
        [text("The end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    daemon = json.loads(stepper(project, "status", "--json"))["daemon"]["pid"]
    os.kill(daemon, signal.SIGKILL)
    finish(notebook)
    screen = client.wait_for("The end.")
    assert (
        screen.count(SUMMARY) == 1 and "UserPromptSubmit says: ✓ run 1 · ok" in screen
    )
    assert "| epoch 2/2: loss nan" in get_new_text(
        model, 3
    ) and "continued after the daemon exited" in get_new_text(model, 3)
    assert (
        status(notebook) == ["complete", "done", "done"] and len(history(notebook)) == 2
    )


@pytest.mark.nightly
def test_agent_is_notified_of_kernel_death(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    model = scripted_model(
        [read(notebook)], [train(notebook)], [text("It trains.")], [text("It is lost.")]
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    kernel = json.loads(stepper(project, "status", str(notebook), "--json"))["kernel"][
        "pid"
    ]
    os.kill(kernel, signal.SIGKILL)
    screen = client.wait_for("It is lost.")
    assert (
        "kernel died (SIGKILL): all variables are lost" in get_new_text(model, 3)
        and "❌ Execution stopped" in screen
    )
    assert status(notebook) == ["stopped", "failed", "pending"]


@pytest.mark.nightly
@pytest.mark.parametrize("ended", ["/exit", "kill -9"])
def test_next_session_gets_the_result(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
    ended: str,
) -> None:
    model = scripted_model([read(notebook)], [train(notebook)], [text("It trains.")])
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    exit_client(client, project, ended)
    assert status(notebook)[1] == "running"
    finish(notebook)
    wait_until(lambda: status(notebook)[1] == "done")
    model.then([text("I see.")], [text("Nothing new.")])
    client = interactive_claude(model, "--continue")
    client.send("Go on.")
    client.wait_for("I see.")
    assert "finished in the meantime" in get_new_text(
        model, 3
    ) and "| epoch 2/2: loss nan" in get_new_text(model, 3)
    client.send("And now?")
    client.wait_for("Nothing new.")
    assert "epoch" not in get_new_text(model, 4) and SUMMARY not in client.screen()


@pytest.mark.nightly
def test_next_session_is_notified_when_the_run_finishes(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    model = scripted_model([read(notebook)], [train(notebook)], [text("It trains.")])
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It trains.")
    exit_client(client, project, "/exit")
    model.then([read(notebook)], second(notebook), [text("The end.")])
    client = interactive_claude(model, "--continue")
    wait_until(lambda: bool(sleepers(project)))
    finish(notebook)
    screen = client.wait_for("The end.")
    assert screen.count(SUMMARY) == 1 and '✓ step 1 of 2 "Train" · ok' in screen
    assert "ran ok in" in get_new_text(model, 3) and status(notebook) == [
        "complete",
        "done",
        "done",
    ]


@pytest.mark.nightly
def test_matching_line_notifies_the_agent_and_the_cell_continues(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    source = LONG.format(f"{notebook}.go").replace("2h", '2h wake="loss.*nan"')
    source = source.replace(
        "while", "time.sleep(3)\nprint('epoch 2/2: loss nan', flush=True)\nwhile"
    )
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, source, "cell-0")],
        [text("It trains.")],
        [text("It may go on.")],
        second(notebook),
        [text("The end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It may go on.")
    assert "| epoch 2/2: loss nan" in get_new_text(
        model, 3
    ) and "you get another notification" in get_new_text(model, 3)
    assert status(notebook)[1] == "running"
    finish(notebook)
    screen = join_lines(client.wait_for("The end."))
    assert screen.count(SUMMARY) == 2 and "`wake=` | epoch 2/2: loss nan" in screen
    assert "ran ok in" in get_new_text(model, 4) and status(notebook) == [
        "complete",
        "done",
        "done",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("queue", [False, True])
def test_later_cells_wait_and_other_notebooks_continue(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
    queue: bool,
) -> None:
    configured(project, queue=queue)
    other = create_notebook(project, "another one")
    model = scripted_model(
        [read(notebook), read(other)],
        [train(notebook)],
        second(notebook),
        [insert(other, "print('other')", "cell-0")],
        [text("Is both to go on?")],  # the agent is not asked to continue
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("Is both to go on?")
    assert status(other)[1] == "done" and status(notebook)[1:] == ["running", "pending"]
    if queue:
        assert "has NOT run yet: it is queued behind step 1" in get_new_text(model, 3)
    else:
        assert "step 1 of notebooks/" in get_new_text(
            model, 3
        ) and "This code cell was NOT written" in get_new_text(model, 3)
    finish(notebook)
    wait_until(
        lambda: status(notebook)[2] == "done" if queue else len(model.requests) > 5, 40
    )
    client.wait_for(
        '✓ step 2 of 2 "Test" · ok' if queue else '✓ step 1 of 2 "Train" · ok'
    )
    configured(project)
    shown_text = model.shown()
    assert (
        shown_text.count("| epoch 2/2: loss nan") == 1
        and shown_text.count("| tested") == queue
    )


def exit_client(client: InteractiveClaude, project: Path, how: str) -> None:
    """End the client and assert that its waiting hook processes exit."""
    asleep = sleepers(project)
    if how == "/exit":
        client.type(how)
        client.keys("Enter")
    else:
        os.kill(asleep[0].ppid(), signal.SIGKILL)
    psutil.wait_procs(asleep, 20)
    assert not sleepers(project)
    client.close()


def sleepers(project: Path) -> list[psutil.Process]:
    """Return the hook processes that wait to notify the agent."""
    processes = [
        p
        for p in psutil.process_iter(["cmdline"])
        if (p.info["cmdline"] or [""])[-1] in ("Wake", "Rearm")
    ]
    return [process for process in processes if str(project) in process.info["cmdline"]]
