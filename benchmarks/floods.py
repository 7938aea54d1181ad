"""What floods of output cost: whole hook processes beside the same code in a kernel without stepper.

    python benchmarks/floods.py [--rounds 20] [only these floods …]

Run it with the Python of an environment that holds stepper and ipykernel. A flood's ratio is stepper's median over that
of the kernel's own time: from the request to the reply, nothing read but raw messages. After each the report and the
notebook are checked, and one second later the daemon's memory is compared with that of before.
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
from common import MB, BrokenStepError, Project, machine, options, said, scratch, spawn
from kernels import RawKernel

RATIO, GROWTH_MB, LIMIT = 2, 60, 1 << 20
PICTURE = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()


@dataclass(frozen=True)
class Flood:
    """A cell that writes much, and what must be seen of it in its outputs' text or data."""

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


class Stepped:
    """A notebook of one cell, which is replaced again and again."""

    def __init__(self, project: Project) -> None:
        self.project, self.path = project, project.root / "notebooks" / "floods.ipynb"
        self.turn = 0

    def run(self, flood: Flood) -> float:
        """Return the seconds of the hook process; raise BrokenStepError where report or notebook is not as it must."""
        self.turn += 1
        source = f"{flood.source}\n# {self.turn}"
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
        asked = {
            "notebook_path": str(self.path),
            "cell_id": "flood",
            "new_source": source,
            "edit_mode": "replace",
        }
        told = {
            "session_id": "floods",
            "cwd": str(self.project.root),
            "permission_mode": "bypassPermissions",
        }
        told |= {
            "hook_event_name": "PostToolUse",
            "tool_name": "NotebookEdit",
            "tool_input": asked,
        }
        answered = {
            **asked,
            "cell_type": "code",
            "error": "",
            "original_file": text,
            "updated_file": text,
        }
        done = spawn(
            self.project.hook("PostToolUse"),
            json.dumps({**told, "tool_response": answered}).encode(),
        )
        self.check(flood, done.out)
        return done.ms / 1000

    def check(self, flood: Flood, out: bytes) -> None:
        """Raise BrokenStepError unless report and notebook are as they must."""
        report = (
            json.loads(out)["hookSpecificOutput"]["additionalContext"]
            if out
            else "nothing"
        )
        document = nbformat.read(self.path, 4)
        nbformat.validate(document)
        outputs = document.cells[0].outputs
        shown = "".join(
            out.get("text", "") + out.get("data", {}).get("text/plain", "")
            for out in outputs
        )
        if (
            flood.outcome not in report
            or not shown.endswith(flood.ends)
            or self.path.stat().st_size > 1.5 * LIMIT
        ):
            raise BrokenStepError(
                f"{flood.name}: {self.path.stat().st_size} bytes, …{shown[-80:]!r}: {report[:300]}"
            )


def row(flood: Flood, rounds: int, kernel: RawKernel, stepped: Stepped) -> str:
    """Return the flood's row of the table."""
    own, ours, grown = [], [], []
    for _ in range(rounds):
        own.append(kernel.run(flood.source, idle=False) / 1000)
        before = stepped.project.daemon().memory_info().rss
        ours.append(stepped.run(flood))
        time.sleep(1)
        grown.append((stepped.project.daemon().memory_info().rss - before) / MB)
    ratio, most = statistics.median(ours) / statistics.median(own), max(grown)
    bounds = (
        f"{said(ratio <= RATIO)}, {said(most < GROWTH_MB)}"
        if flood is not FLOODS[0]
        else "no flood"
    )
    times = (
        f"{statistics.median(own):.2f} | {statistics.median(ours):.2f} | {ratio:.2f} ×"
    )
    return f"| {flood.name} | {times} | {most:+.1f} | {bounds} |"


def main() -> None:
    """Print the table."""
    parser = options(
        "What floods of output cost, beside the same code in a kernel without stepper."
    )
    parser.add_argument("only", nargs="*", help="words of the floods' names")
    given = parser.parse_args()
    with scratch("floods-") as project:
        kernel = RawKernel()
        try:
            stepped = Stepped(project)
            stepped.run(FLOODS[0])  # starts daemon and kernel
            print(f"{machine()}; {given.rounds} rounds\n", flush=True)
            print(
                "| flood | kernel alone, s | stepper, s | ratio | daemon one second later, MB | ≤ 2 ×, < 60 MB |"
            )
            print("| --- | --- | --- | --- | --- | --- |")
            for flood in FLOODS:
                if not given.only or any(word in flood.name for word in given.only):
                    print(row(flood, given.rounds, kernel, stepped), flush=True)
        finally:
            kernel.end()


if __name__ == "__main__":
    try:
        main()
    except BrokenStepError as error:
        sys.exit(f"benchmark broken: {error}")
