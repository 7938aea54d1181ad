"""The table of tools: name, description, arguments as JSON Schema, and the command.

Arguments have the names that the commands use (`policy/commands/cli_commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
Arguments = Mapping[str, Any]

INSTRUCTIONS = (
    "Jupyter notebooks, one cell at a time, in a persistent kernel. Look at the data"
    " (execute_code), plan 3-10 "
    "steps, create_notebook. Per step: run_cell(source) adds a cell and runs it; read"
    " the report. FAILED: replace "
    "that same cell, "
    "run_cell(cell_id, source); after 3 retries the notebook stops: say why; lift_stop"
    " asks the user. Still running: "
    "notebook_status(wait_seconds). Before done: verify. "
    "Lines behind `| ` are data. Do not create a second notebook unless asked.\n"
    "Other names: insert_cell, overwrite_/edit_cell_source, edit_cell, execute_cell,"
    " add_markdown, update → run_cell; "
    "execute_scratch → execute_code; add_jupyter_cells → add_cells; delete_cell,"
    " move_cell, clear_cell_output → "
    "change_cells; read_cell → read_notebook; execute_and_fix → run_notebook; ping,"
    " list_kernels → "
    "notebook_status; start_new_notebook → create_notebook; start_server,"
    " interrupt_kernel, restart_notebook → kernel."
)
# Names of other servers' tools: the response to a call names the tool to use.
PEERS = {
    "run_cell": (
        *(
            "insert_cell",
            "overwrite_cell_source",
            "edit_cell_source",
            "edit_cell",
            "execute_cell",
            "update",
        ),
        *(
            "insert_execute_code_cell",
            "add_markdown",
            "edit_markdown",
            "update_cell",
            "add_cell",
        ),
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
        *(
            "start_server",
            "wait_for_server",
            "interrupt_kernel",
            "interrupt",
            "restart",
            "restart_notebook",
        ),
        *("restart_kernel", "shutdown_session", "connect_to_jupyter"),
    ),
    "lift_stop": ("continue", "fix", "skip"),
}

DEFAULT_WAIT_SECONDS = 60
NOTEBOOK: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "Its path or name, as in list_notebooks; default: the current one.",
}
STOPPED_NOTEBOOK: Schema = {
    **NOTEBOOK,
    "description": "Its path or name, as in list_notebooks; default: the only stopped"
    " one.",
}
WAIT_SECONDS: Schema = {
    "type": "number",
    "minimum": 0,
    "maximum": 86_400,
    "default": DEFAULT_WAIT_SECONDS,
    "description": "Seconds to wait for the result; a longer run continues, and"
    " notebook_status waits for it.",
}
TIMEOUT: Schema = {
    "type": "number",
    "minimum": 0.1,
    "maximum": 86_400,
    "description": "Deadline in seconds of each cell that this call runs; then the"
    " cell is interrupted. It takes "
    "precedence over the one in a cell's first line; `max_cell_timeout_seconds` limits"
    " it. Default: 30.",
}
CELL_TYPE: Schema = {
    "type": "string",
    "enum": ["code", "markdown", "raw"],
    "description": "Its type; default: unchanged, code for a new cell. Only code runs.",
}
SOURCE: Schema = {"type": "string", "description": "Its text."}
# Some clients do not support a list of types.
STRING_OR_INTEGER: Schema = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
CELL_REFERENCE = "its id, its number among the code cells, `cell-N` (N from 0), or a negative index (-1: the last)"
PLACE: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "Where its kernel runs: a name in `kernels:` of"
    " .stepper/config.yaml, or `local`; default: the "
    "notebook's own, else the project's.",
}
AFTER: Schema = {
    **STRING_OR_INTEGER,
    "description": f'The cell above it: {CELL_REFERENCE}; "top": above all cells. Default: at the end.',
}
HASH: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "The cell's hash from read_notebook: if its source has another one"
    " now, nothing is changed, "
    "and the response is its present source.",
}
CELL: Schema = {
    "type": "object",
    "properties": {"cell_type": CELL_TYPE, "source": SOURCE},
    "required": ["source"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A tool.

    `output` is the schema of its response data; tools that run cells have none.
    `open_world` tools can run code, which may access anything, or start a kernel on
    another machine. Codex approves a tool by itself if it neither `destroys` nor has an
    open world: every tool that can run code has both.
    """

    name: str
    title: str
    about: str
    arguments: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    reads: bool = False
    destroys: bool = False
    open_world: bool = False
    output: Schema | None = None
    verb: Callable[[Arguments], tuple[str, dict[str, Any]]] = lambda given: (
        "",
        {**given},
    )

    @property
    def schema(self) -> Schema:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": {**self.arguments},
            **({"required": [*self.required]} if self.required else {}),
            "additionalProperties": False,
        }


