"""Measure calls of `stepper mcp` over stdio and HTTP, with many notebooks and kernels.

    python benchmarks/mcp_http.py [--rounds 20] [--notebooks 95] [--kernels 10]

Each round makes every call once over stdio, once over HTTP with a connected client and
once with a client that connects for this call only, as a script does. All use the
official client library. A call is timed from the request to the parsed response; the
connecting client from its first byte to its last response.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import nbformat
from common import (
    BrokenStepError,
    Project,
    create_parser,
    create_temporary_project,
    format_bound,
    measure_elapsed_ms,
    print_report,
    run_benchmark,
)

sys.path.remove(str(Path(__file__).resolve().parent))  # its mcp.py would hide the SDK

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

COMMAND = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
FIRST = "notebooks/n000.ipynb"
CALLS: dict[str, dict[str, Any]] = {
    "list_notebooks": {},
    "notebook_status": {"notebook": FIRST},
    "read_notebook": {"notebook": FIRST},
    "execute_code": {"notebook": FIRST, "code": "1 + 1"},
    "run_cell": {"notebook": FIRST, "cell_id": 1},
}
CELLS = 10
WARM = 2  # uncounted rounds
# Limits, relative to stdio; a client that connects needs several round trips.
EXTRA_MS = {"HTTP": 15, "HTTP, connected for the call": 60}
Measure = Callable[[str], Awaitable[float]]


def create_notebooks(project: Project, notebooks: int, kernels: int) -> None:
    """Create notebooks, and run the first `kernels` of them, each in its own kernel."""
    Path(project.paths.config).write_text(f"max_kernels: {kernels + 1}\n")
    for number in range(notebooks):
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [
            nbformat.v4.new_code_cell(f"x{cell} = {cell}\nprint(x{cell})")
            for cell in range(CELLS)
        ]
        nbformat.write(notebook, project.root / f"notebooks/n{number:03}.ipynb")
    for number in range(kernels):
        run_command(project, "run", f"notebooks/n{number:03}.ipynb")


def build_command(project: Project, *markers: str) -> list[str]:
    """Return the command line of stepper."""
    return [str(project.python), "-I", "-c", COMMAND, *markers]


def run_command(project: Project, *markers: str) -> None:
    """Run a stepper command in the project."""
    result = subprocess.run(
        build_command(project, *markers),
        cwd=project.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BrokenStepError(
            f"stepper {' '.join(markers)}: {result.stdout}{result.stderr}"
        )


@contextmanager
def http_server(project: Project) -> Iterator[tuple[str, str]]:
    """Run `stepper mcp --http`; yield its URL and its key."""
    serve = build_command(project, "mcp", "--http", "0")
    with subprocess.Popen(
        serve, cwd=project.root, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().split(" at ")[1].split(",")[0]
            key = server.stdout.readline().split("Bearer ")[1].strip()
            yield url, key
        finally:
            server.terminate()


async def call_tool(client: Client, tool: str) -> None:
    """Call a tool; raise BrokenStepError if the call fails."""
    result = await client.call_tool(tool, CALLS[tool])
    if result.is_error:
        raise BrokenStepError(f"{tool}: {result.content[0].text}")


async def measure(project: Project, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the samples of each transport and tool, in milliseconds."""
    calls: dict[str, Measure] = {}
    async with AsyncExitStack() as stack:
        url, key = stack.enter_context(http_server(project))
        headers = {"Authorization": f"Bearer {key}"}

        def over_http(http: httpx2.AsyncClient) -> Client:
            return Client(streamable_http_client(url, http_client=http))

        def create_connected_call(client: Client) -> Measure:
            async def call(tool: str) -> float:
                started_at = time.perf_counter()
                await call_tool(client, tool)
                return measure_elapsed_ms(started_at)

            return call

        async def connect_and_call(tool: str) -> float:
            started_at = time.perf_counter()
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                over_http(http) as client,
            ):
                await call_tool(client, tool)
            return measure_elapsed_ms(started_at)

        program, *arguments = build_command(project, "mcp")
        parameters = StdioServerParameters(
            command=program,
            args=arguments,
            env=dict(os.environ),
            cwd=project.root,
        )
        calls["stdio"] = create_connected_call(
            await stack.enter_async_context(Client(parameters))
        )
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
        calls["HTTP"] = create_connected_call(
            await stack.enter_async_context(over_http(http))
        )
        calls["HTTP, connected for the call"] = connect_and_call
        samples: dict[str, dict[str, list[float]]] = {
            call: {tool: [] for tool in CALLS} for call in calls
        }
        for number in range(-WARM, rounds):
            for tool in CALLS:
                for name, call in calls.items():
                    sample = await call(tool)
                    if number >= 0:
                        samples[name][tool].append(sample)
    return samples


def main() -> None:
    """Measure and print."""
    parser = create_parser(
        "Measure calls over stdio and HTTP in a project with many notebooks."
    )
    parser.add_argument("--notebooks", type=int, default=95)
    parser.add_argument("--kernels", type=int, default=10)
    options = parser.parse_args()
    with create_temporary_project() as project:
        create_notebooks(project, options.notebooks, options.kernels)
        samples = asyncio.run(measure(project, options.rounds))
    lines = [
        f"{options.notebooks} notebooks, {options.kernels} kernels; medians in ms",
        "",
        "| call | " + " | ".join(samples) + " |",
        "| --- " * (1 + len(samples)) + "|",
    ]
    bounds = []
    for tool in CALLS:
        medians = {
            call: statistics.median(by_tool[tool]) for call, by_tool in samples.items()
        }
        row = " | ".join(f"{median:.1f}" for median in medians.values())
        lines.append(f"| `{tool}` | {row} |")
        for call, limit in EXTRA_MS.items():
            difference = medians[call] - medians["stdio"]
            bound = format_bound(difference, limit, " ms")
            bounds.append(
                f"- {tool}, {call}: {difference:+.1f} ms relative to stdio, {bound}"
            )
    print_report(options.rounds, [*lines, "", *bounds])


if __name__ == "__main__":
    run_benchmark(main)
