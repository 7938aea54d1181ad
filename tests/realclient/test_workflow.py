"""The step workflow in the real client: plan, attempts, stops, commands, end of a turn.

All tests share one repository, installed by install.sh; each has its own notebooks,
and its daemons and kernels are shut down after it. If a test is not about the client's
edits, its first cells are run by the command line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths

from .client import ClaudeCode, Result
from .conftest import ClaudeFactory, InteractiveFactory
from .model import (
    Block,
    Message,
    ScriptedModel,
    collect_text,
    text,
    tool,
    tool_results,
)
from .test_run_on_edit import (
    cells,
    code,
    delete,
    find_last_edited_cell,
    get_new_text,
    insert,
    read,
    replace,
    stepper,
    wait_until,
    write,
)

ROOT = Path(__file__).resolve().parent.parent.parent
Model = Callable[..., ScriptedModel]
# the first test installs stepper, perhaps over a slow network
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]
SENT_ON = "steps of notebooks/"  # in the Stop hook's message
HOOK_SAYS = "hook additional context: "  # the client's prefix of a hook's context


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A repository with stepper installed.

    The kernels' environment has only ipykernel.
    """
    folder = tmp_path_factory.mktemp("workflow") / "repo"
    folder.mkdir()
    bin_folder = Path(sys.executable).parent
    with pytest.MonkeyPatch.context() as patch:
        if (bin_folder / "uv").exists():  # 3 times faster than pip
            patch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
        subprocess.run(
            [ROOT / "install.sh", folder, "--allow"], check=True, capture_output=True
        )
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # fails unless it is empty


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's HOME."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def stop_processes(project: Path) -> Iterator[None]:
    """Shut down stepper after a test; assert that the daemon's log has no traceback.

    The notebooks are deleted, too: a command without a notebook resumes the only
    stopped notebook.
    """
    yield
    stepper(project, "shutdown")
    for path in (*project.glob("notebooks/*"), *project.glob(".stepper/journal/*")):
        path.unlink()
    log = Path(Paths(str(project)).log)
    log_text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    assert "Traceback" not in log_text


@pytest.fixture
def notebook(project: Path, request: pytest.FixtureRequest) -> Path:
    """A new current notebook with three steps."""
    return new(project, re.sub(r"\W+", " ", request.node.name))


@pytest.fixture
def client(claude: ClaudeFactory) -> Callable[[ScriptedModel], ClaudeCode]:
    """The client, whose PATH has only the `stepper` that the SessionStart hook adds."""
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not Path(folder, "stepper").exists()
    ]
    return lambda model: claude(model, env={"PATH": os.pathsep.join(folders)})


Client = Callable[[ScriptedModel], ClaudeCode]


def new(project: Path, problem: str, *steps: str) -> Path:
    chosen = steps or ("Load :: rows are there", "Count", "Tell")
    response = json.loads(
        stepper(
            project, "new", problem, *(f"--step={step}" for step in chosen), "--json"
        )
    )
    return project / response["notebook"]


def run_cells(notebook: Path, *sources: str) -> list[str]:
    """Append code cells, run the pending ones by the CLI; return all cell ids."""
    document = json.loads(notebook.read_text())
    for source in sources:
        cell = {
            "cell_type": "code",
            "id": f"ran-{len(document['cells'])}",
            "metadata": {},
            "source": source,
        }
        document["cells"].append({**cell, "execution_count": None, "outputs": []})
    notebook.write_text(json.dumps(document))
    command = [
        notebook.parent.parent / ".stepper" / "env" / "bin" / "stepper",
        "run",
        str(notebook),
    ]
    # otherwise a stop does not concern an agent
    in_agents_shell = {
        **os.environ,
        "CLAUDECODE": "1",
    }
    folder = notebook.parent.parent
    subprocess.run(
        command, cwd=folder, check=False, capture_output=True, env=in_agents_shell
    )
    return [cell["id"] for cell in document["cells"]]


