"""A client of an MCP server on standard streams, without a library: what is timed is the server.

It speaks 2025-06-18, which every server here answers, and offers nothing: no roots, no sampling, no forms.
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
from common import MB, BrokenStepError, since

PROTOCOL = "2025-06-18"


class Result(NamedTuple):
    """What a call gave: its milliseconds, request to parsed answer, and what a model reads of it."""

    ms: float
    text: str
    images: int
    failed: bool


class Server:
    """A server that runs until `end`."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        log: IO[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.number = 0
        self.began = time.perf_counter()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=log
        )
        about = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self.instructions = self.ask("initialize", about).get("instructions") or ""
        self.tell({"method": "notifications/initialized"})
        self.tools: list[dict[str, Any]] = self.ask("tools/list", {})["tools"]
        self.ready_ms = since(self.began)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        self.process.stdin.write(
            json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        )
        self.process.stdin.flush()

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's result; raise BrokenStepError where the server ends or refuses it."""
        self.number += 1
        self.tell({"id": self.number, "method": method, "params": params})
        while line := self.process.stdout.readline():
            message = json.loads(line)
            # it asks us something: we have nothing
            if "method" in message and "id" in message:
                self.tell(
                    {
                        "id": message["id"],
                        "error": {"code": -32601, "message": "not offered"},
                    }
                )
            elif message.get("id") == self.number:
                if "error" in message:
                    raise BrokenStepError(f"{method}: {message['error']}")
                return message["result"]
        raise BrokenStepError(f"{method}: the server ended")

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Return what a tool's call gave."""
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        try:
            result = self.ask("tools/call", {"name": tool, "arguments": arguments})
            ms = since(began)
        finally:
            gc.enable()
        blocks = result["content"]
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        return Result(
            ms,
            text,
            sum(block["type"] == "image" for block in blocks),
            result.get("isError", False),
        )

    def memory(self) -> tuple[float, float]:
        """Return the MiB that the server's own process holds: resident, and its own alone."""
        about = psutil.Process(self.process.pid).memory_full_info()
        return about.rss / MB, about.uss / MB

    def end(self) -> None:
        """End it, and what it started, if it does not go by itself."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in psutil.wait_procs(family, timeout=3)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.stdout.close()
