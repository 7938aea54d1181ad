"""Prompts: Claude Code's skills of the same names, in terms of this server's tools.

None resumes a stopped notebook by itself: `lift_stop` lets the client ask the user, who
decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from stepper.mcp import data_rendering, mcp_wording
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.tool_calls import get_current_status


@dataclass(frozen=True)
class Text:
    """A prompt: its description, its argument ('' for none), and its text.

    In `body`, WORDS stands for the argument and STATUS for the status of the current
    notebook.
    """

    description: str
    argument: str
    hint: str
    body: str
    required: bool = False


RESUME = (
    "If the notebook below is stopped, call `lift_stop`: in the question that it shows "
    "the user chooses `{}`.WORDS\n\nSTATUS\n\n"
)
NEXT = (
    "Then read the notebook (`read_notebook`) and go on with its next step, as this "
    "server's instructions say."
)
PROMPTS = {
    "new-notebook": Text(
        "Create a notebook for a problem and work through it, one cell at a time.",
        "problem",
        "The question to answer",
        "Create a notebook for this problem and work through it:WORDS\n\n"
        "Look at the data first (`execute_code`). Plan three to ten steps and call "
        "`create_notebook` with them. Then write and run one cell at a time "
        "(`run_cell`), as this server's instructions say. If the user names a place "
        "for the kernel (a GPU, a cluster, a host), pass its name as `place`. Write a "
        "step that takes minutes or hours as `TITLE :: CRITERION :: long`. If a call "
        "answers that a cell is still running, `notebook_status` with `wait_seconds` "
        "waits for its end.\n\nWhere things stand now:\nSTATUS",
        required=True,
    ),
    "continue": Text(
        "Resume the current notebook after a stop and go on with its next step.",
        "answer",
        "The answer to the question that stopped the notebook",
        "The user wants the work on the current notebook to go on. "
        + RESUME.format("continue")
        + NEXT
        + " If a cell asked a question, the user's answer decides it.",
    ),
    "fix": Text(
        "Give the failed step of the current notebook a fresh set of retries.",
        "hint",
        "What the agent should know for the fix",
        "The user wants the failed cell fixed. "
        + RESUME.format("fix")
        + "Then read the notebook (`read_notebook`), find the cause rather than another "
        "variation of what was tried, and replace that cell (`run_cell` with its "
        "`cell_id`). If the cause lies in an earlier cell, replace that one first. "
        "The user's hint goes before your own guess.",
    ),
    "skip": Text(
        "Skip the failed step of the current notebook.",
        "reason",
        "Why the step is skipped",
        "The user wants a step skipped. "
        + RESUME.format("skip")
        + NEXT
        + " What the skipped step would have made is missing: say so where a later "
        "step needs it.",
    ),
    "notebook-status": Text(
        "Show how far the current notebook is, with its plan and its kernel.",
        "",
        "",
        "Show the user this as it stands. Add only what it means where something "
        "failed, was interrupted, is stopped or does not reproduce:\n\nSTATUS",
    ),
}
PARTS = re.compile("WORDS|STATUS")


def every() -> list[Prompt]:
    """Return the prompts."""
    prompts = []
    for name, prompt in PROMPTS.items():
        arguments = []
        if prompt.argument:
            argument = PromptArgument(
                name=prompt.argument,
                description=prompt.hint,
                required=prompt.required,
            )
            arguments.append(argument)
        prompts.append(
            Prompt(name=name, description=prompt.description, arguments=arguments)
        )
    return prompts


async def get(daemon: Daemon, name: str, given: dict[str, str]) -> GetPromptResult:
    """Return a prompt as a message of the user's; raise MCPError for wrong arguments, StepperError."""
    prompt = PROMPTS.get(name)
    if prompt is None:
        raise MCPError(
            INVALID_PARAMS,
            f"there is no prompt {name[:100]!r}; there are {', '.join(PROMPTS)}",
        )
    if wrong := [each for each in given if each != prompt.argument]:
        raise MCPError(
            INVALID_PARAMS,
            f"{name} takes {prompt.argument or 'no arguments'}, not {', '.join(wrong)}",
        )
    words = given.get(prompt.argument, "").strip()
    if prompt.required and not words:
        raise MCPError(INVALID_PARAMS, f"{name} needs {prompt.argument}")
    status = data_rendering.format_status(*await get_current_status(daemon))
    parts = {"WORDS": "", "STATUS": mcp_wording.translate(status)}
    if words:
        parts["WORDS"] = f" {words}" if prompt.required else f" The user said: {words}"
    text = PARTS.sub(lambda found: parts[found[0]], prompt.body)
    return GetPromptResult(
        description=prompt.description,
        messages=[PromptMessage(role="user", content=TextContent(text=text))],
    )