def status(notebook: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(
        stepper(notebook.parent.parent, "status", str(notebook), "--json")
    )
    return status


def get_state_and_steps(notebook: Path) -> tuple[str, list[str]]:
    """Return the notebook's state and the statuses of its steps."""
    status_data = status(notebook)
    return status_data["state"], [step["status"] for step in status_data["steps"]]


def list_outcomes(notebook: Path) -> list[str]:
    runs = json.loads(
        stepper(notebook.parent.parent, "history", str(notebook), "--json")
    )
    return [run["outcome"] for run in runs]


def journal(notebook: Path) -> list[dict[str, Any]]:
    path = Path(Paths(str(notebook.parent.parent)).journals, notebook.stem + ".jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def bash(command: str) -> Block:
    return tool("Bash", {"command": command, "description": "Call it"})


def insert_below(
    notebook: Path, source: str, kind: str = "code"
) -> Callable[[list[Message]], list[Block]]:
    """Return a turn that inserts a cell below the last edited cell."""
    return lambda messages: [
        insert(notebook, source, find_last_edited_cell(messages), kind)
    ]


def replace_again(
    notebook: Path, source: str
) -> Callable[[list[Message]], list[Block]]:
    """Return a turn that replaces the last edited cell."""
    return lambda messages: [replace(notebook, source, find_last_edited_cell(messages))]


def session_of(result: Result) -> str:
    """Return the session's id.

    On a resume, the events of SessionStart hooks have a different id.
    """
    return str(result.events[-1]["session_id"])


def stop_reasons(result: Result) -> list[str]:
    """Return the stop reasons of hooks, from `--include-hook-events`."""
    answers = [
        event["stdout"]
        for event in result.events
        if event.get("subtype") == "hook_response"
    ]
    messages = [json.loads(answer) for answer in answers if answer.startswith("{")]
    return [
        answer["stopReason"] for answer in messages if answer.get("continue") is False
    ]


STOPPED = """\
❌ Execution stopped at cell {number}
TODO: {title}
Error Type: {name}
Error Message: {message}
Attempted Fixes: {retries}
Suggestion: {action}"""
LACKS = "give the agent a hint: /fix HINT, or /skip to skip this step"
DECIDE = "answer the question: /continue ANSWER, or /fix HINT"


def test_plan_runs_until_the_notebook_is_complete(
    project: Path, scripted_model: Model, client: Client
) -> None:
    steps = "- {title: Load, criterion: three rows}\n- Count\n- {title: Check, kind: validation}\n"
    created: list[Path] = []

    def read_notebook(messages: list[Message]) -> list[Block]:
        created.append(project / json.loads(tool_results(messages)[-1])["notebook"])
        return [read(created[0])]

    def step(title: str, source: str) -> Callable[[list[Message]], list[Block]]:
        """Markdown and code in one message."""

        def turn(messages: list[Message]) -> list[Block]:
            last = len(cells(created[0])) - 1
            cell_id = f"cell-{last + 1}"
            return [
                insert(created[0], title, f"cell-{last}", "markdown"),
                insert(created[0], source, cell_id),
            ]

        return turn

    model = scripted_model(
        [bash(f"stepper new 'Three rows' --plan - --json <<'PLAN'\n{steps}PLAN")],
        read_notebook,
        step("## Load", "rows = [1, 2, 3]\nlen(rows)"),
        step("## Count", "total = sum(rows)"),
        step("## Check", "assert total == 6"),
        [text("All is done.")],
    )
    result = client(model).prompt("Make it.", permissions="default")

    assert (result.text, model.unsaid) == ("All is done.", 0)
    assert 'Step 1 of 3 "Load": done; criterion: three rows.' in get_new_text(model, 3)
    assert 'Next: step 2 of 3 "Count".' in get_new_text(model, 3)
    assert 'Step 2 of 3 "Count": done.' in get_new_text(
        model, 4
    ) and 'Next: step 3 of 3 "Check".' in get_new_text(model, 4)
    last = get_new_text(model, 5)
    name = created[0].relative_to(project)
    assert 'Step 3 of 3 "Check": done.' in last and "Next:" not in last
    assert last.index("ran ok in") < last.index(
        "The notebook is complete: 3 steps done, 0 skipped; 3 runs, "
    )
    assert f"Notebook: {name}." in last
    assert get_state_and_steps(created[0]) == ("complete", ["done"] * 3)

    # no notebook is in progress: hooks print nothing, and a prompt starts no daemon
    stepper(project, "shutdown")
    client(model).prompt("hello")
    assert HOOK_SAYS not in model.shown()
    client(model).prompt("New notebook  count to four")
    assert (
        "asks for a new notebook" in model.shown()
        and "The problem: count to four" in model.shown()
    )
    assert not Path(Paths(str(project)).socket).exists()


def test_three_failed_retries_stop_the_notebook_until_fix(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    def again_in_its_place(messages: list[Message]) -> list[Block]:
        return [insert(notebook, "2 / 0", "cell-0")]

    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "1 / 0", "cell-0")],
        lambda messages: [
            delete(notebook, find_last_edited_cell(messages))
        ],  # the count is kept
        again_in_its_place,
        replace_again(notebook, "3 / 0"),
        replace_again(notebook, "4 / 0"),
    )
    first = client(model).prompt("Begin.", "--include-hook-events")

    for turn, remaining in ((2, 3), (4, 2), (5, 1)):
        assert f"{3 - remaining} of 3 retries used, {remaining} left" in get_new_text(
            model, turn
        )
    block = STOPPED.format(
        number=1,
        title="Load",
        name="ZeroDivisionError",
        message="division by zero",
        retries=3,
        action=LACKS,
    )
    assert stop_reasons(first) == [block]
    assert len(model.requests) == 6  # the turn ended at the stop
    assert get_state_and_steps(notebook) == (
        "stopped",
        ["failed", "pending", "pending"],
    )
    assert list_outcomes(notebook) == ["error"] * 4

    # the next prompt: the agent reads the stop message, and code cells are denied
    model.then(
        [read(notebook)],
        [
            replace(notebook, "5 / 0", "cell-1"),
            insert(notebook, "x = 1", "cell-0"),
            insert(notebook, "x = 1", "cell-1"),
            write(notebook, "x = 1"),
            insert(notebook, "words", "cell-1", "markdown"),
        ],
        [text("Over to you.")],
    )
    client(model).prompt("What now?", "--continue")
    assert block in collect_text(model.requests[6])
    *denials, markdown = tool_results(model.requests[-1])[-5:]
    cause = "Cause: ZeroDivisionError: division by zero"
    assert all(
        cause in denial and "/continue, /fix or /skip" in denial for denial in denials
    ), denials
    assert markdown.startswith("Inserted cell")
    assert [source for source, _ in code(notebook)] == ["4 / 0"]
    assert len(model.requests) == 9  # stopped: the turn ends

    # /fix: the agent gets the earlier attempts, the count restarts, the cell succeeds
    model.then(
        [read(notebook)],
        [replace(notebook, "rows = 3", "cell-1")],
        [text("Fixed. Shall I go on?")],
    )
    client(model).prompt("/fix divide by one", "--continue")
    shown_text = collect_text(model.requests[9])
    assert 'stepper: 3 new retries for step 1 of 3 "Load"' in shown_text
    assert all(
        f"  run {run}: ZeroDivisionError: division by zero" in shown_text
        for run in (1, 2, 3, 4)
    )
    assert "The user's hint: divide by one" in shown_text
    assert get_state_and_steps(notebook) == ("ready", ["done", "pending", "pending"])
    assert status(notebook)["steps"][0]["attempts"] <= 1


