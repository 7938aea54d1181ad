"""`./install.sh --demo` from the checkout, end to end.

The demo also detects unexpected results.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import psutil
import pytest

from examples import demo
from stepper.common.errors import StepperError
from stepper.common.paths import Paths

ROOT = Path(__file__).resolve().parent.parent
# The packages may have to be downloaded over a slow line, without uv.
pytestmark = pytest.mark.timeout(900)


class DemoRun(NamedTuple):
    """The demo's exit code and output, and its scratch repository."""

    code: int
    out: str
    err: str
    target: Path

    @property
    def notebook(self) -> Path:
        (path,) = (self.target / "notebooks").glob("*.ipynb")
        return path

    @property
    def code_cells(self) -> list[dict[str, Any]]:
        return [
            cell
            for cell in json.loads(self.notebook.read_text())["cells"]
            if cell["cell_type"] == "code"
        ]


@pytest.fixture(scope="module")
def demo_run() -> Iterator[DemoRun]:
    bin_folder, path = Path(sys.executable).parent, os.environ["PATH"]
    if (bin_folder / "uv").exists():  # three times as fast as pip
        path = f"{bin_folder}{os.pathsep}{path}"
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run(
            [ROOT / "install.sh", "--demo"],
            cwd=scratch,
            env={**os.environ, "PATH": path, "TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        (target,) = Path(scratch).glob("stepper-demo-*")
        yield DemoRun(result.returncode, result.stdout, result.stderr, target.resolve())
        shutil.rmtree(Paths(str(target)).runtime, ignore_errors=True)


@pytest.mark.nightly
def test_demo_succeeds_and_prints_what_happened(demo_run: DemoRun) -> None:
    assert demo_run.code == 0, demo_run.out + demo_run.err
    lines = demo_run.out.splitlines()
    observed = [
        line.split(maxsplit=2)[2] for line in lines if line.startswith("  you see ")
    ]
    expected = []
    for number, step in enumerate(demo.STEPS, 1):
        step_label = f'step {number} of 7 "{step.title}" · '
        expected += (
            [f"✗ {step_label}NameError: name 'WET_DAY_MM' is not defined"]
            if step.forgotten
            else []
        )
        expected += [f"✓ {step_label}ok"]
    assert [" · ".join(line.split(" · ")[:2]) for line in observed] == expected
    assert sum("insert markdown cell" in line for line in lines) == 7
    # the line of the earlier cell's function
    assert 'return days["precipitation"] >= WET_DAY_MM' in demo_run.out
    assert "complete, 7 of 7 steps done" in demo_run.out
    assert (
        "REPRODUCES · 7 of 7 cells as recorded · " in demo_run.out
        and "1 fresh kernel;" in demo_run.out
    )
    assert f"  · file {demo.RESULT}: rewritten with the same content" in lines
    assert str(demo_run.notebook) in demo_run.out
    assert "/new-notebook" in lines[-1]


@pytest.mark.nightly
def test_notebook_is_valid_and_has_seven_steps(demo_run: DemoRun) -> None:
    nbformat.validate(nbformat.read(demo_run.notebook, as_version=4))
    assert ["".join(cell["source"]) for cell in demo_run.code_cells] == [
        step.code for step in demo.STEPS
    ]
    # 5 raised, 6 is its fix
    assert [cell["execution_count"] for cell in demo_run.code_cells] == [
        1,
        2,
        3,
        4,
        6,
        7,
        8,
    ]
    assert all(
        cell["metadata"]["execution"]["shell.execute_reply"]
        for cell in demo_run.code_cells
    )
    assert not any(
        output["output_type"] == "error"
        for cell in demo_run.code_cells
        for output in cell["outputs"]
    )


@pytest.mark.nightly
def test_figure_is_in_the_notebook_and_results_are_saved(
    demo_run: DemoRun,
) -> None:
    pictures = [
        output["data"].get("image/png") for output in demo_run.code_cells[5]["outputs"]
    ]
    # the signature of PNG
    assert len(pictures) == 1 and pictures[0].startswith("iVBORw0KGgo")
    results = demo_run.notebook.with_name(demo.RESULT).read_text().splitlines()
    assert results[0] == "month,precipitation,wet_days,temp_max,temp_min"
    assert results[7].startswith("7,12.05,1.75,") and len(results) == 13


@pytest.mark.nightly
def test_no_process_remains(demo_run: DemoRun) -> None:
    def of_the_demo(process: psutil.Process) -> bool:
        try:
            return any(
                str(demo_run.target) in part
                for part in [*process.cmdline(), process.cwd()]
            )
        except psutil.Error:
            return False

    assert [
        process.cmdline() for process in psutil.process_iter() if of_the_demo(process)
    ] == []
    assert not Path(Paths(str(demo_run.target)).socket).exists()


@pytest.fixture
def player(tmp_path: Path) -> demo.Player:
    """A player with a notebook of one cell, and a hook that prints the file `response`."""
    script = tmp_path / ".claude" / "hooks" / "stepper"
    script.parent.mkdir(parents=True)
    script.write_text(
        '#!/bin/sh\ncat >"${0%/*}/$1"\n[ "$1" != PostToolUse ] || cat "${0%/*}/response"\n'
    )
    script.chmod(0o755)
    script.with_name("response").touch()
    cell = nbformat.v4.new_markdown_cell("# A problem", id="first")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    return demo.Player(str(tmp_path), "a.ipynb")


def write_hook_response(player: demo.Player, text: str) -> None:
    answer = {
        "hookSpecificOutput": {
            "hookEventName": "PostToolUse",
            "additionalContext": text,
        },
        "systemMessage": "line",
    }
    Path(player.target, ".claude/hooks/response").write_text(json.dumps(answer))


@pytest.mark.parametrize(
    "report",
    ["", "stepper: the cell was NOT run: no kernel", "stepper: Cell 1 FAILED\nran ok"],
)
def test_failed_cell_stops_the_demo(player: demo.Player, report: str) -> None:
    if report:
        write_hook_response(player, report)
    with pytest.raises(StepperError, match="expected ran ok"):
        player.play("code", "1")


def test_report_on_a_markdown_cell_stops_the_demo(player: demo.Player) -> None:
    player.play("markdown", "words")
    write_hook_response(player, "stepper: Cell 1 ran ok")
    with pytest.raises(StepperError, match="expected no answer"):
        player.play("markdown", "words")


def test_edit_is_written_and_sent_like_claude_code(player: demo.Player) -> None:
    write_hook_response(player, "stepper: Cell 1 ran ok")
    player.play("code", "é")
    original_file = player.notebook.read_text()
    player.play("code", "fixed", replace=True)

    cells = json.loads(player.notebook.read_text())["cells"]
    assert [cell["source"] for cell in cells] == [["# A problem"], "fixed"]
    # The file is indented by 1 and contains non-ASCII letters unescaped.
    assert '   "source": "é"' in original_file
    assert original_file.endswith("}\n")
    payload = json.loads(Path(player.target, ".claude/hooks/PostToolUse").read_text())
    assert payload["tool_input"] == {
        "notebook_path": str(player.notebook),
        "cell_id": cells[1]["id"],
        "new_source": "fixed",
    }
    response = payload["tool_response"]
    assert (response["old_source"], response["cell_id"], response["original_file"]) == (
        "é",
        cells[1]["id"],
        original_file,
    )
    batch = json.loads(Path(player.target, ".claude/hooks/PostToolBatch").read_text())
    assert batch["tool_calls"][0]["tool_use_id"] == payload["tool_use_id"]


def test_notebook_without_its_figure_is_not_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.with_name(demo.RESULT).touch()
    figure = nbformat.v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})
    cells = [
        nbformat.v4.new_code_cell(step.code, execution_count=1) for step in demo.STEPS
    ]
    cells[5].outputs = [figure]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    demo.check(path, "complete")

    with pytest.raises(StepperError, match="ready"):
        demo.check(path, "ready")
    cells[5].outputs = []
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(StepperError, match=r"0 figure"):
        demo.check(path, "complete")


def test_demo_fails_if_the_folder_is_not_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path)])
    assert demo.main() == 1
    assert "is not set up" in capsys.readouterr().err
