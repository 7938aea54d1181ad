"""The table of tools: name, title, description, hints, and the commands they call.

The arguments of a tool are the arguments of its commands, which `policy/commands`
declares with names, types, help texts and defaults. A tool without a description uses
the help text of its command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from stepper.policy.commands import mcp_cell_commands
from stepper.policy.commands.command_schema import (
    ALL_COMMANDS,
    Arguments,
)
from stepper.policy.commands.json_schema import (
    Schema,
    get_tool_default,
    get_tool_name,
    make_object_schema,
)

INSTRUCTIONS = (
    "Jupyter notebooks, one cell at a time, in a persistent kernel. Look at the data"
    " with execute_code, plan 3-10 steps, and call create_notebook. For each step,"
    " run_cell(source) adds a cell and runs it: read its report. If the cell FAILED,"
    " replace it with run_cell(cell_id, source). After 3 retries the notebook stops:"
    " explain the error, and call lift_stop to ask the user. If a cell is still"
    " running, call notebook_status(wait_seconds). Call verify at the end. Lines after"
    " `| ` are data. Do not create a second notebook unless asked.\n"
    "Names of other servers: insert_cell, overwrite_cell_source, edit_cell,"
    " execute_cell → run_cell; add_jupyter_cells → add_cells; delete_cell, move_cell →"
    " change_cells; read_cell → read_notebook; list_kernels → notebook_status;"
    " interrupt_kernel, restart_notebook → kernel."
)
# Tool → names of similar tools of other servers. The response to a call with one of
# these names says which tool to use.
PEERS = {
    "run_cell": (
        "insert_cell",
        "overwrite_cell_source",
        "edit_cell_source",
        "edit_cell",
        "execute_cell",
        "update",
        "insert_execute_code_cell",
        "add_markdown",
        "edit_markdown",
        "update_cell",
        "add_cell",
    ),
    "execute_code": ("execute_scratch", "execute_ipython"),
    "add_cells": ("add_jupyter_cells", "insert", "insert_cells"),
    "change_cells": (
        "delete_cell",
        "delete_jupyter_cell",
        "move_cell",
        "move",
        "clear_cell_output",
    ),
    "read_notebook": (
        "read_cell",
        "read_cells",
        "get_jupyter_cells_with_results",
        "list_cells",
    ),
    "run_notebook": (
        "execute_and_fix",
        "run",
        "run_all_cells",
        "notebook_run-all-cells",
    ),
    "notebook_status": (
        "ping",
        "check_resources",
        "list_kernels",
        "context",
        "use_notebook",
        "unuse_notebook",
    ),
    "create_notebook": (
        "create_jupyter_notebook",
        "create_and_populate_jupyter_notebook",
        "start_new_notebook",
    ),
    "list_notebooks": ("list", "list_files", "start_notebook"),
    "kernel": (
        "start_server",
        "wait_for_server",
        "interrupt_kernel",
        "interrupt",
        "restart",
        "restart_notebook",
        "restart_kernel",
        "shutdown_session",
        "connect_to_jupyter",
    ),
    "lift_stop": ("continue", "fix", "skip"),
}
# Written by docs/output_schemas.py.
OUTPUT_SCHEMAS_FILE = os.path.join(os.path.dirname(__file__), "output_schemas.json")
with open(OUTPUT_SCHEMAS_FILE, "rb") as stream:
    OUTPUT_SCHEMAS: dict[str, Schema] = json.load(stream)
TOOL_BY_PEER = {peer: tool for tool, peers in PEERS.items() for peer in peers}
ACTION = "action"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A request to the daemon."""

    command: str
    values: dict[str, Any]


@dataclass(frozen=True)
class NotebookPage:
    """The data on a page of notebooks.

    `count` is the number of matching notebooks. `complete` is false if not all folders
    were searched.
    """

    page: int
    pages: int
    count: int
    complete: bool