PERSONS = (
    "stepper fix",
    "cd . && stepper fix",
    ".stepper/env/bin/stepper fix",
    "sh -c 'stepper fix'",
    "env stepper continue",
    "timeout 9 stepper skip why",
    "stepper restart",
    "stepper 'continue'",
    "$(command -v stepper) fix",
)


@pytest.mark.parametrize("permissions", ["default", "bypassPermissions"])
def test_agent_cannot_call_user_commands(
    notebook: Path, scripted_model: Model, client: Client, permissions: str
) -> None:
    run_cells(notebook, 'raise RuntimeError("STOP: which one?")')
    assert get_state_and_steps(notebook)[0] == "stopped"
    calls = [[bash(command)] for command in PERSONS]
    skills = [[tool("Skill", {"skill": name})] for name in ("fix", "continue", "skip")]
    model = scripted_model(*calls, *skills, [bash("stepper status")])

    client(model).prompt("Have a look.", permissions=permissions)

    results = tool_results(model.requests[-1])
    refusals = ("is the user's command", "requires approval")
    performed = [
        pair
        for pair in zip(PERSONS, results, strict=False)
        if not any(refusal in pair[1] for refusal in refusals)
    ]
    assert not performed
    for result in results[len(PERSONS) : -1]:
        assert "disable-model-invocation" in result, result
    assert f"notebooks/{notebook.name}: stopped" in results[-1]
    assert get_state_and_steps(notebook) == (
        "stopped",
        ["failed", "pending", "pending"],
    )


def test_skip_reason_with_shell_characters_is_not_executed(
    project: Path, notebook: Path, scripted_model: Model, client: Client
) -> None:
    reason = """it's "odd" $(touch x) `touch y` ; touch z"""
    *_, failed = run_cells(notebook, "1 / 0")
    model = scripted_model([text("Skipped. Shall I go on?")])

    client(model).prompt(f"/skip {reason}", permissions="default")

    assert (
        f'step 1 of 3 "Load" in notebooks/{notebook.name} is skipped ({reason}).'
        in model.shown()
    )
    assert 'Next: step 2 of 3 "Count".' in model.shown()
    assert get_state_and_steps(notebook) == ("ready", ["skipped", "pending", "pending"])
    assert [
        event["reason"] for event in journal(notebook) if event["event"] == "skip"
    ] == [reason]
    assert f"skipped: {reason}" in stepper(project, "context")
    assert not any(
        (folder / name).exists()
        for folder in (project, notebook.parent)
        for name in "xyz"
    )
    (cell,) = (cell for cell in cells(notebook) if cell["id"] == failed)
    assert "skip-execution" in cell["metadata"]["tags"]

    # without a reason: the next step
    client(model).prompt("/skip", "--continue", permissions="default")
    assert (
        'step 2 of 3 "Count"' in collect_text(model.requests[-1])
        and "is skipped. Next: step 3" in model.shown()
    )
    assert get_state_and_steps(notebook)[1] == ["skipped", "skipped", "pending"]


@pytest.mark.parametrize("session", ["resumed", "new"])
def test_continue_ends_a_stop(
    notebook: Path, scripted_model: Model, client: Client, session: str
) -> None:
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = 3", "cell-0")],
        insert_below(notebook, 'raise RuntimeError("STOP: drop the empty rows?")'),
    )
    first = client(model).prompt("Begin.", "--include-hook-events")
    block = STOPPED.format(
        number=2,
        title="Count",
        name="RuntimeError",
        message="STOP: drop the empty rows?",
        retries=0,
        action=DECIDE,
    )
    assert stop_reasons(first) == [f"{block}\n\nThe agent asks: drop the empty rows?"]

    model.then(
        [read(notebook)],
        replace_again(notebook, "count = rows"),
        [text("Shall I go on?")],
    )
    before = len(model.requests)
    answer = 'yes, drop \'em; `touch no`; $(touch no)\n"& touch no"'
    second = client(model).prompt(
        f"/continue {answer}",
        *(["--continue"] if session == "resumed" else []),
        permissions="default",
    )

    assert (session_of(second) == session_of(first)) is (session == "resumed")
    shown_text = collect_text(model.requests[before])
    assert "The notebook is resumed. Continue." in shown_text
    assert (
        f'The user\'s answer to "drop the empty rows?": {" ".join(answer.split())}'
        in shown_text
    )
    assert not (notebook.parent.parent / "no").exists()
    assert (
        'Next: step 2 of 3 "Count" (its cell failed).' in shown_text
        and "rows: int" in shown_text
    )
    assert "is in progress (stopped)" in shown_text  # SessionStart, startup or resume
    assert get_state_and_steps(notebook) == ("ready", ["done", "done", "pending"])
    assert list_outcomes(notebook) == ["ok", "error", "ok"]


