"""Compare `stepper mcp` with other MCP servers: added cells, tokens, starts, memory.

    python benchmarks/mcp.py [--rounds 20] [--only calls|tokens|start]

Run it with the Python of an environment that has stepper, `mcp` and ipykernel. Each
other server is installed once, with pinned versions, into its own environment in the
cache. jlab-mcp is in no package registry and its kernels run on a cluster, so it is not
measured.

A call is timed from the request's first byte to the parsed response, by a client
without a library. The word that the cell prints must be in the response and, if the
server saves, in the file at that moment. Each round measures every server once, in
random order. Tokens are counted with OpenAI's encoding o200k; other models differ by
some per cent, the ratios hardly.
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
    create_parser,
    describe_machine,
    format_bound,
    format_met,
    run_benchmark,
)
from mcp_client import Server
from mcp_servers import (
    JUPYMCP,
    Call,
    JupymcpServer,
    JupyterMcpServer,
    McpServer,
    StepperServer,
    UnstreamedServer,
    build_sdk_command,
    jupyter,
)
from peer_tools import install

from examples import demo
from stepper.install import trust

SIZES = (10, 100)
PARTS = ("calls", "tokens", "start")
# Relative to the SDK's server: its 554 ms and 66 MB, plus 60 ms and 10 MB.
LIMITS = {"ms": 1.11, "cpu_ms": 1.11, "mib": 1.15}
START_LABELS = {
    "ms": "spawn to tool list",
    "cpu_ms": "processor time",
    "mib": "idle memory",
}
MEMORY_SAMPLES = 3
TOKENIZER = ("bpe-openai==0.1.4",)
COUNT = """
import json, sys
from bpe_openai import get_encoding
encoding = get_encoding("o200k_base")
print(json.dumps([len(encoding.encode(text)) for text in json.load(sys.stdin)]))
"""
FAILURE = "NameError"
SDK = "low-level server of the SDK, one tool"


def count_tokens(*texts: str) -> list[int]:
    """Return the number of tokens of each text."""
    python = install("tokenizer", TOKENIZER) / "python"
    result = subprocess.run(
        [str(python), "-c", COUNT],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    counts: list[int] = json.loads(result.stdout)
    return counts


def format_tool_list(server: Server) -> str:
    """Return the descriptions that a model reads: the tools and the instructions."""
    tools = [
        {name: tool.get(name) for name in ("name", "description", "inputSchema")}
        for tool in server.tools
    ]
    return json.dumps(tools, ensure_ascii=False) + server.instructions


def measure_calls(
    servers: Mapping[str, McpServer], cells: int, rounds: int
) -> list[Row]:
    """Measure 'add a cell and run it' in notebooks of `cells` cells."""
    for server in servers.values():
        server.start()
        server.begin(cells - 1)
    rows = [
        Row(name, lambda server=server: server.measure_added_cell(cells - 1))
        for name, server in servers.items()
    ]
    rng = random.Random(cells)
    for number in range(-2, rounds):  # the first two warm up
        for row in rng.sample(rows, len(rows)):
            sample = row.measure()
            if number >= 0:
                row.samples.append(sample)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{cells} cells: round {number + 1} of {rounds} ")
    for server in servers.values():
        server.server.stop()
    return rows


class Story:
    """The texts that an agent writes and reads in the seven steps of the demo."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.written: list[str] = []
        self.results: list[str] = []

    def call_tools(
        self, *calls: Call, may_fail: bool = False, marker: str = ""
    ) -> None:
        """Make calls as an agent."""
        results = self.server.call_tools(*calls, may_fail=may_fail, marker=marker)
        for result, (tool, arguments) in zip(results, calls, strict=True):
            call = {"name": tool, "arguments": arguments}
            self.written.append(json.dumps(call, ensure_ascii=False))
            self.results.append(result.text)


def play_story(server: McpServer) -> Story:
    """Play the demo's seven steps. One of them fails first and is then fixed."""
    story = Story(server)
    server.start()
    titles = [step.title for step in demo.STEPS]
    if isinstance(server, StepperServer):
        create = server.create_notebook_calls(demo.PROBLEM, titles)
    else:
        create = server.create_notebook_calls(demo.PROBLEM)
    story.call_tools(*create)
    server.find_notebook([])
    existing_cells = server.count_cells()
    for number, step in enumerate(demo.STEPS, 1):
        text = f"## {number}. {step.title}\n\n{step.markdown}"
        source = step.code.removeprefix(step.forgotten)
        story.call_tools(
            *server.step_calls(text, source),
            may_fail=bool(step.forgotten),
            marker=FAILURE if step.forgotten else "",
        )
        if step.forgotten:
            index = existing_cells + 2 * number - 1
            story.call_tools(*server.replace_last(index, step.code))
    check_story(server, story)
    return story


