"""The command line: help, states, lists, colors, times, Ctrl-C and completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pexpect
import pytest
from click.testing import CliRunner

from stepper.cli import shell_completion, terminal
from stepper.cli.keyboard_interrupt import InterruptHandler
from stepper.cli.main import EXIT_CODES, main
from stepper.cli.rendering import RENDERINGS
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.install import user_script
from stepper.messages import stop_suggestion
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_schema import GROUPS
from tests.conftest import ROOT, Project, code, mark_nightly, reuse_project
from tests.test_run_on_edit import wait_until

SHELLS = ("bash", "zsh", "fish")
COMMAND = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'stepper'\nfrom stepper.cli.main import main; main()"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, prog_name="stepper")
    assert result.exit_code == 0, result.output
    return result.output


# --- help -----------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_help_is_grouped_and_not_truncated(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    help_text = invoke("-h")
    assert help_text == invoke("--help")
    positions = [help_text.index(f"\n{title}:") for title in GROUPS]
    assert positions == sorted(positions) and "..." not in help_text.replace(
        "[ARGS]...", ""
    )
    joined_text = " ".join(help_text.split())
    for name, row in COMMANDS.items():
        assert row.group in GROUPS and row.summary in joined_text, name
    assert "Examples:" in help_text and EXIT_CODES in joined_text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name: str) -> None:
    row = COMMANDS[name]
    help_text = invoke(*name.split(), "-h")
    assert EXIT_CODES in help_text and help_text == invoke(*name.split(), "--help")
    assert ("--json" in help_text) == RENDERINGS[name].has_json
    for example in row.examples:  # the file that it names exists
        arguments = shlex.split(example.split(" > ")[0].split(" < ")[0])
        group, remaining = main, arguments
        while (
            isinstance(group, click.Group)
            and remaining
            and remaining[0] in group.commands
        ):
            group, remaining = group.commands[remaining[0]], remaining[1:]  # type: ignore[assignment]
        assert group is not main and group.make_context(
            "stepper", list(remaining), resilient_parsing=False
        )


@pytest.mark.nightly
def test_plan_subcommand_aliases(project: Project) -> None:
    notebook = project.new("Load", "Look", "Tell")
    help_text = invoke("plan", "-h")
    assert all(word in help_text for word in ("show", "rm", "remove", "--json"))
    assert project.stepper("plan", "show").stdout == project.stepper("plan").stdout
    name = notebook.path.stem
    assert (
        project.json("plan", "show", name)
        == project.json("plan", name)
        == project.json("plan")
    )
    assert [step["title"] for step in project.json("plan", "rm", "2")["steps"]] == [
        "Load",
        "Tell",
    ]
    assert [step["title"] for step in project.json("plan", "remove", "3")["steps"]] == [
        "Load"
    ]


# --- status of notebooks --------------------------------------------------------------


def test_status_of_stopped_notebook_shows_reason_question_and_commands(
    project: Project,
) -> None:
    notebook = project.new("Load", "Clean :: no holes")
    notebook.insert("x = 1")
    cell, _ = notebook.insert('raise RuntimeError("STOP: may rows be dropped?")')
    output = project.stepper("status").stdout
    assert (
        f"Stopped at cell 2 (id {cell}): RuntimeError: STOP: may rows be dropped?"
        in output
    )
    assert "The agent asks: may rows be dropped?" in output
    assert (
        f"Suggestion: {stop_suggestion.fill_commands(stop_suggestion.ANSWER, notebook.commands)}"
        in output
    )
    # the notebook is named if there are several
    for command in (
        "continue",
        "fix",
        "skip",
    ):
        assert re.search(
            rf"\n  stepper {command} (--notebook \S+ )?\[[A-Z]+\] ", output
        ), output
    assert "stepper restore" not in output, "the variables still exist"
    stop = project.json("status")["stop"]
    assert (
        stop["cell_id"] == cell
        and stop["question"] == "may rows be dropped?"
        and len(stop["ways"]) == 3
    )
    response = project.hook(
        "UserPromptSubmit",
        {"session_id": "session-1", "prompt": "show status", "cwd": "/"},
    ).text
    assert "The agent asks: may rows be dropped?" in response
    project.stepper("continue")
    assert project.json("status")["stop"] is None


@pytest.mark.nightly
def test_complete_notebook_is_not_reported_in_progress(project: Project) -> None:
    notebook = project.new("Load", "Look")
    notebook.insert("x = 1")
    assert "is in progress (ready)." in project.stepper("context").stdout
    notebook.insert("x")
    assert f"{notebook.path.name} is complete.\n" in project.stepper("context").stdout


def test_use_applies_to_the_session_of_its_shell(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "theirs"):
        project.notebook(f"{name}.ipynb", [code("1", "a")])
    project.stepper("use", "mine")
    monkeypatch.setenv("STEPPER_SESSION", "session-of-use")
    project.stepper("use", "theirs")
    monkeypatch.delenv("STEPPER_SESSION")
    project.stepper("use", "mine")
    assert project.json("status")["notebook"] == "notebooks/mine.ipynb"
    monkeypatch.setenv("STEPPER_SESSION", "session-of-use")
    assert project.json("status")["notebook"] == "notebooks/theirs.ipynb"


@pytest.mark.nightly
def test_stop_without_question_shows_no_question(project: Project) -> None:
    notebook = project.new("Load")
    notebook.insert("raise PermissionError(13, 'no', 'x.csv')")
    stop = project.json("status")["stop"]
    assert (
        stop["question"] is None
        and "asks" not in stop["text"]
        and "give access to x.csv" in stop["text"]
    )


@pytest.mark.nightly
def test_status_without_a_plan_lists_cells(project: Project) -> None:
    cells = [code("x = 1\nx", "a"), code("1 / 0", "b"), code("# later\ny = 2", "c")]
    notebook = project.notebook("cells.ipynb", cells)
    project.stepper("run", "cells", check=1)
    lines = project.stepper("status", "cells").stdout.splitlines()
    assert lines[1:4] == [
        "  ✓ cell 1 (id a): x = 1",
        "  ✗ cell 2 (id b): 1 / 0",
        "  · cell 3 (id c): # later",
    ]
    status = project.json("status", "cells")
    assert [cell["status"] for cell in status["cells"]] == [
        "done",
        "failed",
        "pending",
    ] and status["steps"] == []
    assert "did NOT run" in notebook.replace("c", "undefined_thing").text
    assert project.json("status", "cells")["cells"][2]["status"] == "failed"
    raw = notebook.raw
    raw["cells"][0]["source"] = "x = 3"  # an external change
    notebook.path.write_text(json.dumps(raw))
    assert project.json("status", "cells")["cells"][0]["status"] == "changed"


def test_list_use_and_shutdown_of_one_kernel(project: Project) -> None:
    first = project.new("Load", "Look")
    first.insert("x = 1")
    project.notebook("other.ipynb", [code("1", "a"), code("2", "b")])
    (project.folder / "notebooks" / ".ipynb_checkpoints").mkdir(exist_ok=True)
    shutil.copy(
        first.path, project.folder / "notebooks" / ".ipynb_checkpoints" / "copy.ipynb"
    )
    (project.folder / "notebooks" / "broken.ipynb").write_text("{")
    name = f"notebooks/{first.path.name}"
    by_notebook = {notebook["notebook"]: notebook for notebook in project.json("list")}
    assert not [result for result in by_notebook if "checkpoints" in result]
    assert by_notebook[name]["current"] and by_notebook[name]["progress"] == {
        "done": 1,
        "of": 2,
        "what": "steps",
        "skipped": 0,
    }
    assert (
        by_notebook[name]["kernel"]["state"] == "idle"
        and by_notebook[name]["kernel"]["rss_bytes"] > 1e6
    )
    assert by_notebook["notebooks/other.ipynb"]["progress"] == {
        "done": 0,
        "of": 2,
        "what": "cells",
        "skipped": 0,
    }
    assert by_notebook["notebooks/broken.ipynb"]["state"] == "unreadable"
    assert 0 <= by_notebook[name]["age_s"] < 600
    lines = project.stepper("list").stdout.splitlines()
    assert lines[0].split() == [
        "notebook",
        "state",
        "progress",
        "kernel",
        "memory",
        "age",
    ]
    (row,) = [line for line in lines if name in line]
    assert row.startswith("* ") and re.search(
        r"ready +1 of 2 steps +idle +\d+ MB ", row
    )

    assert (
        "notebooks/other.ipynb is now the current notebook."
        in project.stepper("use", "other").stdout
    )
    assert project.json("status")["notebook"] == "notebooks/other.ipynb"
    assert (
        "there is no notebook 'nowhere'"
        in project.stepper("use", "nowhere", check=2).stderr
    )
    assert "no kernel is running" in project.stepper("shutdown", "other").stdout
    project.stepper("run", "other")
    assert "stopped the kernel" in project.stepper("shutdown", first.path.stem).stdout
    by_notebook = {
        notebook["notebook"]: notebook["kernel"]["state"]
        for notebook in project.json("list")
    }
    assert (
        by_notebook[name] == "none" and by_notebook["notebooks/other.ipynb"] == "idle"
    )
    lost = project.stepper("status", first.path.stem).stdout
    assert "kernel: none; state lost: it was shut down by `stepper shutdown`" in lost
    assert (
        "state lost: it was shut down by `stepper shutdown`"
        in first.insert("y = 2")[1].text
    )
    assert (
        "there is no notebook" in project.stepper("shutdown", "nowhere", check=2).stderr
    )


@pytest.mark.nightly
def test_kernel_of_deleted_notebook_is_listed_and_can_be_shut_down(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    name = f"notebooks/{notebook.path.name}"
    notebook.path.unlink()
    (row,) = [
        notebook for notebook in project.json("list") if notebook["notebook"] == name
    ]
    assert (row["state"], row["kernel"]["state"]) == ("deleted", "idle")
    assert f"{name}  deleted" in project.stepper("list").stdout
    assert project.json("status")["state"] == "deleted"
    assert project.stepper("status").stdout.startswith(f"{name}: deleted")
    project.kill_daemon()  # the next daemon finds the kernel by its record
    assert [
        notebook["state"]
        for notebook in project.json("list")
        if notebook["notebook"] == name
    ] == ["deleted"]
    assert "kernel" in project.stepper("shutdown", name).stdout
    assert [
        notebook for notebook in project.json("list") if notebook["notebook"] == name
    ] == []


def test_plan_with_invalid_criterion_is_refused(project: Project) -> None:
    before = sorted((project.folder / "notebooks").glob("*.ipynb"))
    result = project.stepper("new", "a slip", "--step", "Train :: score = 3", check=2)
    assert "step 1: the criterion `score = 3` has `=`" in result.stderr
    assert "to compare, write `score == 3`" in result.stderr
    assert sorted((project.folder / "notebooks").glob("*.ipynb")) == before
    notebook = project.new("Train :: score > 0.9")
    for change in (["add", "Test :: score >"], ["edit", "1", "Train :: score ="]):
        result = project.stepper("plan", *change, check=2)
        assert "nothing is compared with `score`" in result.stderr
    assert notebook.raw["metadata"]["stepper"]["steps"][0]["criterion"] == "score > 0.9"


@pytest.mark.parametrize("content", [b"- caf\xe9\n", b"- 2024-99-99\n", b"- [\n"])
def test_invalid_plan_file_is_wrong_usage(tmp_path: Path, content: bytes) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_bytes(content)
    arguments = ["new", "p", "--plan", str(plan)]
    result = CliRunner().invoke(main, arguments, prog_name="stepper")
    assert result.exit_code == 2, result.output
    assert "the plan is not valid YAML" in result.output


def test_notebook_is_found_without_date_prefix(project: Project) -> None:
    project.notebook("2026_11_24_zoo.ipynb")
    assert project.json("use", "zoo")["notebook"] == "notebooks/2026_11_24_zoo.ipynb"
    project.notebook("2026_11_25_zoo.ipynb")
    several = project.stepper("use", "zoo", check=2).stderr
    assert (
        "2 notebooks match the name 'zoo': notebooks/2026_11_24_zoo.ipynb, notebooks/2026_11_25_zoo.ipynb"
        in several
    )
    project.notebook("zoo.ipynb")
    assert project.json("use", "zoo")["notebook"] == "notebooks/zoo.ipynb"
    assert "there is no notebook 'zo'" in project.stepper("use", "zo", check=2).stderr


def test_list_includes_notebooks_of_all_folders(project: Project) -> None:
    folder = project.folder / "notebooks"
    for number in range(30):
        (folder / f"many{number}").mkdir(parents=True)
        project.notebook(f"many{number}/a.ipynb")
    project.config("")
    listed = project.stepper("list")
    # within the time limit: all notebooks
    assert listed.stdout.count("many") == 30 and listed.stderr == ""
    assert len(project.json("list", "--all")) == len(project.json("list"))


# --- variables, outputs, shutdown -----------------------------------------------------


def test_eval_prints_the_plain_value(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.new("One").insert("x = [1, 2]")
    assert project.stepper("eval", "x").stdout == "[1, 2]\n"
    assert (
        project.stepper("eval", "print('a\\n| b'); '\x1b[31mred'").stdout
        == "a\n| b\n'\\x1b[31mred'\n"
    )
    assert project.stepper("eval", "y = 3").stdout == ""
    assert project.json("eval", "x")["output"] == "[1, 2]"
    failed = project.stepper("eval", "x.y", check=1).stdout
    assert "AttributeError: 'list' object has no attribute 'y'" in failed
    # printed text must not look like stepper's
    monkeypatch.setenv("STEPPER_SESSION", "an-agents")
    assert project.stepper("eval", "x").stdout.endswith("Output:\n| [1, 2]\n")


def test_run_prints_the_result_of_each_cell(project: Project) -> None:
    cells = [code("print('é' * 3)\n7", "a"), code("{}['k']", "b"), code("3", "c")]
    project.notebook("results.ipynb", cells)
    response = project.json("run", "results", check=1)
    assert [
        (result["cell"], result["cell_id"], result["outcome"])
        for result in response["results"]
    ] == [
        (1, "a", "ok"),
        (2, "b", "error"),
    ]
    first, second = response["results"]
    assert (
        first["output"] == "ééé\n7"
        and first["fault"] is None
        and first["duration_s"] >= 0
    )
    assert (
        second["fault"]["ename"] == "KeyError"
        and response["ran"] == 1
        and response["cells"] == 3
    )


def start_command(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", COMMAND, *arguments],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("verb", mark_nightly(["run", "eval"], "run"))
def test_ctrl_c_reports_the_cancelled_run(project: Project, verb: str) -> None:
    arguments = [verb, "long" if verb == "run" else "import time; time.sleep(60)"]
    sleeps = "import time\nfor _ in range(600):\n    time.sleep(0.1)"
    name = "long" if arguments[0] == "run" else "looked"
    project.notebook(
        f"{name}.ipynb",
        [code("x = 1", "a"), code(sleeps if name == "long" else "0", "b")],
    )
    if name == "looked":
        project.stepper("run", name)
    with start_command(project, *arguments) as command:
        wait_until(lambda: project.json("status", name)["kernel"]["state"] == "busy")
        if arguments[0] == "run":
            wait_until(
                lambda: project.json("status", name)["cells"][1]["status"] == "running"
            )
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=120)
    assert command.returncode == 130 and "interrupting" in err
    assert re.search(r"was CANCELLED after [\d.]+ s", out)
    assert project.json("status", name)["kernel"]["state"] == "idle"
    assert project.json("eval", "1")["outcome"] == "ok"
    if arguments[0] == "run":
        assert "■ cell 2" in out and "1 of 2 cells ran ok" in out


@pytest.mark.nightly
def test_ctrl_c_while_waiting_interrupts_no_other_cell(project: Project) -> None:
    project.notebook("busy.ipynb", [code("import time\ntime.sleep(60)", "a")])
    with start_command(project, "run", "busy") as first:
        wait_until(lambda: project.json("status", "busy")["kernel"]["state"] == "busy")
        with start_command(project, "eval", "1", "--notebook", "busy") as second:
            assert second.stderr.readline()  # it reports that it is waiting
            second.send_signal(signal.SIGINT)
            _, err = second.communicate(timeout=120)
        assert second.returncode == 130 and "the code did not run" in err
        assert (
            first.poll() is None
            and project.json("status", "busy")["kernel"]["state"] == "busy"
        )
        project.stepper("interrupt", "busy")
        first.communicate(timeout=120)
    assert first.returncode == 1


@pytest.mark.nightly
def test_second_ctrl_c_exits_immediately(project: Project) -> None:
    deaf = "import time\nfor _ in range(30):\n    try:\n        time.sleep(0.3)\n    except BaseException:\n        pass"
    project.notebook("deaf.ipynb", [code(deaf, "a")])
    with start_command(project, "run", "deaf") as command:
        wait_until(lambda: project.json("status", "deaf")["kernel"]["state"] == "busy")
        assert command.stderr is not None
        command.send_signal(signal.SIGINT)
        assert (
            command.stderr.readline().strip() == ""
            and "Ctrl-C again" in command.stderr.readline()
        )
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=120)
    assert (
        command.returncode == 130
        and "To see whether a cell is still running, run: stepper status deaf" in err
    )


def test_no_request_is_sent_after_ctrl_c() -> None:
    """Another thread may open a connection while Ctrl-C is handled."""
    first, peer = socket.socketpair()
    second, daemon = socket.socketpair()
    handler = InterruptHandler(runs_code=True)
    handler.add_connection(first)
    handler.handle_signal()
    with pytest.raises(StepperError, match="before the daemon received the request"):
        handler.add_connection(second)
    second.close()
    assert daemon.recv(1) == b""
    for each in (first, peer, daemon):
        each.close()


@pytest.mark.nightly
def test_second_ctrl_c_ends_several_replays(project: Project) -> None:
    deaf = """import os, time
