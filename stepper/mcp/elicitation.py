"""Lifting a stop: the person is asked by the client, and decides; the agent can't answer for them.

In the era of 2025 the server asks while the call waits; in that of 2026 the call is answered with the question, and
comes again with the person's answer. What was asked is known by a token, good for one answer to that very stop.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from stepper.mcp import mcp_wording, tool_results
from stepper.mcp.daemon_client import Daemon

Context = ServerRequestContext[Any, Any]
DECISION = "decision"
WORDS = {"continue": "answer", "fix": "hint", "skip": "reason"}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "What now?",
            "enum": [*WORDS],
            "description": "continue: go on; fix: new retries for the failed step; skip: leave that step out",
        },
        "words": {
            "type": "string",
            "title": "Your answer, hint or reason",
            "description": "The agent reads it.",
        },
    },
    "required": ["decision"],
}
LONGEST = 4_000  # characters of a question
KEPT = 100  # questions that wait for their answer


class Stops:
    """The questions that wait for a person's answer, by their token: about which notebook and which stop."""

    def __init__(self) -> None:
        self.asked: OrderedDict[str, tuple[str, str]] = OrderedDict()

    async def lift(
        self, daemon: Daemon, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Ask the person about a stop, and do what they decide."""
        named = (params.arguments or {}).get("notebook")
        found = await daemon.ask(
            "status", {"notebook": named, "unread": True, "resumes": True}
        )
        stop, notebook = found["stop"], found["notebook"]
        if not stop:
            return tool_results.text(
                f"{notebook} is not stopped: there is nothing to lift."
                if notebook
                else "No notebook."
            )
        about = notebook, str(stop["text"])
        if not _can_ask(ctx):
            return _unsupported(daemon, about)
        form = ElicitRequestFormParams(
            message=f"{notebook} is stopped.\n{mcp_wording.question(about[1])}"[
                :LONGEST
            ],
            requested_schema=FORM,
        )
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            try:
                answer = await ctx.session.elicit_form(
                    form.message, FORM, ctx.request_id
                )
            except MCPError:  # it said that it can, and can't
                return _unsupported(daemon, about)
            return await _done(daemon, about, answer)
        given = (params.input_responses or {}).get(DECISION)
        if (
            isinstance(given, ElicitResult)
            and self.asked.pop(params.request_state or "", None) == about
        ):
            return await _done(daemon, about, given)
        token = secrets.token_urlsafe(16)
        self.asked[token] = about
        while len(self.asked) > KEPT:
            self.asked.popitem(last=False)
        return InputRequiredResult(
            input_requests={DECISION: ElicitRequest(params=form)}, request_state=token
        )


def _can_ask(ctx: Context) -> bool:
    """Whether the client shows forms; one that names no mode means those."""
    capabilities = ctx.session.client_capabilities
    shows = capabilities.elicitation if capabilities else None
    return shows is not None and (shows.form is not None or shows.url is None)


def _unsupported(daemon: Daemon, about: tuple[str, str]) -> CallToolResult:
    notebook, why = about
    told = (
        f"{notebook} stays stopped: this client can't ask the user. Tell them why, and that they can give one of the "
        f"commands below in a terminal, in {daemon.paths.project}.\n{mcp_wording.translate(why, for_user=True)}"
    )
    return tool_results.translated_text(told, error=True)


async def _done(
    daemon: Daemon, about: tuple[str, str], answer: ElicitResult
) -> CallToolResult:
    notebook, why = about
    content: Mapping[str, Any] = answer.content or {}
    decision = content.get("decision")
    if (
        answer.action != "accept"
        or not isinstance(decision, str)
        or decision not in WORDS
    ):
        # A client may decline or cancel by itself: nothing tells whether anybody saw
        # the question.
        named = {
            "decline": "the client answered: declined",
            "cancel": "the client answered: cancelled",
        }
        said = named.get(answer.action, "the client's answer names no decision")
        ways = mcp_wording.translate(why, for_user=True)
        return tool_results.translated_text(
            f"{notebook} stays stopped: {said}.\n{ways}", error=True
        )
    found = (await daemon.ask("status", {"notebook": notebook, "unread": True}))["stop"]
    # it was lifted elsewhere, and maybe another came
    if not found or found["text"] != why:
        return tool_results.text(
            f"Nothing was done: {notebook} is no longer stopped for the reason that the question named."
        )
    words = str(content.get("words") or "").strip()
    told = await daemon.ask(decision, {"notebook": notebook, WORDS[decision]: words})
    return tool_results.text(f"The client answered: {decision}.\n{told['text']}")
