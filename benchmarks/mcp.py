"""`stepper mcp` beside the MCP servers of others: a cell added and run, what an agent reads, starts and memory.

    python benchmarks/mcp.py [--rounds 20] [--only calls|tokens|start]

Run it with the Python of an environment that holds stepper, `mcp` and ipykernel. The others are no dependency of
stepper: each is installed once, with pinned versions, into an environment of its own in the cache. jlab-mcp is in no
package registry, and its kernels run on a cluster: it is not measured.

A call is timed from the request's first byte to the parsed answer, by a client without a library; the word that the
cell prints must be in the answer and, where the server saves, in the file at that moment. In each round every server
is measured once, in a random order. Tokens are counted by a tokenizer of OpenAI's (o200k), which Codex's models use;
those of other models differ by some per cent, the ratios hardly.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil
from common import (
    MB,
    BrokenStepError,
    Project,
    Row,
    machine,
    options,
    played,
    said,
    within,
)
from mcp_client import Server
from mcp_faces import (
    JUPYMCP,
    Call,
    Datalayer,
    Face,
    Jupymcp,
    Stepper,
    Unstreamed,
    bare,
    jupyter,
)
from peer_ways import install

from examples import demo
from stepper.install import trust

SIZES = (10, 100)
# the SDK's own 554 ms and 66 MB, and 60 ms and 10 MB more
ABOVE = {"ms": 1.11, "cpu_ms": 1.11, "mib": 1.15}
TOKENIZER = ("bpe-openai==0.1.4",)
COUNT = """
import json, sys
from bpe_openai import get_encoding
encoding = get_encoding("o200k_base")
print(json.dumps([len(encoding.encode(text)) for text in json.load(sys.stdin)]))
"""
FAILURE = "NameError"
SDK = "the SDK's own: low-level, one tool"


def tokens(*texts: str) -> list[int]:
    """Return how many tokens each text has."""
    python = install("tokenizer", TOKENIZER) / "python"
    done = subprocess.run(
        [str(python), "-c", COUNT],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = json.loads(done.stdout)
    return found


def offered(server: Server) -> str:
    """Return what a model is told of a server: its tools with names, descriptions and arguments, its instructions."""
    tools = [
        {name: tool.get(name) for name in ("name", "description", "inputSchema")}
        for tool in server.tools
    ]
    return json.dumps(tools, ensure_ascii=False) + server.instructions


def calls(faces: Mapping[str, Face], cells: int, rounds: int) -> list[Row]:
    """Measure 'add a cell and run it' in notebooks that have so many cells with it."""
    for face in faces.values():
        face.start()
        face.begin(cells - 1)
    rows = {
        name: Row(name, lambda face=face: face.add(cells - 1))
        for name, face in faces.items()
    }
    rng = random.Random(cells)
    for number in range(-2, rounds):  # the first two warm up
        for row in rng.sample(list(rows.values()), len(rows)):
            sample = row.measure()
            if number >= 0:
                row.samples.append(sample)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{cells} cells: round {number + 1} of {rounds} ")
    for face in faces.values():
        face.server.end()
    return list(rows.values())


class Told:
    """What an agent wrote and read in the seven-step story."""

    def __init__(self, face: Face) -> None:
        self.face, self.written, self.read, self.calls, self.images = face, [], [], 0, 0

    def do(self, *calls: Call, fails: bool = False, word: str = "") -> None:
        """Do calls as an agent."""
        for result, (tool, arguments) in zip(
            self.face.do(*calls, fails=fails, word=word), calls, strict=True
        ):
            self.calls += 1
            self.written.append(
                json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
            )
            self.read.append(result.text)
            self.images += result.images


def story(face: Face) -> Told:
    """Play the demo's seven steps, of which one fails first and is mended."""
    told = Told(face)
    face.start()
    titles = [step.title for step in demo.STEPS]
    create = (
        face.create(demo.PROBLEM, titles)
        if isinstance(face, Stepper)
        else face.create(demo.PROBLEM)
    )
    told.do(*create)
    face.made([])
    before = face.held()
    for number, step in enumerate(demo.STEPS, 1):
        text = f"## {number}. {step.title}\n\n{step.markdown}"
        first = step.code.removeprefix(step.forgotten)
        told.do(
            *face.step(text, first),
            fails=bool(step.forgotten),
            word=FAILURE if step.forgotten else "",
        )
        if step.forgotten:
            told.do(*face.mend(before + 2 * number - 1, step.code))
    if "months and" not in told.read[-1]:
        raise BrokenStepError(
            f"{face.name}: the last output was not told: {told.read[-1][:500]}"
        )
    time.sleep(3 * (not face.saves))
    held = [
        c
        for c in json.loads(face.path.read_text())["cells"]
        if c["cell_type"] == "code"
    ]
    if ["".join(c["source"]) for c in held] != [step.code for step in demo.STEPS]:
        raise BrokenStepError(f"{face.name}: the sources are not the demo's")
    if any(out["output_type"] == "error" for c in held for out in c["outputs"]):
        raise BrokenStepError(f"{face.name}: a cell holds an error")
    return told


