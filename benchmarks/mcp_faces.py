"""The servers that `mcp.py` measures: how each is installed and started, which calls do the same work in each."""

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
from mcp_client import Result, Server
from peer_ways import code_cell, compare, empty, install, new_cell, old_cell

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
# The SDK's own: one tool, low-level, as small as a server can be that is made with it.
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


class Face:
    """A server in a folder of its own; a subclass knows its tools."""

    name = ""
    saves = True  # the notebook holds the outputs when the answer comes

    def __init__(self, folder: Path, log: IO[str]) -> None:
        self.folder, self.log = folder, log
        self.path = folder / "notebook.ipynb"
        self.server: Server | None = None

    def command(self) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def start(self) -> Server:
        """Start it, and say hello."""
        self.server = Server(self.command(), self.folder, self.log, self.environ())
        return self.server

    def environ(self) -> dict[str, str]:
        """What it inherits."""
        return {**os.environ}

    def create(self, title: str) -> list[Call]:
        """The calls that make an empty notebook."""
        raise NotImplementedError

    def code(self, source: str) -> Call:
        """The call that adds a code cell at the end and runs it."""
        raise NotImplementedError

    def step(self, markdown: str, source: str) -> list[Call]:
        """The calls that add a text cell and a code cell, and run that."""
        raise NotImplementedError

    def mend(self, index: int, source: str) -> list[Call]:
        """The calls that give the last cell another source and run it."""
        raise NotImplementedError

    def undo(self, index: int) -> Call:
        """The call that takes the last cell away."""
        raise NotImplementedError

    def made(self, results: list[Result]) -> None:
        """Learn where the notebook lies."""

    def do(self, *calls: Call, word: str = "", fails: bool = False) -> list[Result]:
        """Do calls; raise BrokenStepError where one failed, or the last does not hold the word."""
        done = []
        for tool, arguments in calls:
            done.append(self.server.call(tool, arguments))
            if done[-1].failed and not fails:
                raise BrokenStepError(f"{self.name}: {tool}: {done[-1].text[:500]}")
        if word not in done[-1].text:
            raise BrokenStepError(
                f"{self.name}: {calls[-1][0]}: no {word!r}: {done[-1].text[:500]}"
            )
        return done

    def begin(self, cells: int) -> None:
        """Make the notebook with so many cells that have run."""
        self.made(self.do(*self.create("cells")))
        self.before = self.held()
        for number in range(cells):
            self.do(self.code(old_cell(number)), word=str(number))

    def held(self) -> int:
        """How many cells the notebook has."""
        return (
            len(json.loads(self.path.read_text())["cells"]) if self.path.exists() else 0
        )

    def add(self, cells: int) -> float:
        """Add a cell to so many and run it; check answer and file; return the milliseconds."""
        source, word = new_cell()
        (result,) = self.do(self.code(source), word=word)
        if self.saves:
            compare(self.name, self.only_code(), cells, word)
        self.do(self.undo(self.before + cells))
        return result.ms

    def only_code(self) -> Path:
        """The notebook without its text cells, for `compare`."""
        document = json.loads(self.path.read_text())
        document["cells"] = [
            cell for cell in document["cells"] if cell["cell_type"] == "code"
        ]
        path = self.path.with_suffix(".code")
        path.write_text(json.dumps(document))
        return path


class Stepper(Face):
    """`stepper mcp`, as an agent's client starts it."""

    name = "**stepper**"

    def __init__(self, project: Project, log: IO[str]) -> None:
        super().__init__(project.root, log)
        self.project = project

    def command(self) -> list[str]:
        return [str(self.project.python), "-I", "-c", SERVE, "mcp"]

    def create(self, title: str, steps: list[str] | None = None) -> list[Call]:
        return [
            (
                "create_notebook",
                {"problem": title, **({"steps": steps} if steps else {})},
            )
        ]

    def made(self, results: list[Result]) -> None:
        (self.path,) = (self.folder / "notebooks").glob("*.ipynb")

    def code(self, source: str) -> Call:
        return "run_cell", {"source": source}

    def step(self, markdown: str, source: str) -> list[Call]:
        cells = [{"cell_type": "markdown", "source": markdown}, {"source": source}]
        return [("add_cells", {"cells": cells})]

    def mend(self, index: int, source: str) -> list[Call]:
        return [("run_cell", {"cell_id": -1, "source": source})]

    def undo(self, index: int) -> Call:
        return "change_cells", {"action": "delete", "cell_ids": [-1]}


