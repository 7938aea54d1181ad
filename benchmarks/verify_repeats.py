"""Count verdicts of `stepper verify` that are not the same each time.

    python benchmarks/verify_repeats.py notebooks PYTHON [REPEATS]
    python benchmarks/verify_repeats.py cells PYTHON [REPEATS]
    python benchmarks/verify_repeats.py corpus PYTHON [REPEATS]

`notebooks` makes small notebooks with unseeded draws, sets, clocks, threads and ids,
records each one once, and verifies it REPEATS times (100) in forked kernels.

`cells` runs the same notebooks without kernels, REPEATS times in four new processes
that have the seeds of the four kernels of a replay, and applies the rules of `stepper
verify` to their outputs. `corpus` does the same with the cells of the test corpus
(`benchmarks/verify_cells.py`), which takes half a minute for each run. PYTHON has
IPython, ipykernel, numpy, pandas and matplotlib.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.verify_cells import LEFT_OUT, Outputs, run_cells
from stepper.daemon.replay.standalone import StandaloneReplays
from stepper.diagnosis import ipython_syntax
from stepper.kernels.backends.local import kernel_command
from stepper.kernels.outputs import image_diff
from stepper.policy.commands.cli_commands import Verify
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.nondeterminism import Sources
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.recorded_results import Recording
from stepper.policy.comparison.upstream_cells import find_upstream_cells
from stepper.policy.dataflow import name_analysis
from stepper.policy.model import Cell
from stepper.session.verification.findings import (
    ReplayFindings,
    update_differences,
)
from stepper.session.verification.random_seeds import SEED_OFFSET
from stepper.session.verification.replay import ReplayResult
from stepper.session.verification.verify import MAX_REPLAYS
from tests import forked_kernels
from tests.oracle.cell_corpus import NAMES, load_cells

# Runs before the cells of a notebook, like the seeds of a replay.
SEED = """
import random
random.seed({seed})
import numpy.random
numpy.random.seed({seed})
numpy.random.bit_generator.randbits = random.Random({seed}).getrandbits
"""
RECORDED_SEED = 12_345
NOTEBOOKS = {
    "draws": [
        "import random\nprint(random.choice('ab'))",
        "print(random.random() < 0.5)",
        "values = [random.randint(1, 2) for _ in range(2)]\nprint(values)",
        "print(sum(values))",
        "print('fixed')",
    ],
    "numpy_draws": [
        "import numpy as np\nrng = np.random.default_rng()\nprint(rng.integers(2))",
        "print(np.random.choice(['a', 'b']))",
        "np.random.seed(1)\nprint(np.random.rand(3))",
        "print(rng.random(2).round(0))",
    ],
    "sets": [
        "names = {'ada', 'bob'}\nprint(names)",
        "print(list(names)[0])",
        "print(sorted(names))",
        "print({'a', 'b', 'c', 'd', 'e', 'f'})",
        "print(hash('a') % 2)",
    ],
    "clocks": [
        "import time\nprint(int(time.time()) % 2)",
        "import datetime\nprint(datetime.datetime.now().second // 30)",
        "start = time.perf_counter()\nsum(range(10_000))\n"
        "print(round(time.perf_counter() - start, 4))",
        "print(f'{time.perf_counter() - start:.1f} s')",
        "import os, uuid\nprint(os.getpid() % 2, uuid.uuid4())",
        "print(id(object()) % 64)",
    ],
    "threads": [
        "import threading, time\n"
        "def work(name):\n    time.sleep(0.01)\n    print(name)\n"
        "threads = [threading.Thread(target=work, args=[name]) for name in 'ab']\n"
        "for thread in threads:\n    thread.start()\n"
        "for thread in threads:\n    thread.join()",
        "from concurrent.futures import ThreadPoolExecutor, as_completed\n"
        "with ThreadPoolExecutor() as pool:\n"
        "    print([job.result() for job in as_completed("
        "[pool.submit(int, text) for text in '12'])])",
    ],
}


# Prints what each cell prints, as a list in JSON.
RECORD = """
import contextlib, io, json, sys
namespace, printed = {}, []
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        exec(source, namespace)
    printed.append(stream.getvalue())