def check_story(server: McpServer, story: Story) -> None:
    """Raise BrokenStepError unless the notebook and the last result are the demo's."""
    last_result = story.results[-1]
    if "months and" not in last_result:
        raise BrokenStepError(
            f"{server.name}: the last output is missing: {last_result[:500]}"
        )
    if not server.saves:
        time.sleep(3)
    cells = json.loads(server.path.read_text())["cells"]
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code_cells]
    if sources != [step.code for step in demo.STEPS]:
        raise BrokenStepError(f"{server.name}: the sources are not the demo's")
    outputs = [output for cell in code_cells for output in cell["outputs"]]
    if any(output["output_type"] == "error" for output in outputs):
        raise BrokenStepError(f"{server.name}: a cell has an error output")


@dataclass
class Start:
    """A server's starts: time from spawn to tool list, processor time, idle memory."""

    name: str
    start: Callable[[], Server]
    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def measure_once(self, counts: bool) -> None:
        """Start the server and stop it again; record the sample if it counts."""
        server = self.start()
        try:
            cpu_times = psutil.Process(server.process.pid).cpu_times()
            if not counts:
                return
            self.ms.append(server.ready_ms)
            self.cpu_ms.append((cpu_times.user + cpu_times.system) * 1000)
            if len(self.mib) < MEMORY_SAMPLES:
                time.sleep(1)
                self.mib.append(server.measure_memory()[0])
        finally:
            server.stop()


def measure_starts(
    project: Project, log: IO[str], rounds: int, lab: str
) -> list[Start]:
    """Measure warm starts; those of the slow servers in every fifth round only."""
    folder = project.root / "starts"
    folder.mkdir()
    sdk_command = build_sdk_command(str(project.python))
    starts = [
        Start(SDK, lambda: Server(sdk_command, folder, log)),
        Start(StepperServer.name, StepperServer(project, log).start),
        Start(JupymcpServer.name, JupymcpServer(folder, log).start),
        Start(JupyterMcpServer.name, JupyterMcpServer(folder, log, lab).start),
    ]
    rng = random.Random(rounds)
    for number in range(-2, rounds):
        chosen = starts[:2] if number % 5 else starts
        for start in rng.sample(chosen, len(chosen)):
            start.measure_once(number >= 0)
    return starts


def format_calls(rows_by_size: dict[int, list[Row]]) -> list[str]:
    """Return the table of 'add a cell and run it'."""
    lines = [
        "| server | " + " | ".join(f"{cells} cells" for cells in rows_by_size) + " |",
        "| --- " * (1 + len(rows_by_size)) + "|",
    ]
    for number, first_row in enumerate(next(iter(rows_by_size.values()))):
        columns = []
        for rows in rows_by_size.values():
            ratio = rows[number].median / rows[0].median
            times = f" ({ratio:.3g} ×)" if number > 0 else ""
            columns.append(f"{rows[number].median:.1f}{times}")
        lines.append(f"| {first_row.name} | {' | '.join(columns)} |")
    for cells, rows in rows_by_size.items():
        for row in rows[1:]:
            ratio = row.median / rows[0].median
            lines.append(
                f"- {row.plain}, {cells} cells: {ratio:.2f} × stepper's time, ≥ 1 ×:"
                f" {format_met(ratio >= 1)}"
            )
    return lines


def format_tokens(stories: list[Story]) -> list[str]:
    """Return the table of the texts that an agent reads and writes."""
    lines = [
        "| server | tools | tool list | results read | calls written | calls | total"
        " | to stepper |",
        "| --- " * 8 + "|",
    ]
    stepper_total = 0
    for story in stories:
        server = story.server.server
        tool_list, read, written = count_tokens(
            format_tool_list(server), "\n".join(story.results), "\n".join(story.written)
        )
        total = tool_list + read + written
        stepper_total = stepper_total or total
        counts = f"{tool_list:,} | {read:,} | {written:,} | {len(story.written)}"
        lines.append(
            f"| {story.server.name} | {len(server.tools)} | {counts} | {total:,}"
            f" | {total / stepper_total:.2f} × |"
        )
    return lines