def test_notebook_status_shows_and_changes_nothing(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, "rows = 3", "1 / 0")
    model = scripted_model([text("There it is.")])

    client(model).prompt("/notebook-status", permissions="default")

    shown_text = model.shown()
    assert f"notebooks/{notebook.name}: ready, 1 of 3 steps done" in shown_text
    assert (
        "✓ 1. Load" in shown_text
        and "✗ 2. Count" in shown_text
        and "· 3. Tell" in shown_text
        and "kernel: idle" in shown_text
    )
    # a status request does not tell the agent to continue working
    assert len(model.requests) == 1
    assert get_state_and_steps(notebook) == ("ready", ["done", "failed", "pending"])


def test_status_of_stopped_notebook_lists_commands(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, "rows = 3", "raise RuntimeError('STOP: which column?')")
    model = scripted_model([text("There it is.")])
    client(model).prompt("/notebook-status", permissions="default")
    shown_text = model.shown()
    assert f"notebooks/{notebook.name}: stopped, 1 of 3 steps done" in shown_text
    assert (
        "RuntimeError: STOP: which column?" in shown_text
        and "The agent asks: which column?" in shown_text
    )
    # the printed commands work in the user's terminal, whose PATH has no stepper
    for command in ("continue [ANSWER]", "fix [HINT]", "skip [REASON]"):
        assert f"\n  .stepper/env/bin/stepper {command} " in shown_text, shown_text