print(json.dumps(printed))
"""


def make_notebook(python: str, path: Path, sources: Sequence[str]) -> None:
    """Write a notebook with the outputs of a run, which needs no kernel."""
    result = subprocess.run(
        [python, "-c", RECORD],
        input=json.dumps(sources),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "execution_count": number,
            "source": source,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": printed}],
        }
        for number, (source, printed) in enumerate(
            zip(sources, json.loads(result.stdout), strict=True), 1
        )
    ]
    kernelspec = {"name": "python3", "display_name": "Python", "language": "python"}
    raw = {
        "cells": cells,
        "metadata": {"kernelspec": kernelspec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(raw, indent=1))


def fork_kernels() -> None:
    """Make kernels forks of a process with the same interpreter and hash seed.

    A kernel that is started as for users needs ten times as much processor time.
    """
    servers: dict[str, forked_kernels.ForkServers] = {}

    def start(argv: Sequence[str], **options: Any) -> forked_kernels.ForkedKernel:
        environ = dict(options["env"])
        environ.pop(kernel_command.PARENT_PID, None)
        hash_seed = environ["PYTHONHASHSEED"]
        if hash_seed not in servers:
            server = forked_kernels.ForkServers()
            server.environ["PYTHONHASHSEED"] = hash_seed
            servers[hash_seed] = server
            atexit.register(server.close)
        servers[hash_seed].start(argv[0])
        path = forked_kernels.get_socket_path(servers[hash_seed].folder, argv[0])
        stdout, cwd = options["stdout"], options["cwd"]
        return forked_kernels.fork_kernel(path, argv, stdout, cwd, environ)

    kernel_command.Popen = start  # type: ignore[misc,assignment]


def verify(python: str, path: Path) -> tuple[str, ...]:
    """Return the verdicts on the cells of a notebook."""
    options = Verify(python=python)
    replays = StandaloneReplays(options, dict(os.environ), asyncio.Event())
    result = asyncio.run(replays.verify(str(path), lambda event: None))
    return tuple(str(cell.verdict) for cell in result.cells)


def repeat_notebooks(python: str, repeats: int) -> None:
    """Print the verdicts on each notebook, and how often each one was given."""
    fork_kernels()
    with tempfile.TemporaryDirectory() as folder:
        tallies: dict[str, Counter[tuple[str, ...]]] = {}
        for name, sources in NOTEBOOKS.items():
            path = Path(folder, f"{name}.ipynb")
            make_notebook(python, path, sources)
            tallies[name] = Counter()
        for number in range(1, repeats + 1):
            for name, tally in tallies.items():
                tally[verify(python, Path(folder, f"{name}.ipynb"))] += 1
            if number in (1, repeats) or number % 10 == 0:
                print(f"after {number} repetitions:")
                for name, tally in tallies.items():
                    print(f"  {name}: {tally.most_common()}", flush=True)


def judge(
    recorded: Sequence[Outputs],
    replays: Sequence[Sequence[Outputs]],
    sources: Sources,
    run: RunTime,
) -> tuple[str, ...]:
    """Return the verdicts on cells, with as many replays as `stepper verify` needs.

    `run` is a time that contains all replays.
    """
    cells = [*sources.cells]
    recording = Recording(dict(enumerate(recorded)), {})
    document: Any = None  # only texts of failures need it
    findings = ReplayFindings(document, cells, recording, False, {}, sources)
    results = [
        ReplayResult(
            shown={index: CellOutputs(shown) for index, shown in enumerate(outputs)},
            start_times=dict.fromkeys(range(len(cells)), run.start),
            durations=dict.fromkeys(range(len(cells)), run.seconds),
        )
        for outputs in replays
    ]
    findings.first = results[0]
    session: Any = SimpleNamespace(state=SimpleNamespace(packages={}, runs=[]))
    update_differences(session, findings, image_diff.compare_pixels, cells)
    unclear = findings.select_differing()
    while unclear and len(findings.others) + 1 < MAX_REPLAYS:
        findings.others.append(results[len(findings.others) + 1])
        update_differences(session, findings, image_diff.compare_pixels, unclear)
        unclear = findings.select_doubtful(unclear)
    return tuple(str(findings.differences[cell.index].verdict) for cell in cells)


def load_corpus() -> list[list[str]]:
    """Return the sources of the notebooks of the test corpus."""
    return [
        [
            cell.source
            for cell in load_cells(name)
            if not any(marker in cell.source for marker in LEFT_OUT)
        ]
        for name in NAMES
    ]


def run_sheets(
    python: str, sheets: Sequence[Sequence[str]], seed: int, hash_seed: int
) -> list[list[Outputs]]:
    """Run the cells of each notebook after a cell that seeds the generators."""
    seeded = [[SEED.format(seed=seed), *sources] for sources in sheets]
    outputs = iter(run_cells(python, seeded, hash_seed))
    return [[next(outputs) for _ in sources][1:] for sources in seeded]


def create_sources(sources: Sequence[str]) -> Sources:
    """Return the cells of a notebook, with the cells whose values each one uses."""
    cells = [
        Cell(f"c{number}", number - 1, number, "code", source)
        for number, source in enumerate(sources, 1)
    ]
    transformer = ipython_syntax.get_transformer()
    usages = [name_analysis.analyze_source(source, transformer) for source in sources]
    return Sources(cells, find_upstream_cells(usages))


def repeat_cells(python: str, sheets: Sequence[Sequence[str]], repeats: int) -> None:
    """Print the cells whose verdict is not always the same."""
    recorded = run_sheets(python, sheets, RECORDED_SEED, 77)
    started = time.time()

    def run_all(number: int) -> list[list[list[Outputs]]]:
        """Return the outputs of each repetition: per notebook and cell."""
        seed = SEED_OFFSET + number
        return [run_sheets(python, sheets, seed, number) for _ in range(repeats)]

    with ThreadPoolExecutor() as executor:
        runs = [*executor.map(run_all, range(MAX_REPLAYS))]
    run = RunTime(started, time.time() - started)
    tally = Counter[str]()
    for sheet_index, sources in enumerate(sheets):
        notebook = create_sources(sources)
        verdicts: list[tuple[str, ...]] = []
        for repeat in range(repeats):
            replays = [same_seed[repeat][sheet_index] for same_seed in runs]
            verdicts.append(judge(recorded[sheet_index], replays, notebook, run))
        for cell, of_cell in zip(
            notebook.cells, zip(*verdicts, strict=True), strict=True
        ):
            counts = Counter(of_cell)
            if len(counts) > 1:
                tally["not always the same"] += 1
                print(f"{dict(counts)}: {cell.source[:200]!r}", flush=True)
            else:
                tally[f"always {of_cell[0]}"] += 1
    print(*(f"{count:5} {label}" for label, count in tally.items()), sep="\n")


def main() -> None:
    """Print the verdicts that are not the same each time."""
    kind, python, *numbers = sys.argv[1:]
    repeats = int(numbers[0]) if numbers else 100
    if kind == "notebooks":
        repeat_notebooks(python, repeats)
    elif kind == "cells":
        repeat_cells(python, [*NOTEBOOKS.values()], repeats)
    else:
        repeat_cells(python, load_corpus(), repeats)


if __name__ == "__main__":
    main()
