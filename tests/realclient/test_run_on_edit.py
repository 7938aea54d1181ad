"""Each cell that the scripted model writes runs immediately, in one persistent kernel.

All tests share one repository, installed by install.sh; each has its own notebook.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest

from examples import demo
from stepper.common.paths import Paths

from .conftest import ClaudeFactory, InteractiveFactory
from .model import (
    Block,
    Message,
    ScriptedModel,
    cell_ids,
    collect_text,
    text,
    tool,
    tool_results,
)
from .repository import stepper

ROOT = Path(__file__).resolve().parent.parent.parent
Model = Callable[..., ScriptedModel]
# the first test installs stepper, perhaps over a slow network
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A repository with stepper, packages and data.

    Its path has a space and a non-ASCII letter.
    """
    folder = tmp_path_factory.mktemp("main") / "a répo"
    folder.mkdir()
    bin_folder = Path(sys.executable).parent
    with pytest.MonkeyPatch.context() as patch:
        if (bin_folder / "uv").exists():  # 3 times faster than pip
            patch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
        subprocess.run(
            [ROOT / "install.sh", folder, "--allow"], check=True, capture_output=True
        )
        demo.prepare(str(folder))
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # fails unless it is empty


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's HOME.

    It is shared because matplotlib builds its font cache there.
    """
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def notebook(project: Path, request: pytest.FixtureRequest) -> Path:
    """A new notebook with one cell and no plan."""
    response = json.loads(stepper(project, "new", request.node.name, "--json"))
    return project / response["notebook"]


def history(notebook: Path) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = json.loads(
        stepper(notebook.parent.parent, "history", str(notebook), "--json")
    )
    return history


def read(path: Path) -> Block:
    return tool("Read", {"file_path": str(path)})


def insert(notebook: Path, source: str, after: str, kind: str = "code") -> Block:
    arguments = {"notebook_path": str(notebook), "cell_id": after, "new_source": source}
    return tool("NotebookEdit", {**arguments, "cell_type": kind, "edit_mode": "insert"})


def replace(notebook: Path, source: str, cell: str) -> Block:
    return tool(
        "NotebookEdit",
        {"notebook_path": str(notebook), "cell_id": cell, "new_source": source},
    )


def delete(notebook: Path, cell: str) -> Block:
    arguments = {
        "notebook_path": str(notebook),
        "cell_id": cell,
        "new_source": "",
        "edit_mode": "delete",
    }
    return tool("NotebookEdit", arguments)


def write(notebook: Path, *cells: str, minor: int = 5) -> Block:
    return tool(
        "Write", {"file_path": str(notebook), "content": content(*cells, minor=minor)}
    )


def content(*cells: str, minor: int = 5) -> str:
    """Return a notebook of code cells as JSON.

    The ids are a, b, c … if the format has ids.
    """
    inserted = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {},
            "execution_count": None,
            "outputs": [],
        }
        | ({"id": chr(97 + number)} if minor > 4 else {})
        for number, source in enumerate(cells)
    ]
    return json.dumps(
        {"cells": inserted, "metadata": {}, "nbformat": 4, "nbformat_minor": minor}
    )


def cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return cells


def code(notebook: Path) -> list[tuple[str, str]]:
    """Return the source and the printed text of each code cell in the file."""
    return [
        (
            "".join(cell["source"]),
            "".join("".join(out.get("text", "")) for out in cell["outputs"]),
        )
        for cell in cells(notebook)
        if cell["cell_type"] == "code"
    ]


def find_last_edited_cell(messages: Sequence[Message]) -> str:
    """Return the id of the last edited cell, or else of the last cell that was read."""
    result = tool_results(messages)[-1]
    match = re.match(r"(?:Inserted|Updated) cell (\S+) ", result)
    return match[1] if match else cell_ids(messages)[-1]


def get_new_text(model: ScriptedModel, turn: int) -> str:
    """Return the text that the model got first in this turn (from 0; -1: the last)."""
    turn %= len(model.requests)
    before = len(model.requests[turn - 1]) if turn else 0
    return collect_text(model.requests[turn][before:])


def test_analysis_from_slash_command_to_finished_notebook(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    path: list[Path] = []
    failed: list[str] = []

    def inspect_data(messages: list[Message]) -> list[Block]:
        path.append(project / json.loads(tool_results(messages)[-1])["notebook"])
        return [read(path[0])]

    def inserted(source: str, kind: str) -> Callable[[list[Message]], list[Block]]:
        def turn(messages: list[Message]) -> list[Block]:
            return [insert(path[0], source, find_last_edited_cell(messages), kind)]

        return turn

    def fixed(messages: list[Message]) -> list[Block]:
        failed.append(find_last_edited_cell(messages))
        return [replace(path[0], demo.STEPS[4].code, failed[0])]

    steps = " ".join(f'--step "{step.title}"' for step in demo.STEPS)
    command = f'stepper new "{demo.PROBLEM}" {steps} --json'
    script: list[Any] = [
        [tool("Bash", {"command": command, "description": "Make the notebook"})],
        inspect_data,
    ]
    for number, step in enumerate(demo.STEPS, 1):
        script.append(
            inserted(f"## {number}. {step.title}\n\n{step.markdown}", "markdown")
        )
        script.append(inserted(step.code.removeprefix(step.forgotten), "code"))
        script += [fixed] if step.forgotten else []
    model = scripted_model(*script, [text("The end.")])

    # The SessionStart hook puts stepper on the PATH, and the rules of --allow permit
    # its commands.
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not Path(folder, "stepper").exists()
    ]
    client = claude(model, env={"PATH": os.pathsep.join(folders)})
    # In the agent's shell, `stepper` is on the PATH.
    status = stepper(project, "status").splitlines()[0]
    result = client.prompt(f"/new-notebook {demo.PROBLEM}", permissions="default")

    assert (result.returncode, result.text, model.unsaid) == (0, "The end.", 0), result
    skill = (project / ".claude" / "skills" / "new-notebook" / "SKILL.md").read_text()
    (question,) = (line for line in skill.splitlines() if "$ARGUMENTS" in line)
    assert question.replace("$ARGUMENTS", demo.PROBLEM) in get_new_text(model, 0)
    # the skill's injected command
    assert status.replace(".stepper/env/bin/", "") in get_new_text(model, 0)

    # What the model got: turn 0 is the prompt, 1 the command, 2 the Read, then Markdown
    # and code alternate.
    turns = iter(range(3, len(model.requests)))
    for number, step in enumerate(demo.STEPS, 1):
        assert "stepper" not in get_new_text(model, next(turns))  # markdown
        message = get_new_text(model, next(turns))
        if step.forgotten:
            assert (
                "FAILED after" in message
                and "NameError: name 'WET_DAY_MM' is not defined" in message
            )
            assert (
                "Raised in `is_wet`" in message
                and 'return days["precipitation"] >= WET_DAY_MM' in message
            )
            message = get_new_text(model, next(turns))
        assert re.search(rf"stepper: Cell {number} \(id \w+\) ran ok in ", message), (
            message
        )
        assert f'Step {number} of 7 "{step.title}": done' in message
        assert (
            number == 7
            or f'Next: step {number + 1} of 7 "{demo.STEPS[number].title}"' in message
        )
    assert (
        "1,461 rows, 6 columns" in model.shown()
        and ".stepper/figures/" in model.shown()
    )
    assert next(turns, None) is None

    # The notebook on disk.
    document = nbformat.read(path[0], as_version=4)
    nbformat.validate(document)
    code_cells = [cell for cell in document.cells if cell.cell_type == "code"]
    assert [cell.source for cell in code_cells] == [step.code for step in demo.STEPS]
    assert [cell.execution_count for cell in code_cells] == [1, 2, 3, 4, 6, 7, 8]
    assert code_cells[4].id == failed[0]
    assert all(
        {"iopub.status.busy", "shell.execute_reply"} <= cell.metadata.execution.keys()
        for cell in code_cells
    )
    (figure,) = (
        out for out in code_cells[5].outputs if "image/png" in out.get("data", {})
    )
    assert base64.b64decode(figure.data["image/png"]).startswith(b"\x89PNG")
    assert len(path[0].with_name(demo.RESULT).read_text().splitlines()) == 13

    status_response = json.loads(stepper(project, "status", "--json"))
    assert (status_response["state"], status_response["steps"][4]["attempts"]) == (
        "complete",
        1,
    )
    assert project / status_response["notebook"] == path[0]
    assert [run["outcome"] for run in history(path[0])] == [
        "ok",
        "ok",
        "ok",
        "ok",
        "error",
        "ok",
        "ok",
        "ok",
    ]


# E: an edit, R: a Read of the notebook, B: a Bash call. The client refuses to edit a
# file that seems changed by another program.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "messages", ["EEE E", "ERE E", "EER E E", "REE E", "EE EE RE E", "EBE B R E"]
)
def test_edits_of_one_message_run_in_order(
    notebook: Path, scripted_model: Model, claude: ClaudeFactory, messages: str
) -> None:
    count, script = 0, [[read(notebook)]]
    for message in messages.split():
        script.append([])
        for call in message:
            if call == "R":
                script[-1].append(read(notebook))
            elif call == "B":
                script[-1].append(
                    tool("Bash", {"command": "stepper status", "description": "Look"})
                )
            else:  # below the cells so far; ids are not known within a message
                script[-1].append(
                    insert(
                        notebook,
                        f"n = {'n + 1' if count else 1}\nprint(n)",
                        f"cell-{count}",
                    )
                )
                count += 1
    model = scripted_model(*script)

    claude(model).prompt("Count.")

    results = [
        result
        for result in tool_results(model.requests[-1])
        if not result.startswith(("<cell", "notebooks/"))
    ]
    assert [result[:13] for result in results] == ["Inserted cell"] * count, results
    assert [output for _, output in code(notebook)] == [
        f"{n + 1}\n" for n in range(count)
    ]
    runs = history(notebook)
    assert [run["cell_id"] for run in runs] == [
        cell["id"] for cell in cells(notebook)[1:]
    ]
    assert model.shown().count("ran ok in") == count
    # editors that check the modification time notice the write
    assert (
        notebook.stat().st_mtime
        > datetime.fromisoformat(
            runs[-1]["started_at"].replace("Z", "+00:00")
        ).timestamp()
    )


@pytest.mark.nightly
def test_replaced_cell_reruns_and_markdown_and_deletion_are_silent(
    notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    ids: list[str] = []

    def edit_next(
        make: Callable[[str], Block],
    ) -> Callable[[list[Message]], list[Block]]:
        def turn(messages: list[Message]) -> list[Block]:
            ids.append(find_last_edited_cell(messages))
            return [make(ids[0])]

        return turn

    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "x = 1\nprint('x is', x)", "cell-0")],
        edit_next(lambda first: insert(notebook, "print('seen', x)", first)),
        edit_next(lambda first: replace(notebook, "x += 41\nprint('x is', x)", first)),
        edit_next(lambda first: insert(notebook, "words", first, "markdown")),
        [delete(notebook, "cell-3")],
    )

    claude(model).prompt("Go on.")

    assert "| x is 1" in get_new_text(model, 2) and "| seen 1" in get_new_text(model, 3)
    assert "| x is 42" in get_new_text(
        model, 4
    ) and f"Cell 1 (id {ids[0]}) ran ok" in get_new_text(model, 4)
    assert "stepper" not in get_new_text(model, 5) + get_new_text(model, 6)
    assert "Deleted cell" in get_new_text(model, 6)
    assert code(notebook) == [("x += 41\nprint('x is', x)", "x is 42\n")]
    assert [run["cell_id"] for run in history(notebook)] == [ids[0], ids[1], ids[0]]


@pytest.mark.nightly
def test_written_notebook_runs_until_the_first_failure(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    notebook = project / "notebooks" / "written whole.ipynb"
    sources = ["a = 20\nprint(a)", "b = 1 / (a - 20)", "print('never')"]
    model = scripted_model(
        [write(notebook, *sources)],
        [write(notebook, sources[0], "b = a + 1", "print('b is', b)")],
    )

    claude(model).prompt("Write a notebook.")

    assert "2 of 3 new or changed code cells ran" in get_new_text(model, 1)
    assert "FAILED after" in get_new_text(
        model, 1
    ) and "ZeroDivisionError" in get_new_text(model, 1)
    assert "| b is 21" in get_new_text(model, 2)
    assert code(notebook)[1:] == [("b = a + 1", ""), ("print('b is', b)", "b is 21\n")]
    assert [(run["cell_id"], run["outcome"]) for run in history(notebook)] == [
        ("a", "ok"),
        ("b", "error"),
        ("b", "ok"),
        ("c", "ok"),
    ]


@pytest.mark.nightly
def test_correct_cells_run_in_notebook_without_ids(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    notebook = project / "notebooks" / "old.ipynb"
    notebook.write_text(content("print('one')", "print('two')", minor=4))
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "print('new')", "cell-0")],
        [replace(notebook, "print('second')", "cell-2")],
        [
            insert(notebook, "print('one')", "cell-2")
        ],  # its source is that of another cell
    )

    claude(model).prompt("Go on.")

    assert "| new" in get_new_text(
        model, 2
    ) and "Cell 2 (id cell-1) ran ok" in get_new_text(model, 2)
    assert "| second" in get_new_text(
        model, 3
    ) and "Cell 3 (id cell-2) ran ok" in get_new_text(model, 3)
    assert "| one" in get_new_text(
        model, 4
    ) and "Cell 4 (id cell-3) ran ok" in get_new_text(model, 4)
    assert code(notebook) == [
        ("print('one')", ""),
        ("print('new')", "new\n"),
        ("print('second')", "second\n"),
        ("print('one')", "one\n"),
    ]
    assert not any("id" in cell for cell in cells(notebook))
    nbformat.validate(nbformat.read(notebook, as_version=4))


@pytest.mark.nightly
def test_next_session_sees_the_variables(
    notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    model = scripted_model(
        [read(notebook)], [insert(notebook, "x = 'of the first'", "cell-0")]
    )
    first = claude(model).prompt("Begin.")
    model.then([read(notebook)], [insert(notebook, "print(x, 'session')", "cell-1")])
    second = claude(model).prompt("Go on.")

    assert first.session_id != second.session_id
    assert "| of the first session" in get_new_text(model, -1)


@pytest.mark.nightly
def test_user_sees_one_line_per_run_and_escape_cancels_the_cell(
    notebook: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    begun = notebook.with_name("begun")
    sleep = (
        f"import pathlib, time\npathlib.Path({begun.name!r}).touch()\ntime.sleep(60)"
    )
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "kept = 1", "cell-0")],
        [insert(notebook, "1 / 0", "cell-1")],
        [insert(notebook, sleep, "cell-2")],
    )
    client = interactive_claude(model)

    client.send("Sleep.")
    wait_until(begun.exists)
    screen = client.screen()
    client.keys("Escape")

    wait_until(lambda: len(history(notebook)) == 3)
    assert [run["outcome"] for run in history(notebook)] == ["ok", "error", "cancelled"]
    assert history(notebook)[2]["duration_s"] < 30
    lines = [
        line.partition(" says: ")[2].strip()
        for line in screen.splitlines()
        if " says: " in line
    ]
    assert re.fullmatch(r"✓ cell 1 \(id \w+\) · ok · \d\.\d\d s", lines[0]), screen
    assert re.fullmatch(
        r"✗ cell 2 \(id \w+\) · ZeroDivisionError: division by zero · \d\.\d\d s",
        lines[1],
    ), screen
    assert len(lines) == 2

    model.then([insert(notebook, "print('kept', kept)", "cell-3")], [text("The end.")])
    client.send("Go on.")
    client.wait_for("The end.")
    assert "| kept 1" in model.shown()


def wait_until(received: Callable[[], bool], timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not received():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


@contextmanager
def log_process_starts(project: Path) -> Iterator[Path]:
    """Record the last argument of each started Python or compiled client."""
    folder, log = project / ".stepper" / "env" / "bin", project / "started"
    started = [folder / name for name in ("python", "hook") if (folder / name).exists()]
    for program in started:
        # uv's python is a link to the system's; the folder decides which environment it
        # uses
        program.rename(f"{program}-real")
        program.write_text(
            f'#!/bin/sh\nfor last; do :; done\necho "$last" >>{shlex.quote(str(log))}\nexec "$0-real" "$@"\n'
        )
        program.chmod(0o755)
    log.touch()
    try:
        yield log
    finally:
        for program in started:
            Path(f"{program}-real").replace(program)


@pytest.mark.nightly
def test_edits_of_other_files_start_nothing(
    project: Path, notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    script, other_notebook = (
        project / "notebooks" / "tool.py",
        project / "elsewhere.ipynb",
    )
    model = scripted_model(
        [tool("Write", {"file_path": str(script), "content": "x = 1\n"})],
        [
            tool(
                "Edit", {"file_path": str(script), "old_string": "1", "new_string": "2"}
            )
        ],
        [tool("Bash", {"command": "ls", "description": "List"}), read(notebook)],
    )
    of_edits = {"PreToolUse", "PostToolUse", "PostToolBatch"}
    with log_process_starts(project) as log:
        claude(model).prompt("Write this and that.")
        assert script.read_text() == "x = 2\n"
        assert not of_edits & set(log.read_text().split()), log.read_text()

        model.then(
            [write(other_notebook, "x = 1")], [insert(other_notebook, "x = 2", "a")]
        )
        claude(model).prompt("And a notebook that nothing covers.")
        assert (
            len(cells(other_notebook)) == 2
            and model.shown().count("NOT run: elsewhere.ipynb does not match") == 1
        )
        assert all(
            cell.get("execution_count") is None for cell in cells(other_notebook)
        )

        # the wrapper works; without this the test could not fail
        model.then([read(notebook)], [insert(notebook, "print('seen')", "cell-0")])
        claude(model).prompt("Now a cell.")
        assert of_edits <= set(log.read_text().split()), log.read_text()
        assert "| seen" in model.shown()


@pytest.mark.nightly
def test_agent_inspects_values_before_retry_and_reads_the_reported_figure(
    notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    def below(source: str) -> Callable[[list[Message]], list[Block]]:
        return lambda messages: [
            insert(notebook, source, find_last_edited_cell(messages))
        ]

    def replace_again(source: str) -> Callable[[list[Message]], list[Block]]:
        return lambda messages: [
            replace(notebook, source, find_last_edited_cell(messages))
        ]

    def read_figure(messages: list[Message]) -> list[Block]:
        matches = re.findall(r'Figure 1: "?(/.*?\.png)"? \(', collect_text(messages))
        return [read(Path(matches[-1]))]

    bash = {"command": "stepper eval 'list(prices)'", "description": "Look at the keys"}
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "prices = {'high ': 3}\nprint(prices_of)", "cell-0")],
        replace_again("prices = {'high ': 3}\nprices['high']"),
        [tool("Bash", bash)],
        lambda messages: [
            replace(
                notebook,
                "prices = {'high ': 3}\nprices['high ']",
                list_code_cell_ids(notebook)[-1],
            )
        ],
        lambda messages: [insert(notebook, PLOT, list_code_cell_ids(notebook)[-1])],
        read_figure,
    )

    claude(model).prompt("Plot the prices.")

    assert (
        "did NOT run. The preflight check found NameError: name 'prices_of' is not defined"
        in get_new_text(model, 2)
    )
    assert (
        "This does not count as an attempt. To run the cell anyway, submit the same code"
        in get_new_text(model, 2)
    )
    assert (
        "Suggestion: `prices` (dict) has 1 key; most similar: 'high '"
        in get_new_text(model, 3)
    )
    assert "stepper: eval ran ok in" in get_new_text(
        model, 4
    ) and "| ['high ']" in get_new_text(model, 4)
    assert "ran ok in" in get_new_text(model, 5)
    assert re.search(
        r'\(\d+ × \d+\): "Prices".*1 line \(3 points\)', get_new_text(model, 6)
    )
    outputs = [
        block
        for message in model.requests[-1]
        for block in pictures_in(message["content"])
    ]
    assert len(outputs) == 1, (
        f"the client shows the saved picture to the model: {tool_results(model.requests[-1])[-1]}"
    )
    assert [run["outcome"] for run in history(notebook)] == ["error", "ok", "ok"]


PLOT = """%matplotlib inline
import matplotlib.pyplot as plt
fig, ax = plt.subplots()
ax.plot([1, 2, 3], [3, 1, 2])
ax.set_title("Prices")
plt.show()"""


def list_code_cell_ids(notebook: Path) -> list[str]:
    return [cell["id"] for cell in cells(notebook) if cell["cell_type"] == "code"]


def pictures_in(content: Any) -> list[Block]:
    """Return the images in a message's content, including tool results."""
    blocks = content if isinstance(content, list) else []
    inner = [item for block in blocks for item in pictures_in(block.get("content"))]
    return [block for block in blocks if block.get("type") == "image"] + inner


