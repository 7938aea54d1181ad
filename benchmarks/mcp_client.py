"""A client of an MCP server on standard streams, without a library.

It uses protocol 2025-06-18, which every measured server supports, and has no client
features: no roots, sampling or forms.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
from common import MB, BrokenStepError, measure_elapsed_ms

PROTOCOL = "2025-06-18"


class CallResult(NamedTuple):
    """The result of a call: its duration in milliseconds, and its content."""

    ms: float
    text: str
    image_count: int
    is_error: bool


class Server:
    """A server process that runs until `stop`."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        log: IO[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.number = 0
        self.started_at = time.perf_counter()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=log
        )
        client_info = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self.instructions = (
            self.request("initialize", client_info).get("instructions") or ""
        )
        self.send({"method": "notifications/initialized"})
        self.tools: list[dict[str, Any]] = self.request("tools/list", {})["tools"]
        self.ready_ms = measure_elapsed_ms(self.started_at)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        self.process.stdin.write(
            json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        )
        self.process.stdin.flush()

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request.

        Raise BrokenStepError if the server refuses it or exits.
        """
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while line := self.process.stdout.readline():
            message = json.loads(line)
            # a request of the server, which this client does not support
            if "method" in message and "id" in message:
                self.send(
                    {
                        "id": message["id"],
                        "error": {"code": -32601, "message": "not offered"},
                    }
                )
            elif message.get("id") == self.number:
                if "error" in message:
                    raise BrokenStepError(f"{method}: {message['error']}")
                return message["result"]
        raise BrokenStepError(f"{method}: the server exited")

    def call(self, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool."""
        gc.collect()
        gc.disable()
        started_at = time.perf_counter()
        try:
            result = self.request("tools/call", {"name": tool, "arguments": arguments})
            ms = measure_elapsed_ms(started_at)
        finally:
            gc.enable()
        blocks = result["content"]
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        return CallResult(
            ms,
            text,
            sum(block["type"] == "image" for block in blocks),
            result.get("isError", False),
        )

    def measure_memory(self) -> tuple[float, float]:
        """Return the server's resident and unshared memory in MiB."""
        info = psutil.Process(self.process.pid).memory_full_info()
        return info.rss / MB, info.uss / MB

    def stop(self) -> None:
        """Stop the server and its child processes; kill those that do not exit."""
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in psutil.wait_procs(children, timeout=3)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.stdout.close()