@dataclass
class Start:
    """A server's starts: from its spawn to its list of tools, processor time till then, what it holds when idle."""

    name: str
    start: Callable[[], Server]
    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def once(self, keep: bool) -> None:
        """Start it, and end it again."""
        server = self.start()
        try:
            used = psutil.Process(server.process.pid).cpu_times()
            if keep:
                self.ms.append(server.ready_ms)
                self.cpu_ms.append((used.user + used.system) * 1000)
            if keep and len(self.mib) < 3:
                time.sleep(1)
                self.mib.append(server.memory()[0])
        finally:
            server.end()


def starts(project: Project, log: IO[str], rounds: int, lab: str) -> list[Start]:
    """Measure the starts, warm; those of the others, which take seconds, less often."""
    folder = project.root / "starts"
    folder.mkdir()
    found = [
        Start(SDK, lambda: Server(bare(str(project.python)), folder, log)),
        Start(Stepper.name, Stepper(project, log).start),
        Start(Jupymcp.name, Jupymcp(folder, log).start),
        Start(Datalayer.name, Datalayer(folder, log, lab).start),
    ]
    rng = random.Random(rounds)
    for number in range(-2, rounds):
        for each in rng.sample(
            found[:2] if number % 5 else found, 2 if number % 5 else 4
        ):
            each.once(number >= 0)
    return found


def calls_table(found: dict[int, list[Row]]) -> list[str]:
    """Return the rows of 'add a cell and run it'."""
    told = [
        "| server | " + " | ".join(f"{cells} cells" for cells in found) + " |",
        "| --- " * (1 + len(found)) + "|",
    ]
    for number, first in enumerate(next(iter(found.values()))):
        row = []
        for rows in found.values():
            times = (
                ""
                if number == 0
                else f" ({rows[number].median / rows[0].median:.3g} ×)"
            )
            row.append(f"{rows[number].median:.1f}{times}")
        told.append(f"| {first.name} | {' | '.join(row)} |")
    for cells, rows in found.items():
        for row in rows[1:]:
            ratio = row.median / rows[0].median
            told.append(
                f"- {row.plain}, {cells} cells: at least stepper's: {ratio:.2f} ×: {said(ratio >= 1)}"
            )
    return told


def tokens_table(stories: list[Told]) -> list[str]:
    """Return the rows of what an agent reads and writes."""
    told = [
        "| server | tools | list of tools | answers read | calls written | calls | all | to stepper |"
    ]
    told.append("| --- " * 8 + "|")
    least = 0
    for each in stories:
        server = each.face.server
        listed, read, written = tokens(
            offered(server), "\n".join(each.read), "\n".join(each.written)
        )
        total = listed + read + written
        least = least or total
        parts = (
            f"{len(server.tools)} | {listed:,} | {read:,} | {written:,} | {each.calls}"
        )
        told.append(
            f"| {each.face.name} | {parts} | {total:,} | {total / least:.2f} × |"
        )
    return told


