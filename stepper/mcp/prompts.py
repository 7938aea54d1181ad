"""Prompts: the commands that people give in Claude Code as skills, with the same texts, said for the tools here.

None lifts a stop by itself: `lift_stop` has the client ask the person, who decides there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from stepper.mcp import data_rendering
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.tool_calls import standing

PACKAGE = Path(__file__).resolve().parent.parent
SKILLS = next(
    filter(Path.is_dir, (PACKAGE / "assets/skills", PACKAGE.parent / "skills")), PACKAGE
)
# Each with the argument that its skill takes, and whether it must be given.
TAKES = {
    "new-notebook": ("problem", True),
    "continue": ("answer", False),
    "fix": ("hint", False),
    "skip": ("reason", False),
    "notebook-status": ("", False),
}
COMMAND = re.compile(r"```!\nstepper (\w+).*?```|!`stepper (\w+)`", re.DOTALL)
# What a skill says of Claude Code's tools, and what it is here.
SAID_HERE = (
    (r"the skill `stepping-notebooks` says", "this server's instructions say"),
    (r"the skill `stepping-notebooks`", "this server's instructions"),
    (
        r"`stepper new … --kernel NAME`: `stepper kernels` lists them",
        "`create_notebook` with its `place`",
    ),
    (r"`stepper new`", "`create_notebook`"),
    (r"`Read` the notebook", "`read_notebook`"),
    (r"\(`NotebookEdit`, `edit_mode: replace`\)", "(`run_cell` with its `cell_id`)"),
    (r" It is done:", ""),
    (
        r", or end your turn: you are notified when the cell finishes\.",
        ". `notebook_status` with `wait_seconds` waits for its result.",
    ),
    (r"timeout=6h wait=45s wake=\"PATTERN\"", "timeout=6h wait=45s"),
    (r"; with `wake` you are also notified at the first printed line that matches", ""),
)


@dataclass(frozen=True)
class Skill:
    """A skill's text and what its head says of it."""

    description: str
    hint: str
    body: str


def skill(name: str) -> Skill:
    """Return a skill as it was shipped."""
    _, head, body = (
        (SKILLS / name / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    )
    said = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return Skill(
        said["description"], said.get("argument-hint", "").strip('"'), body.strip()
    )


def every() -> list[Prompt]:
    """Return the prompts."""
    prompts = []
    for name, (argument, required) in TAKES.items():
        about = skill(name)
        takes = (
            [PromptArgument(name=argument, description=about.hint, required=required)]
            if argument
            else []
        )
        prompts.append(
            Prompt(name=name, description=about.description, arguments=takes)
        )
    return prompts


async def get(daemon: Daemon, name: str, given: dict[str, str]) -> GetPromptResult:
    """Return a prompt as a message of the person's; raise MCPError for wrong arguments, StepperError."""
    if name not in TAKES:
        raise MCPError(
            INVALID_PARAMS,
            f"there is no prompt {name[:100]!r}; there are {', '.join(TAKES)}",
        )
    argument, required = TAKES[name]
    if wrong := [each for each in given if each != argument]:
        raise MCPError(
            INVALID_PARAMS,
            f"{name} takes {argument or 'no arguments'}, not {', '.join(wrong)}",
        )
    words = given.get(argument, "").strip()
    if required and not words:
        raise MCPError(INVALID_PARAMS, f"{name} needs {argument}")
    about, now = skill(name), data_rendering.standing(*await standing(daemon, {}))

    def ran(command: re.Match[str]) -> str:
        decision = command[1] or command[2]
        if decision == "status":
            return now
        said = f" The user said: {words}" if words else ""
        return f"Call `lift_stop`: the user chooses `{decision}` in the question that it shows.{said}\n\n{now}"

    text = (
        about.body.replace("$ARGUMENTS", words)
        if name == "new-notebook"
        else about.body
    )
    for pattern, here in SAID_HERE:
        text = re.sub(pattern.replace(" ", r"\s+"), here, text)
    text = COMMAND.sub(ran, text)
    return GetPromptResult(
        description=about.description,
        messages=[PromptMessage(role="user", content=TextContent(text=text))],
    )
