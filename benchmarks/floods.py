"""Measure floods of output, compared with the same code in a kernel without stepper.

    python benchmarks/floods.py [--rounds 20] [TEXT …]

Run it with the Python of an environment that has stepper and ipykernel. A flood's ratio
is stepper's median, divided by the kernel's: from the request to the reply, while the
raw messages are only read. After each run the report and the notebook are checked. One
second later, the daemon's memory is compared with the memory before.
"""

from __future__ import annotations

import base64
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import nbformat
from common import (
    MB,
    BrokenStepError,
    Project,
    create_parser,
    create_temporary_project,
    describe_machine,
    format_met,
    spawn,
)
from kernels import RawKernel

RATIO, GROWTH_MB, LIMIT = 2, 60, 1 << 20
PICTURE = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()


@dataclass(frozen=True)
class Flood:
    """A cell with much output, and the text with which its outputs must end."""

    name: str
    source: str
    ends: str
    outcome: str = "ran ok"


FLOODS = (
    Flood("a cell that prints one word", "print('x')", "x\n"),
    Flood(
        "100 MB of text in lines",
        "for i in range(1_000_000): print('x' * 99)\nprint('end')",
        "x\nend\n",
    ),
    Flood("one line of 50 MB", "print('x' * 50_000_000)", "xxx\n"),
    Flood(
        "10,000 display updates",
        "from IPython.display import display\nshown = display('first', display_id=True)\n"
        "for i in range(10_000): shown.update(f'update {i}')",
        "'update 9999'",
    ),
    Flood(
        "1,000 pictures of 50 kB",
        f"import base64\nfrom IPython.display import Image, display\npng = base64.b64decode('{PICTURE}')\n"
        "for i in range(1000): display(Image(png + bytes(50_000) + str(i).encode(), format='png'))\nprint('end')",
        "end\n",
    ),
    Flood(
        "20,000 lines, each flushed",
        "for i in range(20_000): print(i, flush=True)",
        "19999\n",
    ),
    Flood(
        "binary junk, 25 MB by os.write",
        "import os\nfor i in range(100): n = os.write(1, bytes(range(256)) * 1000)",
        "",
    ),
    Flood(
        "100 MB from a child",
        "import subprocess\nn = subprocess.run(\"yes 'a line of text' | head -c 100000000\", shell=True)",
        "",
    ),
    Flood("a traceback of 30 MB", "raise ValueError('x' * 30_000_000)", "", "FAILED"),
)


class FloodNotebook:
    """A notebook of one cell, which is replaced repeatedly."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.path = project.root / "notebooks" / "floods.ipynb"
        self.run_count = 0

    def run(self, flood: Flood) -> float:
        """Return the seconds of the hook process.

        Raise BrokenStepError if the result is wrong.
        """
        self.run_count += 1
        source = f"{flood.source}\n# {self.run_count}"
        cell: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "id": "flood",
            "metadata": {},
        }
        cells = [cell | {"outputs": [], "source": source}]
        text = json.dumps(
            {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5},
            indent=1,
        )
        self.path.write_text(text)
        tool_input = {
            "notebook_path": str(self.path),
            "cell_id": "flood",
            "new_source": source,
            "edit_mode": "replace",
        }
        payload = {
            "session_id": "floods",
            "cwd": str(self.project.root),
            "permission_mode": "bypassPermissions",
        }
        payload |= {
            "hook_event_name": "PostToolUse",
            "tool_name": "NotebookEdit",
            "tool_input": tool_input,
        }
        tool_response = {
            **tool_input,
            "cell_type": "code",
            "error": "",
            "original_file": text,
            "updated_file": text,
        }
        result = spawn(
            self.project.build_hook_command("PostToolUse"),
            json.dumps({**payload, "tool_response": tool_response}).encode(),
        )
        self.check(flood, result.output)
        return result.ms / 1000

    def check(self, flood: Flood, out: bytes) -> None:
        """Raise BrokenStepError unless report and notebook are correct."""
        report = (
            json.loads(out)["hookSpecificOutput"]["additionalContext"]
            if out
            else "nothing"
        )
        document = nbformat.read(self.path, 4)
        nbformat.validate(document)
        outputs = document.cells[0].outputs
        output_text = "".join(
            out.get("text", "") + out.get("data", {}).get("text/plain", "")
            for out in outputs
        )
        if (
            flood.outcome not in report
            or not output_text.endswith(flood.ends)
            or self.path.stat().st_size > 1.5 * LIMIT
        ):
            raise BrokenStepError(
                f"{flood.name}: {self.path.stat().st_size} bytes, …{output_text[-80:]!r}: {report[:300]}"
            )


def format_row(
    flood: Flood, rounds: int, kernel: RawKernel, notebook: FloodNotebook
) -> str:
    """Measure a flood; return its row of the table."""
    kernel_times: list[float] = []
    stepper_times: list[float] = []
    growth_mb: list[float] = []
    for _ in range(rounds):
        kernel_times.append(kernel.run(flood.source, idle=False) / 1000)
        rss_before = notebook.project.find_daemon().memory_info().rss
        stepper_times.append(notebook.run(flood))
        time.sleep(1)
        growth_mb.append(
            (notebook.project.find_daemon().memory_info().rss - rss_before) / MB
        )
    ratio = statistics.median(stepper_times) / statistics.median(kernel_times)
    largest_growth = max(growth_mb)
    bounds = (
        f"{format_met(ratio <= RATIO)}, {format_met(largest_growth < GROWTH_MB)}"
        if flood is not FLOODS[0]
        else "not a flood"
    )
    times = f"{statistics.median(kernel_times):.2f} | {statistics.median(stepper_times):.2f} | {ratio:.2f} ×"
    return f"| {flood.name} | {times} | {largest_growth:+.1f} | {bounds} |"


def main() -> None:
    """Print the table."""
    parser = create_parser(
        "Measure floods of output, compared with the same code in a kernel alone."
    )
    parser.add_argument(
        "only", nargs="*", help="only floods whose names contain one of these texts"
    )
    options = parser.parse_args()
    with create_temporary_project("floods-") as project:
        kernel = RawKernel()
        try:
            notebook = FloodNotebook(project)
            notebook.run(FLOODS[0])  # starts daemon and kernel
            print(f"{describe_machine()}; {options.rounds} rounds\n", flush=True)
            print(
                "| flood | kernel alone, s | stepper, s | ratio | daemon one second later, MB | ≤ 2 ×, < 60 MB |"
            )
            print("| --- | --- | --- | --- | --- | --- |")
            for flood in FLOODS:
                if not options.only or any(
                    marker in flood.name for marker in options.only
                ):
                    print(
                        format_row(flood, options.rounds, kernel, notebook), flush=True
                    )
        finally:
            kernel.shut_down()


if __name__ == "__main__":
    try:
        main()
    except BrokenStepError as error:
        sys.exit(f"the benchmark failed: {error}")
