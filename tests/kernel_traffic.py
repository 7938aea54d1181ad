"""Record the messages of a project's kernels and compare them with the notebooks.

All output must be in the cells or be reported as truncated.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq
from jupyter_client import BlockingKernelClient
from zmq import Again

from tests.conftest import Notebook, Project, text_of
from tests.stream_folding import folded

GAP = re.compile(r"\n… [\d,]+ characters? left out by stepper \(max_output_bytes\) …\n")
GAPS = re.compile(r"… .* left out by stepper \(max_output_bytes\) …\n")


class OutputCounter:
    """Counts the characters in the streams and errors of each request.

    Cells that ran before the start are not counted.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.sent_characters: Counter[str] = Counter()  # request → characters
        self.lines: dict[
            tuple[str, str], str
        ] = {}  # request, stream → the last line, if a carriage return can redraw it
        self.cleared: set[str] = set()  # requests that cleared their output
        self.begun: set[str] = set()  # requests whose first message was received
        self.clients: dict[str, BlockingKernelClient] = {}
        self.message_count = 0  # messages
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> OutputCounter:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.ending.set()
        self.thread.join()
        for client in self.clients.values():
            client.stop_channels()
            client.context.destroy(linger=0)

    def wait_for_kernels(self, kernels: int = 1) -> None:
        """Wait for the subscriptions to `kernels` kernels.

        Earlier messages of a kernel are not received.
        """
        until = time.monotonic() + 120
        while len(self.clients) < kernels:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.3)  # until the subscription is active

    def _listen(self) -> None:
        while not self.ending.wait(0.02):
            for record in (self.project.folder / ".stepper" / "kernels").glob("*.json"):
                with contextlib.suppress(OSError, ValueError):
                    data = json.loads(record.read_text())
                    if "connection" in data and data["kernel"] not in self.clients:
                        self.clients[data["kernel"]] = self._client(data["connection"])
            for client in self.clients.values():
                self._receive(client)

    def _client(self, connection: dict[str, Any]) -> BlockingKernelClient:
        context = zmq.Context()
        context.setsockopt(zmq.RCVHWM, 0)  # else messages of a flood are dropped
        client = BlockingKernelClient(context=context)
        client.load_connection_info(dict(connection, key=connection["key"].encode()))
        client.start_channels(shell=False, stdin=False, hb=False, control=False)
        return client

    def _receive(self, client: BlockingKernelClient) -> None:
        with contextlib.suppress(Again):
            while True:
                parts = client.iopub_channel.socket.recv_multipart(1)  # NOBLOCK
                header, parent, _, content = map(
                    json.loads, parts[parts.index(b"<IDS|MSG>") + 2 :][:4]
                )
                request, self.message_count = (
                    parent.get("msg_id", ""),
                    self.message_count + 1,
                )
                if header["msg_type"] == "execute_input":
                    self.begun.add(request)
                elif header["msg_type"] == "stream" and request:
                    self.sent_characters[request] += self._count_visible(
                        (request, content["name"]), content["text"]
                    )
                elif header["msg_type"] == "clear_output":
                    self.cleared.add(request)
                elif header["msg_type"] == "error" and request:
                    self.sent_characters[request] += len(content["evalue"]) + len(
                        "\n".join(content["traceback"])
                    )

    def _count_visible(self, stream: tuple[str, str], text: str) -> int:
        """Return how many visible characters the text adds to a stream."""
        before = self.lines.pop(stream, "")
        last = (before + text).rpartition("\n")[2]
        if len(last) < 10_000:  # longer than any progress bar
            self.lines[stream] = last
        redraws = "\r" in before + text or "\b" in before + text
        return (
            len(folded(before + text)) - len(folded(before)) if redraws else len(text)
        )

    def wait_until_quiet(self) -> None:
        """Wait until no more messages arrive."""
        before = -1
        while before != self.message_count:
            before = self.message_count
            time.sleep(0.3)

    def assert_output_saved(self, *notebooks: Notebook) -> None:
        """Assert that all sent output is in the cells or reported as truncated.

        Checks all notebooks by default. Compares, to the character, the output of the
        last run of each existing cell, if it was received from its first message.
        Waits for late outputs, which are written some seconds later.
        """
        self.wait_until_quiet()
        until = time.monotonic() + 120
        while True:
            sent, saved, differences = self.compare(*notebooks)
            if sent == saved:
                return
            assert time.monotonic() < until, (
                f"sent {sent}, there {saved}: {differences}"
            )
            time.sleep(0.5)

    def compare(self, *notebooks: Notebook) -> tuple[int, int, list[str]]:
        """Return the characters sent, those saved or truncated, and the differing cells."""
        paths = [notebook.path for notebook in notebooks] or [
            *(self.project.folder / "notebooks").rglob("*.ipynb")
        ]
        journals = [
            read_journal(path)
            for path in (self.project.folder / ".stepper" / "journal").glob("*.jsonl")
        ]
        requests = {
            event["request"]
            for events in journals
            for event in events
            if event.get("request")
        }
        has_scratch_runs = any(
            event["event"] == "scratch" for events in journals for event in events
        )
        other_characters = sum(
            count
            for request, count in self.sent_characters.items()
            if request not in requests and not has_scratch_runs
        )
        sent, saved, differences = (
            other_characters,
            0,
            [f"{other_characters} of no cell"],
        )
        for path in paths:
            cells = {
                cell["id"]: cell
                for cell in json.loads(path.read_text())["cells"]
                if cell.get("id")
            }
            for events in journals:
                last = {
                    event["cell_id"]: event
                    for event in events
                    if event["event"] == "run"
                }
                omitted = {
                    event["cell_id"]: event.get("left_out") or (0, 0, 0)
                    for event in events
                    if event["event"] in ("run", "late")
                }
                for cell_id, run in last.items():
                    if run["request"] in self.begun - self.cleared and cell_id in cells:
                        cell_sent, cell_saved = (
                            self.sent_characters[run["request"]],
                            count_visible_characters(cells[cell_id])
                            + omitted[cell_id][0],
                        )
                        sent, saved = sent + cell_sent, saved + cell_saved
                        if cell_sent != cell_saved:
                            source = "".join(cells[cell_id]["source"])
                            differences.append(
                                f"sent {cell_sent}, there {cell_saved}, {run['outcome']}: {source[:200]}"
                            )
        return sent, saved, differences


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the events of a journal."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_visible_characters(cell: dict[str, Any]) -> int:
    """Return the number of characters in a cell's streams and errors."""
    errors = [out for out in cell["outputs"] if out["output_type"] == "error"]
    texts = [
        text_of(cell),
        *(
            text
            for out in errors
            for text in (out["evalue"], "\n".join(out["traceback"]))
        ),
    ]
    return sum(len(GAPS.sub("", GAP.sub("", text))) for text in texts)