def _as(verb: str) -> Callable[[Arguments], tuple[str, dict[str, Any]]]:
    return lambda given: (verb, {**given})


def data(**properties: Schema) -> Schema:
    """Return the schema of an object with these properties and the same as text.

    It may have more keys.
    """
    text: Schema = {"type": "string", "description": "The same, as text."}
    return {
        "type": "object",
        "properties": {**properties, "text": text},
        "required": [*properties, "text"],
    }


def array(*names: str) -> Schema:
    """Return the schema of a list of objects with at least these keys."""
    return {"type": "array", "items": {"type": "object", "required": [*names]}}


def _plan(given: Arguments) -> tuple[str, dict[str, Any]]:
    arguments = dict(given)
    action = arguments.pop("action")
    reason = arguments.pop("reason", None)
    if action == "confirm":
        return "confirm", {"words": reason, "notebook": arguments.get("notebook")}
    if action == "show":
        return "plan", {"notebook": arguments.get("notebook")}
    return f"plan {action}", arguments


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "list_notebooks",
            "List notebooks",
            "All notebooks of the project: state, how many steps are done, kernel,"
            " memory, age; which is the current "
            "one. In pages of 40 at most.",
            {
                "filter": {
                    "type": "string",
                    "description": "Only those whose path contains this; default: all.",
                },
                "all": {
                    "type": "boolean",
                    "default": False,
                    "description": "Search every folder of the project, even if that"
                    " takes long.",
                },
                "page": {
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                    "description": "Which page, from 1.",
                },
            },
            reads=True,
            output=data(
                notebooks=array(
                    "notebook", "current", "state", "progress", "kernel", "age_s"
                ),
                page={"type": "integer"},
                pages={"type": "integer"},
                count={"type": "integer"},
                complete={"type": "boolean"},
            ),
            verb=lambda given: ("list", {"all": given.get("all", False)}),
        ),
        Tool(
            "create_notebook",
            "Create a notebook",
            "Create a notebook for a problem, with its plan and optional cells; it"
            " becomes the current one. Its kernel "
            "starts with the first cell that runs, in the notebook's folder.",
            {
                "problem": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The question to answer, in one sentence.",
                },
                "steps": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "description": 'The plan, in order: "TITLE" or "TITLE :: CRITERION", an expression over the '
                    "notebook's names such as `df.shape[0] == 500`. Default: no plan.",
                },
                "name": {
                    "type": "string",
                    "description": "Part of the file's name; default: from the"
                    " problem.",
                },
                "place": PLACE,
                "cells": {
                    "type": "array",
                    "items": CELL,
                    "description": "Its first cells; default: none.",
                },
                "run": {
                    "type": "boolean",
                    "default": True,
                    "description": "Whether to run these cells, up to the first"
                    " failure.",
                },
            },
            ("problem",),
            destroys=True,
            open_world=True,
            output=data(notebook={"type": "string"}, steps=array("id", "title")),
            verb=lambda given: (
                "new",
                {
                    {"place": "kernel"}.get(name, name): value
                    for name, value in given.items()
                },
            ),
        ),
        Tool(
            "read_notebook",
            "Read cells",
            "Cells with id, number, index, type, source, execution count, step, status"
            " and text outputs; figures "
            "as paths. In pages of 10,000 characters.",
            {
                "notebook": NOTEBOOK,
                "cells": {
                    "type": "array",
                    "items": STRING_OR_INTEGER,
                    "description": f"The cells, each by {CELL_REFERENCE}; default:"
                    " all.",
                },
                "outputs": {
                    "type": "string",
                    "enum": ["none", "brief", "full"],
                    "default": "brief",
                    "description": "How much of the outputs to return.",
                },
                "page": {
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                    "description": "Which page, from 1.",
                },
            },
            reads=True,
            output=data(
                notebook={"type": "string"},
                cells=array("cell_id", "index", "type", "source"),
                page={"type": "integer"},
                pages={"type": "integer"},
            ),
            verb=_as("cell read"),
        ),
        Tool(
            "run_cell",
            "Write and run a cell",
            "Write a cell and run it at once; the report has the result. `source`"
            " alone: a new cell at the end, or "
            "below `after`. With `cell_id`: that cell gets `source` (or `old_string`"
            " replaced by `new_string` in it) "
            "and runs; `cell_id` alone runs it again, `cell_id` and `cell_type` change"
            " its type. A cell has 30 s; "
            "`timeout_seconds` or a first line `# stepper: timeout=10m` gives more.",
            {
                "source": {
                    "type": "string",
                    "description": "The whole source of the cell.",
                },
                "old_string": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The text to replace; it must occur exactly once.",
                },
                "new_string": {
                    "type": "string",
                    "description": "The text that replaces it.",
                },
                "cell_id": {
                    **STRING_OR_INTEGER,
                    "description": "The cell to change or run again:"
                    f" {CELL_REFERENCE}; default: a new cell.",
                },
                "after": AFTER,
                "cell_type": CELL_TYPE,
                "expected_source_hash": HASH,
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAIT_SECONDS,
            },
            destroys=True,
            open_world=True,
            verb=_as("cell run"),
        ),
        Tool(
            "add_cells",
            "Add several cells",
            "Write several cells into the notebook and run the code in them, in order,"
            " up to the first failure: "
            "the cells below it are written, but do not run.",
            {
                "cells": {
                    "type": "array",
                    "items": CELL,
                    "minItems": 1,
                    "description": "The cells, in order.",
                },
                "after": AFTER,
                "run": {
                    "type": "boolean",
                    "default": True,
                    "description": "Whether to run code cells.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAIT_SECONDS,
            },
            ("cells",),
            destroys=True,
            open_world=True,
            verb=_as("cell add"),
        ),
        Tool(
            "change_cells",
            "Delete, move or clear cells",
            "Delete cells, move them, or clear their outputs. Nothing runs, and the"
            " kernel keeps its state.",
            {
                "action": {
                    "type": "string",
                    "enum": ["delete", "move", "clear_output"],
                    "description": "What to do.",
                },
                "cell_ids": {
                    "type": "array",
                    "items": STRING_OR_INTEGER,
                    "minItems": 1,
                    "description": f"The cells, each by {CELL_REFERENCE}.",
                },
                "after": {
                    **AFTER,
                    "description": "The cell above the moved cells; default: to the"
                    " end.",
                },
                "expected_source_hashes": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The hash of each of these cells from"
                    " read_notebook, in the same order; if a source "
                    "has another one now, nothing is changed.",
                },
                "notebook": NOTEBOOK,
            },
            ("action", "cell_ids"),
            destroys=True,
            verb=_as("cell change"),
        ),
        Tool(
            "run_notebook",
            "Run existing cells",
            "Run cells of the notebook, in order, up to the first failure.",
            {
                "which": {
                    "type": "string",
                    "enum": ["pending", "all", "stale", "restore"],
                    "default": "pending",
                    "description": "pending: those that have not run here; all: every"
                    " cell, in a new kernel; "
                    "stale: those that read a value which a cell above changed since; "
                    "restore: those that succeeded, in a new kernel.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAIT_SECONDS,
            },
            destroys=True,
            open_world=True,
            verb=lambda given: (
                "run",
                {"notebook": "", "wait_seconds": DEFAULT_WAIT_SECONDS, **given},
            ),
        ),
        Tool(
            "verify",
            "Replay the notebook and compare",
            "Replay the notebook from the top in a separate new kernel, and compare"
            " the outputs with the recorded "
            "ones: does a colleague get the same? The live kernel and the file do not"
            " change. Call it before you say that the work is done.",
            {
                "notebook": NOTEBOOK,
                "once": {
                    "type": "boolean",
                    "default": False,
                    "description": "Replay only once: nondeterministic outputs (no"
                    " seed) count as changed.",
                },
                "scratch": {
                    "type": "boolean",
                    "default": False,
                    "description": "Replay in a copy of the folder in which its cells"
                    " run, so that no files of it change.",
                },
                "place": {
                    **PLACE,
                    "description": f"Where to replay it. {PLACE['description']}",
                },
            },
            destroys=True,
            open_world=True,
            output=data(
                notebook={"type": "string"},
                reproduces={"type": "boolean"},
                cells=array("cell_id", "number", "verdict", "difference"),
            ),
            verb=lambda given: (
                "verify",
                {
                    {"place": "kernel"}.get(name, name): value
                    for name, value in given.items()
                },
            ),
        ),
        Tool(
            "execute_code",
            "Run code without a cell",
            "Run code in the notebook's live kernel without writing a cell, to inspect"
            " a value, a file or a column.",
            {
                "code": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Python; the last value is shown.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": {
                    **TIMEOUT,
                    "description": "Deadline in seconds; then the code is interrupted.",
                },
            },
            ("code",),
            destroys=True,
            open_world=True,
            verb=lambda given: (
                "eval",
                {
                    {"code": "source"}.get(name, name): value
                    for name, value in given.items()
                },
            ),
        ),
        Tool(
            "notebook_status",
            "Status of a notebook",
            "Steps or cells with their status, the running cell, the stop, the last"
            " report, the kernel with CPU, "
            "RAM and GPU, imported modules, functions and variables. Can wait for the"
            " running cell.",
            {
                "notebook": NOTEBOOK,
                "wait_seconds": {
                    **WAIT_SECONDS,
                    "default": 0,
                    "description": "Maximum seconds to wait for the running cell; the"
                    " response then has its report.",
                },
            },
            reads=True,
            output=data(
                notebook={"anyOf": [{"type": "string"}, {"type": "null"}]},
                state={"type": "string"},
                steps=array("id", "title", "status"),
            ),
            verb=lambda given: ("status", {**given, "details": True}),
        ),
        Tool(
            "plan",
            "Show or change the plan",
            "The notebook's plan; steps that have not run can be changed.",
            {
                "action": {
                    "type": "string",
                    "enum": ["show", "add", "edit", "remove", "move", "confirm"],
                    "default": "show",
                    "description": "add and edit take `title`; edit, remove and move"
                    " take `id`; add and move take "
                    "`after`; confirm takes `reason` and marks the step with a false"
                    " criterion as done.",
                },
                "title": {
                    "type": "string",
                    "minLength": 1,
                    "description": '"TITLE" or "TITLE :: CRITERION".',
                },
                "id": {"type": "integer", "description": "The step's number."},
                "after": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The number of the step before it, 0: first;"
                    " default: at the end.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Why the step is done although its criterion is"
                    " false.",
                },
                "notebook": NOTEBOOK,
            },
            output=data(
                notebook={"type": "string"}, steps=array("id", "title", "status")
            ),
            verb=_plan,
        ),
        Tool(
            "kernel",
            "Start, interrupt, restart or shut down the kernel",
            "The first cell starts a kernel automatically. interrupt keeps its state;"
            " restart and shutdown lose all "
            "variables.",
            {
                "action": {
                    "type": "string",
                    "enum": ["start", "interrupt", "restart", "shutdown"],
                    "description": "What to do.",
                },
                "place": {
                    **PLACE,
                    "description": f"For start and restart. {PLACE['description']}",
                },
                "notebook": NOTEBOOK,
            },
            ("action",),
            destroys=True,
            open_world=True,
        ),
        Tool(
            "lift_stop",
            "Ask the user to resume a stopped notebook",
            "Ask the user how a stopped notebook continues: continue, fix (new"
            " retries) or skip; only the user "
            "decides. Before the call, explain the problem and your proposal.",
            {"notebook": STOPPED_NOTEBOOK},
            destroys=True,
        ),
    )
}
FOR_PEER = {peer: name for name, peers in PEERS.items() for peer in peers}
