"""MCP prompts that correspond to the skills and use MCP tools.

Prompts do not resume a stopped notebook: the agent calls `lift_stop`, and the client
asks the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
class Template:
    """A prompt with at most one argument.

    `argument` is the name of the argument, or an empty string if there is no argument;
    `hint` is its description. In `body`, WORDS is replaced by the argument and STATUS
    by the status of the current notebook.
    """

    description: str
    argument: str
    hint: str
    body: str
    required: bool = False


RESUME = (
    "If the notebook below is stopped, call `lift_stop`. The tool asks the user, who "
    "chooses `{}`.WORDS\n\nSTATUS\n\n"
)
NEXT = (
    "Then read the notebook (`read_notebook`) and continue with its next step, as this "
    "server's instructions say."
)
PROMPTS = {
    "new-notebook": Template(
        "Create a notebook for a problem and work through it, one cell at a time.",
        "problem",
        "The question to answer",
        "Create a notebook for this problem and work through it:WORDS\n\n"
        "Look at the data first (`execute_code`). Plan three to ten steps and call "
        "`create_notebook` with them. Then write and run one cell at a time "
        "(`run_cell`), as this server's instructions say. If the user names a kernel "
        "backend (a GPU, a cluster, a host), pass its name as `place`. Write a step "
        "that takes minutes or hours as `TITLE :: CRITERION :: long`. If a response "
        "says that a cell is still running, wait for it with `notebook_status` and "
        "`wait_seconds`.\n\nThe current status:\nSTATUS",
        required=True,
    ),
    "continue": Template(
        "Resume the current notebook after a stop and continue with its next step.",
        "answer",
        "The answer to the question that stopped the notebook",
        "The user wants to continue the work on the current notebook. "
        + RESUME.format("continue")
        + NEXT
        + " If a cell asked a question, follow the user's answer.",
    ),
    "fix": Template(
        "Allow new retries for the failed step of the current notebook.",
        "hint",
        "Information that helps the agent to fix the step",
        "The user wants the failed cell fixed. "
        + RESUME.format("fix")
        + "Then read the notebook (`read_notebook`) and find the cause; do not try "
        "another variation of the same code. Replace the failed cell (`run_cell` with "
        "its `cell_id`). If the cause is in an earlier cell, replace that cell first. "
        "Prefer the user's hint over your own guess.",
    ),
    "skip": Template(
        "Skip the failed step of the current notebook.",
        "reason",
        "Why the step is skipped",
        "The user wants a step skipped. "
        + RESUME.format("skip")
        + NEXT
        + " The results of the skipped step are missing: if a later step needs them, "
        "say so.",
    ),
    "notebook-status": Template(
        "Show the progress of the current notebook, with its plan and its kernel.",
        "",
        "",
        "Show the user the following status without changes. Add an explanation only "
        "if something failed, was interrupted, is stopped or does not reproduce:\n\n"
        "STATUS",
    ),
}
PLACEHOLDER = re.compile("WORDS|STATUS")
NAME_LIMIT = 100  # characters of an unknown name in an error


def list_prompts() -> list[Prompt]:
    """Return all prompts with their arguments, without their texts."""
    prompts = []
    for name, template in PROMPTS.items():
        arguments = []
        if template.argument:
            argument = PromptArgument(
                name=template.argument,
                description=template.hint,
                required=template.required,
            )
            arguments.append(argument)
        prompts.append(
            Prompt(name=name, description=template.description, arguments=arguments)
        )
    return prompts


async def get_prompt(
    daemon: Daemon, name: str, arguments: Mapping[str, str]
) -> GetPromptResult:
    """Return a prompt as a message of the user.

    Raises:
        MCPError: The name or an argument is wrong.
        StepperError: The daemon can't return the status.
    """
    template = _find_template(name)
    _check_arguments(name, template, arguments)
    words = arguments.get(template.argument, "").strip()
    details = await get_current_status(daemon)
    status = mcp_wording.translate(data_rendering.format_status(*details))
    values = {"WORDS": "", "STATUS": status}
    if words:
        prefix = " " if template.required else " The user said: "
        values["WORDS"] = f"{prefix}{words}"
    text = PLACEHOLDER.sub(lambda match: values[match[0]], template.body)
    message = PromptMessage(role="user", content=TextContent(text=text))
    return GetPromptResult(description=template.description, messages=[message])


def _find_template(name: str) -> Template:
    """Return the prompt with a name; raise MCPError if the name is unknown."""
    template = PROMPTS.get(name)
    if template is None:
        raise MCPError(
            INVALID_PARAMS,
            f"unknown prompt {name[:NAME_LIMIT]!r}; the prompts are"
            f" {', '.join(PROMPTS)}",
        )
    return template


def _check_arguments(
    name: str, template: Template, arguments: Mapping[str, str]
) -> None:
    """Raise MCPError if a required argument is missing or an argument is unknown."""
    unknown_names = [
        argument_name
        for argument_name in arguments
        if argument_name != template.argument
    ]
    if unknown_names:
        accepted = template.argument or "no arguments"
        raise MCPError(
            INVALID_PARAMS,
            f"the prompt {name} accepts {accepted}, not {', '.join(unknown_names)}",
        )
    if template.required and not arguments.get(template.argument, "").strip():
        raise MCPError(
            INVALID_PARAMS, f"the prompt {name} requires {template.argument}"
        )
