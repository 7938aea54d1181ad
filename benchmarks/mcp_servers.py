"""The MCP servers that `mcp.py` measures: installation, start and equivalent calls."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from common import BrokenStepError, Project
from mcp_client import CallResult, Server
from peer_tools import code_cell, compare, empty, install, new_cell, old_cell

Call = tuple[str, Mapping[str, Any]]
KERNEL = (
    "jupyter_client==8.10.0",
    "ipykernel==7.4.0",
    "pandas",
    "matplotlib",
    "vega_datasets",
)
JUPYMCP = ("jupymcp==0.3.2", "mcp==2.3.0", *KERNEL)
DATALAYER = ("jupyter-mcp-server==2.2.4", "mcp==2.3.0", "jupyterlab==4.6.6", *KERNEL)
SERVE = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
# A minimal server made with the SDK's low-level API: one tool.
BARE = """
import anyio
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
async def tools(ctx, params):
    return ListToolsResult(tools=[Tool(name="echo", description="Echo.", input_schema={"type": "object"})])
async def call(ctx, params):
    return CallToolResult(content=[TextContent(text="echo")])
async def main():
    server = Server("bare", on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options(NotificationOptions()))
anyio.run(main)
"""


class McpServer:
    """A server in its own folder. Subclasses know the server's tools."""

    name = ""
    saves = True  # the file contains the outputs when the call returns

    def __init__(self, folder: Path, log: IO[str]) -> None:
        self.folder, self.log = folder, log
        self.path = folder / "notebook.ipynb"
        self.server: Server | None = None

    def command(self) -> list[str]:
        """Return the command that starts the server."""
        raise NotImplementedError

    def start(self) -> Server:
        """Start the server and initialize the session."""
        self.server = Server(
            self.command(), self.folder, self.log, self.create_environ()
        )
        return self.server

    def create_environ(self) -> dict[str, str]:
        """Return the server's environment variables."""
        return {**os.environ}

    def create_notebook_calls(self, title: str) -> list[Call]:
        """Return the calls that create an empty notebook."""
        raise NotImplementedError

    def code_call(self, source: str) -> Call:
        """Return the call that appends a code cell and runs it."""
        raise NotImplementedError

    def step_calls(self, markdown: str, source: str) -> list[Call]:
        """Return the calls that append a Markdown cell and run a new code cell."""
        raise NotImplementedError

    def replace_last(self, index: int, source: str) -> list[Call]:
        """Return the calls that replace the last cell's source and run it."""
        raise NotImplementedError

    def delete_last(self, index: int) -> Call:
        """Return the call that deletes the last cell."""
        raise NotImplementedError

    def find_notebook(self, results: list[CallResult]) -> None:
        """Set the path of the created notebook."""

    def call_tools(
        self, *calls: Call, marker: str = "", may_fail: bool = False
    ) -> list[CallResult]:
        """Make calls and return their results.

        Raise BrokenStepError if a call fails or the last result lacks the word.
        """
        results = []
        for tool, arguments in calls:
            results.append(self.server.call(tool, arguments))
            if results[-1].is_error and not may_fail:
                raise BrokenStepError(f"{self.name}: {tool}: {results[-1].text[:500]}")
        if marker not in results[-1].text:
            raise BrokenStepError(
                f"{self.name}: {calls[-1][0]}: no {marker!r}: {results[-1].text[:500]}"
            )
        return results

    def begin(self, cells: int) -> None:
        """Create a notebook with this number of cells that have run."""
        self.find_notebook(self.call_tools(*self.create_notebook_calls("cells")))
        self.before = self.count_cells()
        for number in range(cells):
            self.call_tools(self.code_call(old_cell(number)), marker=str(number))

    def count_cells(self) -> int:
        """Return the number of cells in the notebook."""
        return (
            len(json.loads(self.path.read_text())["cells"]) if self.path.exists() else 0
        )

    def measure_added_cell(self, cells: int) -> float:
        """Append a cell and run it; check the result; return the milliseconds."""
        source, marker = new_cell()
        (result,) = self.call_tools(self.code_call(source), marker=marker)
        if self.saves:
            compare(self.name, self.write_code_cells(), cells, marker)
        self.call_tools(self.delete_last(self.before + cells))
        return result.ms

    def write_code_cells(self) -> Path:
        """Write a copy of the notebook without Markdown cells, for `compare`."""
        document = json.loads(self.path.read_text())
        document["cells"] = [
            cell for cell in document["cells"] if cell["cell_type"] == "code"
        ]
        path = self.path.with_suffix(".code")
        path.write_text(json.dumps(document))
        return path


