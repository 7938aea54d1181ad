"""Compare a step with other tools that run a notebook's new cell.

    python benchmarks/peers.py [--rounds 20] [--json FILE]
    python benchmarks/peers.py --tries    # an endless loop, a dead kernel, a flood

Run it with the Python of an environment that has stepper and ipykernel. Each other tool
is installed once, with pinned versions, into its own environment in the cache
(`~/.cache/stepper-tests`). Each round measures every tool once, in random order; ratios
are of medians of the same rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from common import Project, describe_machine, format_met
from peer_tools import (
    PEERS,
    RUNNERS,
    Answer,
    FreshClient,
    NotebookRunner,
    PeerSession,
    StepperNotebook,
    install,
)

# code cells of the notebook, including the new one; stepper's limit is 100
SIZES = (1, 10, 50, 100)
WHOLE, SOCKET = "stepper, whole step", "stepper, socket to answer"
# What a tool is compared with: a process with a process, a tool call with an answer on
# the socket.
BASES = {"jupyter execute": WHOLE, "papermill": WHOLE, "fresh client": WHOLE} | {
    peer.name: SOCKET for peer in PEERS
}
# The limits: the tool, the cells, the smallest multiple of its base.
BOUNDS = [
    *(("jupyter execute", cells, minimum) for cells, minimum in ((10, 40), (100, 70))),
    *(("papermill", cells, minimum) for cells, minimum in ((10, 40), (100, 70))),
    *(("fresh client", cells, 18) for cells in SIZES),
    *((peer.name, cells, 1) for peer in PEERS if peer.undo for cells in (10, 100)),
]
PATIENCE = 25.0  # seconds after which a session counts as hanging

Samples = dict[str, list[float]]


def measure(
    project: Project, cells: int, rounds: int, versions: dict[str, dict[str, str]]
) -> Samples:
    """Return the milliseconds of each tool's steps.

    Add the peers' versions to `versions`.
    """
    folder, old_cells = project.root / f"others-{cells}", cells - 1
    folder.mkdir()
    bin_folder = install("runners", RUNNERS)
    runners = (
        NotebookRunner(
            "jupyter execute",
            folder,
            old_cells,
            [str(bin_folder / "jupyter"), "execute", "--inplace"],
            inplace=True,
        ),
        NotebookRunner(
            "papermill",
            folder,
            old_cells,
            [str(bin_folder / "papermill"), "--no-progress-bar"],
            inplace=False,
        ),
    )
    with contextlib.ExitStack() as stack:
        stepper = StepperNotebook(project, old_cells)
        fresh_client = FreshClient()
        stack.callback(fresh_client.shut_down)
        tools: dict[str, Callable[[], float]] = {
            WHOLE: stepper.step_with_hooks,
            SOCKET: stepper.step_over_socket,
        }
        tools |= {tool.name: tool.step for tool in (*runners, fresh_client)}
        for peer in PEERS:
            session = PeerSession(peer, folder, old_cells)
            stack.callback(session.shut_down)
            versions[peer.name], tools[peer.name] = session.versions, session.step
        samples: Samples = {name: [] for name in tools}
        rng = random.Random(cells)
        for number in range(-2, rounds):  # the first two warm up
            for name in rng.sample(list(tools), len(tools)):
                sample = tools[name]()
                if number >= 0:
                    samples[name].append(sample)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{cells} cells: round {number + 1} of {rounds} ")
        samples["the edit itself"] = stepper.edits[-rounds:]
    return samples


def ratio(samples: Samples, name: str, base: str) -> float:
    """Return the ratio of two medians."""
    return statistics.median(samples[name]) / statistics.median(samples[base])


def format_size(cells: int) -> str:
    """Return the size of a notebook as text."""
    return f"{cells} cell{'s' * (cells > 1)}"


def format_table(samples_by_size: dict[int, Samples]) -> list[str]:
    """Return the tables: medians, multiples of stepper's time, limits."""
    lines = [
        "| tool | compared with | "
        + " | ".join(map(format_size, samples_by_size))
        + " |"
    ]
    lines.append("| --- " * (2 + len(samples_by_size)) + "|")
    for name in next(iter(samples_by_size.values())):
        base = BASES.get(name, "")
        row = []
        for samples in samples_by_size.values():
            times = f" ({ratio(samples, name, base):.3g} ×)" if base else ""
            row.append(f"{statistics.median(samples[name]):.1f}{times}")
        lines.append(
            f"| {name} | {base.removeprefix('stepper, ')} | {' | '.join(row)} |"
        )
    lines += ["", "| limit | times stepper's |  |", "| --- | --- | --- |"]
    for name, cells, minimum in BOUNDS:
        if cells in samples_by_size:
            times = ratio(samples_by_size[cells], name, BASES[name])
            lines.append(
                f"| {name}, {format_size(cells)}: ≥ {minimum} × | {times:.2f} × | {format_met(times >= minimum)} |"
            )
    return lines


