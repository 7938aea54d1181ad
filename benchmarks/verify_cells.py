"""Count wrong verdicts for cells of the test corpus, repeated and with changes.

    python benchmarks/verify_cells.py PYTHON

The cells are those that are compared with nbclient (`tests/oracle/notebooks`). PYTHON
has IPython, numpy, pandas and matplotlib. The cells of each notebook run in its
IPython, without a kernel, in three processes with three hash seeds: the recording, the
first and the second replay. Then the recording is changed in one place: a digit among
the first four of a number, a word, a removed line, a picture's colors. Cells that
would exit the process are left out. nbdime and nbval check the same pairs
(`benchmarks/verify.py` installs them).
"""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageOps

from benchmarks.verify import run_peers
from stepper.kernels.outputs import image_diff
from stepper.policy.comparison.output_comparison import (
    Difference,
    compare_outputs,
)
from stepper.policy.comparison.output_items import (
    CellOutputs,
)
from tests.oracle.cell_corpus import NAMES, load_cells
from tests.verify.pairs import Pair

LEFT_OUT = (
    "input(",
    "_exit",
    "exit()",
    "quit()",
    "kernel",
    "os.kill",
    "fork",
    "%load",
    "%edit",
    "%debug",
    "%pdb",
    "%more",  # a pager waits for a terminal
    "%less",
)
RUN = """
import base64, json, re, signal, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
cells = []
for sources in json.load(sys.stdin):
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    for source in sources:
        error = None
        signal.alarm(8)
        with capture_output() as captured:
            try:
                ran = shell.run_cell(source, store_history=True)
                error = ran.error_before_exec or ran.error_in_exec
            except BaseException as raised:
                error = raised
        signal.alarm(0)
        printed = captured.stdout if error is None else re.split("-{60,}\\n", captured.stdout)[0]
        printed = re.sub("(?m)^Out\\[[0-9]+\\]: ", "", printed)  # in a kernel, the count is separate
        outputs = [{"output_type": "stream", "name": name, "text": text}
                   for name, text in (("stdout", printed), ("stderr", captured.stderr)) if text]
        for each in captured.outputs:
            data = {kind: base64.b64encode(value).decode() if type(value) is bytes else value
                    for kind, value in (each.data or {}).items()}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        if error is not None:
            error_output = {"ename": type(error).__name__, "evalue": str(error), "traceback": []}
            outputs.append({"output_type": "error", **error_output})
        cells.append(json.loads(json.dumps(outputs, default=repr)))
with open(sys.argv[1], "w") as stream:
    json.dump(cells, stream)
"""
NUMBER_PATTERN, WORD_PATTERN = (
    re.compile(r"(?<![\w.])\d[\d.]*\d?"),
    re.compile(r"[A-Za-z]{3,}"),
)
Outputs = list[dict[str, Any]]