class Jupymcp(Face):
    """jupymcp: the notebook as a file, a kernel of its own."""

    name = "jupymcp"

    def __init__(self, folder: Path, log: IO[str]) -> None:
        super().__init__(folder, log)
        self.bin = install("mcp-jupymcp", JUPYMCP)

    def command(self) -> list[str]:
        return [str(self.bin / "jupymcp"), "--workspace-root", str(self.folder)]

    def create(self, title: str) -> list[Call]:
        return [("create_notebook", {"path": self.path.name})]

    def code(self, source: str) -> Call:
        return "execute", {"code": source, "path": self.path.name}

    def step(self, markdown: str, source: str) -> list[Call]:
        text = {"path": self.path.name, "source": markdown, "cell_type": "markdown"}
        return [("append_cell", text), self.code(source)]

    def mend(self, index: int, source: str) -> list[Call]:
        where = {"path": self.path.name, "index": index}
        return [("update_cell", {**where, "source": source}), ("execute_cell", where)]

    def undo(self, index: int) -> Call:
        return "delete_cell", {"path": self.path.name, "index": index}


class Datalayer(Face):
    """jupyter-mcp-server: the notebook through a Jupyter server's collaboration; that saves a moment later."""

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

    def create(self, title: str, mode: str = "create") -> list[Call]:
        # the root of the JupyterLab
        where = str(self.path.relative_to(self.folder.parent))
        return [
            (
                "use_notebook",
                {"notebook_name": "n", "notebook_path": where, "mode": mode},
            )
        ]

    def begin(self, cells: int) -> None:
        notebook = empty()  # written beforehand: it takes a second a cell
        notebook["cells"] = [
            code_cell(old_cell(number), f"{number}\n") for number in range(cells)
        ]
        self.path.write_text(json.dumps(notebook))
        self.before = 0
        self.do(*self.create("cells", "connect"))

    def code(self, source: str) -> Call:
        given = {"cell_index": -1, "cell_source": source}
        return "insert_execute_code_cell", given if self.streams else {
            **given,
            "stream": False,
        }

    def step(self, markdown: str, source: str) -> list[Call]:
        text = {"cell_index": -1, "cell_type": "markdown", "cell_source": markdown}
        return [("insert_cell", text), self.code(source)]

    def mend(self, index: int, source: str) -> list[Call]:
        write = ("overwrite_cell_source", {"cell_index": index, "cell_source": source})
        return [write, ("execute_cell", {"cell_index": index})]

    def undo(self, index: int) -> Call:
        return "delete_cell", {"cell_indices": [index], "include_source": False}


class Unstreamed(Datalayer):
    """The same, told not to stream: it then does not wait for the end of a second."""

    name = "jupyter-mcp-server, `stream: false`"
    streams = False


TOKEN = "a-token-on-loopback"


@contextmanager
def jupyter(
    folder: Path, log: IO[str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the JupyterLab that jupyter-mcp-server needs; yield its address and process."""
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
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/status?token={TOKEN}", timeout=5)
                break
            except OSError as error:
                if time.monotonic() > until or lab.poll() is not None:
                    raise BrokenStepError(
                        f"JupyterLab does not answer: {error}"
                    ) from error
                time.sleep(0.2)
        yield url, lab
    finally:
        lab.terminate()
        lab.wait()


def bare(python: str) -> list[str]:
    """Return the command of the SDK's own server."""
    return [python, "-I", "-c", BARE]