def test_new_notebook_on_screen_has_no_empty_keys(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    """In a git repository the client shows 40 lines of each new file."""
    steps = " ".join(f"--step 'Step {number}'" for number in range(7))
    model = scripted_model(
        [bash(f"stepper new 'A short one' {steps}")], [text("It is there.")]
    )
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    try:
        screen = interactive_claude(model, permissions="auto")
        screen.send("Make it.")
        screen_text = screen.wait_for("It is there.")
    finally:
        shutil.rmtree(project / ".git")
    assert (
        "files that changed while this command ran" in screen_text
        and '"title": "Step 2"' in screen_text
    )
    assert '"criterion"' not in screen_text and '"kind"' not in screen_text


def test_plain_text_prompts_are_commands(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, 'raise RuntimeError("STOP: which one?")')
    model = scripted_model()

    def send(prompt: str) -> str:
        """Return the text that the model gets with this prompt.

        It only asks a question.
        """
        before = len(model.requests)
        model.then([text("Is that all?")])
        client(model).prompt(prompt, *(["--continue"] if before else []))
        assert len(model.requests) == before + 1
        return collect_text(model.requests[before]).rpartition(prompt)[2]

    assert (
        "does not resume the notebook" in send("how do I continue notebook work?")
        and get_state_and_steps(notebook)[0] == "stopped"
    )
    assert (
        "· 3. Tell" in send("show status please")
        and get_state_and_steps(notebook)[0] == "stopped"
    )
    response = send("  Continue Notebook, the first one ")
    assert (
        'The notebook is resumed. Continue.\nThe user\'s answer to "which one?": the first one'
        in response
    )
    assert get_state_and_steps(notebook)[0] == "ready"
    response = send("Fix and Retry with the other file")
    assert (
        "3 new retries" in response
        and "The user's hint: with the other file" in response
    )
    response = send("SKIP CELL because we lack data")
    assert (
        'step 1 of 3 "Load"' in response
        and "is skipped (because we lack data)" in response
    )
    assert get_state_and_steps(notebook)[1] == ["skipped", "pending", "pending"]
    assert "The problem: analyse x" in send("new notebook analyse x")
    for prompt in (
        "continue notebook cleanup in the README",
        "fix and retry the build",
        "skip cells",
        "what does show status do?",
        "new notebooks are fine",
    ):
        assert HOOK_SAYS not in send(prompt), prompt
    assert get_state_and_steps(notebook) == ("ready", ["skipped", "pending", "pending"])


def test_plain_text_status_request_does_not_continue_the_agent(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, "rows = 3")
    model = scripted_model([text("Two steps are left.")])

    client(model).prompt("show status")

    assert len(model.requests) == 1, get_new_text(model, 1)


def test_rest_of_a_message_whose_first_cell_fails_is_denied(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    model = scripted_model(
        [read(notebook)],
        [
            insert(notebook, "1 / 0", "cell-0"),
            insert(notebook, "never = 1", "cell-1"),
            insert(notebook, "words", "cell-1", "markdown"),
            insert(notebook, "never = 2", "cell-2"),
            insert(notebook, "helper = 1", "cell-0"),  # above the failed cell
        ],
        [text("What now?")],
    )
    client(model).prompt("Begin.")

    inserted, second, markdown, third, helper = tool_results(model.requests[-1])[-5:]
    failed = re.match(r"Inserted cell (\S+) ", inserted)
    assert failed and all(
        f"cell_id {failed[1]}" in denial for denial in (second, third)
    ), (second, third)
    assert markdown.startswith("Inserted cell") and helper.startswith("Inserted cell")
    assert [source for source, _ in code(notebook)] == ["helper = 1", "1 / 0"]
    assert list_outcomes(notebook) == ["error", "ok"]
    assert get_state_and_steps(notebook) == ("ready", ["failed", "pending", "pending"])


def test_rest_of_a_message_whose_first_cell_stops_is_denied(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    model = scripted_model(
        [read(notebook)],
        [
            insert(notebook, 'raise RuntimeError("STOP: which column?")', "cell-0"),
            insert(notebook, "never = 1", "cell-1"),
            insert(notebook, "never = 2", "cell-0"),
            replace(notebook, "never = 3", "cell-1"),
            write(notebook, "never = 4"),
        ],
    )
    result = client(model).prompt("Begin.", "--include-hook-events")

    assert len(stop_reasons(result)) == 1 and len(model.requests) == 2
    assert [source for source, _ in code(notebook)] == [
        'raise RuntimeError("STOP: which column?")'
    ]
    assert list_outcomes(notebook) == ["error"]

    # the stop changed the modification time, so the client refuses the other edits
    client(model).prompt("What now?", "--continue")
    denials = tool_results(model.requests[-1])[-4:]
    reasons = (
        "execution of this notebook is stopped (RuntimeError: STOP: which",
        "File has been modified since read",
    )
    assert all(any(part in denial for part in reasons) for denial in denials), denials


@pytest.mark.timeout(60)
def test_user_sees_the_stop_and_continues_with_a_slash_command(
    notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, 'raise RuntimeError("STOP: which column?")', "cell-0")],
    )
    screen = interactive_claude(model)

    screen.send("Begin.")
    screen_text = screen.wait_for("Suggestion: answer the question")
    assert (
        "❌ Execution stopped at cell 1" in screen_text
        and "Error Message: STOP: which column?" in screen_text
    )

    # no Read: the client accepts the modification time of the stop
    model.then(
        [replace(notebook, "column = 1", "cell-1")], [text("Shall I go on now?")]
    )
    screen.send("/fix")
    screen_text = " ".join(screen.wait_for("Shall I go on now?").split())
    # the user's line; the agent gets the details
    assert 'stepper fix: 3 new retries for step 1 of 3 "Load"' in screen_text
    assert "3 new retries" in get_new_text(model, 2) and "ran ok in" in get_new_text(
        model, 3
    )
    assert get_state_and_steps(notebook) == ("ready", ["done", "pending", "pending"])


def test_greeting_starts_no_work(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, "rows = 3")
    model = scripted_model([text("Hello.")])

    result = client(model).prompt("hello")

    assert (result.text, len(model.requests)) == ("Hello.", 1)
    assert f"the notebook notebooks/{notebook.name} is in progress" in model.shown()


def test_agent_is_continued_once_without_progress(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = 3", "cell-0")],
        [text("The first step is done.")],  # the Stop hook continues
        insert_below(notebook, "count = rows"),
        [text("The second, too.")],  # continues: there was progress
        [text("I stop here.")],  # does not continue
        [text("Never said in this turn.")],
    )
    result = client(model).prompt("Begin.")

    assert (result.text, model.unsaid) == ("I stop here.", 1)
    assert (
        f"stepper: 2 of 3 steps of notebooks/{notebook.name} are not done."
        in get_new_text(model, 3)
    )
    assert 'Next: step 2 of 3 "Count".' in get_new_text(model, 3)
    assert (
        f"stepper: 1 of 3 steps of notebooks/{notebook.name} is not done."
        in get_new_text(model, 5)
    )
    assert model.shown().count("Stop hook additional context:") == 2


@pytest.mark.parametrize(
    "last",
    [
        "Which of the two columns do you mean?",
        "Two columns fit.\n\nShall I take **the first one?**",
    ],
)
def test_agent_that_asks_the_user_is_not_continued(
    notebook: Path, scripted_model: Model, client: Client, last: str
) -> None:
    model = scripted_model(
        [read(notebook)], [insert(notebook, "rows = 3", "cell-0")], [text(last)]
    )

    assert client(model).prompt("Begin.").text == last
    assert len(model.requests) == 3


def test_agent_is_not_continued_in_plan_mode(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    run_cells(notebook, 'raise RuntimeError("STOP: which one?")')
    model = scripted_model([text("I would go on.")])

    client(model).prompt("continue notebook", permissions="plan")

    assert "The notebook is resumed." in model.shown()
    assert len(model.requests) == 1


@pytest.mark.parametrize("prompt", ["/fix", "fix and retry"])
def test_agent_is_continued_once_after_a_command(
    notebook: Path, scripted_model: Model, client: Client, prompt: str
) -> None:
    run_cells(notebook, "1 / 0")
    model = scripted_model(
        [text("I see.")],
        [text("I still do nothing.")],
        [text("Never said in this turn.")],
    )

    client(model).prompt(prompt)

    assert model.unsaid == 1
    assert 'Next: step 1 of 3 "Load" (its cell failed)' in get_new_text(model, 1)


def test_resumed_session_adds_to_the_same_notebook(
    project: Path, notebook: Path, scripted_model: Model, client: Client
) -> None:
    model = scripted_model(
        [read(notebook)],
        [
            insert(
                notebook,
                "import math\nrows = [1, 2]\ndef twice(x):\n    return 2 * x",
                "cell-0",
            )
        ],
        [text("Shall I go on?")],
    )
    client(model).prompt("Begin.")
    stepper(project, "shutdown")  # the daemon and the kernel have exited
    assert get_state_and_steps(notebook)[1] == ["done", "pending", "pending"]
    run_cells(notebook)
    model.then(
        [read(notebook)],
        insert_below(notebook, "count = len(rows)"),
        [text("Shall I go on?")],
    )
    before = len(model.requests)
    client(model).prompt("Go on.", "--continue")

    shown_text = collect_text(model.requests[before])
    assert f"the notebook notebooks/{notebook.name} is in progress" in shown_text
    assert "✓ 1. Load" in shown_text and 'Next: step 2 of 3 "Count".' in shown_text
    assert "The kernel is running" in shown_text and "Modules: math" in shown_text
    assert "twice(x)" in shown_text and "rows: list of 2" in shown_text
    assert "Add new cells to this notebook" in shown_text
    assert get_state_and_steps(notebook)[1] == ["done", "done", "pending"]
    assert [source for source, _ in code(notebook)][1:] == ["count = len(rows)"]


def test_sessions_do_not_control_each_others_notebook(
    project: Path, scripted_model: Model, client: Client
) -> None:
    def session(name: str) -> tuple[str, Path]:
        created: list[Path] = []

        def read_status(messages: list[Message]) -> list[Block]:
            created.append(project / json.loads(tool_results(messages)[-1])["notebook"])
            return [read(created[0])]

        model.then(
            [bash(f"stepper new 'of session {name}' --step One --step Two --json")],
            read_status,
            lambda _: [insert(created[0], f"name = {name!r}", "cell-0")],
            [text("Shall I go on?")],
        )
        return session_of(client(model).prompt("Begin.")), created[0]

    model = scripted_model()
    own_session, first = session("one")
    two, second = session("two")
    assert own_session != two and first != second

    # resume the first session; the newest notebook belongs to the second
    model.then([bash("stepper status")], [text("That is it.")], [text("No more.")])
    before = len(model.requests)
    client(model).prompt("skip cell", "--resume", own_session)
    shown_text = collect_text(model.requests[before])
    assert (
        f"the notebook notebooks/{first.name} is in progress" in shown_text
        and second.name not in shown_text
    )
    assert (
        f"notebooks/{first.name}: complete"
        in tool_results(model.requests[before + 1])[-1]
    )
    # complete: ends, although the second session's notebook is unfinished
    assert len(model.requests) == before + 2
    assert (get_state_and_steps(first), get_state_and_steps(second)) == (
        ("complete", ["done", "skipped"]),
        ("ready", ["done", "pending"]),
    )

    before = len(model.requests)
    client(model).prompt("/notebook-status", "--resume", two)
    assert f"notebooks/{second.name}: ready, 1 of 2 steps done" in collect_text(
        model.requests[before]
    )


def test_write_that_drops_metadata_keeps_plan_and_attempt_count(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    plan = json.loads(notebook.read_text())["metadata"]["stepper"]
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "1 / 0", "cell-0")],
        replace_again(notebook, "2 / 0"),
        [write(notebook, "3 / 0")],
        [text("What now?")],
    )
    client(model).prompt("Begin.")

    assert 'Step 1 of 3 "Load": failed; 2 of 3 retries used, 1 left.' in get_new_text(
        model, -1
    )
    assert json.loads(notebook.read_text())["metadata"]["stepper"] == plan
    assert get_state_and_steps(notebook) == ("ready", ["failed", "pending", "pending"])


