"""How often cells that nobody looked at are decided wrongly: run again in other processes, and with a change put in.

    python benchmarks/verify_cells.py PYTHON

The cells are those that are compared with nbclient's (`tests/oracle/notebooks`). PYTHON has IPython, numpy, pandas and
matplotlib; each notebook's cells run in its IPython, without a kernel, in three processes with three hash seeds: the
recording, the first replay, the second. Then one thing is changed in what was recorded: a digit among the first four of
a number, a word, a line that is gone, a picture's colours. Cells that would end or leave the process are left out.
nbdime and nbval are asked of the same pairs (`benchmarks/verify.py` installs them).
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

from benchmarks.verify import peers
from stepper.kernels.outputs import image_diff
from stepper.policy.comparison.output_comparison import (
    CellOutputs,
    Difference,
    compare_outputs,
)
from tests.oracle.cell_corpus import NAMES, sheets
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
)
RUN = """
import base64, json, re, signal, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
found = []
for sources in json.load(sys.stdin):
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    for source in sources:
        error = None
        signal.alarm(8)
        with capture_output() as held:
            try:
                ran = shell.run_cell(source, store_history=True)
                error = ran.error_before_exec or ran.error_in_exec
            except BaseException as raised:
                error = raised
        signal.alarm(0)
        printed = held.stdout if error is None else re.split("-{60,}\\n", held.stdout)[0]
        printed = re.sub("(?m)^Out\\[[0-9]+\\]: ", "", printed)  # a kernel tells of a count apart
        outputs = [{"output_type": "stream", "name": name, "text": text}
                   for name, text in (("stdout", printed), ("stderr", held.stderr)) if text]
        for each in held.outputs:
            data = {kind: base64.b64encode(told).decode() if type(told) is bytes else told
                    for kind, told in (each.data or {}).items()}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        if error is not None:
            told = {"ename": type(error).__name__, "evalue": str(error), "traceback": []}
            outputs.append({"output_type": "error", **told})
        found.append(json.loads(json.dumps(outputs, default=repr)))
with open(sys.argv[1], "w") as stream:
    json.dump(found, stream)
"""
NUMBER, WORD = re.compile(r"(?<![\w.])\d[\d.]*\d?"), re.compile(r"[A-Za-z]{3,}")
Outputs = list[dict[str, Any]]


def replayed(python: str, asked: list[list[str]], seed: int) -> list[Outputs]:
    """Return what the cells show in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        told = os.path.join(folder, "told.json")
        environ = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        }
        command = [python, "-c", RUN, told]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(
            command,
            input=json.dumps(asked).encode(),
            cwd=folder,
            env=environ,
            check=True,
            **quiet,
        )
        found: list[Outputs] = json.loads(Path(told).read_text())
        return found


def changed(outputs: Outputs, chance: random.Random) -> Iterator[tuple[str, Outputs]]:
    """Give the outputs with one thing changed: what it is, and the outputs."""
    for kind, pattern in (
        ("digit", NUMBER),
        ("word", WORD),
        ("line", re.compile(r"^[^\n]*\S[^\n]*\n", re.MULTILINE)),
    ):
        spots = [
            (place, found)
            for place, text in texts(outputs)
            for found in pattern.finditer(text)
        ]
        if spots:
            (place, key), found = chance.choice(spots)
            made = copy.deepcopy(outputs)
            held = made[place]["data"] if key == "text/plain" else made[place]
            text, old = held[key], found[0]
            new = (
                digit(old, chance)
                if kind == "digit"
                else f"{old[::-1]}x"
                if kind == "word"
                else ""
            )
            held[key] = text[: found.start()] + new + text[found.end() :]
            yield kind, made


def digit(number: str, chance: random.Random) -> str:
    """Return a number with another digit among its first four."""
    places = [place for place, letter in enumerate(number) if letter.isdigit()]
    leading = next((n for n, place in enumerate(places) if number[place] != "0"), 0)
    place = chance.choice(places[leading : leading + 4])
    return (
        number[:place]
        + str((int(number[place]) + chance.randint(1, 9)) % 10)
        + number[place + 1 :]
    )


def texts(outputs: Outputs) -> Iterator[tuple[tuple[int, str], str]]:
    """Give the texts that are judged, with their places."""
    for place, output in enumerate(outputs):
        # a digit of an escape is none
        if output.get("name") == "stdout" and not {"\x1b", "\r"} & {*output["text"]}:
            yield (place, "text"), output["text"]
        elif (
            isinstance(text := output.get("data", {}).get("text/plain"), str)
            and len(output["data"]) == 1
        ):
            yield (place, "text/plain"), text
        elif output["output_type"] == "error":
            yield (place, "evalue"), output["evalue"]


def told(then: Outputs, now: Outputs, again: Outputs) -> Difference:
    """Return what a replay would say."""
    first = compare_outputs(
        CellOutputs(then), CellOutputs(now), (), image_diff.compare_pixels
    )
    return (
        first
        if first.verdict.reproduces
        else compare_outputs(
            CellOutputs(then),
            CellOutputs(now),
            [CellOutputs(again)],
            image_diff.compare_pixels,
        )
    )


def recoloured(outputs: Outputs) -> Iterator[tuple[str, Outputs]]:
    """Give the outputs with the colours of a picture inverted."""
    for place, output in enumerate(outputs):
        if isinstance(text := output.get("data", {}).get("image/png"), str):
            image, file = (
                Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"),
                io.BytesIO(),
            )
            ImageOps.invert(image).save(file, "PNG")
            made = copy.deepcopy(outputs)
            made[place]["data"]["image/png"] = base64.b64encode(
                file.getvalue()
            ).decode()
            yield "picture", made
            return


def main() -> None:
    """Print how many are decided how, and each that is decided wrongly."""
    chance, tally = random.Random(1), Counter[str]()
    pairs = list[Pair]()
    asked = [
        [
            sheet.source
            for sheet in sheets(name)
            if not any(word in sheet.source for word in LEFT_OUT)
        ]
        for name in NAMES
    ]
    sources = [source for cells in asked for source in cells]
    runs = [replayed(sys.argv[1], asked, seed) for seed in (77, 0, 1)]
    for source, then, now, again in zip(sources, *runs, strict=True):
        found = told(then, now, again)
        tally["run again, other bytes" if then != now else "run again, same bytes"] += 1
        tally[f"run again: {found.verdict}"] += 1
        if not found.verdict.reproduces:
            print(f"{found.verdict}: {source[:100]!r} {found.lines}")
        else:
            pairs.append(Pair("run again", False, then, now))
        for kind, made in (
            (*changed(then, chance), *recoloured(then))
            if found.verdict.reproduces
            else ()
        ):
            missed = told(made, now, again).verdict.reproduces
            tally[f"a {kind} changed: {'missed' if missed else 'seen'}"] += 1
            pairs.append(Pair(f"a {kind} changed", True, made, now))
            if missed:
                print(f"a {kind} missed: {source[:100]!r}")
    print(*(f"{number:5} {what}" for what, number in sorted(tally.items())), sep="\n")
    for name, flags in peers(pairs).items():
        wrong = Counter(
            pair.name
            for pair, flag in zip(pairs, flags, strict=True)
            if flag is not pair.real
        )
        print(
            f"{name}: flagged of those that are as recorded, and missed of those changed: {dict(wrong)}"
        )


if __name__ == "__main__":
    main()
