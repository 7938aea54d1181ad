"""A step beside the other ways to run a notebook's new cell: whole-notebook runners, a fresh client, living sessions.

    python benchmarks/peers.py [--rounds 20] [--json FILE]
    python benchmarks/peers.py --tries    # what each session makes of an endless loop, a dead kernel, a flood

Run it with the Python of an environment that holds stepper and ipykernel. The others are no dependency of stepper:
each is installed once, with pinned versions, into an environment of its own in the cache (`~/.cache/stepper-tests`).
In each round every way is measured once, in a random order; ratios are of medians of the same rounds.
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

from common import Project, machine, said
from peer_ways import PEERS, RUNNERS, Answer, Fresh, Runner, Session, Stepper, install

# code cells of the notebook, the new one included: stepper's own limit is 100
SIZES = (1, 10, 50, 100)
WHOLE, SOCKET = "stepper, whole step", "stepper, socket to answer"
# Which of the two a way is compared with: a process with a process, a tool call with an
# answer on the socket.
BASES = {"jupyter execute": WHOLE, "papermill": WHOLE, "fresh client": WHOLE} | {
    peer.name: SOCKET for peer in PEERS
}
# The bounds: the way, the cells, at least how many times its base.
BOUNDS = [
    *(("jupyter execute", cells, least) for cells, least in ((10, 40), (100, 70))),
    *(("papermill", cells, least) for cells, least in ((10, 40), (100, 70))),
    *(("fresh client", cells, 18) for cells in SIZES),
    *((peer.name, cells, 1) for peer in PEERS if peer.undo for cells in (10, 100)),
]
PATIENCE = 25.0  # seconds after which a session that does not answer has hung

Samples = dict[str, list[float]]


def measure(
    project: Project, cells: int, rounds: int, versions: dict[str, dict[str, str]]
) -> Samples:
    """Return the milliseconds of each way's steps in a notebook of so many cells; note the versions of the peers."""
    folder, before = project.root / f"others-{cells}", cells - 1
    folder.mkdir()
    place = install("runners", RUNNERS)
    runners = (
        Runner(
            "jupyter execute",
            folder,
            before,
            [str(place / "jupyter"), "execute", "--inplace"],
            inplace=True,
        ),
        Runner(
            "papermill",
            folder,
            before,
            [str(place / "papermill"), "--no-progress-bar"],
            inplace=False,
        ),
    )
    with contextlib.ExitStack() as stack:
        stepper = Stepper(project, before)
        fresh = Fresh()
        stack.callback(fresh.end)
        ways: dict[str, Callable[[], float]] = {
            WHOLE: stepper.whole,
            SOCKET: stepper.socket,
        }
        ways |= {way.name: way.step for way in (*runners, fresh)}
        for peer in PEERS:
            session = Session(peer, folder, before)
            stack.callback(session.end)
            versions[peer.name], ways[peer.name] = session.versions, session.step
        samples: Samples = {name: [] for name in ways}
        rng = random.Random(cells)
        for number in range(-2, rounds):  # the first two warm up
            for name in rng.sample(list(ways), len(ways)):
                sample = ways[name]()
                if number >= 0:
                    samples[name].append(sample)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{cells} cells: round {number + 1} of {rounds} ")
        samples["the edit itself"] = stepper.edits[-rounds:]
    return samples


def ratio(samples: Samples, name: str, base: str) -> float:
    """Return one median over another."""
    return statistics.median(samples[name]) / statistics.median(samples[base])


def counted(cells: int) -> str:
    """Return how the size is printed."""
    return f"{cells} cell{'s' * (cells > 1)}"


def table(found: dict[int, Samples]) -> list[str]:
    """Return the rows: medians, and how many times stepper's."""
    told = ["| way | compared with | " + " | ".join(map(counted, found)) + " |"]
    told.append("| --- " * (2 + len(found)) + "|")
    for name in next(iter(found.values())):
        base = BASES.get(name, "")
        row = []
        for samples in found.values():
            times = f" ({ratio(samples, name, base):.3g} ×)" if base else ""
            row.append(f"{statistics.median(samples[name]):.1f}{times}")
        told.append(
            f"| {name} | {base.removeprefix('stepper, ')} | {' | '.join(row)} |"
        )
    told += ["", "| bound | times stepper's |  |", "| --- | --- | --- |"]
    for name, cells, least in BOUNDS:
        if cells in found:
            times = ratio(found[cells], name, BASES[name])
            told.append(
                f"| {name}, {counted(cells)}: ≥ {least} × | {times:.2f} × | {said(times >= least)} |"
            )
    return told