def starts_table(found: list[Start]) -> list[str]:
    """Return the rows of starts and of idle memory, and how ours stand to the SDK's own."""
    told = [
        "| server | spawn to the list of tools, ms | of that processor time, ms | idle, MiB |",
        "| --- " * 4 + "|",
    ]
    for each in found:
        ms, cpu, mib = (
            statistics.median(values) for values in (each.ms, each.cpu_ms, each.mib)
        )
        told.append(f"| {each.name} | {ms:.0f} | {cpu:.0f} | {mib:.1f} |")
    own, ours = found[:2]
    for what, name in (
        ("spawn to the list of tools", "ms"),
        ("processor time", "cpu_ms"),
        ("idle memory", "mib"),
    ):
        ratio = statistics.median(getattr(ours, name)) / statistics.median(
            getattr(own, name)
        )
        told.append(
            f"- {what}: to the SDK's own {ratio:.2f} ×, {within(ratio, ABOVE[name], ' ×')}"
        )
    return told


def main() -> None:
    """Measure and print."""
    parser = options("stepper's MCP server beside those of others.")
    parser.add_argument(
        "--only", choices=("calls", "tokens", "start"), help="nothing else"
    )
    given = parser.parse_args()
    parts = (given.only,) if given.only else ("calls", "tokens", "start")
    lines: list[str] = []
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="stepper-benchmark-")
            )
        ).resolve()
        # nobody's settings are measured
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "XDG_CONFIG_HOME"):
            os.environ[name] = str(folder / "config")
        log = stack.enter_context((folder / "log").open("w+"))
        lab, process = stack.enter_context(jupyter(folder, log))

        def project(name: str) -> Project:
            made = Project(folder / name)
            stack.callback(made.shutdown)
            return made

        def place(name: str) -> Path:
            (folder / name).mkdir()
            return folder / name

        def faces(name: str) -> list[Face]:
            peers = (
                Jupymcp(place(f"{name}-jupymcp"), log),
                Datalayer(place(f"{name}-jupyter"), log, lab),
            )
            return [Stepper(project(f"{name}-stepper"), log), *peers]

        if "calls" in parts:
            found = {}
            for cells in SIZES:
                measured = [
                    *faces(f"{cells}"),
                    Unstreamed(place(f"{cells}-unstreamed"), log, lab),
                ]
                found[cells] = calls(
                    {face.name: face for face in measured}, cells, given.rounds
                )
            lines += [
                "Add a cell and run it, medians in ms",
                "",
                *calls_table(found),
                "",
            ]
        if "tokens" in parts:
            stories = []
            for face in faces("story"):
                python = install("mcp-jupymcp", JUPYMCP) / "python"
                if isinstance(face, Stepper):
                    trust.save_record(face.project.paths, {"python": str(python)})
                data = subprocess.run(
                    [str(python), "-c", demo.PROBE],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                source = json.loads(data.stdout)[1][0]
                # cells look one folder up
                for where in (face.folder, face.folder.parent):
                    shutil.copy(source, where / demo.DATA)
                stories.append(story(face))
                face.server.end()
            lines += ["Tokens of the seven-step story", "", *tokens_table(stories), ""]
        if "start" in parts:
            lines += [
                "Starts and idle memory",
                "",
                *starts_table(starts(project("start"), log, given.rounds, lab)),
            ]
            family = [
                psutil.Process(process.pid),
                *psutil.Process(process.pid).children(recursive=True),
            ]
            needed = sum(each.memory_info().rss for each in family[:1]) / MB
            lines += [
                f"- the JupyterLab that jupyter-mcp-server needs besides: {needed:.0f} MiB"
            ]
    print(f"{machine()}; {given.rounds} rounds\n\n" + "\n".join(lines))


if __name__ == "__main__":
    played(main)
