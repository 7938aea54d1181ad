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
    """The model calls a tool of stepper."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A tool result as the model gets it."""

    text: str
    images: int = 0


Message: TypeAlias = Call | str
Turn: TypeAlias = Message | Callable[[Sequence[Result]], Message]


def get_turn(turn: Turn, results: Sequence[Result]) -> Message:
    """Return the message of a turn."""
    return turn(results) if callable(turn) else turn


class ScriptedModel:
    """Responds with the turns of its script, then "done", and records the requests.

    Use it as a context manager. Each subclass implements one protocol.
    """

    def __init__(self, *script: Turn) -> None:
        self.requests: list[Body] = []  # requests that offer stepper's tools
        self.other_requests: list[str] = []  # all others, as "POST /path"
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
        """The number of remaining turns."""
        return len(self._script)

    @property
    def results(self) -> list[Result]:
        """The results of all calls in the last request, oldest first."""
        return self.results_in(self.requests[-1])

    def list_tools(self) -> dict[str, Body]:
        """Return stepper's tools in the last request, by name without prefix."""
        return self.offered_in(self.requests[-1])

    def get_message(self, body: Body) -> Message:
        """Return the next message of the script."""
        with self._lock:
            self.requests.append(body)
            turn = self._script.pop(0) if self._script else "done"
        try:
            return get_turn(turn, self.results_in(body))
        except Exception as error:  # noqa: BLE001 - reported by the fixture
            self.errors.append(error)
            return f"the script failed: {error!r}"

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        """Return the content type and the body of the response to a request."""
        raise NotImplementedError

    def results_in(self, body: Body) -> list[Result]:
        """Return the results of all calls in a request."""
        raise NotImplementedError

    def offered_in(self, body: Body) -> dict[str, Body]:
        """Return stepper's tools in a request."""
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
    """OpenAI's Responses API, as Codex uses it."""

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        if not path.endswith("/responses") or not self.offered_in(body):
            self.other_requests.append(f"POST {path}")
            return _events(*self._response("ok"), named=True)
        return _events(*self._response(self.get_message(body)), named=True)

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

    def _response(self, message: Message) -> list[Body]:
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
            return _events(self._content(self.get_message(body)), named=False)
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

    def _content(self, message: Message) -> Body:
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
        """Ignore clients that disconnect during a response."""


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
        """Print nothing; the model records the requests."""

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