def document(found: dict[int, Samples]) -> dict[str, Any]:
    """Return all that was measured, for a file."""
    sizes = {}
    for cells, samples in found.items():
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


def outcome(answer: Answer, words: tuple[str, ...]) -> str:
    """Return when a session answered, how much it handed on and, where `words` tell it, whether it gave the reason."""
    if answer.hung:
        return answer.failed
    told = f"{answer.ms / 1000:.1f} s"
    if words:
        reason = any(word in answer.text.lower() for word in words)
        told += (
            ", said so"
            if reason
            else ", an error that does not say why"
            if answer.failed
            else ", not a word of it"
        )
    elif answer.failed:
        told += f", {answer.failed}"
    return told + f", {answer.size / 1e6:.0f} MB for the agent" * (answer.size > 1e6)


def afterwards(answer: Answer) -> str:
    """Return what has become of the kernel, from the answer to a cell that prints what was kept there."""
    if answer.hung:
        return "then no cell runs"
    if "42!" in answer.text:
        return "state kept"
    if "NOT run" in answer.text:
        return "the next cell not run, with the reason"
    return f"state gone, {'said so' if 'died' in answer.text else 'not a word of it'}"


def tries(project: Project) -> tuple[list[str], dict[str, Any]]:
    """Return the rows about what is no plain step, and what was answered: each try in a session of its own."""
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
    told = [
        f"| session | {' | '.join(cases)} | cells saved |",
        "| --- " * (2 + len(cases)) + "|",
    ]
    answered: dict[str, Any] = {}
    for peer in (None, *PEERS):
        name = peer.name if peer else "stepper"
        row = []
        for cells, (case, (source, words)) in enumerate(cases.items(), 1):
            session = (
                Session(peer, project.root, cells) if peer else Stepper(project, cells)
            )
            try:
                session.run("kept = 42\nprint(kept)")
                first = session.run(source, PATIENCE, limited="limit" in case)
                second = session.run("print(f'{kept}!')", PATIENCE)
            finally:
                session.end()
            row.append(f"{outcome(first, words)}; {afterwards(second)}")
            answered.setdefault(name, {})[case] = [
                [one.failed, one.size, one.text[:1500]] for one in (first, second)
            ]
        told.append(
            f"| {name} | {' | '.join(row)} | {'no' if peer and not peer.undo else 'yes'} |"
        )
    return told, answered


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="A step beside the other ways to run a notebook's new cell."
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="samples of each way (at least 20 to be quoted)",
    )
    parser.add_argument(
        "--cells", type=int, nargs="+", default=SIZES, help="sizes of the notebook"
    )
    parser.add_argument("--json", type=Path, help="write all samples there as well")
    parser.add_argument(
        "--tries", action="store_true", help="no times: try what goes wrong"
    )
    given = parser.parse_args()
    versions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="stepper-benchmark-") as folder:
        # Nobody's start-up files and settings are measured.
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "XDG_CONFIG_HOME"):
            os.environ[name] = str(Path(folder, "config"))
        project = Project(Path(folder))
        try:
            if given.tries:
                lines, measured = tries(project)
            else:
                found = {
                    cells: measure(project, cells, given.rounds, versions)
                    for cells in given.cells
                }
                lines, measured = table(found), document(found)
        finally:
            project.shutdown()
    versions["runners"] = dict(pin.split("==") for pin in RUNNERS)
    about = {
        "date": str(date.today()),
        "machine": machine(),
        "rounds": given.rounds,
        "versions": versions,
    }
    if given.json:
        given.json.write_text(json.dumps(about | measured, indent=1) + "\n")
    print(
        f"{about['machine']}; {'one try each' if given.tries else f'{given.rounds} rounds, medians in ms'}\n"
    )
    for name, those in versions.items():
        print(
            f"{name}: {', '.join(f'{one} {number}' for one, number in those.items())}"
        )
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
