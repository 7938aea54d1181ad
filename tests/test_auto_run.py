"""Which cells need approval before they run: plan mode and `auto_run`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from stepper.common.errors import UsageError
from stepper.daemon import config
from stepper.hook import daemon_client
from tests.conftest import Answer, Notebook, Project, code, scratch


def insert_in_mode(notebook: Notebook, source: str, mode: str) -> Answer:
    last = notebook.raw["cells"][-1]["id"] if notebook.raw["cells"] else None
    return notebook.project.hook(
        "PostToolUse",
        notebook.edited("insert", source, last) | {"permission_mode": mode},
    )


def write_in_mode(notebook: Notebook, source: str, mode: str) -> Answer:
    text = json.dumps(
        {
            "cells": [code(source, "one")],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    notebook.path.write_text(text)
    tool_input = {"file_path": str(notebook.path), "content": text}
    payload = notebook.payload(
        "PostToolUse",
        "Write",
        tool_input,
        tool_response={"type": "update", "filePath": str(notebook.path)},
    )
    return notebook.project.hook("PostToolUse", payload | {"permission_mode": mode})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose daemon the tests share.

    Each request reads the configuration, and each test has its own notebook.
    """
    yield from scratch(tmp_path_factory.mktemp("consent") / "repo")


@pytest.mark.nightly_after(8)
@pytest.mark.parametrize("how", [insert_in_mode, write_in_mode])
@pytest.mark.parametrize(
    ("auto_run", "mode", "runs"),
    [
        ("always", "default", True),
        ("always", "acceptEdits", True),
        ("always", "plan", False),
        ("ask", "default", False),
        ("ask", "dontAsk", False),
        ("ask", "a mode of tomorrow", False),
        ("ask", "acceptEdits", True),
        ("ask", "bypassPermissions", True),
        ("ask", "auto", True),
        ("ask", "plan", False),
    ],
)
def test_cell_runs_if_its_edit_was_accepted(
    shared: Project, how, auto_run: str, mode: str, runs: bool
) -> None:
    shared.config(f"auto_run: {auto_run}\n")
    name = f"{how.__name__}-{auto_run}-{mode.replace(' ', '-')}"
    # tests that run cells share a kernel
    notebook = shared.notebook(f"{how.__name__ if runs else name}.ipynb")
    marker = shared.folder / "notebooks" / f"{name}.ran"
    answer = how(
        notebook, f"open({marker.name!r}, 'a').write('x'); print('it ran')", mode
    )
    assert marker.exists() == runs, answer.text
    if runs:
        assert "| it ran" in answer.text
        return
    assert (
        "the cell was NOT run" in answer.text
        and f"stepper run notebooks/{name}.ipynb" in answer.text
    )
    assert ("plan mode" if mode == "plan" else "`auto_run` is `ask`") in answer.text
    # the agent must not run it
    assert f"stepper run notebooks/{name}.ipynb" in answer.line
    # no kernel was started
    assert shared.json("status", name)["kernel"]["state"] == "none"
    if (auto_run, mode) == ("ask", "default"):
        assert (
            shared.json("run", f"notebooks/{name}.ipynb")["ran"] == 1
            and marker.read_text() == "x"
        )


def read(notebook: Notebook, mode: str, session: str) -> str:
    """Return the line that the user sees when the agent reads a notebook.

    The daemon is asked directly: the hook process waits for 2 s only.
    """
    payload = notebook.payload("PreToolUse", "Read", {"file_path": str(notebook.path)})
    session_payload = {"permission_mode": mode, "session_id": session}
    data = json.dumps(payload | session_payload).encode()
    paths = notebook.project.paths
    return Answer(
        daemon_client.send_request(paths, b"hook BeforeRead", data) or b""
    ).line