@pytest.mark.nightly
def test_magic_and_late_outputs_are_in_their_cells_and_reported(
    notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    def next_cell(source: str) -> Callable[[list[Message]], list[Block]]:
        return lambda messages: [
            insert(notebook, source, find_last_edited_cell(messages))
        ]

    late = "import threading\nthreading.Timer(1, print, ['LATE']).start()\nh = display('one', display_id=True)"
    pause = [
        tool("Bash", {"command": "sleep 4", "description": "Wait"}),
        read(notebook),
    ]
    model = scripted_model(
        [read(notebook)],
        next_cell("%%bash\necho said once"),
        next_cell("%%bash\necho said again"),
        next_cell(late),
        pause,
        next_cell("h.update('two')"),
        next_cell("print('next')"),
        [text("The end.")],
    )
    result = claude(model).prompt("Go on with the notebook.")
    assert (result.returncode, result.text, model.unsaid) == (0, "The end.", 0), result
    assert [out for _, out in code(notebook)] == [
        "said once\n",
        "said again\n",
        "LATE\n",
        "",
        "next\n",
    ]
    outputs = [
        out["data"]["text/plain"]
        for cell in cells(notebook)
        for out in cell.get("outputs", [])
        if "data" in out
    ]
    assert outputs == [["'two'"]]
    assert "| said again" in get_new_text(model, 3)
    assert "LATE" in get_new_text(model, 5), "the client reads it in the file"
    assert re.search(
        r"Note: 5 characters and 1 display update arrived for cell 3 \(id \w+\) after its run; the notebook was updated\.",
        get_new_text(model, 6),
    )
