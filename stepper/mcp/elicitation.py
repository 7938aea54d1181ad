"""Resuming a stopped notebook: the client asks the user, and the agent cannot answer.

With the protocol versions of 2025, the server asks during the call. With those of 2026,
the response to the call is the question, and the client repeats the call with the
user's answer. A token identifies the question; it is valid for one answer to one stop.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

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
# Decision → the argument of the command for the user's text.
TEXT_ARGUMENTS = {"continue": "answer", "fix": "hint", "skip": "reason"}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "What now?",
            "enum": [*TEXT_ARGUMENTS],
            "description": (
                "continue: go on; fix: new retries for the failed step; skip: leave"
                " that step out"
            ),
        },
        "words": {
            "type": "string",
            "title": "Your answer, hint or reason",
            "description": "The agent reads it.",
        },
    },
    "required": ["decision"],
}
QUESTION_LIMIT = 4_000  # characters
MAX_QUESTIONS = 100  # that wait for an answer


class Stop(NamedTuple):
    """A stopped notebook and the text of its stop."""

    notebook: str
    text: str


class Stops:
    """The questions that wait for the user's answer, by token."""

    def __init__(self) -> None:
        self.questions: OrderedDict[str, Stop] = OrderedDict()

    async def lift(
        self, daemon: Daemon, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Ask the user about a stop, and do what they decide."""
        name = (params.arguments or {}).get("notebook")
        status = await daemon.ask(
            "status", {"notebook": name, "unread": True, "resumes": True}
        )
        notebook = status["notebook"]
        if not status["stop"]:
            text = "No notebook."
            if notebook:
                text = f"{notebook} is not stopped: there is nothing to resume."
            return tool_results.create_text_result(text)
        stop = Stop(notebook, str(status["stop"]["text"]))
        if not _can_ask(ctx):
            return _explain_missing_form(daemon, stop)
        question = mcp_wording.question(stop.text)
        message = f"{notebook} is stopped.\n{question}"
        form = ElicitRequestFormParams(
            message=message[:QUESTION_LIMIT], requested_schema=FORM
        )
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            try:
                answer = await ctx.session.elicit_form(
                    form.message, FORM, ctx.request_id
                )
            except MCPError:  # the client cannot show forms, although it said so
                return _explain_missing_form(daemon, stop)
            return await _handle_answer(daemon, stop, answer)
        response = (params.input_responses or {}).get(DECISION)
        token = params.request_state or ""
        has_answer = isinstance(response, ElicitResult)
        if has_answer and self.questions.pop(token, None) == stop:
            assert isinstance(response, ElicitResult)
            return await _handle_answer(daemon, stop, response)
        token = secrets.token_urlsafe(16)
        self.questions[token] = stop
        while len(self.questions) > MAX_QUESTIONS:
            self.questions.popitem(last=False)
        return InputRequiredResult(
            input_requests={DECISION: ElicitRequest(params=form)}, request_state=token
        )


def _can_ask(ctx: Context) -> bool:
    """Return whether the client shows forms, which is the default mode."""
    capabilities = ctx.session.client_capabilities
    modes = capabilities.elicitation if capabilities else None
    if modes is None:
        return False
    return modes.form is not None or modes.url is None


def _explain_missing_form(daemon: Daemon, stop: Stop) -> CallToolResult:
    """Return the result for a client that cannot ask the user."""
    details = mcp_wording.translate(stop.text, for_user=True)
    text = (
        f"{stop.notebook} stays stopped: this client can't ask the user. Tell the user"
        " why, and that they can run one of the commands below in a terminal, in"
        f" {daemon.paths.project}.\n{details}"
    )
    return tool_results.create_translated_result(text, is_error=True)


async def _handle_answer(
    daemon: Daemon, stop: Stop, answer: ElicitResult
) -> CallToolResult:
    """Run the command that the user chose."""
    content: Mapping[str, Any] = answer.content or {}
    decision = content.get("decision")
    is_decision = isinstance(decision, str) and decision in TEXT_ARGUMENTS
    if answer.action != "accept" or not is_decision:
        # A client may decline or cancel by itself: it is not known whether the user saw
        # the question.
        reasons = {
            "decline": "the client answered: declined",
            "cancel": "the client answered: cancelled",
        }
        reason = reasons.get(answer.action, "the client's answer has no decision")
        details = mcp_wording.translate(stop.text, for_user=True)
        return tool_results.create_translated_result(
            f"{stop.notebook} stays stopped: {reason}.\n{details}", is_error=True
        )
    decision = str(decision)
    request = {"notebook": stop.notebook, "unread": True}
    status = await daemon.ask("status", request)
    present_stop = status["stop"]
    # Meanwhile the notebook may have been resumed, and even stopped again.
    if not present_stop or present_stop["text"] != stop.text:
        return tool_results.create_text_result(
            f"Nothing was done: {stop.notebook} is no longer stopped for the reason in"
            " the question."
        )
    text = str(content.get("words") or "").strip()
    response = await daemon.ask(
        decision, {"notebook": stop.notebook, TEXT_ARGUMENTS[decision]: text}
    )
    return tool_results.create_text_result(
        f"The client answered: {decision}.\n{response['text']}"
    )
