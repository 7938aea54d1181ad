"""Kernel messages → a cell's outputs: nbclient does it, streams are joined and bounded while they arrive."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.client import timestamp
from nbclient.exceptions import CellExecutionComplete


class Text:
    """A stream's text, bounded while it arrives: the head and the tail stay, the middle is counted."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head: list[str] = []
        self.head_size = 0
        self.tail: deque[str] = deque()
        self.tail_size = 0
        self.left_out = 0

    def add(self, text: str) -> None:
        """Take the next piece."""
        if self.head_size < self.half and not self.tail:
            piece, text = text[: self.half - self.head_size], text[self.half - self.head_size :]
            self.head.append(piece)
            self.head_size += len(piece)
        if text:
            if len(text) > self.half:
                self.left_out += len(text) - self.half
                text = text[-self.half :]
            self.tail.append(text)
            self.tail_size += len(text)
        while self.tail_size > self.half:
            over = self.tail_size - self.half
            first = self.tail.popleft()
            if len(first) > over:
                self.tail.appendleft(first[over:])
            cut = min(len(first), over)
            self.tail_size -= cut
            self.left_out += cut

    def value(self) -> str:
        """Return the text, with a line that says how much was left out."""
        gap = f"\n… {self.left_out:,} characters left out by stepper (max_output_bytes) …\n" if self.left_out else ""
        return "".join(self.head) + gap + "".join(self.tail)


class OutputArea:
    """The outputs of one execution."""

    def __init__(self, max_output_bytes: int) -> None:
        self.limit = max_output_bytes
        self.cell = nbformat.from_dict({"cell_type": "code", "metadata": {"execution": {}}, "outputs": []})
        # from_dict, because new_notebook validates: that is for off the hot path
        self.client = NotebookClient(nbformat.from_dict({"cells": [self.cell], "metadata": {}}))
        self.cell = self.client.nb.cells[0]
        self.client.clear_before_next_output = False
        self.texts: dict[int, Text] = {}

    def take(self, message: dict[str, Any]) -> bool:
        """Take one iopub message; return True when it says that the execution is over."""
        if message["msg_type"] == "stream" and not self.client.clear_before_next_output:
            content = message["content"]
            last = self.cell.outputs[-1] if self.cell.outputs else None
            text = self.texts.get(id(last))
            if last is not None and text is not None and last["name"] == content["name"]:
                text.add(content["text"])
                return False
        try:
            new = self.client.process_message(message, self.cell, 0)
        except CellExecutionComplete:
            return True
        if new is not None and new["output_type"] == "stream":
            self.texts[id(new)] = text = Text(self.limit)
            text.add(new["text"])
            new["text"] = ""
        return False

    def reply(self, message: dict[str, Any]) -> None:
        """Take the execute_reply: its time and, where no execute_input came, the execution count."""
        self.cell.metadata["execution"]["shell.execute_reply"] = timestamp(message)
        count = message["content"].get("execution_count")
        if count is not None:
            self.cell["execution_count"] = count

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs as plain nbformat dicts, within the limit: head and tail stay."""
        for output in self.cell.outputs:
            text = self.texts.get(id(output))
            if text is not None:
                output["text"] = text.value()
        return capped(list(self.cell.outputs), self.limit)

    def pictures(self) -> list[dict[str, Any]]:
        """Return the outputs that are pictures, also those that the limit keeps out of the notebook."""
        shown = [output for output in self.cell.outputs if "data" in output]
        return [output for output in shown if any(mime.startswith("image/") for mime in output["data"])]

    @property
    def timings(self) -> dict[str, str]:
        """Return the timings under the names that nbclient and JupyterLab use."""
        return dict(self.cell.metadata["execution"])


def size(output: dict[str, Any]) -> int:
    """Return how many bytes an output takes in the notebook, near enough."""
    data = output.get("data") or {"": output.get("text") or output.get("traceback") or ""}
    return sum(len(_text(content).encode("utf-8", "replace")) for content in data.values())


def capped(outputs: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the outputs within `limit` bytes: the first and the last stay, a line says how much was left out.

    What is too large alone is replaced by such a line, long plain text is cut.
    """
    if sum(map(size, outputs)) <= limit:
        return outputs
    half, head, tail = limit // 2, 0, len(outputs)
    outputs = [_shortened(output, half) for output in outputs]
    room = half
    while head < tail and size(outputs[head]) <= room:
        room -= size(outputs[head])
        head += 1
    room = half
    while tail > head and size(outputs[tail - 1]) <= room:
        room -= size(outputs[tail - 1])
        tail -= 1
    if head == tail:
        return outputs
    gone = outputs[head:tail]
    return [*outputs[:head], left_out(f"{len(gone)} outputs ({sum(map(size, gone)):,} bytes)"), *outputs[tail:]]


def left_out(what: str) -> dict[str, Any]:
    """Return an output that says what is not there."""
    text = f"… {what} left out by stepper (max_output_bytes) …\n"
    return nbformat.from_dict({"output_type": "stream", "name": "stderr", "text": text})  # type: ignore[no-any-return]


def _shortened(output: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the output, or the next best within `limit` bytes."""
    if size(output) <= limit:
        return output
    data = output.get("data")
    if data is None:
        text = Text(limit // 4)  # characters of at most 4 bytes
        text.add(_text(output.get("text") or output.get("traceback") or ""))
        if output["output_type"] == "stream":
            return {**output, "text": text.value()}
        return {**output, "traceback": text.value().split("\n")}
    named = ", ".join(f"{mime} of {len(_text(content)):,} bytes" for mime, content in data.items())
    return left_out(named)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(content) if isinstance(content, list) else json.dumps(content)
