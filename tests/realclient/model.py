"""A scripted model: a Messages API on loopback that streams responses like the real API."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

Block: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Response: TypeAlias = Sequence[Block] | Callable[[list[Message]], Sequence[Block]]


class Awaited(NamedTuple):
    """A turn that waits until the requests contain a text often enough.

    Until then, the model responds that it waits.
    """

    awaited_text: str
    count: int
    turn: Response


Turn: TypeAlias = Response | Awaited

_numbers = itertools.count(1)


def text(content: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": content}


def tool(name: str, arguments: dict[str, Any]) -> Block:
    """Return a tool call."""
    return {
        "type": "tool_use",
        "id": f"toolu_{next(_numbers):024d}",
        "name": name,
        "input": arguments,
    }


def texts(content: Any) -> Iterator[str]:
    """Return the text of a message, including tool results, in order."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            yield from texts(block.get("text") or block.get("content"))


def collect_text(messages: Sequence[Message]) -> str:
    """Return the text of all messages except the model's own."""
    return "\n".join(
        part
        for m in messages
        if m["role"] != "assistant"
        for part in texts(m["content"])
    )


def tool_results(messages: Sequence[Message]) -> list[str]:
    """Return the text of each tool result, oldest first."""
    blocks = (
        b for m in messages if isinstance(m["content"], list) for b in m["content"]
    )
    return [
        "\n".join(texts(b.get("content"))) for b in blocks if b["type"] == "tool_result"
    ]


def cell_ids(messages: Sequence[Message]) -> list[str]:
    """Return the cell ids in the last Read of a notebook."""
    ids = (
        re.findall(r'<cell id="([^"]*)"', result)
        for result in reversed(tool_results(messages))
    )
    return next(filter(None, ids), [])


class ScriptedModel:
    """Responds with the turns of its script, then with "done"; records all requests.

    Use it as a context manager; `url` is the value for `ANTHROPIC_BASE_URL`.
    """

    def __init__(self, *script: Turn) -> None:
        self.requests: list[list[Message]] = []  # the messages of each main request
        self.side_requests: list[
            dict[str, Any]
        ] = []  # titles and summaries: full request bodies
        self.other_requests: list[
            str
        ] = []  # "GET /path": all except messages and count_tokens
        self.errors: list[Exception] = []  # errors raised by callables of the script
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

    def then(self, *turns: Turn) -> None:
        """Append turns to the script, between two prompts."""
        with self._lock:
            self._script.extend(turns)

    @property
    def unsaid(self) -> int:
        """Return the number of turns that are left in the script."""
        return len(self._script)

    def shown(self) -> str:
        """Return the text of the last request.

        Includes prompts, tool results, hook contexts and reminders.
        """
        return collect_text(self.requests[-1])

    def shown_since(self, n: int) -> str:
        """Return the text of the last request that request `n` did not contain.

        `n` is an index; -2 is the previous request.
        """
        return collect_text(self.requests[-1][len(self.requests[n]) :])

    def answer(self, body: dict[str, Any]) -> Sequence[Block]:
        """Return the blocks of the response to one request."""
        if all(offered.get("name") != "Read" for offered in body.get("tools") or []):
            self.side_requests.append(body)
            return [text("ok")]
        messages: list[Message] = body["messages"]
        with self._lock:
            self.requests.append(messages)
            turn: Turn = self._script[0] if self._script else [text("done")]
            if (
                isinstance(turn, Awaited)
                and collect_text(messages).count(turn.awaited_text) < turn.count
            ):
                return [text("Nothing yet.")]
            self._script = self._script[1:]
            turn = turn.turn if isinstance(turn, Awaited) else turn
        if not callable(turn):
            return turn
        try:
            return turn(messages)
        except Exception as error:  # noqa: BLE001 - the fixture reports it; the client only gets an error
            self.errors.append(error)
            return [text(f"the script failed: {error!r}")]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during a response (Esc, exit)."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(
            self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"
        )
        path = self.path.partition("?")[0]
        if path == "/v1/messages/count_tokens":
            self._json({"input_tokens": 100})
        elif path != "/v1/messages":
            self._serve_other()
        elif body.get("stream"):
            self._stream(_events(body.get("model"), self.server.model.answer(body)))
        else:
            self._json(
                _message(body.get("model"), list(self.server.model.answer(body)))
            )

    def do_GET(self) -> None:
        self._serve_other()

    def do_HEAD(self) -> None:
        self._serve_other()

    def log_message(self, *_: Any) -> None:
        """Print nothing; the model records the requests."""

    def _serve_other(self) -> None:
        self.server.model.other_requests.append(f"{self.command} {self.path}")
        self._json({})

    def _json(self, value: dict[str, Any]) -> None:
        self._send("application/json", json.dumps(value).encode())

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        lines = "".join(
            f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events
        )
        self._send("text/event-stream", lines.encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _message(model: Any, content: list[Block]) -> dict[str, Any]:
    calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": f"msg_{next(_numbers):024d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }


def _events(model: Any, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    message = _message(model, list(blocks))
    yield {
        "type": "message_start",
        "message": {**message, "content": [], "stop_reason": None},
    }
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            start = {**block, "input": {}}
            delta = {
                "type": "input_json_delta",
                "partial_json": json.dumps(block["input"]),
            }
        else:
            start = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 10}}
    yield {"type": "message_stop"}