@dataclass(frozen=True)
class Tool:
    """A tool that calls a command, or one command for each action.

    `selected` are the names of the tool's arguments; if it is empty, the tool has all
    arguments of its commands. An action accepts all arguments of its commands, and
    calls the first command.

    `reads`, `destroys` and `open_world` are hints to the client. `open_world` means
    that the tool can run code, which may access any resource, or start a kernel on
    another machine. Codex asks for approval only if a tool has `destroys` or
    `open_world`: every tool that can run code has both hints.
    """

    name: str
    title: str
    command: str = ""
    selected: tuple[str, ...] = ()
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_action: str = ""
    about: str = ""
    declaration: type[Arguments] | None = None  # default: the arguments of the command
    constants: Values = field(default_factory=dict)  # values of each request
    reads: bool = False
    destroys: bool = False
    open_world: bool = False

    @property
    def description(self) -> str:
        """The description for agents, in one line."""
        if self.about:
            return self.about
        return " ".join(ALL_COMMANDS[self.command].help.split())

    @property
    def declarations(self) -> dict[str, Field[Any]]:
        """The declarations of the arguments, by their names in the tool."""
        available: dict[str, Field[Any]] = {}
        for arguments in self._list_argument_classes():
            for argument in fields(arguments):
                available.setdefault(get_tool_name(argument), argument)
        return {name: available[name] for name in self.selected or available}

    def _list_argument_classes(self) -> list[type[Arguments]]:
        """Return the classes that declare the arguments of the tool's commands."""
        if self.declaration:
            return [self.declaration]
        commands = [self.command] if self.command else []
        for action_commands in self.actions.values():
            commands += action_commands
        return [ALL_COMMANDS[command].arguments for command in commands]

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the arguments."""
        schema = make_object_schema(self.declarations.values())
        if self.actions:
            # The other arguments are required only for some actions, which
            # `_check_action_arguments` checks.
            properties = {ACTION: self._make_action_schema(), **schema["properties"]}
            schema["properties"] = properties
            schema.pop("required", None)
            if not self.default_action:
                schema["required"] = [ACTION]
        return schema

    @property
    def output_schema(self) -> Schema | None:
        """The JSON Schema of the response data, or None if the response is text."""
        return OUTPUT_SCHEMAS.get(self.name)

    @property
    def arguments(self) -> dict[str, Schema]:
        """The JSON Schema of each argument."""
        arguments: dict[str, Schema] = self.schema["properties"]
        return arguments

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the required arguments."""
        return tuple(self.schema.get("required", ()))

    def _make_action_schema(self) -> Schema:
        """Return the schema of the argument `action`, which describes all actions."""
        descriptions = []
        for action in self.actions:
            names = self.list_action_arguments(action)
            required = self.list_action_arguments(action, required_only=True)
            parts = [name if name in required else f"{name}?" for name in names]
            descriptions.append(f"{action}({', '.join(parts)})")
        schema: Schema = {"type": "string", "enum": [*self.actions]}
        if self.default_action:
            schema["default"] = self.default_action
        schema["description"] = (
            "The action, with the arguments that apply to it (`?` marks optional"
            f" arguments): {', '.join(descriptions)}."
        )
        return schema

    def list_action_arguments(
        self, action: str, required_only: bool = False
    ) -> list[str]:
        """Return the names of an action's arguments, without `notebook`.

        If `required_only` is true, optional arguments are left out.
        """
        names = []
        for command in self.actions[action]:
            for argument in fields(ALL_COMMANDS[command].arguments):
                name = get_tool_name(argument)
                has_default = get_tool_default(argument) is not MISSING
                if name == "notebook" or (required_only and has_default):
                    continue
                if name not in names:
                    names.append(name)
        return names

    def make_request(self, arguments: Values) -> Request:
        """Return the request to the daemon for the arguments of a call."""
        command = self.command
        if self.actions:
            action = arguments.get(ACTION, self.default_action)
            command = self.actions[action][0]
        values = dict(self.constants)
        for argument in fields(ALL_COMMANDS[command].arguments):
            name = get_tool_name(argument)
            if name in arguments:
                values[argument.name] = arguments[name]
            elif name in self.selected:
                # The default of a tool may differ from the default of its command.
                default = get_tool_default(argument)
                if default is not MISSING and default != argument.default:
                    values[argument.name] = default
        return Request(command, values)


