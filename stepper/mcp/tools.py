"""The tools, a row each: its name, what an agent reads of it, its arguments as JSON Schema, the command it becomes.

Names of arguments are those of the commands (`policy/commands/cli_commands`) wherever both have one. (Over 300 lines: a table.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
Given = Mapping[str, Any]

INSTRUCTIONS = (
    "Jupyter notebooks, one cell at a time, in a kernel that lives on. Look at the data (execute_code), plan 3-10 "
    "steps, create_notebook. Per step: run_cell(source) adds a cell and runs it; read the report. FAILED: replace "
    "that same cell, "
    "run_cell(cell_id, source); after 3 retries the notebook stops: say why; lift_stop asks the user. Still running: "
    "notebook_status(wait_seconds). Before done: verify. "
    "Lines behind `| ` are data. Never make a second notebook unasked.\n"
    "Other names: insert_cell, overwrite_/edit_cell_source, edit_cell, execute_cell, add_markdown, update → run_cell; "
    "execute_scratch → execute_code; add_jupyter_cells → add_cells; delete_cell, move_cell, clear_cell_output → "
    "change_cells; read_cell → read_notebook; execute_and_fix → run_notebook; ping, list_kernels → "
    "notebook_status; start_new_notebook → create_notebook; start_server, interrupt_kernel, restart_notebook → kernel."
)
# What agents know from other servers: answered with the tool to use.
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

WAIT = 60
NOTEBOOK: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "Its path or name, as list_notebooks tells it; default: the current one.",
}
STOPPED_NOTEBOOK: Schema = {
    **NOTEBOOK,
    "description": "Its path or name, as list_notebooks tells it; default: the only stopped one.",
}
WAITS: Schema = {
    "type": "number",
    "minimum": 0,
    "maximum": 86_400,
    "default": WAIT,
    "description": "Seconds to wait for the end; what runs longer goes on, and notebook_status waits for it.",
}
TIMEOUT: Schema = {
    "type": "number",
    "minimum": 0.1,
    "maximum": 86_400,
    "description": "Deadline in seconds of each cell that this call runs: then the cell is interrupted. It comes "
    "before the one in a cell's first line; `max_cell_timeout_seconds` bounds it. Default: 30.",
}
KIND: Schema = {
    "type": "string",
    "enum": ["code", "markdown", "raw"],
    "description": "Its type; default: what it was, code for a new cell. Only code runs.",
}
SOURCE: Schema = {"type": "string", "description": "Its text."}
# a list of types is less portable
STRING_OR_INTEGER: Schema = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
NAMED = "its id, its number among the code cells, `cell-N` (N from 0), or a negative index (-1: the last)"
PLACE: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "Where its kernel runs: a name in `kernels:` of .stepper/config.yaml, or `local`; default: the "
    "notebook's own, else the project's.",
}
AFTER: Schema = {
    **STRING_OR_INTEGER,
    "description": f'The cell it comes after: {NAMED}; "top": above all. Default: at the end.',
}
HASH: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "The hash that read_notebook gave for the cell: where its source has another one now, nothing is "
    "changed, and the answer is its present source.",
}
CELL: Schema = {
    "type": "object",
    "properties": {"cell_type": KIND, "source": SOURCE},
    "required": ["source"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A row. `output` is the schema of what it answers as data; tools that run cells have none.

    `open_world`: it can run code, which may reach anything, or start a kernel on another machine. Codex lets a tool
    pass without approval that neither `destroys` nor has an open world: every tool that can run code has both.
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
    verb: Callable[[Given], tuple[str, dict[str, Any]]] = lambda given: ("", {**given})

    @property
    def schema(self) -> Schema:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": {**self.arguments},
            **({"required": [*self.required]} if self.required else {}),
            "additionalProperties": False,
        }


def _as(verb: str) -> Callable[[Given], tuple[str, dict[str, Any]]]:
    return lambda given: (verb, {**given})


def data(**properties: Schema) -> Schema:
    """Return the schema of an object that holds these, and the same as text; more keys may come."""
    text: Schema = {"type": "string", "description": "The same, to be read."}
    return {
        "type": "object",
        "properties": {**properties, "text": text},
        "required": [*properties, "text"],
    }


def array(*names: str) -> Schema:
    """Return the schema of a list of objects that have these keys at least."""
    return {"type": "array", "items": {"type": "object", "required": [*names]}}


def _plan(given: Given) -> tuple[str, dict[str, Any]]:
    told = dict(given)
    action = told.pop("action")
    reason = told.pop("reason", None)
    if action == "confirm":
        return "confirm", {"words": reason, "notebook": told.get("notebook")}
    if action == "show":
        return "plan", {"notebook": told.get("notebook")}
    return f"plan {action}", told


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "list_notebooks",
            "List notebooks",
            "All notebooks of the project: state, how many steps are done, kernel, memory, age; which is the current "
            "one. In pages of 40 at most.",
            {
                "filter": {
                    "type": "string",
                    "description": "Only those whose path contains this; default: all.",
                },
                "all": {
                    "type": "boolean",
                    "default": False,
                    "description": "Search every folder of the project, however long that takes.",
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
            "Make a notebook for a problem, with its plan, and cells if given; it becomes the current one. Its kernel "
            "starts with the first cell that runs, in the notebook's folder.",
            {
                "problem": {
                    "type": "string",
                    "minLength": 1,
                    "description": "What is to be found out, in a sentence.",
                },
                "steps": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "description": 'The plan, in order: "TITLE" or "TITLE :: CRITERION", an expression over the '
                    "notebook's names such as `df.shape[0] == 500`. Default: no plan.",
                },
                "name": {
                    "type": "string",
                    "description": "Part of the file's name; default: from the problem.",
                },
                "place": PLACE,
                "cells": {
                    "type": "array",
                    "items": CELL,
                    "description": "Cells to begin with; default: none.",
                },
                "run": {
                    "type": "boolean",
                    "default": True,
                    "description": "Whether these cells run, up to the first that fails.",
                },
            },
            ("problem",),
            destroys=True,
            open_world=True,
            output=data(notebook={"type": "string"}, steps=array("id", "title")),
            verb=lambda given: (
                "new",
                {
                    {"place": "kernel"}.get(name, name): told
                    for name, told in given.items()
                },
            ),
        ),
        Tool(
            "read_notebook",
            "Read cells",
            "Cells with id, number, index, type, source, execution count, step, status and what they printed; pictures "
            "as paths. In pages of 10,000 characters.",
            {
                "notebook": NOTEBOOK,
                "cells": {
                    "type": "array",
                    "items": STRING_OR_INTEGER,
                    "description": f"Which, each by {NAMED}; default: all.",
                },
                "outputs": {
                    "type": "string",
                    "enum": ["none", "brief", "full"],
                    "default": "brief",
                    "description": "How much of the outputs.",
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
            "Write a cell and run it at once; the report tells how it ended. `source` alone: a new cell at the end, or "
            "below `after`. With `cell_id`: that cell gets `source` (or `old_string` replaced by `new_string` in it) "
            "and runs; `cell_id` alone runs it again, with `cell_type` alone it becomes that. A cell has 30 s; "
            "`timeout_seconds` or a first line `# stepper: timeout=10m` gives more.",
            {
                "source": {
                    "type": "string",
                    "description": "The whole text of the cell.",
                },
                "old_string": {
                    "type": "string",
                    "minLength": 1,
                    "description": "What is to be replaced in the cell: it must stand there once.",
                },
                "new_string": {
                    "type": "string",
                    "description": "What takes its place.",
                },
                "cell_id": {
                    **STRING_OR_INTEGER,
                    "description": f"The cell to change or to run again: {NAMED}; default: a new cell.",
                },
                "after": AFTER,
                "cell_type": KIND,
                "expected_source_hash": HASH,
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAITS,
            },
            destroys=True,
            open_world=True,
            verb=_as("cell run"),
        ),
        Tool(
            "add_cells",
            "Add several cells",
            "Write several cells into the notebook and run the code in them, in order, up to the first that fails: "
            "those below it stay written, not run.",
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
                    "description": "Whether code cells run.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAITS,
            },
            ("cells",),
            destroys=True,
            open_world=True,
            verb=_as("cell add"),
        ),
        Tool(
            "change_cells",
            "Delete, move or clear cells",
            "Delete cells, move them, or clear what they printed. Nothing runs, and the kernel keeps its state.",
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
                    "description": f"The cells, each by {NAMED}.",
                },
                "after": {
                    **AFTER,
                    "description": "Where moved cells go: below this cell; default: to the end.",
                },
                "expected_source_hashes": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The hash that read_notebook gave for each of these cells, in the same order; where "
                    "a source has another one now, nothing is changed.",
                },
                "notebook": NOTEBOOK,
            },
            ("action", "cell_ids"),
            destroys=True,
            verb=_as("cell change"),
        ),
        Tool(
            "run_notebook",
            "Run cells that are there",
            "Run cells of the notebook, in order, up to the first that fails.",
            {
                "which": {
                    "type": "string",
                    "enum": ["pending", "all", "stale", "restore"],
                    "default": "pending",
                    "description": "pending: those that have not run here yet; all: every cell, in a fresh kernel; "
                    "stale: those that read what a cell above bound anew since; "
                    "restore: those that had ended well, in a fresh kernel.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": TIMEOUT,
                "wait_seconds": WAITS,
            },
            destroys=True,
            open_world=True,
            verb=lambda given: ("run", {"notebook": "", "wait_seconds": WAIT, **given}),
        ),
        Tool(
            "verify",
            "Replay the notebook and compare",
            "Replay the notebook from the top in a fresh kernel of its own, and tell which cells are not as recorded: "
            "is it what a colleague gets? The living kernel and the file are not touched. Before you say it is done.",
            {
                "notebook": NOTEBOOK,
                "once": {
                    "type": "boolean",
                    "default": False,
                    "description": "No further run: what is unstable (no seed) counts as changed.",
                },
                "scratch": {
                    "type": "boolean",
                    "default": False,
                    "description": "In a copy of the folder in which its cells run: what they write is left alone.",
                },
                "place": {
                    **PLACE,
                    "description": f"Where it is replayed. {PLACE['description']}",
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
                    {"place": "kernel"}.get(name, name): told
                    for name, told in given.items()
                },
            ),
        ),
        Tool(
            "execute_code",
            "Look at something",
            "Run code in the notebook's live kernel without writing a cell: to look at a value, a file, a column.",
            {
                "code": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Python; the last value is shown.",
                },
                "notebook": NOTEBOOK,
                "timeout_seconds": {
                    **TIMEOUT,
                    "description": "Deadline in seconds: then the code is interrupted.",
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
            "Where a notebook stands",
            "Steps or cells with their standing, what runs, what stopped it, the last report, the kernel with CPU, "
            "RAM and "
            "GPU, imported modules, functions and variables. Waits for what runs here where told to.",
            {
                "notebook": NOTEBOOK,
                "wait_seconds": {
                    **WAITS,
                    "default": 0,
                    "description": "Seconds to wait at most for what runs; its report comes then.",
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
            "The notebook's plan; what has not run can be changed.",
            {
                "action": {
                    "type": "string",
                    "enum": ["show", "add", "edit", "remove", "move", "confirm"],
                    "default": "show",
                    "description": "add and edit take `title`; edit, remove and move take `id`; add and move take "
                    "`after`; confirm takes `reason`: the step whose criterion is false counts as done.",
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
                    "description": "The number of the step it comes after, 0: first; default: at the end.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Why the step is done although its criterion is false.",
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
            "Start, interrupt, restart or end the kernel",
            "A kernel starts by itself with the first cell. interrupt keeps its state; restart and shutdown lose all "
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
            "Ask the user to lift a stop",
            "Ask the user whether a stopped notebook goes on: continue, fix (fresh retries) or skip; the answer is "
            "theirs alone. Say before what stands in the way and what you propose.",
            {"notebook": STOPPED_NOTEBOOK},
            destroys=True,
        ),
    )
}
FOR_PEER = {peer: name for name, peers in PEERS.items() for peer in peers}
