"""Printed commands name their notebook if the project has several.

Without a name, a command resumes a notebook only if exactly one is stopped.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.common.program_name import find_program
from stepper.mcp import mcp_wording
from stepper.policy import edit_gate
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_lines import UNNAMED, CommandLines, replace_program
from stepper.session import output_following
from tests import test_session
from tests.conftest import ROOT, Notebook, code
from tests.realclient.repository import repository
from tests.test_run_on_edit import wait_until
from tests.test_session import Quick

project = test_session.project  # the fixture
NAMED = CommandLines("notebooks/a.ipynb")
SPACED = CommandLines("notebooks/my sales.ipynb")


@pytest.mark.parametrize(
    "commands, command, arguments, line",
    [
        (UNNAMED, "fix", '"HINT"', 'stepper fix "HINT"'),
        (UNNAMED, "run --stale", "", "stepper run --stale"),
        (NAMED, "fix", "", "stepper fix --notebook notebooks/a.ipynb"),
        (NAMED, "output", "3", "stepper output --notebook notebooks/a.ipynb 3"),
        (NAMED, "run --stale", "", "stepper run notebooks/a.ipynb --stale"),
        (NAMED, "restart", "", "stepper restart notebooks/a.ipynb"),
        (NAMED, "plan", "", "stepper plan notebooks/a.ipynb"),
        (NAMED, "verify", "", "stepper verify notebooks/a.ipynb"),
        (NAMED, "kernels wait", "", "stepper kernels wait notebooks/a.ipynb"),
        (
            NAMED,
            "plan reopen",
            "3",
            "stepper plan reopen --notebook notebooks/a.ipynb 3",
        ),
        (NAMED, "doctor", "", "stepper doctor"),
        (SPACED, "fix", "", "stepper fix --notebook 'notebooks/my sales.ipynb'"),
    ],
)
def test_shell_command_text(
    commands: CommandLines, command: str, arguments: str, line: str
) -> None:
    assert commands.shell(command, arguments) == line


def test_slash_command_text() -> None:
    assert UNNAMED.slash("fix", "HINT") == "/fix HINT"
    assert NAMED.slash("fix", "HINT") == "/fix notebooks/a.ipynb HINT"
    assert SPACED.slash("skip") == '/skip "notebooks/my sales.ipynb"'


NOTEBOOK_COMMANDS = [
    name
    for name, row in COMMANDS.items()
    if row.interface == "shell" and "notebook" in row.arguments.__dataclass_fields__
]
# Texts that contain a command but do not suggest it: (module, start of the text).
ABOUT_COMMANDS = {
    ("cli/main.py", "Show a notebook's plan"),  # help
    ("cli/verify_command.py", "notebook-stepper verify"),  # another program
    ("daemon/command_handlers.py", "it was shut down by `stepper shutdown`"),
    (
        "daemon/server.py",
        "an earlier daemon has not exited yet",
    ),  # of the project's daemon
    ("daemon/command_handlers.py", "stepper shutdown"),
    ("hook/daemon_client.py", "stepper shutdown"),
    ("install/", ""),
    ("mcp/mcp_wording.py", ""),  # replaces these commands by tools
    ("messages/prompt_without_skills.py", ""),  # for an agent that has no notebook yet
    ("session/notebook_commands.py", "`stepper eval`"),  # if a kernel died
    ("web/access_control.py", "only the user who started `stepper view`"),
    ("web/http_server.py", "stepper view"),
    ("web/watch_command.py", "`stepper watch` needs a terminal"),
    ("mcp/prompts.py", ""),
    ("messages/error_hint.py", "stepper "),  # the list of commands that show something
    ("daemon/claude_code_json.py", "/continue"),  # found in a response
    ("daemon/claude_code_json.py", "\n(Type /stepper:continue"),
    ("daemon/hook_events.py", "/"),  # the command that a prompt was recognized as
}


def test_no_message_hardcodes_a_notebook_command() -> None:
    command = re.compile(rf"\bstepper (?:{'|'.join(NOTEBOOK_COMMANDS)})\b")
    typed = re.compile(r"(?<![\w/.:])/(?:fix|continue|skip)\b")
    results = []
    for path in sorted((ROOT / "stepper").rglob("*.py")):
        name = path.relative_to(ROOT / "stepper").as_posix()
        tree = ast.parse(path.read_text())
        texts = {*ast.walk(tree)} - _docstrings(tree)
        for node in texts:
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if not (command.search(node.value) or typed.search(node.value)):
                continue
            if not _is_about(name, node.value):
                results.append(f"{name}:{node.lineno}: {node.value!r}")
    assert not results, "\n".join(results)


def _docstrings(tree: ast.AST) -> set[ast.AST]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _is_about(name: str, text: str) -> bool:
    return any(
        name.startswith(module) and text.startswith(beginning)
        for module, beginning in ABOUT_COMMANDS
    )


# --- two notebooks of one project -----------------------------------------------------


def stopped_pair(project: Quick) -> tuple[Notebook, Notebook]:
    """Return two notebooks stopped by questions; the second is the current one."""
    created = []
    for problem in ("first problem", "second problem"):
        notebook = project.new("Load", "Plot", problem=problem)
        notebook.insert(
            f"raise RuntimeError('STOP: which {problem.split()[0]} column?')"
        )
        created.append(notebook)
    return created[0], created[1]


def state(project: Quick, notebook: Notebook) -> str:
    return str(project.json("status", notebook.name)["state"])


def say(notebook: Notebook, prompt: str) -> tuple[str, str]:
    payload = notebook.payload("UserPromptSubmit", "", {}, prompt=prompt)
    response = notebook.project.hook("UserPromptSubmit", payload)
    return response.text, response.line


def test_commands_omit_the_only_notebook(project: Quick) -> None:
    notebook = project.new("Load")
    _, response = notebook.insert("raise MemoryError")
    assert "then /fix" in response.stop and ".ipynb" not in response.stop
    denied = notebook.before("insert", "1").denied
    assert "types /continue, /fix or /skip (in a terminal: `stepper continue`" in denied


def test_stops_refusals_and_contexts_name_the_notebook_if_there_are_two(
    project: Quick,
) -> None:
    project.new("Load", problem="another")
    notebook = project.new("Load", "Plot", problem="this one")
    name = notebook.name
    cell_id, response = notebook.insert("raise MemoryError")
    assert f"then /fix {name}" in response.stop
    denied = notebook.before("insert", "1", cell_id).denied
    assert f"types /continue {name}, /fix {name} or /skip {name}" in denied
    assert f"`stepper fix --notebook {name}`" in denied
    assert f"/fix {name}" in notebook.insert("1")[1].line
    stop = project.json("status", name)["stop"]
    assert f"stepper fix --notebook {name} [HINT]" in stop["ways"]
    assert f"({' '.join(['/fix', name])})" in stop["text"]
    started = notebook.payload("SessionStart", "", {}, source="resume")
    assert (
        f"types /continue {name}, /fix {name}"
        in project.hook("SessionStart", started).text
    )
    assert f"`/fix {name} HINT`" in say(notebook, "what is wrong?")[0]


def test_reports_and_hints_name_the_notebook_if_there_are_two(project: Quick) -> None:
    project.new("Load", problem="another")
    notebook = project.new("Load", "Count :: n == 2", problem="this one")
    name = notebook.name
    bound, _ = notebook.insert("rows = [1]")
    _, doubted = notebook.insert("n = len(rows)")
    assert f'`stepper confirm --notebook {name} "REASON"`' in doubted.text
    replaced = notebook.replace(bound, "rows = [1, 2, 3]")
    assert f"`stepper run {name} --stale`" in replaced.text
    refused = project.stepper("plan", "edit", "1", "Other", check=2).stderr
    assert f"stepper plan {name}  # shows the steps" in refused


@pytest.mark.parametrize("command", ["continue", "fix", "skip"])
def test_ambiguous_command_resumes_no_notebook(project: Quick, command: str) -> None:
    first, second = stopped_pair(project)
    refused = project.stepper(command, "use", "the", "second", check=2)
    assert "no notebook was resumed" in refused.stderr
    for notebook in (first, second):
        assert state(project, notebook) == "stopped"
        line = f"stepper {command} --notebook {notebook.name} 'use the second'"
        assert f"         {line}\n" in refused.stderr
    # as printed
    project.stepper(command, "--notebook", first.name, "use the second")
    assert state(project, first) != "stopped"
    assert state(project, second) == "stopped"


@pytest.mark.parametrize("command", ["continue", "fix", "skip"])
def test_command_without_name_resumes_the_only_stopped_notebook(
    project: Quick, command: str
) -> None:
    first, second = stopped_pair(project)
    project.stepper("continue", "--notebook", second.name)  # the current one
    project.kill_daemon()  # the next one has not opened the first notebook
    output = project.stepper(command).stdout
    assert first.name in output, output
    assert state(project, first) != "stopped"


def test_skipped_step_is_reopened_while_another_notebook_is_stopped(
    project: Quick,
) -> None:
    _, second = stopped_pair(project)
    project.stepper("skip", "--notebook", second.name)
    output = project.stepper("continue", "step", "1").stdout
    assert "is open again" in output and second.name in output


@pytest.mark.parametrize(
    "prompt, command",
    [
        ("fix and retry", "fix"),
        ("continue notebook", "continue"),
        ("go on", "continue"),
    ],
)
def test_ambiguous_plain_text_resumes_no_notebook(
    project: Quick, prompt: str, command: str
) -> None:
    first, second = stopped_pair(project)
    text, line = say(second, prompt)
    for notebook in (first, second):
        assert state(project, notebook) == "stopped"
        for read in (text, line):
            assert f"/{command} {notebook.name}" in read
    say(second, f"fix and retry, {first.name} the dates are in UTC")
    assert state(project, first) != "stopped"
    assert state(project, second) == "stopped"
    text, line = say(second, prompt)  # one stopped notebook is left
    assert state(project, second) != "stopped"


def test_ambiguous_command_is_reported_if_the_current_notebook_is_complete(
    project: Quick,
) -> None:
    first, second = stopped_pair(project)
    project.session = "session-2"
    complete = project.new("Load", problem="complete")
    complete.insert("x = 1")
    assert state(project, complete) == "complete"
    text, line = say(complete, "continue notebook")
    for notebook in (first, second):
        assert state(project, notebook) == "stopped"
        assert f"/continue {notebook.name}" in text
        assert f"/continue {notebook.name}" in line


def test_prompt_reaches_the_daemon_while_any_notebook_is_stopped(
    project: Quick,
) -> None:
    first, second = stopped_pair(project)
    project.stepper("continue", "--notebook", second.name)
    complete = project.new("Load", problem="complete")
    complete.insert("x = 1")
    marker = Path(project.paths.active_marker)
    assert state(project, complete) == "complete"
    assert marker.exists()  # else the hook process does not ask the daemon
    say(complete, "continue notebook")
    assert state(project, first) != "stopped"


def test_slash_command_takes_a_notebook_before_the_message(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stopped_pair(project)
    monkeypatch.setenv("STEPPER_SESSION", "session-1")
    refused = project.stepper("fix", "the dates are in UTC", check=2).stderr
    typed = f"/fix {first.name} the dates are in UTC"
    assert typed in refused
    output = project.stepper("fix", typed.removeprefix("/fix ")).stdout
    assert "The user's hint" in output or '": the dates' in output
    assert state(project, first) != "stopped"
    assert state(project, second) == "stopped"
    missing = project.stepper("fix", "notebooks/none.ipynb the dates", check=2).stderr
    assert "there is no notebook 'notebooks/none.ipynb'" in missing
    assert state(project, second) == "stopped"


@pytest.mark.parametrize("commands", [UNNAMED, NAMED, SPACED])
def test_mcp_texts_name_tools_with_their_notebook(commands: CommandLines) -> None:
    name = commands.notebook
    named = f"`notebook: {name}`" if name else ""
    translate = mcp_wording.translate
    restore = translate(f"`{commands.shell('restore')}` builds them again")
    assert "`which: restore`" in restore and named in restore
    assert "stepper" not in restore
    stale = translate(f"To fix this, run: {commands.shell('run --stale')}")
    assert "`which: stale`" in stale and named in stale
    resume = translate(edit_gate.format_resume_commands(commands))
    assert "`lift_stop`" in resume and "/fix" not in resume
    assert ("`notebook: " in resume) == bool(name)


def test_view_page_names_the_notebook_if_there_are_several(tmp_path: Path) -> None:
    from stepper.common.paths import Paths
    from stepper.web.project_notebook_list import NotebookList
    from tests.conftest import Project

    project = Project(tmp_path / "repo")
    project.notebook("a.ipynb")
    shelf = NotebookList(Paths(str(project.folder)))
    book = shelf.get_view("notebooks/a.ipynb")
    assert book is not None
    assert book.build_status("notebooks/a.ipynb")["run_stale"] == "stepper run --stale"
    project.notebook("b.ipynb")
    shelf.refresh_rows()
    assert (
        book.build_status("notebooks/a.ipynb")["run_stale"]
        == "stepper run notebooks/a.ipynb --stale"
    )


# --- how stepper is called ------------------------------------------------------------


def test_terminal_command_works_in_the_users_shell() -> None:
    commands = CommandLines("notebooks/a.ipynb", ".stepper/env/bin/stepper")
    fix = "fix --notebook notebooks/a.ipynb"
    assert commands.terminal("fix") == f".stepper/env/bin/stepper {fix}"
    assert commands.shell("fix") == f"stepper {fix}"  # the text for agents
    text = (
        "stepper: the cell did not run. Run `stepper restore` or stepper run x.ipynb\n"
        "| print('stepper restore')\n"
        "stepper fix: 3 fresh retries; .stepper/env/bin/stepper doctor; stepper ran it"
    )
    assert replace_program(text, "/p/stepper") == (
        "stepper: the cell did not run. Run `/p/stepper restore` or /p/stepper run x.ipynb\n"
        "| print('stepper restore')\n"
        "stepper fix: 3 fresh retries; .stepper/env/bin/stepper doctor; stepper ran it"
    )


def test_bare_command_name_is_used_if_on_path(
    tmp_path: Path,
) -> None:
    project = tmp_path / "repo"
    linked = project / ".stepper" / "env" / "bin" / "stepper"
    linked.parent.mkdir(parents=True)
    linked.write_text("")
    paths = Paths(str(project))
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "stepper"

    def format_command(folder: Path = project) -> str:
        return find_program(paths, str(bin_folder), str(folder))

    assert format_command() == ".stepper/env/bin/stepper"
    assert format_command(project / "notebooks") == "../.stepper/env/bin/stepper"
    assert format_command(Path("/")) == str(linked)
    script.write_text("#!/bin/sh\necho another program\n")
    script.chmod(0o755)
    assert format_command() == ".stepper/env/bin/stepper"
    shutil.copy(ROOT / "hooks" / "shell", script)  # as `install.sh --link` does
    assert format_command() == "stepper"
    script.unlink()
    linked.unlink()
    assert format_command() == "stepper"  # no other path works


@pytest.mark.nightly
def test_printed_commands_work_in_a_shell_without_stepper_on_the_path(
    tmp_path: Path,
) -> None:
    with repository(tmp_path / "my repo") as folder:
        for name in ("a", "b"):
            cell = code("raise RuntimeError('STOP: which column?')", "one")
            book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            path = folder / "notebooks" / f"{name}.ipynb"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(book))
            run_in_user_shell(
                folder, f".stepper/env/bin/stepper run {name}", CLAUDECODE="1"
            )
        output = run_in_user_shell(folder, ".stepper/env/bin/stepper status b").stdout
        line = re.search(r"^  (.*stepper fix --notebook \S+) \[HINT\]", output, re.M)
        assert line is not None and line[1].startswith(".stepper/env/"), output
        run_in_user_shell(folder, f"{line[1]} 'the second one'")  # as printed
        below = folder / "notebooks"
        refused = run_in_user_shell(
            below, "../.stepper/env/bin/stepper plan edit 1 x", check=2
        )
        shows = re.search(
            r"run: (\S+ plan .*)  # shows the steps$", refused.stderr, re.M
        )
        assert shows is not None and shows[1].startswith("../.stepper/"), refused.stderr
        run_in_user_shell(below, shows[1])
        data = json.loads(
            run_in_user_shell(folder, ".stepper/env/bin/stepper status a --json").stdout
        )
        assert any("stepper fix" in command for command in data["stop"]["ways"])


def run_in_user_shell(
    folder: Path, command: str, check: int | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a plain shell of the user."""
    settings = {name: os.environ[name] for name in ("XDG_STATE_HOME", "HOME")}
    result = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **settings, **environ},
        capture_output=True,
        text=True,
    )
    if check is not None:
        assert result.returncode == check, result.stdout + result.stderr
    elif "CLAUDECODE" not in environ:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_hook_texts_name_a_runnable_command(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = project.folder / ".stepper" / "env" / "bin" / "stepper"
    linked.parent.mkdir(parents=True)
    linked.write_text("")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    notebook = project.new("Load", "Plot")
    notebook.insert("x = 1")
    cell_id, response = notebook.insert("die('SIGSEGV')")
    assert "`.stepper/env/bin/stepper restore` re-runs the cells" in response.stop
    denied = notebook.before("insert", "1", cell_id).denied  # the agent reads it
    assert "(in a terminal: `.stepper/env/bin/stepper continue`" in denied
    refused = notebook.insert("1")[1]
    assert ".stepper/env/bin/stepper" in refused.line


def test_command_for_long_output_quotes_the_cell_id(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_following, "MAX_CHARACTERS", 10)
    project.notebook("a.ipynb", [code("1", "a b")])
    notebook = Notebook(project, project.folder / "notebooks/a.ipynb")
    go = project.folder / "go"
    source = (
        "import os, time\nprint('long ' * 20)\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.02)"
    )
    run = threading.Thread(target=notebook.replace, args=("a b", source))
    run.start()
    wait_until(lambda: project.json("status", "a")["running"])
    is_long = output_following._is_long

    def release_cell(outputs: Any) -> bool:
        go.touch()  # the request follows the cell
        return is_long(outputs)

    monkeypatch.setattr(output_following, "_is_long", release_cell)
    shown = project.stepper("output", "a b", "--notebook", "a", "--follow").stdout
    run.join()
    assert "to read the output, run: stepper output 'a b'" in shown
