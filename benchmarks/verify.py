"""Count wrong verdicts of stepper, nbdime and nbval on the same pairs.

    python benchmarks/verify.py

The pairs are constructed (`tests/verify/pairs.py`): harmless differences, which should
not be reported, and real ones. The peers are installed into their own environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stepper.kernels.outputs import image_diff
from stepper.policy.comparison.output_comparison import (
    compare_outputs,
)
from stepper.policy.comparison.output_items import (
    CellOutputs,
)
from tests.verify import pairs
from tests.verify.pairs import Pair

# The example in nbval's documentation, and addresses, which users add first.
ENV = Path.home() / ".cache" / "stepper-tests" / "verify-peers"
SANITIZER = [
    [r"\d{1,2}/\d{1,2}/\d{2,4}", "DATE"],
    [r"\d{2}:\d{2}:\d{2}", "TIME"],
    [r"0x[0-9a-f]+", "ADDRESS"],
]
# Runs in the peers' environment; each pair is a notebook with one cell.
PEERS = """
import json, re, sys
import nbformat
import nbdime
from nbdime.diffing.notebooks import set_notebook_diff_targets
from nbval.plugin import IPyNbCell, coalesce_streams, nocolors

ignored = dict.fromkeys(("sources", "attachments", "metadata", "identifier", "details"), False)
set_notebook_diff_targets(outputs=True, **ignored)
request = json.load(sys.stdin)

class Parent:
    skip_compare = ("metadata", "traceback", "prompt_number", "output_type", "name", "execution_count",
                    "application/vnd.jupyter.widget-view+json", "image/png", "image/jpeg")  # its default

def notebook(outputs):
    cell = {"cell_type": "code", "id": "a", "source": "x", "metadata": {}, "execution_count": 1, "outputs": outputs}
    document = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.reads(json.dumps(document), as_version=4)

def nbval(then, now, patterns):
    cell = object.__new__(IPyNbCell)
    cell.parent, cell.colors, cell.comparison_traceback = Parent(), nocolors, []
    cell.parent.sanitize_patterns = patterns
    cell.format_output_compare = lambda *_: None
    before, after = (coalesce_streams(notebook(each).cells[0].outputs) for each in (then, now))
    return not cell.compare_outputs(after, before)

flags = {"nbdime": [], "nbval": [], "nbval, sanitized": []}
def flag_by_nbdime(then, now):
    try:
        return bool(nbdime.diff_notebooks(notebook(then), notebook(now)))
    except RuntimeError:  # "Can currently only diff list, dict, or str objects."
        return True

for then, now in request["pairs"]:
    flags["nbdime"].append(flag_by_nbdime(then, now))
    flags["nbval"].append(nbval(then, now, {}))
    flags["nbval, sanitized"].append(nbval(then, now, dict(request["sanitizer"])))
print(json.dumps(flags))
"""


def run_peers(pairs_to_check: Sequence[Pair]) -> dict[str, list[bool]]:
    """Return which pairs each peer flags."""
    python = ENV / "bin" / "python"
    if not python.exists():
        venv.create(ENV, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "nbdime", "nbval"], check=True
        )
    request = {
        "pairs": [[each.recorded, each.fresh] for each in pairs_to_check],
        "sanitizer": SANITIZER,
    }
    command = [python, "-c", PEERS]
    output = subprocess.run(
        command,
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    flags: dict[str, list[bool]] = json.loads(output)
    return flags


def is_flagged(pair: Pair) -> bool:
    """Return whether stepper flags a pair."""
    return not compare_outputs(
        CellOutputs(pair.recorded),
        CellOutputs(pair.fresh),
        (),
        image_diff.compare_pixels,
    ).verdict.reproduces


def main() -> None:
    """Print a row for each tool and each half of the pairs."""
    pairs_to_check = pairs.FIRST
    flags = {
        "stepper": [is_flagged(pair) for pair in pairs_to_check],
        **run_peers(pairs_to_check),
    }
    print(
        f"| {'tool':<18} | pairs | harmless ones flagged | real ones missed | missed |\n| --- | --- | --- | --- | --- |"
    )
    for name, flagged in flags.items():
        for half, chosen in (("seen", pairs.DEVELOPMENT), ("held out", pairs.HELD_OUT)):
            marked = [
                (pair, flag)
                for pair, flag in zip(pairs_to_check, flagged, strict=True)
                if pair in chosen
            ]
            harmless = [flag for pair, flag in marked if not pair.real]
            real = [flag for pair, flag in marked if pair.real]
            missed = "; ".join(
                pair.name for pair, flag in marked if pair.real and not flag
            )
            row = f"{sum(harmless)} of {len(harmless)} | {len(real) - sum(real)} of {len(real)}"
            print(f"| {name} | {half} | {row} | {missed} |")


if __name__ == "__main__":
    main()