def create_document(samples_by_size: dict[int, Samples]) -> dict[str, Any]:
    """Return all samples, for a file."""
    sizes = {}
    for cells, samples in samples_by_size.items():
        sizes[cells] = {
            name: {
                "median_ms": statistics.median(values),
                "ratio_whole": ratio(samples, name, WHOLE),
                "ratio_socket": ratio(samples, name, SOCKET),
                "samples_ms": values,
            }
            for name, values in samples.items()
        }
    return {"cells": sizes}


def describe_answer(answer: Answer, markers: tuple[str, ...]) -> str:
    """Return when a session answered, the size, and whether it gave the reason.

    `words` are texts that count as the reason; without them no reason is expected.
    """
    if answer.has_timed_out:
        return answer.failed
    text = f"{answer.ms / 1000:.1f} s"
    if markers:
        reason = any(marker in answer.text.lower() for marker in markers)
        text += (
            ", reason given"
            if reason
            else ", error without reason"
            if answer.failed
            else ", not reported"
        )
    elif answer.failed:
        text += f", {answer.failed}"
    return text + f", {answer.size / 1e6:.0f} MB to the agent" * (answer.size > 1e6)


def describe_kernel_state(answer: Answer) -> str:
    """Describe the kernel from the answer to a cell that prints an earlier value."""
    if answer.has_timed_out:
        return "then no cell runs"
    if "42!" in answer.text:
        return "state kept"
    if "NOT run" in answer.text:
        return "next cell not run, reason given"
    return f"state lost, {'reported' if 'died' in answer.text else 'not reported'}"


def try_failures(project: Project) -> tuple[list[str], dict[str, Any]]:
    """Return the table of failures, and the answers; each try has its own session."""
    cases = {
        "`while True`, limit 3 s": (
            "while True: pass",
            ("timed out", "timeout", '"timed_out": true', "limit"),
        ),
        "`os._exit(1)`": (
            "import os; os._exit(1)",
            ("died", "ended", "exit code", "restarted"),
        ),
        "20 MB printed": ("for _ in range(20_000): print('x' * 999)", ()),
    }
    lines = [
        f"| session | {' | '.join(cases)} | cells saved |",
        "| --- " * (2 + len(cases)) + "|",
    ]
    answers: dict[str, Any] = {}
    for peer in (None, *PEERS):
        name = peer.name if peer else "stepper"
        row = []
        for cells, (case, (source, markers)) in enumerate(cases.items(), 1):
            session = (
                PeerSession(peer, project.root, cells)
                if peer
                else StepperNotebook(project, cells)
            )
            try:
                session.run("kept = 42\nprint(kept)")
                answer = session.run(source, PATIENCE, limited="limit" in case)
                next_answer = session.run("print(f'{kept}!')", PATIENCE)
            finally:
                session.shut_down()
            row.append(
                f"{describe_answer(answer, markers)}; {describe_kernel_state(next_answer)}"
            )
            answers.setdefault(name, {})[case] = [
                [each.failed, each.size, each.text[:1500]]
                for each in (answer, next_answer)
            ]
        lines.append(
            f"| {name} | {' | '.join(row)} | {'no' if peer and not peer.undo else 'yes'} |"
        )
    return lines, answers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="Compare a step with other tools that run a new cell."
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="samples of each tool (quoted figures have at least 20)",
    )
    parser.add_argument(
        "--cells", type=int, nargs="+", default=SIZES, help="sizes of the notebook"
    )
    parser.add_argument("--json", type=Path, help="also write all samples to this file")
    parser.add_argument(
        "--tries", action="store_true", help="try failures instead of measuring times"
    )
    options = parser.parse_args()
    versions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="stepper-benchmark-") as folder:
        # Without the user's start-up files and settings.
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "XDG_CONFIG_HOME"):
            os.environ[name] = str(Path(folder, "config"))
        project = Project(Path(folder))
        try:
            if options.tries:
                lines, measured = try_failures(project)
            else:
                samples_by_size = {
                    cells: measure(project, cells, options.rounds, versions)
                    for cells in options.cells
                }
                lines, measured = (
                    format_table(samples_by_size),
                    create_document(samples_by_size),
                )
        finally:
            project.shutdown()
    versions["runners"] = dict(pin.split("==") for pin in RUNNERS)
    summary = {
        "date": str(date.today()),
        "machine": describe_machine(),
        "rounds": options.rounds,
        "versions": versions,
    }
    if options.json:
        options.json.write_text(json.dumps(summary | measured, indent=1) + "\n")
    print(
        f"{summary['machine']}; {'one try each' if options.tries else f'{options.rounds} rounds, medians in ms'}\n"
    )
    for name, packages in versions.items():
        pins = [f"{package} {number}" for package, number in packages.items()]
        print(f"{name}: {', '.join(pins)}")
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