class _Late(BaseHTTPRequestHandler):
    """Responds with 503 once, then with 200."""

    request_count = 0

    def do_GET(self) -> None:
        type(self).request_count += 1
        body = b"[1, 2, 3]" if self.request_count > 1 else b"not yet"
        self.send_response(200 if self.request_count > 1 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def test_transient_error_is_retried(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Late)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    fetch = (
        "import json, urllib.request\n"
        f"rows = json.load(urllib.request.urlopen('http://127.0.0.1:{server.server_port}/', timeout=5))\nlen(rows)"
    )
    model = scripted_model(
        [read(notebook)], [insert(notebook, fetch, "cell-0")], [text("Shall I go on?")]
    )
    try:
        client(model).prompt("Begin.")
    finally:
        server.shutdown()
        server.server_close()

    message = get_new_text(model, -1)
    assert (
        "ran ok in" in message
        and "HTTPError" in message
        and "stepper ran the cell again after 1 s" in message
    )
    assert 'Step 1 of 3 "Load": done' in message
    assert list_outcomes(notebook) == ["error", "ok"]
    assert status(notebook)["steps"][0]["attempts"] == 0


def test_question_is_answered_in_one_message(
    notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    """The user sees the question below the stop.

    A plain reply changes nothing; `/continue ANSWER` is passed on.
    """
    ask = 'raise RuntimeError("STOP: drop the 3 rows without a price?")'
    model = scripted_model([read(notebook)], [insert(notebook, ask, "cell-0")])
    screen = interactive_claude(model)
    screen.send("Begin the work")
    screen_text = screen.wait_for("The agent asks: ")
    assert (
        "❌ Execution stopped at cell 1" in screen_text
        and "The agent asks: drop the 3 rows without a price?" in screen_text
    )
    assert f"Suggestion: {DECIDE}" in screen_text

    model.then([text("Give `/continue yes`, then I go on.")])
    screen.send("why would you drop them?")
    screen.wait_for("then I go on")
    shown_text = collect_text(model.requests[-1])
    assert (
        f'{notebook.name} is stopped (you asked "drop the 3 rows without a price?")'
        in shown_text
    )
    assert "Ask the user to type: `/continue ANSWER`." in shown_text
    assert get_state_and_steps(notebook)[0] == "stopped"

    model.then(
        [read(notebook)],
        [replace(notebook, "rows = 3", "cell-1")],
        [text("Dropped. Is that all?")],
    )
    screen.send("/continue yes, drop 'em")
    assert "✓ step 1 of 3" in screen.wait_for("Dropped.")
    assert (
        "The user's answer to \"drop the 3 rows without a price?\": yes, drop 'em"
        in model.shown()
    )
    assert get_state_and_steps(notebook) == ("ready", ["done", "pending", "pending"])


def test_agent_skill_is_not_in_user_menu(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    model = scripted_model(
        [tool("Skill", {"skill": "stepping-notebooks"})], [text("I have read it.")]
    )
    screen = interactive_claude(model)
    screen.type("/step")
    # a skill with a similar name
    assert "/stepping-notebooks" not in screen.wait_for("/skip")
    screen.keys("C-u")
    screen.send("Read the skill")
    screen.wait_for("I have read it.")
    assert (
        "A code cell that you write with `NotebookEdit` runs immediately"
        in model.shown()
    )


def test_plan_mode_creates_no_notebook(
    project: Path, scripted_model: Model, client: Client
) -> None:
    model = scripted_model(
        [bash("stepper new 'made too early' --step One")],
        [text("Here is my plan. May I?")],
    )

    client(model).prompt("Plan it.", permissions="plan")

    (result,) = tool_results(model.requests[-1])
    assert (
        "no notebook was created: in plan mode nothing is written" in result
        and "`stepper new` creates the notebook" in result
    )
    assert not [
        path for path in (project / "notebooks").iterdir() if "too_early" in path.name
    ]


def test_false_criterion_leaves_the_step_open(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = new(project, "a score", "Train :: score > 0.9", "Tell")
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "score = 0.85", "cell-0")],
        [text("Done!")],  # the Stop hook continues: it is not done
        [bash('stepper confirm "the data allow no more"')],
        [text("The rest is for tomorrow. Shall I?")],
    )
    screen = interactive_claude(model)
    screen.send("Begin the work")
    screen_text = screen.wait_for("The rest is for tomorrow")
    assert (
        '? step 1 of 2 "Train" · ok, but `score > 0.9` is false: score is 0.85 · '
        in screen_text
    )

    question, continued, answer = (collect_text(model.requests[n]) for n in (2, 3, 4))
    assert (
        "Warning: the step's criterion `score > 0.9` is false: score is 0.85"
        in question
    )
    assert (
        'Step 1 of 2 "Train": not done. Replace its cell, or give a reason why'
        in question
    )
    assert (
        "2 of 2 steps" in continued
        and "its criterion is false: replace its cell" in continued
    )
    assert (
        'step 1 of 2 "Train"' in answer
        and "is done (the data allow no more). Next: step 2 of 2" in answer
    )
    assert get_state_and_steps(notebook) == ("ready", ["done", "pending"])


@pytest.fixture
def two_stopped(
    project: Path, scripted_model: Model, client: Client
) -> tuple[ScriptedModel, list[Path]]:
    """Two notebooks of two sessions, stopped by questions of the agent."""
    created = []
    model = scripted_model()
    for problem in ("of prices", "of stores"):
        notebook = new(project, problem, "Load")
        model.then(
            [read(notebook)],
            [insert(notebook, "raise RuntimeError('STOP: which file?')", "cell-0")],
        )
        client(model).prompt("Begin.")
        created.append(notebook)
    return model, created


def test_ambiguous_slash_command_resumes_no_notebook(
    two_stopped: tuple[ScriptedModel, list[Path]], client: Client
) -> None:
    model, notebooks = two_stopped
    before = len(model.requests)
    summary = client(model).prompt("/fix the first one")
    assert len(model.requests) == before  # the client shows the reason
    response = str(summary.events[-1]["result"])
    for notebook in notebooks:
        assert f"\n         /fix notebooks/{notebook.name} the first one" in response
        assert status(notebook)["state"] == "stopped"
    # the printed command
    client(model).prompt(f"/fix notebooks/{notebooks[0].name} the first one")
    shown_text = collect_text(model.requests[before])
    assert f"in notebooks/{notebooks[0].name}." in shown_text
    assert 'The user\'s answer to "which file?": the first one' in shown_text
    states = [status(notebook)["state"] for notebook in notebooks]
    assert states == ["ready", "stopped"]


def test_ambiguous_plain_text_resumes_no_notebook(
    two_stopped: tuple[ScriptedModel, list[Path]], client: Client
) -> None:
    model, notebooks = two_stopped
    before = len(model.requests)
    result = client(model).prompt("fix and retry")
    messages = [
        str(event.get("content"))
        for event in result.events
        if event.get("subtype") == "informational"
    ]
    shown_text = collect_text(model.requests[before])
    for notebook in notebooks:
        assert f"/fix notebooks/{notebook.name}" in messages[-1]
        assert f"\n/fix notebooks/{notebook.name}" in shown_text
        assert status(notebook)["state"] == "stopped"


def test_stop_is_removed_with_its_notebook_but_not_by_agent_writes(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    def other(name: str) -> str:
        cell = {
            "cell_type": "code",
            "id": name,
            "metadata": {},
            "source": f"{name} = 1",
        }
        cell |= {"execution_count": None, "outputs": []}
        document = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        return json.dumps(document)

    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "raise RuntimeError('STOP: which file?')", "cell-0")],
    )
    client(model).prompt("Begin.")
    assert get_state_and_steps(notebook)[0] == "stopped"

    # the agent's file tool is refused, and a shell command does not end the stop
    message = (
        f"from pathlib import Path; Path('{notebook}').write_text({other('mine')!r})"
    )
    script = notebook.parent.parent / "make.py"
    script.write_text(message)
    model.then(
        [read(notebook)],
        [tool("Write", {"file_path": str(notebook), "content": other("mine")})],
        [bash(f"{sys.executable} {script}")],
        [text("It is another notebook now.")],
    )
    client(model).prompt("What now?", "--continue")
    denial = tool_results(model.requests[-1])[-2]
    assert "execution of this notebook is stopped" in denial
    model.then(
        [read(notebook)],
        [replace(notebook, "mine = 2", "mine")],
        [text("Refused.")],
    )
    before = len(model.requests)
    client(model).prompt("Run it.", "--continue")
    assert "no longer applies" not in collect_text(model.requests[before])
    assert (
        "execution of this notebook is stopped" in tool_results(model.requests[-1])[-1]
    )
    assert get_state_and_steps(notebook)[0] == "stopped"

    # the user: git or a script
    notebook.write_text(other("theirs"))
    model.then(
        [read(notebook)],
        [replace(notebook, "theirs = 2", "theirs")],
        [text("It ran.")],
    )
    before = len(model.requests)
    client(model).prompt("Run it.", "--continue")
    assert (
        "was replaced by another notebook; the earlier stop (RuntimeError: STOP: which file?) no longer"
        in collect_text(model.requests[before])
    )
    assert "ran ok" in model.shown()
    assert get_state_and_steps(notebook)[0] == "ready"