def run_cells(
    python: str, sheets_of_sources: list[list[str]], seed: int
) -> list[Outputs]:
    """Run the cells in a new process; return their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        result_path = os.path.join(folder, "result.json")
        environ = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "IPYTHONDIR": os.path.join(folder, ".ipython"),
        }
        command = [python, "-c", RUN, result_path]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(
            command,
            input=json.dumps(sheets_of_sources).encode(),
            cwd=folder,
            env=environ,
            check=True,
            **quiet,
        )
        cell_outputs: list[Outputs] = json.loads(Path(result_path).read_text())
        return cell_outputs


def change_outputs(
    outputs: Outputs, rng: random.Random
) -> Iterator[tuple[str, Outputs]]:
    """Yield kinds of changes, and the outputs with one such change."""
    for kind, pattern in (
        ("digit", NUMBER_PATTERN),
        ("word", WORD_PATTERN),
        ("line", re.compile(r"^[^\n]*\S[^\n]*\n", re.MULTILINE)),
    ):
        candidates = [
            (spot, match)
            for spot, text in list_texts(outputs)
            for match in pattern.finditer(text)
        ]
        if candidates:
            (index, key), match = rng.choice(candidates)
            changed_outputs = copy.deepcopy(outputs)
            container = (
                changed_outputs[index]["data"]
                if key == "text/plain"
                else changed_outputs[index]
            )
            text, old = container[key], match[0]
            new = (
                change_digit(old, rng)
                if kind == "digit"
                else f"{old[::-1]}x"
                if kind == "word"
                else ""
            )
            container[key] = text[: match.start()] + new + text[match.end() :]
            yield kind, changed_outputs


def change_digit(number: str, rng: random.Random) -> str:
    """Return a number with another digit among its first four."""
    digit_positions = [index for index, letter in enumerate(number) if letter.isdigit()]
    leading = next(
        (n for n, index in enumerate(digit_positions) if number[index] != "0"), 0
    )
    index = rng.choice(digit_positions[leading : leading + 4])
    return (
        number[:index]
        + str((int(number[index]) + rng.randint(1, 9)) % 10)
        + number[index + 1 :]
    )


def list_texts(outputs: Outputs) -> Iterator[tuple[tuple[int, str], str]]:
    """Yield the texts that are compared, with their positions."""
    for index, output in enumerate(outputs):
        # not the digits of escape sequences
        if output.get("name") == "stdout" and not {"\x1b", "\r"} & {*output["text"]}:
            yield (index, "text"), output["text"]
        elif (
            isinstance(text := output.get("data", {}).get("text/plain"), str)
            and len(output["data"]) == 1
        ):
            yield (index, "text/plain"), text
        elif output["output_type"] == "error":
            yield (index, "evalue"), output["evalue"]


def compare_runs(
    recorded: Outputs, replay: Outputs, second_replay: Outputs
) -> Difference:
    """Return the difference that a replay would report."""
    first = compare_outputs(
        CellOutputs(recorded), CellOutputs(replay), (), image_diff.compare_pixels
    )
    if first.verdict.reproduces:
        return first
    return compare_outputs(
        CellOutputs(recorded),
        CellOutputs(replay),
        [CellOutputs(second_replay)],
        image_diff.compare_pixels,
    )


def invert_picture(outputs: Outputs) -> Iterator[tuple[str, Outputs]]:
    """Yield the outputs with the colors of one picture inverted."""
    for index, output in enumerate(outputs):
        if isinstance(text := output.get("data", {}).get("image/png"), str):
            image, file = (
                Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"),
                io.BytesIO(),
            )
            ImageOps.invert(image).save(file, "PNG")
            changed_outputs = copy.deepcopy(outputs)
            changed_outputs[index]["data"]["image/png"] = base64.b64encode(
                file.getvalue()
            ).decode()
            yield "picture", changed_outputs
            return


def main() -> None:
    """Print the number of verdicts of each kind, and each wrong one."""
    rng, tally = random.Random(1), Counter[str]()
    pairs = list[Pair]()
    sheets_of_sources = [
        [
            sheet.source
            for sheet in load_cells(name)
            if not any(marker in sheet.source for marker in LEFT_OUT)
        ]
        for name in NAMES
    ]
    sources = [source for cells in sheets_of_sources for source in cells]
    runs = [run_cells(sys.argv[1], sheets_of_sources, seed) for seed in (77, 0, 1)]
    for source, recorded, replay, second_replay in zip(sources, *runs, strict=True):
        result = compare_runs(recorded, replay, second_replay)
        tally[
            "run again, other bytes" if recorded != replay else "run again, same bytes"
        ] += 1
        tally[f"run again: {result.verdict}"] += 1
        if not result.verdict.reproduces:
            print(f"{result.verdict}: {source[:100]!r} {result.lines}")
            continue
        pairs.append(Pair("run again", False, recorded, replay))
        changes = [*change_outputs(recorded, rng), *invert_picture(recorded)]
        for kind, changed_outputs in changes:
            is_missed = compare_runs(
                changed_outputs, replay, second_replay
            ).verdict.reproduces
            tally[f"a {kind} changed: {'missed' if is_missed else 'seen'}"] += 1
            pairs.append(Pair(f"a {kind} changed", True, changed_outputs, replay))
            if is_missed:
                print(f"a {kind} missed: {source[:100]!r}")
    print(*(f"{number:5} {label}" for label, number in sorted(tally.items())), sep="\n")
    for name, flags in run_peers(pairs).items():
        wrong_counts = Counter(
            pair.name
            for pair, flag in zip(pairs, flags, strict=True)
            if flag is not pair.real
        )
        print(
            f"{name}: flagged pairs without a change, and missed changes: {dict(wrong_counts)}"
        )


if __name__ == "__main__":
    main()
