"""What a project's kernels send, heard beside the daemon: all of it is on cells, or said to be left out."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

from jupyter_client import BlockingKernelClient
from zmq import Again

from tests.conftest import Notebook, Project, text_of

GAP = re.compile(r"\n… [\d,]+ characters left out by stepper \(max_output_bytes\) …\n")
GAPS = re.compile(r"… .* left out by stepper \(max_output_bytes\) …\n")


class Ear:
    """Counts the characters that each request's streams take. Cells that ran before it listened do not count."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.said: Counter[str] = Counter()  # request → characters
        self.begun: set[str] = set()  # the requests that were heard from their beginning
        self.clients: dict[str, BlockingKernelClient] = {}
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Ear:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.ending.set()
        self.thread.join()
        for client in self.clients.values():
            client.stop_channels()

    def hears(self, kernels: int = 1) -> None:
        """Wait until that many kernels are listened to: what a kernel says before is not heard."""
        until = time.monotonic() + 30
        while len(self.clients) < kernels:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.3)  # until the subscription stands

    def _listen(self) -> None:
        while not self.ending.wait(0.02):
            for record in (self.project.folder / ".stepper" / "kernels").glob("*.json"):
                with contextlib.suppress(OSError, ValueError):
                    told = json.loads(record.read_text())
                    if "connection" in told and told["kernel"] not in self.clients:
                        self.clients[told["kernel"]] = self._client(told["connection"])
            for client in self.clients.values():
                self._hear(client)

    def _client(self, connection: dict[str, Any]) -> BlockingKernelClient:
        client = BlockingKernelClient()
        client.load_connection_info(dict(connection, key=connection["key"].encode()))
        client.iopub_channel.socket.RCVHWM = 0
        client.start_channels(shell=False, stdin=False, hb=False, control=False)
        return client

    def _hear(self, client: BlockingKernelClient) -> None:
        with contextlib.suppress(Again):
            while True:
                parts = client.iopub_channel.socket.recv_multipart(1)  # NOBLOCK
                header, parent, _, content = map(json.loads, parts[parts.index(b"<IDS|MSG>") + 2 :][:4])
                request = parent.get("msg_id", "")
                if header["msg_type"] == "execute_input":
                    self.begun.add(request)
                elif header["msg_type"] == "stream" and request:
                    self.said[request] += len(content["text"])

    def balance(self, notebook: Notebook) -> None:
        """Assert that what was sent for cells is on them or said to be left out, to the character."""
        store = re.sub(r"\W", "_", notebook.path.stem)
        journals = (self.project.folder / ".stepper" / "journal").glob("*.jsonl")
        (journal,) = [path for path in journals if re.sub(r"\W", "_", path.stem).endswith(store)]
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        cells = {cell["id"]: cell for cell in notebook.raw["cells"]}
        last = {event["cell_id"]: event for event in events if event["event"] == "run"}
        left_out = {event["cell_id"]: event.get("left_out") or (0, 0, 0)
                    for event in events if event["event"] in ("run", "late")}  # fmt: skip
        heard = {cell_id: run for cell_id, run in last.items() if run["request"] in self.begun and cell_id in cells}
        assert heard, "nothing was heard"
        others = sum(count for request, count in self.said.items()
                     if request not in {event.get("request") for event in events})  # fmt: skip
        sent = {cell_id: self.said[run["request"]] for cell_id, run in heard.items()}
        there = {cell_id: shown(cells[cell_id]) + left_out[cell_id][0] for cell_id in heard}
        differ = {cell_id: (sent[cell_id], there[cell_id]) for cell_id in heard if sent[cell_id] != there[cell_id]}
        assert sum(sent.values()) + others == sum(there.values()), f"sent, there: {differ}; of no cell {others}"


def shown(cell: dict[str, Any]) -> int:
    """How many characters of streams a cell shows."""
    return len(GAPS.sub("", GAP.sub("", text_of(cell))))