@pytest.mark.parametrize("output", ["text", "json"])
def test_ci_job_sees_the_stop_in_status(
    project: Path, notebook: Path, scripted_model: Model, client: Client, output: str
) -> None:
    model = scripted_model(
        [read(notebook)],
        [
            text("I try this."),
            insert(notebook, "raise RuntimeError('STOP: which file?')", "cell-0"),
        ],
    )
    result = client(model).prompt("Begin.", "--output-format", output)
    assert result.returncode == 0  # the client's exit code: its run succeeded
    if output == "text":
        assert result.stdout.strip() == ""
    else:
        *_, answer = json.loads(result.stdout)  # a list with --verbose
        assert (answer["is_error"], answer["result"]) == (False, "")
        assert answer["terminal_reason"] == "hook_stopped"
    status_data = status(notebook)
    assert status_data["state"] == "stopped"
    assert status_data["stop"]["error"] == "RuntimeError: STOP: which file?"
    assert status_data["stop"]["question"] == "which file?"
    command = f".stepper/env/bin/stepper status {notebook.stem} --json"
    gate = f"{command} | {sys.executable} -c '{IS_COMPLETE}'"
    assert subprocess.run(["sh", "-c", gate], cwd=project).returncode == 1
    for step in ("1", "2", "3"):
        stepper(project, "skip", "--notebook", str(notebook), f"not needed: {step}")
    assert subprocess.run(["sh", "-c", gate], cwd=project).returncode == 0