def format_starts(starts: list[Start]) -> list[str]:
    """Return the table of starts and idle memory, and the ratios."""
    lines = [
        "| server | spawn to tool list, ms | processor time, ms | idle, MiB |",
        "| --- " * 4 + "|",
    ]
    for start in starts:
        ms = statistics.median(start.ms)
        cpu_ms = statistics.median(start.cpu_ms)
        mib = statistics.median(start.mib)
        lines.append(f"| {start.name} | {ms:.0f} | {cpu_ms:.0f} | {mib:.1f} |")
    sdk_start, stepper_start = starts[:2]
    for attribute, label in START_LABELS.items():
        stepper_median = statistics.median(getattr(stepper_start, attribute))
        ratio = stepper_median / statistics.median(getattr(sdk_start, attribute))
        limit = format_bound(ratio, LIMITS[attribute], " ×")
        lines.append(f"- {label}: {ratio:.2f} × the SDK's server, {limit}")
    return lines


def copy_demo_data(server: McpServer) -> None:
    """Copy the demo's data next to the notebook; select the kernel's Python."""
    python = install("mcp-jupymcp", JUPYMCP) / "python"
    if isinstance(server, StepperServer):
        trust.save_record(server.project.paths, {"python": str(python)})
    probe = subprocess.run(
        [str(python), "-c", demo.PROBE], capture_output=True, text=True, check=True
    )
    source = json.loads(probe.stdout)[1][0]
    # The demo's cells read the file from the parent folder.
    for folder in (server.folder, server.folder.parent):
        shutil.copy(source, folder / demo.DATA)


def main() -> None:
    """Measure and print."""
    parser = create_parser("Compare stepper's MCP server with others.")
    parser.add_argument("--only", choices=PARTS, help="measure only this part")
    options = parser.parse_args()
    parts = (options.only,) if options.only else PARTS
    lines: list[str] = []
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="stepper-benchmark-")
        folder = Path(stack.enter_context(temporary)).resolve()
        # without the user's settings
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "XDG_CONFIG_HOME"):
            os.environ[name] = str(folder / "config")
        log = stack.enter_context((folder / "log").open("w+"))
        lab, process = stack.enter_context(jupyter(folder, log))

        def create_project(name: str) -> Project:
            project = Project(folder / name)
            stack.callback(project.shutdown)
            return project

        def create_folder(name: str) -> Path:
            (folder / name).mkdir()
            return folder / name

        def create_servers(name: str) -> list[McpServer]:
            return [
                StepperServer(create_project(f"{name}-stepper"), log),
                JupymcpServer(create_folder(f"{name}-jupymcp"), log),
                JupyterMcpServer(create_folder(f"{name}-jupyter"), log, lab),
            ]

        if "calls" in parts:
            rows_by_size = {}
            for cells in SIZES:
                servers = create_servers(f"{cells}")
                unstreamed_folder = create_folder(f"{cells}-unstreamed")
                servers.append(UnstreamedServer(unstreamed_folder, log, lab))
                servers_by_name = {server.name: server for server in servers}
                rows_by_size[cells] = measure_calls(
                    servers_by_name, cells, options.rounds
                )
            lines += ["Add a cell and run it, medians in ms", ""]
            lines += [*format_calls(rows_by_size), ""]
        if "tokens" in parts:
            stories = []
            for server in create_servers("story"):
                copy_demo_data(server)
                stories.append(play_story(server))
                server.server.stop()
            lines += ["Tokens of the seven-step story", "", *format_tokens(stories), ""]
        if "start" in parts:
            starts = measure_starts(create_project("start"), log, options.rounds, lab)
            lines += ["Starts and idle memory", "", *format_starts(starts)]
            lab_mib = psutil.Process(process.pid).memory_info().rss / MB
            lines.append(f"- the JupyterLab of jupyter-mcp-server: {lab_mib:.0f} MiB")
    print(f"{describe_machine()}; {options.rounds} rounds\n\n" + "\n".join(lines))


if __name__ == "__main__":
    run_benchmark(main)