class StepperServer(McpServer):
    """`stepper mcp`, as an agent's client starts it."""

    name = "**stepper**"

    def __init__(self, project: Project, log: IO[str]) -> None:
        super().__init__(project.root, log)
        self.project = project

    def command(self) -> list[str]:
        return [str(self.project.python), "-I", "-c", SERVE, "mcp"]

    def create_notebook_calls(
        self, title: str, steps: list[str] | None = None
    ) -> list[Call]:
        return [
            (
                "create_notebook",
                {"problem": title, **({"steps": steps} if steps else {})},
            )
        ]

    def find_notebook(self, results: list[CallResult]) -> None:
        (self.path,) = (self.folder / "notebooks").glob("*.ipynb")

    def code_call(self, source: str) -> Call:
        return "run_cell", {"source": source}

    def step_calls(self, markdown: str, source: str) -> list[Call]:
        cells = [{"cell_type": "markdown", "source": markdown}, {"source": source}]
        return [("add_cells", {"cells": cells})]

    def replace_last(self, index: int, source: str) -> list[Call]:
        return [("run_cell", {"cell_id": -1, "source": source})]

    def delete_last(self, index: int) -> Call:
        return "change_cells", {"action": "delete", "cell_ids": [-1]}


class JupymcpServer(McpServer):
    """jupymcp: the notebook is a file, with its own kernel."""

    name = "jupymcp"

    def __init__(self, folder: Path, log: IO[str]) -> None:
        super().__init__(folder, log)
        self.bin = install("mcp-jupymcp", JUPYMCP)

    def command(self) -> list[str]:
        return [str(self.bin / "jupymcp"), "--workspace-root", str(self.folder)]

    def create_notebook_calls(self, title: str) -> list[Call]:
        return [("create_notebook", {"path": self.path.name})]

    def code_call(self, source: str) -> Call:
        return "execute", {"code": source, "path": self.path.name}

    def step_calls(self, markdown: str, source: str) -> list[Call]:
        text = {"path": self.path.name, "source": markdown, "cell_type": "markdown"}
        return [("append_cell", text), self.code_call(source)]

    def replace_last(self, index: int, source: str) -> list[Call]:
        path = {"path": self.path.name, "index": index}
        return [("update_cell", {**path, "source": source}), ("execute_cell", path)]

    def delete_last(self, index: int) -> Call:
        return "delete_cell", {"path": self.path.name, "index": index}


class JupyterMcpServer(McpServer):
    """jupyter-mcp-server: edits through a Jupyter server, which saves later."""

    name = "jupyter-mcp-server"
    saves = False
    streams = True

    def __init__(self, folder: Path, log: IO[str], lab: str) -> None:
        super().__init__(folder, log)
        self.bin, self.lab = install("mcp-datalayer", DATALAYER), lab

    def command(self) -> list[str]:
        server = [
            str(self.bin / "jupyter-mcp-server"),
            "start",
            "--transport",
            "stdio",
            "--jupyter-url",
            self.lab,
        ]
        return [*server, "--jupyter-token", TOKEN, "--start-new-code-sandbox", "false"]

    def create_notebook_calls(self, title: str, mode: str = "create") -> list[Call]:
        # relative to the root of JupyterLab
        path = str(self.path.relative_to(self.folder.parent))
        return [
            (
                "use_notebook",
                {"notebook_name": "n", "notebook_path": path, "mode": mode},
            )
        ]

    def begin(self, cells: int) -> None:
        notebook = empty()  # written directly: the server needs a second per cell
        notebook["cells"] = [
            code_cell(old_cell(number), f"{number}\n") for number in range(cells)
        ]
        self.path.write_text(json.dumps(notebook))
        self.before = 0
        self.call_tools(*self.create_notebook_calls("cells", "connect"))

    def code_call(self, source: str) -> Call:
        arguments = {"cell_index": -1, "cell_source": source}
        return "insert_execute_code_cell", arguments if self.streams else {
            **arguments,
            "stream": False,
        }

    def step_calls(self, markdown: str, source: str) -> list[Call]:
        text = {"cell_index": -1, "cell_type": "markdown", "cell_source": markdown}
        return [("insert_cell", text), self.code_call(source)]

    def replace_last(self, index: int, source: str) -> list[Call]:
        write = ("overwrite_cell_source", {"cell_index": index, "cell_source": source})
        return [write, ("execute_cell", {"cell_index": index})]

    def delete_last(self, index: int) -> Call:
        return "delete_cell", {"cell_indices": [index], "include_source": False}


class UnstreamedServer(JupyterMcpServer):
    """The same without streaming: it does not wait for the end of a second."""

    name = "jupyter-mcp-server, `stream: false`"
    streams = False


TOKEN = "a-token-on-loopback"


@contextmanager
def jupyter(
    folder: Path, log: IO[str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the JupyterLab that jupyter-mcp-server needs.

    Yield its address and process.
    """
    bin_ = install("mcp-datalayer", DATALAYER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        str(bin_ / "jupyter-lab"),
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    env = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    lab = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/status?token={TOKEN}", timeout=5)
                break
            except OSError as error:
                if time.monotonic() > deadline or lab.poll() is not None:
                    raise BrokenStepError(
                        f"JupyterLab does not answer: {error}"
                    ) from error
                time.sleep(0.2)
        yield url, lab
    finally:
        lab.terminate()
        lab.wait()


def build_sdk_command(python: str) -> list[str]:
    """Return the command of the SDK's server."""
    return [python, "-I", "-c", BARE]