ROWS = (
    Tool(
        "list_notebooks",
        "List notebooks",
        about="List the notebooks of the project with state, finished steps, kernel,"
        " memory and age, and mark the current one. A page has at most 40 notebooks.",
        command="list",
        declaration=mcp_cell_commands.ListPage,
        selected=("filter", "all", "page"),
        reads=True,
    ),
    Tool(
        "create_notebook",
        "Create a notebook",
        about="Create a notebook for a problem, with its plan and optional first"
        " cells, and make it the current one. Its kernel starts when the first cell"
        " runs.",
        command="new",
        selected=("problem", "steps", "name", "place", "cells", "run"),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "read_notebook",
        "Read cells",
        command="cell read",
        selected=("notebook", "cells", "outputs", "page"),
        reads=True,
    ),
    Tool(
        "run_cell",
        "Write and run a cell",
        command="cell run",
        selected=(
            "source",
            "old_string",
            "new_string",
            "cell_id",
            "after",
            "cell_type",
            "expected_source_hash",
            "notebook",
            "timeout_seconds",
            "wait_seconds",
        ),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "add_cells",
        "Add several cells",
        command="cell add",
        selected=(
            "cells",
            "after",
            "run",
            "notebook",
            "timeout_seconds",
            "wait_seconds",
        ),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "change_cells",
        "Delete, move or clear cells",
        command="cell change",
        destroys=True,
    ),
    Tool(
        "run_notebook",
        "Run existing cells",
        about="Run cells of the notebook in order, up to the first one that fails.",
        command="run",
        selected=("which", "notebook", "timeout_seconds", "wait_seconds"),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "verify",
        "Replay the notebook and compare",
        about="Run the notebook from top to bottom in a separate new kernel, and"
        " compare the outputs with the recorded ones. The live kernel and the notebook"
        " file do not change. Call this before you say that the work is done.",
        command="verify",
        selected=("notebook", "once", "scratch", "place", "from_cell", "checkpoint"),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "execute_code",
        "Run code without a cell",
        about="Run code in the live kernel of the notebook without writing a cell, to"
        " inspect a variable, a file or a column.",
        command="eval",
        selected=("code", "notebook", "timeout_seconds"),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "notebook_status",
        "Status of a notebook",
        about="Show the steps or cells with their status, the running cell, why the"
        " notebook is stopped, the last report, the kernel with CPU, RAM and GPU, and"
        " its modules, functions and variables. Can wait for a background run.",
        command="status",
        selected=("notebook", "wait_seconds"),
        constants={"details": True},
        reads=True,
    ),
    Tool(
        "plan",
        "Show or change the plan",
        about="Show the plan of the notebook, or change steps that have not run:"
        " add, edit, remove or move a step. confirm marks a step done although its"
        " criterion is false.",
        actions={
            "show": ("plan",),
            "add": ("plan add",),
            "edit": ("plan edit",),
            "remove": ("plan remove",),
            "move": ("plan move",),
            "confirm": ("confirm",),
        },
        default_action="show",
        selected=("title", "id", "after", "reason", "notebook"),
    ),
    Tool(
        "kernel",
        "Start, interrupt, undo, restart or shut down the kernel",
        about="Control the kernel of the notebook. The first cell that runs starts a"
        " kernel automatically. interrupt keeps the variables; undo returns to the"
        " state before a cell (default: the last run); restart and shutdown lose the"
        " variables.",
        actions={
            "start": ("restart", "use"),
            "interrupt": ("interrupt",),
            "undo": ("undo",),
            "restart": ("restart", "use"),
            "shutdown": ("shutdown",),
        },
        selected=("place", "cell", "notebook"),
        destroys=True,
        open_world=True,
    ),
    Tool(
        "lift_stop",
        "Ask the user to resume a stopped notebook",
        about="Ask the user how a stopped notebook continues: continue, fix (new"
        " retries) or skip. Only the user can decide this. Before the call, explain the"
        " problem and your proposal.",
        command="continue",
        selected=("notebook",),
        destroys=True,
    ),
)
TOOLS = {tool.name: tool for tool in ROWS}