if os.path.exists('deaf'):
    open(f'{os.getpid()}.begun', 'w').close()
    for _ in range(40):
        try:
            time.sleep(0.3)
        except BaseException:
            pass"""
    for name in ("a.ipynb", "b.ipynb"):
        project.notebook(name, [code(deaf, "a")])
        project.stepper("run", name)
    folder = project.folder / "notebooks"
    (folder / "deaf").touch()
    with start_command(project, "verify", "a", "b", "-j", "2") as command:
        wait_until(lambda: len([*folder.glob("*.begun")]) == 2)
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        assert command.stderr.readline().strip() == ""
        assert "Ctrl-C again" in command.stderr.readline()
        started = time.monotonic()
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=120)
    assert command.returncode == 130 and time.monotonic() - started < 3


# --- colors and times -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "terminal_there", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, True),
    ],
)
def test_color_detection(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    terminal_there: bool,
    expected: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal_there, raising=False)
    assert terminal.wants_color(sys.stdout) is expected


def test_only_marks_are_colored() -> None:
    colored = terminal.color_marks("a ✓ b\n  ✓ 1. x\n✗ y\n■ z\n✓w\n| ✓ printed")
    assert (
        colored
        == "a ✓ b\n  \x1b[32m✓\x1b[0m 1. x\n\x1b[31m✗\x1b[0m y\n\x1b[33m■\x1b[0m z\n✓w\n| ✓ printed"
    )


def test_terminal_gets_colors_and_pipe_does_not(project: Project) -> None:
    project.new("Load").insert("x = 1")
    project.notebook("coloured.ipynb", [code("1", "a")])
    assert "\x1b" not in project.stepper("status").stdout
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR")
    }

    def show(*arguments: str, **options: str) -> str:
        command = shlex.join([sys.executable, "-I", "-c", COMMAND, *arguments])
        return str(
            pexpect.run(
                command,
                cwd=str(project.folder),
                env={**environ, **options},
                encoding="utf-8",
            )
        )

    assert "\x1b[32m✓\x1b[0m 1. Load" in show("status", TERM="xterm")
    assert "\x1b[32m✓\x1b[0m cell 1" in show("run", "coloured", TERM="xterm")
    assert "\x1b[" not in show("status", TERM="xterm", NO_COLOR="1") + show(
        "status", TERM="dumb"
    )


@pytest.mark.nightly
def test_times_are_local_unless_utc_is_requested(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XST-5:30")  # UTC+05:30
    project.new("Load").insert("x = 1")
    at = project.json("history")[0]["started_at"]
    assert at.endswith("Z")
    utc, local = (
        start_command(project, "history", *options).communicate()[0].splitlines()
        for options in (["--utc"], [])
    )
    assert "started (UTC)" in utc[0] and at[:19].replace("T", " ") in utc[1]
    assert "started (XST)" in local[0] and at[:19].replace("T", " ") not in local[1]
    minutes = [int(line.split()[2][3:5]) for line in (utc[1], local[1])]
    assert (minutes[0] + 30) % 60 == minutes[1]


# --- completion -----------------------------------------------------------------------


def complete(project: Project, *arguments: str) -> list[str]:
    environ = {
        **os.environ,
        "_STEPPER_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["stepper", *arguments]),
        "COMP_CWORD": str(len(arguments)),
    }
    result = subprocess.run(
        [sys.executable, "-I", "-c", COMMAND],
        cwd=project.folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines()]


@pytest.mark.nightly
def test_completion_without_a_daemon(fresh_project: Project) -> None:
    project = fresh_project
    project.notebook(
        "deep/analysis.ipynb", [code("first = 1", "abc1"), code("second", "abd2")]
    )
    project.notebook("b.ipynb", [code("x", "q")])
    (project.folder / ".stepper" / "state.json").write_text(
        '{"current": "notebooks/deep/analysis.ipynb"}'
    )
    assert complete(project, "st") == ["status"]
    assert complete(project, "plan", "") == [
        "add",
        "edit",
        "move",
        "remove",
        "reopen",
        "rm",
        "show",
        "b",
        "deep/analysis",
    ]
    assert complete(project, "run", "") == ["b", "deep/analysis"]
    assert complete(project, "run", "notebooks/d") == ["notebooks/deep/analysis.ipynb"]
    assert complete(project, "status", "--j") == ["--json"]
    assert complete(project, "output", "") == ["1", "2"]
    assert complete(project, "output", "abd") == ["abd2"]
    assert complete(project, "output", "--notebook", "b", "q") == ["q"]
    assert complete(project, "output", "--notebook", "d") == ["deep/analysis"]
    assert complete(project, "completion", "") == list(SHELLS)
    assert not os.path.exists(project.paths.socket)


@pytest.fixture
def shell_project(fresh_project: Project, tmp_path: Path) -> Project:
    """A project with a notebook, and `stepper` on the PATH."""
    fresh_project.notebook("analysis.ipynb", [code("first = 1", "abc1")])
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "stepper"
    script.write_text(
        f'#!/bin/sh\nexec {sys.executable} -I -c {shlex.quote(COMMAND)} "$@"\n'
    )
    script.chmod(0o755)
    return fresh_project


@pytest.mark.parametrize("shell", mark_nightly(SHELLS, "bash"))
def test_completion_in_real_shells(
    shell_project: Project, tmp_path: Path, shell: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    environ = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
    }
    script = shell_project.stepper("completion", shell).stdout
    (tmp_path / "completion").write_text(script)
    if shell == "fish":
        completion_script = f"source {tmp_path}/completion; complete -C 'stepper stat'; complete -C 'stepper run '"
        result = subprocess.run(
            [shell, "--no-config", "-c", completion_script],
            cwd=shell_project.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (
            result.stdout.split("\t")[0] == "status" and "\nanalysis\n" in result.stdout
        ), result
        return
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    child = pexpect.spawn(
        shell,
        options,
        cwd=str(shell_project.folder),
        env=environ,
        encoding="utf-8",
        timeout=120,
    )
    if shell == "zsh":
        child.sendline("autoload -Uz compinit; compinit -u -D")
    child.sendline(f"source {tmp_path}/completion; echo rea''dy")
    child.expect("ready")
    child.send("echo : ; stepper stat\t")
    child.expect("stepper status")
    child.send("\x15stepper run ana\t")
    child.expect("run analysis")
    child.sendeof()
    child.close(force=True)


def test_bash_completes_names_with_special_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shell_completion, "_get_paths", lambda: Paths(str(tmp_path)))
    monkeypatch.setattr(
        shell_completion,
        "_list_notebooks",
        lambda _: {"zz$(touch x) y": str(tmp_path / "z.ipynb"), "plain": "p"},
    )
    for kind, name in (
        ("bash_complete", r"zz\$\(touch\ x\)\ y"),
        ("zsh_complete", "zz$(touch x) y"),
    ):
        monkeypatch.setenv(shell_completion.VARIABLE, kind)
        assert [
            item.value for item in shell_completion.complete_notebooks(None, "zz")
        ] == [name]


def test_cells_of_a_notebook_named_by_its_path_are_completed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shell_completion, "_get_paths", lambda: Paths(str(tmp_path)))
    monkeypatch.setattr(shell_completion, "get_current_folder", lambda: str(tmp_path))
    folder = tmp_path / "analysis"
    folder.mkdir()
    cells = [{"cell_type": "code", "id": "abc", "source": "x = 1"}]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    context = SimpleNamespace(
        params={"notebook": "../" + tmp_path.name + "/analysis/a.ipynb"}
    )
    items = shell_completion.complete_cells(context, "")
    assert [(item.value, item.help) for item in items] == [("1", "x = 1")]


def test_closed_pipe_is_not_an_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    program = "import sys; from stepper.cli.terminal import print_text; print_text('a'); print_text('b'); sys.stderr.write('went on')"
    result = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writes,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writes)
    assert (result.returncode, result.stderr) == (0, b"went on")


def test_user_script_stays_for_projects_with_any_folder_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = tmp_path / "records/env/shop/.stepper/env/bin/stepper"
    executable.parent.mkdir(parents=True)
    executable.touch()
    script = tmp_path / "stepper"
    script.write_text(
        f"# (notebook-stepper)\nany={tmp_path}/records/gone/bin/stepper\n"
    )
    monkeypatch.setattr(
        user_script, "get_record_root", lambda: str(tmp_path / "records")
    )
    monkeypatch.setattr(user_script, "get_script_path", lambda: script)
    assert "for your other projects" in user_script.remove_script().kept
    # a program that it starts without a project
    assert script.read_text().endswith(f"any={executable}\n")
    executable.unlink()
    assert user_script.remove_script().is_removed and not script.exists()
