"""The same calls of `stepper mcp` over stdio and over HTTP, in a project with many notebooks and kernels.

    python benchmarks/mcp_http.py [--rounds 20] [--notebooks 95] [--kernels 10]

Each round makes every call once over stdio, once over HTTP by a client that stays
connected and once by a client that connects for this call alone, as a script does. The
official client library makes all of them. A call is timed from the request to the
parsed answer, the connecting client from its first byte to its last answer.
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
    options,
    played,
    report,
    scratch,
    since,
    within,
)

sys.path.remove(str(Path(__file__).resolve().parent))  # its mcp.py is not the SDK

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
WARM = 2  # rounds that are not counted
# More than over stdio, at most; a client that connects needs several round trips.
MORE_MS = {"HTTP": 15, "HTTP, connected for the call": 60}
Measure = Callable[[str], Awaitable[float]]


def fill(project: Project, notebooks: int, kernels: int) -> None:
    """Make the notebooks, and run the first of them, each in its own kernel."""
    Path(project.paths.config).write_text(f"max_kernels: {kernels + 1}\n")
    for number in range(notebooks):
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [
            nbformat.v4.new_code_cell(f"x{cell} = {cell}\nprint(x{cell})")
            for cell in range(CELLS)
        ]
        nbformat.write(notebook, project.root / f"notebooks/n{number:03}.ipynb")
    for number in range(kernels):
        run(project, "run", f"notebooks/n{number:03}.ipynb")


def command(project: Project, *words: str) -> list[str]:
    """Return the command line of stepper."""
    return [str(project.python), "-I", "-c", COMMAND, *words]


def run(project: Project, *words: str) -> None:
    """Run a command of stepper in the project."""
    done = subprocess.run(
        command(project, *words),
        cwd=project.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BrokenStepError(f"stepper {' '.join(words)}: {done.stdout}{done.stderr}")


@contextmanager
def http_server(project: Project) -> Iterator[tuple[str, str]]:
    """Run `stepper mcp --http`; yield its URL and its key."""
    serve = command(project, "mcp", "--http", "0")
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


async def called(client: Client, tool: str) -> None:
    """Make a call; raise BrokenStepError where it fails."""
    result = await client.call_tool(tool, CALLS[tool])
    if result.is_error:
        raise BrokenStepError(f"{tool}: {result.content[0].text}")


async def measure(project: Project, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the samples of each way and each call, in milliseconds."""
    ways: dict[str, Measure] = {}
    async with AsyncExitStack() as stack:
        url, key = stack.enter_context(http_server(project))
        headers = {"Authorization": f"Bearer {key}"}

        def over_http(http: httpx2.AsyncClient) -> Client:
            return Client(streamable_http_client(url, http_client=http))

        def connected(client: Client) -> Measure:
            async def way(tool: str) -> float:
                began = time.perf_counter()
                await called(client, tool)
                return since(began)

            return way

        async def connecting(tool: str) -> float:
            began = time.perf_counter()
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                over_http(http) as client,
            ):
                await called(client, tool)
            return since(began)

        program, *arguments = command(project, "mcp")
        parameters = StdioServerParameters(
            command=program,
            args=arguments,
            env=dict(os.environ),
            cwd=project.root,
        )
        ways["stdio"] = connected(await stack.enter_async_context(Client(parameters)))
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
        ways["HTTP"] = connected(await stack.enter_async_context(over_http(http)))
        ways["HTTP, connected for the call"] = connecting
        samples: dict[str, dict[str, list[float]]] = {
            way: {tool: [] for tool in CALLS} for way in ways
        }
        for number in range(-WARM, rounds):
            for tool in CALLS:
                for name, way in ways.items():
                    sample = await way(tool)
                    if number >= 0:
                        samples[name][tool].append(sample)
    return samples


def main() -> None:
    """Measure and print."""
    parser = options("Calls over stdio and HTTP in a project with many notebooks.")
    parser.add_argument("--notebooks", type=int, default=95)
    parser.add_argument("--kernels", type=int, default=10)
    given = parser.parse_args()
    with scratch() as project:
        fill(project, given.notebooks, given.kernels)
        samples = asyncio.run(measure(project, given.rounds))
    lines = [
        f"{given.notebooks} notebooks, {given.kernels} kernels; medians in ms",
        "",
        "| call | " + " | ".join(samples) + " |",
        "| --- " * (1 + len(samples)) + "|",
    ]
    bounds = []
    for tool in CALLS:
        medians = {
            way: statistics.median(found[tool]) for way, found in samples.items()
        }
        row = " | ".join(f"{median:.1f}" for median in medians.values())
        lines.append(f"| `{tool}` | {row} |")
        for way, limit in MORE_MS.items():
            more = medians[way] - medians["stdio"]
            bound = within(more, limit, " ms")
            bounds.append(f"- {tool}, {way}: {more:+.1f} ms to stdio, {bound}")
    report(given.rounds, [*lines, "", *bounds])


if __name__ == "__main__":
    played(main)
