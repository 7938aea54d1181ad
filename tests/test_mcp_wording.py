"""Texts for MCP clients name MCP tools.

They contain no slash command, no field of Claude Code, and no command that a tool replaces.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
from mcp import Client, MCPError
from mcp_types import ElicitResult

from stepper.mcp import mcp_wording, prompts, tools
from stepper.mcp.mcp_wording import translate
from stepper.policy.commands.command_lines import CommandLines
from tests.conftest import ROOT, code
from tests.test_mcp import run_scenario
from tests.test_session import Quick
from tests.test_session import project as without_processes

quick = without_processes
# `stepper continue`, `fix` and `skip` are the user's: only `lift_stop` may name them.
FOREIGN = re.compile(
    r"edit_mode|NotebookEdit|ToolSearch|Claude Code|stepping-notebooks|\bls notebooks"
    r"|(?<![\w./])/(?:stepper:)?(?:continue|fix|skip|new-notebook|notebook-status)\b"
    r"|\bstepper (?:confirm|context|eval|interrupt|kernels wait|list|new|output|report|restart|restore|run|status"
    r"|undo|use|verify)\b|\bstepper plan\b(?! reopen)|\bstepper shutdown (?:\S+\.ipynb|')"
)
DECISIONS = re.compile(r"\bstepper (?:continue|fix|skip)\b(?![^`\n]*`, in a terminal)")

# --- every text in the sources --------------------------------------------------------

PACKAGES = (
    *("common", "daemon", "diagnosis", "kernels", "messages", "notebooks", "policy"),
    "session",
)
# Texts that only hooks and terminals show.
NOT_FOR_MCP = {
    "daemon/claude_code_json.py",
    "daemon/hook_events.py",
    "messages/digest/notebook_digest.py",  # for reads of Claude Code
    "messages/prompt_without_skills.py",
    "notebooks/slim_copies.py",  # for reads of Claude Code
    "policy/commands/cli_commands.py",  # the help of the commands themselves
    "policy/commands/prompt_commands.py",
}


COMMANDS = CommandLines("a.ipynb")
RENDERERS = {
    "shell": COMMANDS.shell,
    "terminal": COMMANDS.terminal,
    "slash": COMMANDS.slash,
}


def render_command(node: ast.AST) -> str:
    """Return the command that a call of `CommandLines` renders, '' for other nodes."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    arguments = [
        arg.value if isinstance(arg, ast.Constant) else "3" for arg in node.args
    ]
    if (
        node.func.attr not in RENDERERS
        or not arguments
        or not isinstance(arguments[0], str)
    ):
        return ""
    name = arguments[0].split()[0]
    return RENDERERS[node.func.attr](*map(str, arguments)) if name != "3" else ""


def render_inserted(node: ast.AST, commands: dict[str, str]) -> str:
    """Return an example of what an f-string inserts: a command or a notebook's name."""
    if isinstance(node, ast.FormattedValue):
        node = node.value
    if isinstance(node, ast.Name) and node.id in commands:
        return commands[node.id]
    return render_command(node) or "a.ipynb"


