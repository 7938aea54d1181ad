"""How often a comparison of outputs is wrong: stepper's rules, nbdime and nbval on the same pairs.

The pairs are made up (`tests/verify/pairs.py`): harmless differences, which nobody should be told of, and real ones.
The peers are installed into an environment of their own. `python benchmarks/verify.py`
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
from stepper.policy.comparison.output_comparison import CellOutputs, compare_outputs
from tests.verify import pairs
from tests.verify.pairs import Pair

# What nbval's own documentation shows as a sanitiser, and addresses, which its users
# add first.
ENV = Path.home() / ".cache" / "stepper-tests" / "verify-peers"
SANITISER = [
    [r"\d{1,2}/\d{1,2}/\d{2,4}", "DATE"],
    [r"\d{2}:\d{2}:\d{2}", "TIME"],
    [r"0x[0-9a-f]+", "ADDRESS"],
]
# Runs where the peers are: each pair as a notebook with one cell.
PEERS = """
import json, re, sys
import nbformat
import nbdime
from nbdime.diffing.notebooks import set_notebook_diff_targets
from nbval.plugin import IPyNbCell, coalesce_streams, nocolors

unseen = dict.fromkeys(("sources", "attachments", "metadata", "identifier", "details"), False)
set_notebook_diff_targets(outputs=True, **unseen)
told = json.load(sys.stdin)

class Parent:
    skip_compare = ("metadata", "traceback", "prompt_number", "output_type", "name", "execution_count",
                    "application/vnd.jupyter.widget-view+json", "image/png", "image/jpeg")  # its default

def notebook(outputs):
    cell = {"cell_type": "code", "id": "a", "source": "x", "metadata": {}, "execution_count": 1, "outputs": outputs}
    made = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.reads(json.dumps(made), as_version=4)

def nbval(then, now, patterns):
    cell = object.__new__(IPyNbCell)
    cell.parent, cell.colors, cell.comparison_traceback = Parent(), nocolors, []
    cell.parent.sanitize_patterns = patterns
    cell.format_output_compare = lambda *told: None
    before, after = (coalesce_streams(notebook(each).cells[0].outputs) for each in (then, now))
    return not cell.compare_outputs(after, before)

found = {"nbdime": [], "nbval": [], "nbval, sanitised": []}
def nbdimes(then, now):
    try:
        return bool(nbdime.diff_notebooks(notebook(then), notebook(now)))
    except RuntimeError:  # "Can currently only diff list, dict, or str objects."
        return True

for then, now in told["pairs"]:
    found["nbdime"].append(nbdimes(then, now))
    found["nbval"].append(nbval(then, now, {}))
    found["nbval, sanitised"].append(nbval(then, now, dict(told["sanitiser"])))
print(json.dumps(found))
"""


def peers(asked: Sequence[Pair]) -> dict[str, list[bool]]:
    """Return which pairs each of the peers flags."""
    python = ENV / "bin" / "python"
    if not python.exists():
        venv.create(ENV, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "nbdime", "nbval"], check=True
        )
    told = {"pairs": [[each.then, each.now] for each in asked], "sanitiser": SANITISER}
    asks = [python, "-c", PEERS]
    said = subprocess.run(
        asks, input=json.dumps(told), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found: dict[str, list[bool]] = json.loads(said)
    return found


def ours(pair: Pair) -> bool:
    """Whether stepper flags a pair."""
    return not compare_outputs(
        CellOutputs(pair.then), CellOutputs(pair.now), (), image_diff.compare_pixels
    ).verdict.reproduces


def main() -> None:
    """Print a row for each tool and each half of the pairs."""
    asked = pairs.FIRST
    flags = {"stepper": [ours(pair) for pair in asked], **peers(asked)}
    print(
        f"| {'tool':<18} | pairs | harmless ones flagged | real ones missed | which |\n| --- | --- | --- | --- | --- |"
    )
    for name, flagged in flags.items():
        for half, chosen in (("seen", pairs.SEEN), ("held", pairs.HELD)):
            marked = [
                (pair, flag)
                for pair, flag in zip(asked, flagged, strict=True)
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
