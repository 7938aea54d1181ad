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

GAP = re.compile(r"\n… [\d,]+ characters left out by stepper \(max_output_bytes\) …\n")
GAPS = re.compile(r"… .* left out by stepper \(max_output_bytes\) …\n")


class Ear:
    """Counts the characters that each request's streams and errors take. Cells that ran before it listened do not count."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.said: Counter[str] = Counter()  # request → characters
        self.lines: dict[
            tuple[str, str], str
        ] = {}  # request, stream → its last line, if it can be redrawn
        self.cleared: set[str] = set()  # the requests that cleared their output
        self.begun: set[str] = (
            set()
        )  # the requests that were heard from their beginning
        self.clients: dict[str, BlockingKernelClient] = {}
        self.heard = 0  # messages
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Ear:
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

    def hears(self, kernels: int = 1) -> None:
        """Wait until that many kernels are listened to: what a kernel says before is not heard."""
        until = time.monotonic() + 30
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
                self._hear(client)

    def _client(self, connection: dict[str, Any]) -> BlockingKernelClient:
        context = zmq.Context()
        context.setsockopt(zmq.RCVHWM, 0)  # else a flood is not all heard
        client = BlockingKernelClient(context=context)
        client.load_connection_info(dict(connection, key=connection["key"].encode()))
        client.start_channels(shell=False, stdin=False, hb=False, control=False)
        return client

    def _hear(self, client: BlockingKernelClient) -> None:
        with contextlib.suppress(Again):
            while True:
                parts = client.iopub_channel.socket.recv_multipart(1)  # NOBLOCK
                header, parent, _, content = map(
                    json.loads, parts[parts.index(b"<IDS|MSG>") + 2 :][:4]
                )
                request, self.heard = parent.get("msg_id", ""), self.heard + 1
                if header["msg_type"] == "execute_input":
                    self.begun.add(request)
                elif header["msg_type"] == "stream" and request:
                    self.said[request] += self._drawn(
                        (request, content["name"]), content["text"]
                    )
                elif header["msg_type"] == "clear_output":
                    self.cleared.add(request)
                elif header["msg_type"] == "error" and request:
                    self.said[request] += len(content["evalue"]) + len(
                        "\n".join(content["traceback"])
                    )

    def _drawn(self, stream: tuple[str, str], text: str) -> int:
        """How many characters a stream shows more with that text."""
        before = self.lines.pop(stream, "")
        last = (before + text).rpartition("\n")[2]
        if len(last) < 10_000:  # no bar is longer
            self.lines[stream] = last
        goes_back = "\r" in before + text or "\b" in before + text
        return (
            len(folded(before + text)) - len(folded(before)) if goes_back else len(text)
        )

    def settled(self) -> None:
        """Wait until no more comes."""
        before = -1
        while before != self.heard:
            before = self.heard
            time.sleep(0.3)

    def balance(self, *notebooks: Notebook) -> None:
        """Assert that what was sent for these notebooks' cells, all by default, is on them or said to be left out.

        To the character: of what was heard from its beginning, and belongs to the last run of a cell that is there.
        What comes late is written some seconds later: it is waited for.
        """
        self.settled()
        until = time.monotonic() + 60
        while True:
            sent, there, differ = self.sums(*notebooks)
            if sent == there:
                return
            assert time.monotonic() < until, f"sent {sent}, there {there}: {differ}"
            time.sleep(0.5)

    def sums(self, *notebooks: Notebook) -> tuple[int, int, list[str]]:
        """Return what was sent, what is there or said to be left out, and the cells in which these differ."""
        paths = [notebook.path for notebook in notebooks] or [
            *(self.project.folder / "notebooks").rglob("*.ipynb")
        ]
        journals = [
            read(path)
            for path in (self.project.folder / ".stepper" / "journal").glob("*.jsonl")
        ]
        known = {
            event["request"]
            for events in journals
            for event in events
            if event.get("request")
        }
        looks = any(
            event["event"] == "scratch" for events in journals for event in events
        )
        others = sum(
            count
            for request, count in self.said.items()
            if request not in known and not looks
        )
        sent, there, differ = others, 0, [f"{others} of no cell"]
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
                left_out = {
                    event["cell_id"]: event.get("left_out") or (0, 0, 0)
                    for event in events
                    if event["event"] in ("run", "late")
                }
                for cell_id, run in last.items():
                    if run["request"] in self.begun - self.cleared and cell_id in cells:
                        said, stands = (
                            self.said[run["request"]],
                            count_shown_characters(cells[cell_id])
                            + left_out[cell_id][0],
                        )
                        sent, there = sent + said, there + stands
                        if said != stands:
                            source = "".join(cells[cell_id]["source"])
                            differ.append(
                                f"sent {said}, there {stands}, {run['outcome']}: {source[:200]}"
                            )
        return sent, there, differ


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a journal."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_shown_characters(cell: dict[str, Any]) -> int:
    """How many characters of streams and errors a cell shows."""
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