def find_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a module's texts, except docstrings; f-strings are filled with examples."""
    tree = ast.parse(path.read_text())
    ignored_nodes = set[int]()
    commands = {
        target.id: render_command(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and render_command(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            ignored_nodes.update(id(value) for value in node.values)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored_nodes.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(value.value)
                if isinstance(value, ast.Constant)
                else render_inserted(value, commands)
                for value in node.values
            ]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and id(node) not in ignored_nodes:
            yield node.lineno, str(node.value)
        elif isinstance(node, ast.Call) and render_command(node):
            yield node.lineno, render_command(node)


def test_every_daemon_message_is_translated() -> None:
    match_count, remaining = 0, []
    for package in PACKAGES:
        for path in sorted((ROOT / "stepper" / package).rglob("*.py")):
            name = path.relative_to(ROOT / "stepper").as_posix()
            if name in NOT_FOR_MCP:
                continue
            for line, text in find_texts(path):
                match_count += bool(FOREIGN.search(text))
                if FOREIGN.search(translate(text)):
                    remaining.append(f"{name}:{line}: {translate(text)}")
    assert match_count > 5  # or else the test checks nothing
    assert remaining == []


def find_commands(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind (shell or slash) and command of a module's `CommandLines` calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        first = node.args[0] if node.args else None
        kind = node.func.attr
        if kind in ("shell", "slash") and isinstance(first, ast.Constant):
            yield node.lineno, kind, str(first.value)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("notebook", ["notebooks/an a.ipynb", "a.ipynb", ""])
def test_every_command_line_is_translated(notebook: str) -> None:
    lines, match_count, remaining = CommandLines(notebook), 0, []
    for package in PACKAGES:
        for path in sorted((ROOT / "stepper" / package).rglob("*.py")):
            for number, kind, command in find_commands(path):
                line = getattr(lines, kind)(command)
                for text in (f"Then `{line}` runs it.", line, f"{line}  # does that"):
                    match_count += bool(FOREIGN.search(text))
                    if FOREIGN.search(translate(text)):
                        remaining.append(f"{path.name}:{number}: {translate(text)}")
    assert match_count > 40
    assert remaining == []


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        (
            "Replace that cell (edit_mode replace, cell_id 0e968c97) or delete it",
            "Replace that cell (`run_cell` with `cell_id` 0e968c97) or delete it",
        ),
        (
            "`stepper run --stale` runs it.",
            "`run_notebook` with `which: stale` runs it.",
        ),
        (
            "To run the cells that have not run: stepper run 'notebooks/an a.ipynb'",
            "To run the cells that have not run: `run_notebook` with `notebook: notebooks/an a.ipynb`",
        ),
        (
            "To go on here, run: stepper run a.ipynb --all",
            "To go on here, call: `run_notebook` with `which: all` and `notebook: a.ipynb`",
        ),
        (
            "/home/me/.stepper/env/bin/stepper shutdown a.ipynb",
            "`kernel` with `action: shutdown` and `notebook: a.ipynb`",
        ),
        (
            "restart it; or stepper use a.ipynb --kernel NAME  # another backend",
            "restart it; or `kernel` with `action: start`, `place` and `notebook: a.ipynb` (another backend)",
        ),
        (
            "more: `stepper output 0e968c97 --page 2`",
            'more: `read_notebook` with `outputs: full` and `cells: ["0e968c97"]`',
        ),
        (
            'say why: `stepper confirm "REASON"`',
            "say why: `plan` with `action: confirm` and `reason`",
        ),
        (
            'Look first: `stepper eval "df.columns"`',
            "Look first: `execute_code`",
        ),
        ("see `ls notebooks/`", "see `list_notebooks`"),
        ("free disk space, then /fix", "free disk space, then `lift_stop` (fix)"),
        (
            "  stepper fix --notebook 'an a.ipynb' [HINT]  fresh retries (/fix)",
            "  `lift_stop` with `notebook: an a.ipynb` (fix [HINT]): fresh retries",
        ),
        ("stepper skip [REASON]", "`lift_stop` (skip [REASON])"),
        ("stepper: eval FAILED after 1 s", "stepper: The code FAILED after 1 s"),
        ("run: `stepper undo 3`", "run: `kernel` with `action: undo` and `cell: 3`"),
        # no tool replaces these, or they are not commands
        ("stepper plan reopen 3", "stepper plan reopen 3"),
        (
            "(stepper plan reopen --notebook a.ipynb 3)",
            "(stepper plan reopen --notebook a.ipynb 3)",
        ),
        ("stepper plan a.ipynb  # shows", "`plan` with `notebook: a.ipynb` (shows)"),
        (
            "stepper: --from: there is no code cell '9'",
            "stepper: `from_cell`: there is no code cell '9'",
        ),
        (
            "stepper: --checkpoint: a.ipynb has no",
            "stepper: `checkpoint`: a.ipynb has no",
        ),
        (
            "stepper verify a.ipynb  # without --checkpoint",
            "`verify` with `notebook: a.ipynb` (without `checkpoint`)",
        ),
        (
            "  · lines of 57 cells are not shown (`--json` prints them)",
            "  · lines of 57 cells are not shown",
        ),
        ("stepper trust", "stepper trust"),
        ("stepper runs the cell again", "stepper runs the cell again"),
        ("Figure: /tmp/fix/a.png", "Figure: /tmp/fix/a.png"),
        ("ls -ld notebooks/", "ls -ld notebooks/"),
        ("all cells notebooks/a.ipynb has", "all cells notebooks/a.ipynb has"),
        # the notebook's data
        ("| /fix # stepper run a.ipynb", "| /fix # stepper run a.ipynb"),
    ],
)
def test_message_is_translated(message: str, translated: str) -> None:
    assert translate(message) == translated
    assert translate(translated) == translated


def test_user_data_is_not_translated() -> None:
    data = {
        "notebook": "stepper run.ipynb",
        "stop": {"text": "then /fix", "question": "/fix or not?"},
        "steps": [{"title": "Describe `stepper run`"}],
        "running": {"line": "see /fix"},
        "ended": {"text": "`stepper run --all`", "line": "✗ /fix"},
        "kernel": {"trouble": "`stepper restart` gives it up"},
    }
    assert mcp_wording.translate_data(data) == {
        **data,
        "stop": {"text": "then `lift_stop` (fix)", "question": "/fix or not?"},
        "ended": {
            "text": "`run_notebook` with `which: all`",
            "line": "✗ `lift_stop` (fix)",
        },
        "kernel": {"trouble": "`kernel` with `action: restart` gives it up"},
    }


# --- what a client reads --------------------------------------------------------------


class Reader:
    """A client that collects all texts of the server with their sources."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.texts: list[tuple[str, str]] = []

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool; return the text of its result."""
        result = await self.client.call_tool(tool, arguments)
        text = str(result.content[0].text)
        source = f"{tool} {arguments}"
        self.texts.append((source, text))
        if result.structured_content is not None:
            data = json.dumps(result.structured_content, ensure_ascii=False)
            self.texts.append((f"{source} as data", data))
        return text

    async def read_offered_texts(self) -> None:
        """Read the instructions and the lists of tools, prompts and resources."""
        client = self.client
        self.texts.append(("instructions", str(client.instructions)))
        listed = [
            await client.list_tools(),
            await client.list_prompts(),
            await client.list_resources(),
            await client.list_resource_templates(),
        ]
        for entry in listed:
            text = json.dumps(entry.model_dump(mode="json"), ensure_ascii=False)
            self.texts.append((type(entry).__name__, text))

    async def read_current_texts(self) -> None:
        """Read all prompts and resources, and the results of the reading tools."""
        for name, prompt in prompts.PROMPTS.items():
            call_arguments = {prompt.argument: "a text"} if prompt.argument else {}
            for arguments in (call_arguments, {}):
                if prompt.required and not arguments:
                    continue
                prompt_text = await self.client.get_prompt(name, arguments)
                self.texts.append(
                    (f"prompt {name}", prompt_text.messages[0].content.text)
                )
        for resource in (await self.client.list_resources()).resources:
            content = await self.client.read_resource(resource.uri)
            self.texts.append((str(resource.uri), content.contents[0].text))
        await self.call("notebook_status")
        await self.call("list_notebooks")
        await self.call("plan")
        await self.call("read_notebook")

    async def read_missing_resource(self, uri: str) -> None:
        """Read a resource that does not exist; the error is recorded."""
        with pytest.raises(MCPError) as caught:
            await self.client.read_resource(uri)
        self.texts.append((uri, str(caught.value)))

    def assert_only_mcp_tools(self, terminal: tuple[str, ...] = ()) -> None:
        """Assert that no text names a command that a tool replaces.

        Only calls in `terminal` may name the user's commands that resume a notebook.
        """
        for source, text in self.texts:
            lines = [
                line for line in text.splitlines() if not line.startswith(("| ", "{"))
            ]
            message = text if source.endswith("as data") else "\n".join(lines)
            assert not FOREIGN.search(message), (source, text)
            if not source.startswith(terminal or "no call"):
                assert not DECISIONS.search(message), (source, text)


@pytest.mark.nightly
def test_notebook_lifecycle_texts_name_mcp_tools(quick: Quick) -> None:
    quick.notebook("old.ipynb", [code("x = 1", "a"), code("y = x", "b")])

    async def story(client: Client) -> None:
        reader = Reader(client)
        await reader.read_offered_texts()
        await reader.call("notebook_status")
        nothing = await reader.call("run_cell", source="1")
        assert nothing.endswith("\nTo fix this, call `create_notebook`"), nothing
        await reader.call("kernel", action="start")
        await reader.call("read_notebook", notebook="nowhere")
        await reader.read_missing_resource("stepper://notebooks/nowhere")
        await reader.read_missing_resource("stepper://nothing")

        steps = ["Load :: n == 2", "Clean", "Plot", "Check"]
        await reader.call("create_notebook", problem="a life", steps=steps)
        await reader.read_current_texts()
        doubted = await reader.call("run_cell", source="n = 1")
        assert "action: confirm" in doubted
        await reader.call("plan", action="edit", id=1, title="Fetch")
        await reader.call("plan", action="confirm", reason="one is enough")
        await reader.call("plan", action="confirm", reason="again")
        await reader.call("plan", action="remove", id=9)
        failed = await reader.call("run_cell", source="1 / 0")
        assert "FAILED" in failed
        waits = await reader.call("run_cell", source="m = 2")
        assert "`run_cell` with `cell_id` " in waits
        await reader.call("notebook_status")
        await reader.call("run_cell", cell_id=-1, source="m = n")
        await reader.call("run_cell", cell_id=-1, source="m = n")
        await reader.call("run_cell", source="print(m)")
        stale = await reader.call("run_cell", cell_id=1, source="n = 3")
        assert "`run_notebook` with `which: stale`" in stale
        await reader.call("change_cells", action="delete", cell_ids=[1])
        await reader.read_current_texts()
        await reader.call("verify", once=True)
        await reader.call("verify", place="nowhere")
        await reader.call("kernel", action="start", place="nowhere")
        await reader.call("kernel", action="restart")
        lost = await reader.call("notebook_status")
        await reader.call("run_notebook", which="restore")
        await reader.call("kernel", action="shutdown")
        lost = await reader.call("notebook_status")
        assert "lost" in lost
        await reader.call("run_cell", source="k = 1")
        await reader.read_current_texts()
        await reader.call("run_notebook", notebook="old")
        await reader.call("execute_code", code="1 / 0", notebook="old")
        reader.assert_only_mcp_tools()

    run_scenario(quick, story)


def test_stop_texts_name_mcp_tools(quick: Quick) -> None:
    requests = []

    async def decline(context: Any, params: Any) -> ElicitResult:
        requests.append(params.message)
        return ElicitResult(action="decline")

    async def story(client: Client) -> None:
        reader = Reader(client)
        await reader.call("create_notebook", problem="a stop", steps=["Load", "Plot"])
        source = "raise RuntimeError('STOP: which column?')"
        await reader.call("run_cell", source=source)
        refusal = await reader.call("run_cell", source="1")
        assert (
            "Only the user can resume the notebook: `lift_stop` asks them to decide"
            in refusal
        )
        await reader.call("run_notebook", which="all")
        await reader.call("run_notebook", which="restore")
        await reader.call("execute_code", code="1 / 0")
        status = await reader.call("notebook_status")
        assert "`lift_stop` (continue [ANSWER])" in status
        await reader.read_current_texts()
        response = await reader.call("lift_stop")
        # The response names the user's command, because the client declines.
        assert DECISIONS.search(response), response
        reader.assert_only_mcp_tools(terminal=("lift_stop",))
        (question,) = requests
        assert "which column?" in question
        assert not FOREIGN.search(question), question
        assert not DECISIONS.search(question), question

    run_scenario(quick, story, elicitation_callback=decline)


@pytest.mark.nightly
def test_kernel_death_texts_name_mcp_tools(quick: Quick) -> None:
    async def story(client: Client) -> None:
        reader = Reader(client)
        await reader.call("create_notebook", problem="a death", steps=["Load", "Plot"])
        await reader.call("run_cell", source="x = 1")
        await reader.call("run_cell", source="die()")
        await reader.read_current_texts()
        await reader.call("run_cell", source="1")
        await reader.call("run_notebook", which="restore")
        await reader.call("lift_stop")  # which this client can't ask about
        reader.assert_only_mcp_tools(terminal=("lift_stop",))

        # while no cell was running
        await reader.call("create_notebook", problem="another", steps=["Load", "Plot"])
        await reader.call("run_cell", source="x = 1")
        name = (await client.call_tool("notebook_status", {})).structured_content
        kernel = quick.live_kernels[name["notebook"]]
        kernel.ends("SIGKILL")
        status = ""
        for _ in range(100):  # the daemon checks once a second
            status = await reader.call("notebook_status")
            if "KernelDied" in status:
                break
            await asyncio.sleep(0.1)
        assert "`run_notebook` with `which: restore`" in status
        await reader.read_current_texts()
        refusal = await reader.call("run_cell", source="y = 1")
        assert "`run_notebook` with `which: restore`" in refusal
        await reader.call("run_notebook", which="restore")
        reader.assert_only_mcp_tools(terminal=("lift_stop",))

    run_scenario(quick, story)


def test_tool_descriptions_name_only_mcp_tools() -> None:
    names = {*tools.TOOLS, *tools.TOOL_BY_PEER}
    calls = re.findall(r"\b[a-z]+_[a-z_]+\(", tools.INSTRUCTIONS)
    assert calls
    assert {call.rstrip("(") for call in calls} <= names
