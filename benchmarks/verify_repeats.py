"""Count verdicts of `stepper verify` that are not the same each time.

    python benchmarks/verify_repeats.py notebooks PYTHON [REPEATS]
    python benchmarks/verify_repeats.py cells PYTHON [REPEATS] [RUNS]

`notebooks` makes small notebooks with unseeded draws, sets, clocks, threads and ids,
records each one once, and calls `notebook-stepper verify` REPEATS times (100).

`cells` runs the cells of the test corpus (`benchmarks/verify_cells.py`) RUNS times (4)
for each of the four kernels of a replay, with the seeds that such a kernel has. Then
each cell is judged REPEATS times (100), each time with runs chosen at random, by the
rules of `stepper verify`. PYTHON has IPython, ipykernel, numpy, pandas and matplotlib.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.verify_cells import LEFT_OUT, Outputs, run_cells
from stepper.diagnosis import ipython_syntax
from stepper.kernels.outputs import image_diff
from stepper.policy.comparison.input_cells import find_input_cells
from stepper.policy.comparison.nondeterminism import Sources
from stepper.policy.comparison.output_comparison import ReplayVerdict, compare_outputs
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.dataflow import name_analysis
from stepper.policy.model import Cell
from stepper.session.verification.random_seeds import SEED_OFFSET
from stepper.session.verification.verify import MAX_REPLAYS
from tests.oracle.cell_corpus import NAMES, load_cells

STANDALONE = "from stepper.cli.package_command import main; main()"
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
        "values = [random.randint(1, 2) for _ in range(2)]\nvalues",
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


def make_notebook(path: Path, sources: Sequence[str]) -> None:
    """Write a notebook that has not run."""
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "execution_count": None,
            "source": source,
            "outputs": [],
        }
        for number, source in enumerate(sources, 1)
    ]
    kernelspec = {"name": "python3", "display_name": "Python", "language": "python"}
    raw = {
        "cells": cells,
        "metadata": {"kernelspec": kernelspec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(raw, indent=1))


def verify(python: str, path: Path) -> tuple[str, ...]:
    """Return the verdicts on the cells of a notebook."""
    arguments = ["verify", path.name, "--json", "--python", python]
    result = subprocess.run(
        [sys.executable, "-c", STANDALONE, *arguments],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.stdout:
        raise RuntimeError(result.stderr)
    return tuple(cell["verdict"] for cell in json.loads(result.stdout)["cells"])


def repeat_notebooks(python: str, repeats: int) -> None:
    """Print the verdicts on each notebook, and how often each one was given."""
    with tempfile.TemporaryDirectory() as folder:
        tallies: dict[str, Counter[tuple[str, ...]]] = {}
        for name, sources in NOTEBOOKS.items():
            path = Path(folder, f"{name}.ipynb")
            make_notebook(path, sources)
            command = [python, "-m", "nbconvert", "--to", "notebook", "--execute"]
            command += ["--ExecutePreprocessor.kernel_name=python3", "--inplace"]
            subprocess.run([*command, str(path)], check=True, capture_output=True)
            tallies[name] = Counter()
        for number in range(1, repeats + 1):
            for name, tally in tallies.items():
                tally[verify(python, Path(folder, f"{name}.ipynb"))] += 1
            if number % 10 == 0 or number == repeats:
                print(f"after {number} repetitions:")
                for name, tally in tallies.items():
                    print(f"  {name}: {tally.most_common()}", flush=True)


def judge(
    cell: Cell, recorded: Outputs, replays: Sequence[Outputs], sources: Sources
) -> ReplayVerdict:
    """Return the verdict on a cell, with as many replays as `stepper verify` needs."""
    shown = [CellOutputs(outputs) for outputs in replays]
    for count in range(1, MAX_REPLAYS + 1):
        difference = compare_outputs(
            CellOutputs(recorded), shown[0], shown[1:count], image_diff.compare_pixels
        )
        verdict = difference.verdict
        if verdict.reproduces:
            break
        is_changed = verdict is ReplayVerdict.CHANGED
        is_doubtful = is_changed and sources.uses_drawn_values(cell)
        if count > 1 and not difference.doubtful and not is_doubtful:
            break
    return verdict


def load_sheets() -> list[list[str]]:
    """Return the sources of the notebooks of the corpus."""
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
    return Sources(cells, find_input_cells(usages))


def repeat_cells(python: str, repeats: int, run_count: int) -> None:
    """Print the cells whose verdict is not always the same."""
    sheets = load_sheets()
    recorded = run_sheets(python, sheets, RECORDED_SEED, 77)
    runs: list[list[list[list[Outputs]]]] = []
    for number in range(MAX_REPLAYS):
        seed = SEED_OFFSET + number
        runs.append(
            [run_sheets(python, sheets, seed, number) for _ in range(run_count)]
        )
        print(f"ran replay {number + 1} {run_count} times", flush=True)
    rng = random.Random(1)
    tally = Counter[str]()
    for sheet_index, sources in enumerate(sheets):
        notebook = create_sources(sources)
        for index, cell in enumerate(notebook.cells):
            verdicts = Counter[ReplayVerdict]()
            for _ in range(repeats):
                chosen: list[Any] = [
                    rng.choice(same_seed)[sheet_index][index] for same_seed in runs
                ]
                recording = recorded[sheet_index][index]
                verdicts[judge(cell, recording, chosen, notebook)] += 1
            if len(verdicts) > 1:
                tally["not always the same"] += 1
                print(f"{dict(verdicts)}: {cell.source[:200]!r}", flush=True)
            else:
                tally[f"always {next(iter(verdicts))}"] += 1
    print(*(f"{count:5} {label}" for label, count in tally.items()), sep="\n")


def main() -> None:
    """Print the verdicts that are not the same each time."""
    kind, python, *numbers = sys.argv[1:]
    counts = [int(number) for number in numbers]
    repeats = counts[0] if counts else 100
    if kind == "notebooks":
        repeat_notebooks(python, repeats)
    else:
        repeat_cells(python, repeats, counts[1] if len(counts) > 1 else 4)


if __name__ == "__main__":
    main()
