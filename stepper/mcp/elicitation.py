"""Questions to the user about a stopped notebook, which the client shows as a form.

The agent can't answer these questions. With protocol versions until 2025, the server
asks during the call. Since 2026, the response to the call is the question, and the
client repeats the call with the user's answer. A token identifies the question and is
valid for one answer to one stop.
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
            "title": "How should the notebook continue?",
            "enum": [*TEXT_ARGUMENTS],
            "description": (
                "continue: continue with the notebook; fix: give the failed step new"
                " retries; skip: skip the failed step"
            ),
        },
        "words": {
            "type": "string",
            "title": "Your answer, hint or reason",
            "description": "The agent reads this text.",
        },
    },
    "required": ["decision"],
}
# Why there is no decision, by the action of an answer.
NO_DECISION_REASONS = {
    "accept": "the client's answer contains no decision",
    "decline": "the client declined the question",
    "cancel": "the client cancelled the question",
}
QUESTION_LIMIT = 4_000  # characters
MAX_QUESTIONS = 100  # unanswered questions that are stored


class Stop(NamedTuple):
    """A stopped notebook and the text of its stop."""

    notebook: str
    text: str


class StopQuestions:
    """The unanswered questions. `stops` maps the token of a question to its stop."""

    def __init__(self) -> None:
        self.stops: OrderedDict[str, Stop] = OrderedDict()

    async def ask(
        self, daemon: Daemon, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Ask the user how a stopped notebook continues, and run the chosen command.

        Since protocol version 2026, return the question first. When the client repeats
        the call with the user's answer, run the command. If no notebook is stopped,
        return a result that says so. If the client can't ask its user, return an error
        result.
        """
        name = (params.arguments or {}).get("notebook")
        status = await daemon.ask(
            "status", {"notebook": name, "unread": True, "resumes": True}
        )
        notebook = status["notebook"]
        if not notebook:
            text = "The project has no notebook to resume."
            return tool_results.create_text_result(text)
        if not status["stop"]:
            text = f"{notebook} is not stopped and does not need to be resumed."
            return tool_results.create_text_result(text)
        stop = Stop(notebook, str(status["stop"]["text"]))
        if not _can_ask(ctx):
            return _explain_missing_form(daemon, stop)
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            try:
                answer = await ctx.session.elicit_form(
                    _format_question(stop), FORM, ctx.request_id
                )
            except MCPError:  # the client has the capability, but cannot show forms
                return _explain_missing_form(daemon, stop)
            return await _handle_answer(daemon, stop, answer)
        response = (params.input_responses or {}).get(DECISION)
        if isinstance(response, ElicitResult):
            token = params.request_state or ""
            answered_stop = self.stops.pop(token, None)
            if answered_stop == stop:
                return await _handle_answer(daemon, stop, response)
        return self._create_question(stop)

    def _create_question(self, stop: Stop) -> InputRequiredResult:
        """Return a question, which the client answers by repeating the call.

        If too many questions are unanswered, forget the oldest one.
        """
        token = secrets.token_urlsafe(16)
        self.stops[token] = stop
        if len(self.stops) > MAX_QUESTIONS:
            self.stops.popitem(last=False)
        form = ElicitRequestFormParams(
            message=_format_question(stop), requested_schema=FORM
        )
        return InputRequiredResult(
            input_requests={DECISION: ElicitRequest(params=form)}, request_state=token
        )


def _format_question(stop: Stop) -> str:
    """Return the text of the form."""
    question = mcp_wording.format_question(stop.text)
    message = f"{stop.notebook} is stopped.\n{question}"
    return message[:QUESTION_LIMIT]


def _can_ask(ctx: Context) -> bool:
    """Return whether the client can show a form to its user.

    A client that supports elicitation and names no mode supports forms.
    """
    capabilities = ctx.session.client_capabilities
    modes = None
    if capabilities:
        modes = capabilities.elicitation
    if modes is None:
        return False
    return modes.form is not None or modes.url is None


def _explain_missing_form(daemon: Daemon, stop: Stop) -> CallToolResult:
    """Return an error result with the commands that the user can run in a terminal."""
    details = mcp_wording.translate(stop.text, for_user=True)
    text = (
        f"{stop.notebook} is still stopped, because this client can't ask the user."
        " Explain the problem to the user. To resume the notebook, the user runs one of"
        f" the commands below in a terminal, in {daemon.paths.project}.\n{details}"
    )
    return tool_results.create_translated_result(text, is_error=True)


async def _handle_answer(
    daemon: Daemon, stop: Stop, answer: ElicitResult
) -> CallToolResult:
    """Run the command that the user chose, and return its response.

    If the answer contains no decision, return an error result. If the notebook is no
    longer stopped for the same reason, only say that the answer was ignored.
    """
    content: Mapping[str, Any] = answer.content or {}
    decision = content.get("decision")
    if not isinstance(decision, str) or decision not in TEXT_ARGUMENTS:
        decision = None
    if answer.action != "accept" or decision is None:
        # The client may have declined or cancelled without showing the question.
        reason = NO_DECISION_REASONS[answer.action]
        details = mcp_wording.translate(stop.text, for_user=True)
        return tool_results.create_translated_result(
            f"{stop.notebook} is still stopped: {reason}.\n{details}", is_error=True
        )
    request = {"notebook": stop.notebook, "unread": True}
    status = await daemon.ask("status", request)
    current_stop = status["stop"]
    # Meanwhile the notebook may have been resumed, and even stopped again.
    if not current_stop or current_stop["text"] != stop.text:
        return tool_results.create_text_result(
            f"The answer was ignored: {stop.notebook} is no longer stopped for the"
            " reason in the question."
        )
    text = str(content.get("words") or "").strip()
    response = await daemon.ask(
        decision, {"notebook": stop.notebook, TEXT_ARGUMENTS[decision]: text}
    )
    return tool_results.create_text_result(
        f"The client answered: {decision}.\n{response['text']}"
    )