# equivalent to `jq -e '.state == "complete"'`
IS_COMPLETE = 'import json, sys; sys.exit(json.load(sys.stdin)["state"] != "complete")'


def test_instructions_come_first_after_machine_restart(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    run_cells(notebook, "rows = 3")
    status_data = status(notebook)
    for pid in (status_data["daemon"]["pid"], status_data["kernel"]["pid"]):
        os.kill(pid, signal.SIGKILL)
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "print(rows)", "cell-1")],
        [text("It is stopped.")],
    )
    screen = interactive_claude(model)
    screen.send("Go on with the next step")
    screen_text = screen.wait_for("It is stopped.")
    response = tool_results(model.requests[-1])[-1]
    for read_by in (screen_text, response):
        restore = read_by.index("stepper restore")
        assert restore < read_by.index("/continue") < read_by.index("KernelDied")
    assert get_state_and_steps(notebook)[0] == "stopped"
    stepper(project, "restore", str(notebook))
    assert get_state_and_steps(notebook) == ("ready", ["done", "pending", "pending"])


def test_leftover_name_is_reported_before_the_next_version_runs(
    notebook: Path, scripted_model: Model, client: Client
) -> None:
    """The fixed cell drops the import that only its failed version had."""
    failing = "import statistics as plt\nrows.append(5)\nplt.nothing(rows)"
    (first,) = run_cells(notebook, "rows = [3, 4]")[-1:]
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, failing, first)],
        replace_again(notebook, "print(plt.mean(rows))"),
        replace_again(notebook, "import statistics as plt\nprint(plt.mean(rows))"),
        insert_below(notebook, "print(len(rows))"),
        [text("Done.")],
    )
    client(model).prompt("Go on")
    failed, blocked, fixed, done = [
        get_new_text(model, number) for number in range(2, 6)
    ]
    assert "`rows` will be restored, `plt` will be removed" in failed
    assert "did NOT run" in blocked
    assert (
        "`plt` was bound only by an earlier version of this cell, whose changes are"
        " undone before this version runs" in blocked
    )
    assert "| 3.5" in fixed
    assert "| 2" in done
    assert "The notebook is complete" in done
    assert get_state_and_steps(notebook) == ("complete", ["done"] * 3)
    stepper(notebook.parent.parent, "verify", str(notebook))  # fails if it differs


def test_kernel_follows_a_rewind_of_the_client(
    notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    """The client sends no event for `/rewind` itself."""
    (first,) = run_cells(notebook, "rows = [1]")[-1:]
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows.append(2)", first)],
        [text("Two are there.")],
    )
    screen = interactive_claude(model)
    screen.send("Append two.")
    screen.wait_for("Two are there.")
    assert "2" in stepper(notebook.parent.parent, "eval", "len(rows)")
    screen.send("/rewind")
    screen.wait_for("Restore the code and/or conversation")
    screen.keys("Up", "Enter")
    screen.wait_for("1. Restore code and conversation")
    screen.keys("Enter")
    screen.wait_for("❯ Append two.")
    wait_until(lambda: len(cells(notebook)) == 2)
    model.then(
        [read(notebook)],
        [insert(notebook, "print(rows)", first)],
        [text("That is all.")],
    )
    screen.keys("C-u")
    screen.send("Print the rows.")
    screen.wait_for("That is all.")
    shown = model.shown()
    assert "| [1]" in shown
    assert "was deleted, so its changes were undone: `rows` was restored." in shown
