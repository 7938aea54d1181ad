"""What the model reads of a notebook: the digest, at any size, and edits after it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import ClaudeFactory, StreamFactory
from .model import Block, Message, cell_ids, text, tool, tool_results
from .repository import repository, stepper
from .test_run_on_edit import Model, delete, insert, read, replace

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    with repository(tmp_path_factory.mktemp("read") / "project") as folder:
        (folder / ".stepper" / "config.yaml").write_text("max_cells: 1000\n")
        # The hook waits 2 s for a digest; the start of the daemon can take longer.
        stepper(folder, "status")
        yield folder


def make_notebook(path: Path, count: int, size: int) -> dict[str, Any]:
    """Write a notebook with recorded outputs; the cell c3 fails."""
    cells = []
    for number in range(count):
        line = f"{number} {'abcdefghij' * 6}\n"
        cells.append(
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {},
                "execution_count": number + 1,
                "source": f"x{number} = {number}\nx{number}",
                "outputs": [
                    {
                        "output_type": "stream",
                        "name": "stdout",
                        "text": [line] * (size // len(line)),
                    }
                ],
            }
        )
    cells[3]["source"] = "y = 1 / 0\ny"
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, indent=1))
    return notebook


def get_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    return {
        cell["id"]: ["".join(output.get("text", "")) for output in cell["outputs"]]
        for cell in notebook["cells"]
    }


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(5, 500, marks=pytest.mark.nightly),
        # The hook waits 2 s for a digest; for a small one, also on a slow machine.
        (60, 5000),  # 300 kB
        pytest.param(400, 5000, marks=pytest.mark.nightly),  # 2 MB
        pytest.param(400, 50_000, marks=pytest.mark.nightly),  # 20 MB
        pytest.param(400, 150_000, marks=pytest.mark.nightly),  # 60 MB
    ],
)
def test_read_and_edit_a_notebook_by_its_digest(
    scripted_model: Model, claude: ClaudeFactory, project: Path, count: int, size: int
) -> None:
    """Fix the failing cell, insert a cell below it, and delete another one."""
    path = project / "notebooks" / f"n{count}-{size}.ipynb"
    before = make_notebook(path, count, size)

    def fix(messages: list[Message]) -> list[Block]:
        digest = tool_results(messages)[0]
        (failing,) = re.findall(
            r'<cell id="(\w+)">[^\n]*\n\s*\d+\t\| y = 1 / 0\n', digest
        )
        return [replace(path, "y = 1 / 2\ny", failing)]

    def add(messages: list[Message]) -> list[Block]:
        return [insert(path, "y + 1", cell_ids(messages)[3])]

    def drop(messages: list[Message]) -> list[Block]:
        return [delete(path, cell_ids(messages)[1])]

    model = scripted_model([read(path)], fix, add, drop, [read(path)], [text("end")])
    claude(model).prompt("go", timeout=200)
    digest, *edits, last = tool_results(model.requests[-1])
    assert digest.startswith("1\tstepper: notebooks/")
    assert digest.count("<cell id=") == count
    assert [edit.split()[0] for edit in edits] == ["Updated", "Inserted", "Deleted"]
    assert last.count("<cell id=") == count
    assert "Changed since this agent read the notebook last:" in last
    after = json.loads(path.read_text())
    sources = ["".join(cell["source"]) for cell in after["cells"]]
    assert sources[:4] == ["x0 = 0\nx0", "x2 = 2\nx2", "y = 1 / 2\ny", "y + 1"]
    outputs = get_outputs(after)
    for cell_id, expected in get_outputs(before).items():
        if cell_id not in ("c1", "c3"):
            assert outputs[cell_id] == expected
    assert "0.5" in json.dumps(after["cells"][2]["outputs"])
    assert list((project / ".stepper" / "reads").glob("*")) == []


@pytest.mark.nightly
def test_large_notebook_in_two_turns(
    scripted_model: Model, stream_claude: StreamFactory, project: Path
) -> None:
    """Other programs can notice the edits of a turn; the next turn begins with a Read."""
    path = project / "notebooks" / "turns.ipynb"
    make_notebook(path, 120, 7000)
    os.utime(path, (1, 1))
    times = []

    def edit(source: str) -> Callable[[list[Message]], list[Block]]:
        def turn(messages: list[Message]) -> list[Block]:
            times.append(path.stat().st_mtime)
            return [replace(path, source, "c1")]

        return turn

    model = scripted_model([read(path)], edit("1"), edit("2"), [text("end 1")])
    client = stream_claude(model)
    client.send("go")
    client.wait_for("end 1")
    results = tool_results(model.requests[-1])
    assert [result.split()[0] for result in results[1:]] == ["Updated"] * 2
    deadline = time.monotonic() + 10
    while path.stat().st_mtime == times[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    model.then(edit("3"), [read(path)], edit("4"), [text("end 2")])
    client.send("go on")
    client.wait_for("end 2")
    results = tool_results(model.requests[-1])
    assert "modified since read" in results[3]
    assert results[4].startswith("1\tstepper: notebooks/")
    assert results[5].startswith("Updated")
    assert json.loads(path.read_text())["cells"][1]["source"] == ["4"]


def test_more_lines_of_a_digest(
    scripted_model: Model, claude: ClaudeFactory, project: Path
) -> None:
    path = project / "notebooks" / "lines.ipynb"
    make_notebook(path, 20, 500)
    part = tool("Read", {"file_path": str(path), "offset": 10, "limit": 3})
    model = scripted_model([read(path)], [part], [read(path)], [text("end")])
    claude(model).prompt("go")
    whole, lines, second_read = tool_results(model.requests[-1])
    assert lines.split("\n") == whole.split("\n")[9:12]
    assert "the notebook last: nothing." in second_read


def test_raw_notebook(
    scripted_model: Model, claude: ClaudeFactory, project: Path
) -> None:
    config = project / ".stepper" / "config.yaml"
    settings = config.read_text()
    config.write_text("read: raw\n")
    try:
        path = project / "notebooks" / "raw.ipynb"
        make_notebook(path, 5, 500)
        model = scripted_model([read(path)], [text("end")])
        claude(model).prompt("go")
        (raw,) = tool_results(model.requests[-1])
        assert raw.startswith('<cell id="c0">x0 = 0')
    finally:
        config.write_text(settings)