@pytest.mark.parametrize("auto_run", ["always", "ask"])
def test_manual_mode_explains_approval_once_per_session(
    shared: Project, auto_run: str
) -> None:
    shared.config(f"auto_run: {auto_run}\n")
    notebook = shared.notebook("read.ipynb")
    reasons = read(notebook, "default", f"{auto_run} one")
    if auto_run == "ask":  # no cell runs in this mode
        assert reasons == ""
        return
    assert reasons == (
        "stepper: approving an edit of a code cell runs the cell immediately, in the"
        " notebook's kernel. New Markdown cells run nothing."
    )
    assert read(notebook, "default", f"{auto_run} one") == ""
    assert read(notebook, "auto", f"{auto_run} two") == ""
    assert read(notebook, "default", f"{auto_run} two") == reasons
    uncovered = Notebook(shared, shared.folder / "outside.ipynb")
    uncovered.path.write_text(notebook.path.read_text())
    assert read(uncovered, "default", f"{auto_run} three") == ""


@pytest.mark.parametrize(
    ("auto_run", "mode", "command", "decision"),
    [
        ("always", "plan", "stepper run notebooks/book.ipynb", "deny"),
        ("always", "plan", "cd x && .stepper/env/bin/stepper eval '1'", "deny"),
        ("always", "plan", "stepper restore", "deny"),
        ("always", "plan", "stepper continue", "ask"),
        ("always", "plan", "ls; stepper new 'a problem' --step One", "deny"),
        ("always", "default", "stepper new 'a problem' --step One", None),
        ("always", "plan", "stepper status; stepper plan", None),
        ("always", "default", "stepper run book", None),
        ("ask", "default", "stepper run book", "ask"),
        ("ask", "dontAsk", "stepper --json eval 'x'", "ask"),
        ("ask", "acceptEdits", "stepper run book", None),
        ("ask", "auto", "stepper run book", "ask"),
        ("always", "auto", "stepper run book", None),
        ("ask", "default", "stepper status", None),
        ("ask", "plan", "stepper run book", "deny"),
    ],
)
def test_agent_commands_are_refused_where_edits_are(
    shared: Project, auto_run: str, mode: str, command: str, decision: str | None
) -> None:
    """Commands need the same checks as edits.

    With `--allow` the client runs them without asking.
    """
    shared.config(f"auto_run: {auto_run}\n")
    payload = shared.notebook("book.ipynb").payload(
        "PreToolUse", "Bash", {"command": command}
    )
    response = shared.hook("PreToolUse", payload | {"permission_mode": mode}).data.get(
        "hookSpecificOutput", {}
    )
    assert response.get("permissionDecision") == decision
    if decision and "continue" not in command:
        assert ("plan mode" if mode == "plan" else "`auto_run` is `ask`") in response[
            "permissionDecisionReason"
        ]


def get_permission_decision(
    notebook: Notebook, mode: str, tool: str, **values: str
) -> tuple[str | None, str, str]:
    """Return the PreToolUse response to an edit: decision, reason and line."""
    path = {"NotebookEdit": "notebook_path", "Write": "file_path"}[tool]
    payload = notebook.payload("PreToolUse", tool, {path: str(notebook.path), **values})
    response = notebook.project.hook("PreToolUse", payload | {"permission_mode": mode})
    output = response.data.get("hookSpecificOutput", {})
    return (
        output.get("permissionDecision"),
        output.get("permissionDecisionReason", ""),
        response.line,
    )


INSERT = {"edit_mode": "insert", "new_source": "1"}
FILE = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}
RAN, NEW = (
    json.dumps({**FILE, "cells": []}),
    json.dumps({**FILE, "cells": [code("2", "new")]}),
)


@pytest.mark.parametrize(
    ("auto_run", "mode", "tool", "values", "needs_approval"),
    [
        ("ask", "auto", "NotebookEdit", {**INSERT, "cell_type": "code"}, True),
        ("ask", "auto", "NotebookEdit", {"cell_id": "code", "new_source": "1"}, True),
        ("ask", "auto", "Write", {"content": NEW}, True),
        ("ask", "auto", "Write", {"content": RAN}, False),
        ("ask", "auto", "NotebookEdit", {**INSERT, "cell_type": "markdown"}, False),
        ("ask", "auto", "NotebookEdit", {"cell_id": "text", "new_source": "1"}, False),
        (
            "ask",
            "auto",
            "NotebookEdit",
            {"cell_id": "code", "new_source": "", "edit_mode": "delete"},
            False,
        ),
        ("always", "auto", "NotebookEdit", {**INSERT, "cell_type": "code"}, False),
        ("ask", "acceptEdits", "NotebookEdit", {**INSERT, "cell_type": "code"}, False),
        (
            "ask",
            "default",
            "NotebookEdit",
            {**INSERT, "cell_type": "code"},
            False,
        ),  # the client asks the user before the cell runs
    ],
)
def test_auto_mode_asks_the_user_before_a_cell_runs(
    shared: Project,
    auto_run: str,
    mode: str,
    tool: str,
    values: dict[str, str],
    needs_approval: bool,
) -> None:
    shared.config(f"auto_run: {auto_run}\n")
    text = {"id": "text", "cell_type": "markdown", "source": "# a", "metadata": {}}
    decision, reason, _ = get_permission_decision(
        shared.notebook("asked.ipynb", [text, code("3", "code")]), mode, tool, **values
    )
    assert decision == ("ask" if needs_approval else None)
    assert (
        "if you approve this edit, the cell runs immediately" in reason
    ) == needs_approval


