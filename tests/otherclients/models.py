"""Scripted models for the protocols of OpenAI Responses and Gemini.

A turn is one tool call or a text. It can also be a function that gets the tool results
so far and returns a tool call or a text. One script serves all clients.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias

_numbers = itertools.count(1)
Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """The model calls a tool of stepper's."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a tool's result showed to the model."""

    text: str
    images: int = 0


Said: TypeAlias = Call | str
Turn: TypeAlias = Said | Callable[[Sequence[Result]], Said]


def get_turn(turn: Turn, results: Sequence[Result]) -> Said:
    """What the model says in a turn."""
    return turn(results) if callable(turn) else turn


class ScriptedModel:
    """Answers the turns of its script one after the other, then "done"; keeps what it was sent.

    Use it as a context manager. A subclass knows one protocol.
    """

    def __init__(self, *script: Turn) -> None:
        self.requests: list[Body] = []  # those that offered stepper's tools
        self.other_requests: list[str] = []  # "POST /path": anything else
        self.errors: list[Exception] = []  # errors raised by the script's callables
        self._script = list(script)
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedModel:
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: object,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def unsaid(self) -> int:
        """How many turns of the script are still to come."""
        return len(self._script)

    @property
    def results(self) -> list[Result]:
        """The results of all calls that the last request holds, oldest first."""
        return self.results_in(self.requests[-1])

    def offered(self) -> dict[str, Body]:
        """Stepper's tools as the last request offers them, by their bare names."""
        return self.offered_in(self.requests[-1])

    def says(self, body: Body) -> Said:
        """The answer to one main request."""
        with self._lock:
            self.requests.append(body)
            turn = self._script.pop(0) if self._script else "done"
        try:
            return get_turn(turn, self.results_in(body))
        except Exception as error:  # noqa: BLE001 - told by the fixture; the client only sees the model give up
            self.errors.append(error)
            return f"the script failed: {error!r}"

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        """The content type and body that answer a request of the client."""
        raise NotImplementedError

    def results_in(self, body: Body) -> list[Result]:
        """The results of all calls that a request holds."""
        raise NotImplementedError

    def offered_in(self, body: Body) -> dict[str, Body]:
        """Stepper's tools that a request offers."""
        raise NotImplementedError


def _events(*events: Body, named: bool) -> tuple[str, bytes]:
    lines = (
        f"event: {e['type']}\ndata: {json.dumps(e)}\n\n"
        if named
        else f"data: {json.dumps(e)}\n\n"
        for e in events
    )
    return "text/event-stream", "".join(lines).encode()


class ResponsesModel(ScriptedModel):
    """OpenAI's Responses, as Codex asks for them."""

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        if not path.endswith("/responses") or not self.offered_in(body):
            self.other_requests.append(f"POST {path}")
            return _events(*self._response("ok"), named=True)
        return _events(*self._response(self.says(body)), named=True)

    def results_in(self, body: Body) -> list[Result]:
        results = []
        for item in body["input"]:
            if item["type"] == "function_call_output":
                parts = (
                    item["output"]
                    if isinstance(item["output"], list)
                    else [{"text": item["output"]}]
                )
                images = sum(part.get("type") == "input_image" for part in parts)
                results.append(
                    Result(
                        "\n".join(part["text"] for part in parts if "text" in part),
                        images,
                    )
                )
        return results

    def offered_in(self, body: Body) -> dict[str, Body]:
        tools = {}
        for tool in body.get("tools", []):
            if tool["type"] == "namespace" and "stepper" in tool["name"]:
                tools |= {inner["name"]: inner for inner in tool["tools"]}
            elif tool.get("name", "").startswith("mcp__stepper__"):
                tools[tool["name"].removeprefix("mcp__stepper__")] = tool
        return tools

    def _response(self, message: Said) -> list[Body]:
        number = next(_numbers)
        if isinstance(message, Call):
            item: Body = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": message.tool,
            }
            item |= {
                "namespace": "mcp__stepper",
                "arguments": json.dumps(message.arguments),
            }
        else:
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
            item["content"] = [{"type": "output_text", "text": message}]
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        return [
            {"type": "response.created", "response": {"id": f"resp_{number}"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {
                "type": "response.completed",
                "response": {"id": f"resp_{number}", "usage": usage},
            },
        ]


class GeminiModel(ScriptedModel):
    """Gemini's streamGenerateContent."""

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        if ":streamGenerateContent" in path and self.offered_in(body):
            return _events(self._content(self.says(body)), named=False)
        self.other_requests.append(f"POST {path}")
        if ":streamGenerateContent" in path:
            return _events(self._content("ok"), named=False)
        return "application/json", json.dumps(
            {"totalTokens": 100, **self._content("{}")}
        ).encode()

    def results_in(self, body: Body) -> list[Result]:
        results = []
        for content in body["contents"]:
            for part in content.get("parts", []):
                if answer := part.get("functionResponse"):
                    response = answer["response"]
                    text = (
                        response.get("output", response.get("error"))
                        if isinstance(response, dict)
                        else response
                    )
                    images = sum(
                        "inlineData" in inner for inner in answer.get("parts", [])
                    )
                    results.append(
                        Result(
                            text if isinstance(text, str) else json.dumps(response),
                            images,
                        )
                    )
                elif "inlineData" in part and results:
                    results[-1] = Result(results[-1].text, results[-1].images + 1)
        return results

    def offered_in(self, body: Body) -> dict[str, Body]:
        declared = (
            tool
            for group in body.get("tools", [])
            for tool in group.get("functionDeclarations", [])
        )
        return {
            t["name"].removeprefix("mcp_stepper_"): t
            for t in declared
            if t["name"].startswith("mcp_stepper_")
        }

    def _content(self, message: Said) -> Body:
        part: Body = {"text": message} if isinstance(message, str) else {}
        if isinstance(message, Call):
            part = {
                "functionCall": {
                    "name": f"mcp_stepper_{message.tool}",
                    "args": message.arguments,
                }
            }
        usage = {
            "promptTokenCount": 100,
            "candidatesTokenCount": 10,
            "totalTokenCount": 110,
        }
        candidate = {
            "content": {"role": "model", "parts": [part]},
            "finishReason": "STOP",
            "index": 0,
        }
        return {"candidates": [candidate], "usageMetadata": usage}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle of an answer is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(
            self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"
        )
        self._send(*self.server.model.answer(self.path, body))

    def do_GET(self) -> None:
        self.server.model.other_requests.append(f"GET {self.path}")
        self._send("application/json", b"{}")

    def log_message(self, *_: Any) -> None:
        """The requests are in the model; nothing is printed."""

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
