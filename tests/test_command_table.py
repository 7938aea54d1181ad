"""The daemon, the command line and the gate use one table of commands.

The keys of JSON documents do not change.
"""

from __future__ import annotations

import dataclasses
import json

import click
import pytest

from stepper.cli.main import LOCAL_COMMANDS, main
from stepper.cli.rendering import RENDERINGS
from stepper.common.errors import UsageError
from stepper.policy import edit_gate
from stepper.policy.commands import cli_commands, command_schema
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.session import responses

# The keys of each response with `--json`. tests/test_session.py compares them with the
# daemon's.
DOCUMENTS = {
    # the command line prints the first two
    "new": "notebook steps unfinished kernel_cwd cells",
    "status": "notebook state steps running kernel daemon cells stop lost unheard stale hidden indirect ended context resources verified renamed jupyter off_plan undo",
    "list": "notebook current state progress kernel age_s",
    "use": "notebook kernel elsewhere",
    "kernels": "name kind about usual accepted reachable why offers mend unchecked",
    "kernels wait": "notebook kernel",
    "run": "notebook ok ran cells skipped report results follows which stop changed_outputs",
    "verify": "notebook reproduces cells files duration_s kernels packages where text failing open_steps warnings partial",
    "restore": "notebook ok ran cells skipped report results follows which stop changed_outputs gone",
    "attach": "notebook kernel where file console settings url python text",
    "history": "notebook run cell_id step started_at duration_s outcome by source bound"
    " undone not_restored",
    "report": "run cell_id step outcome fault text",
    "eval": "notebook source outcome duration_s fault text output figures",
    "show": "notebook state head cells text",
    "output": "notebook cell_id page pages text ended figures",
    "interrupt": "notebook interrupted text",
    "undo": "notebook undone restored removed not_restored stale undo text",
    "restart": "notebook had_kernel",
    **dict.fromkeys(("confirm", "continue", "fix", "skip"), "text"),
    "context": "current_notebook imported_modules defined_functions variables plan text",
    **dict.fromkeys(
        ("plan", "plan add", "plan edit", "plan remove", "plan move", "plan reopen"),
        "notebook steps",
    ),
    "shutdown": "kernels notebook left",
}
WITHIN = {
    responses.NamedStep: "id title",
    responses.StepStatus: "id title status cell_id attempts retries",
    responses.KernelStatus: "pid state rss_bytes python where left_seconds trouble",
    responses.CellStatus: "cell cell_id title status",
    responses.ShownCell: "cell cell_id index type tags step state execution_count duration_s source outputs line",
    responses.StopDetails: "error cell_id question ways text",
    responses.StepProgress: "done of what skipped",
    responses.CellResult: "cell cell_id step run outcome duration_s fault output",
    responses.PlannedStep: "id title criterion kind status reason long",
}


def keys(answer: type) -> str:
    return " ".join(field.name for field in dataclasses.fields(answer))


def test_each_command_has_one_document_and_one_rendering() -> None:
    assert set(DOCUMENTS) == {
        name for name, row in COMMANDS.items() if row.needs_daemon
    }
    assert set(RENDERINGS) == set(COMMANDS)
    assert set(LOCAL_COMMANDS) == {
        name for name, row in COMMANDS.items() if not row.needs_daemon
    } | {
        "attach",
        "shutdown",
    }


@pytest.mark.parametrize("answer", WITHIN, ids=lambda answer: answer.__name__)
def test_nested_response_keys(answer: type) -> None:
    assert keys(answer) == WITHIN[answer]


def test_response_json_contains_all_fields() -> None:
    step = responses.StepStatus(1, "a", "done", None, 0)
    answer = responses.StatusResponse(
        "a.ipynb", "ready", [step], responses.KernelStatus(), {"pid": 1}, cells=[]
    )
    assert json.loads(responses.to_json(answer)) == dataclasses.asdict(answer)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line_has_each_command(name: str) -> None:
    command: click.Command = main
    for part in (name + " show" if name in ("plan", "kernels") else name).split():
        assert isinstance(command, click.Group)
        command = command.commands[part]
    extra = {"as_json"} if RENDERINGS[name].has_json else set()
    extra |= {"plan"} if name == "new" else set()
    extra |= {"utc"} if RENDERINGS[name].has_times else set()
    arguments = {
        field.name
        for field in command_schema.list_cli_arguments(COMMANDS[name].arguments)
    }
    assert {parameter.name for parameter in command.params} == arguments | extra
    assert COMMANDS[name].help


def test_commands_are_classified_as_user_or_agent() -> None:
    """The list is explicit. A wrong row would let an agent resume a notebook."""
    user_commands = {name for name, row in COMMANDS.items() if row.needs_user}
    assert user_commands == {
        "continue",
        "fix",
        "skip",
        "restart",
        "restore",
        "trust",
        "plan reopen",
    }
    assert {name for name, row in COMMANDS.items() if row.runs_code} == {
        "run",
        "verify",
        "eval",
        "undo",
        "restart",
        "restore",
    }
    for name, row in COMMANDS.items():
        assert edit_gate.find_user_command(f"stepper {name} x") == (
            name if row.needs_user else None
        )
        assert edit_gate.find_code_running_command(f"stepper {name} x") == (
            name if row.runs_code else None
        )


@pytest.mark.parametrize(
    "call",
    [
        "stepper plan reopen 7",
        "stepper plan  reopen 7",
        "stepper 'plan' \"reopen\" 7",
        "cd x && stepper plan \\\n reopen 7",
    ],
)
def test_words_of_a_command_may_be_separated_in_any_way(call: str) -> None:
    assert edit_gate.find_user_command(call) == "plan reopen"


@pytest.mark.parametrize(
    ("row", "message", "problem"),
    [
        (cli_commands.Output, {}, "'cell' is missing"),
        (cli_commands.Output, {"cell": None}, "'cell' is missing"),
        (cli_commands.Output, {"cell": 1}, "'cell' must be of type str"),
        (
            cli_commands.PlanMove,
            {"id": 1, "after": "2"},
            "'after' must be of type int",
        ),
        (
            cli_commands.New,
            {"problem": "p", "steps": "one"},
            "'steps' must be of type list",
        ),
        (
            cli_commands.Run,
            {"notebook": "n", "all": 1},
            "'all' must be of type bool",
        ),
    ],
)
def test_invalid_arguments_are_named(row: type, message: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=f"the request's argument {problem}"):
        command_schema.parse_arguments(row, message)


def test_null_and_unknown_arguments_are_dropped() -> None:
    arguments = command_schema.parse_arguments(
        cli_commands.Output, {"cell": "a", "page": None, "of": "a newer stepper's"}
    )
    assert dataclasses.asdict(arguments) == {
        "cell": "a",
        "page": 1,
        "follow": False,
        "figure": False,
        "notebook": None,
    }