def test_step_asks_once_in_manual_mode(shared: Project) -> None:
    """Its Markdown text needs no approval, because the code below it needs one."""
    shared.config("")
    text, planned = (
        {**INSERT, "cell_type": "markdown"},
        shared.new("Load", problem="asked once"),
    )
    decision, reason, line = get_permission_decision(
        planned, "default", "NotebookEdit", **text
    )
    assert (
        decision == "allow"
        and "approving a code cell runs it immediately" in reason == line
    )
    # reported once per session
    assert get_permission_decision(planned, "default", "NotebookEdit", **text) == (
        "allow",
        reason,
        "",
    )
    for mode, expected in [
        ("default", {**INSERT, "cell_type": "code"}),
        (
            "default",
            {"cell_id": "cell-0", "new_source": "# other"},
        ),  # it would replace existing code
        ("default", {"cell_id": "cell-0", "edit_mode": "delete", "new_source": ""}),
        *(
            (mode, text)
            for mode in (
                "dontAsk",
                "plan",
                "auto",
                "acceptEdits",
                "bypassPermissions",
                "of tomorrow",
            )
        ),
    ]:
        assert (
            get_permission_decision(planned, mode, "NotebookEdit", **expected)[0]
            is None
        )
    assert (
        get_permission_decision(
            shared.notebook("no plan.ipynb"), "default", "NotebookEdit", **text
        )[0]
        is None
    )
    shared.config("auto_run: ask\n")  # now code needs approval in auto mode too
    planned.session = "another"
    assert get_permission_decision(planned, "auto", "NotebookEdit", **text) == (
        "allow",
        reason,
        reason,
    )


@pytest.mark.parametrize(
    ("mode", "sent"), [("default", False), ("plan", False), ("acceptEdits", True)]
)
def test_agent_is_not_continued_to_cells_that_need_approval(
    shared: Project, mode: str, sent: bool
) -> None:
    shared.config("auto_run: ask\n")
    notebook = shared.new("Load", problem=f"a problem in {mode}")
    insert_in_mode(notebook, "1 / 0", mode)
    stop = notebook.payload("Stop", "", {}, last_assistant_message="done") | {
        "permission_mode": mode
    }
    assert ("1 of 1 step of" in shared.hook("Stop", stop).text) == sent


@pytest.mark.nightly
def test_kernel_environment_excludes_listed_variables(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.config("hide_env: [MY_TOKEN, 'AWS_*']\n")
    names = [
        "MY_TOKEN",
        "AWS_SECRET",
        "ANTHROPIC_API_KEY",
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "SHOWN",
    ]
    for name in names:
        monkeypatch.setenv(name, "canary")
    notebook = project.notebook("book.ipynb")
    _, answer = notebook.insert(
        f"import os\nprint(sorted({{n for n in {names!r}}} & os.environ.keys()))"
    )
    assert "| ['SHOWN']" in answer.text


@pytest.mark.parametrize(
    "text",
    [
        "auto_run: never",
        "auto_run: true",
        "hide_env: MY_TOKEN",
        "hide_env: [1]",
        "hide_env: ['']",
    ],
)
def test_invalid_values_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=f"line 1: `{text.partition(':')[0]}` must be"):
        config.parse(text + "\n", "config.yaml")
