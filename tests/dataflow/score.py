"""How much of the true edges of traced notebooks `policy/dataflow` finds: `python -m tests.dataflow.score FOLDER [held|look] [-v]`."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

from stepper.diagnosis import ipython
from stepper.policy import binder
from stepper.policy.dataflow import Order


def part(path: str) -> str:
    """Which part of the notebooks one belongs to: a third is for looking at, the rest is held out."""
    name = "/".join(Path(path).parts[-2:])
    return "look" if int(hashlib.md5(name.encode()).hexdigest(), 16) % 3 == 0 else "held"


def edges(flows):
    """Return who reads what of whom, when the cells run from the top: provider, reader, name."""
    order = Order()
    return {(bound.by, at, name) for at, flow in enumerate(flows) for name, bound in order.follow(at, flow).items()}


def scored(traced, pairs=False):
    """Return the edges that are true and found, found in vain, missed; of readers that ended well."""
    transform = ipython.transformer()
    flows = [binder.flow(source, transform) for source in traced["sources"]]
    found = edges(flows)
    ok = traced["ok"]
    true = {(p, r, n) for p, r, n in traced["edges"] if ok[r]}
    found = {(p, r, n) for p, r, n in found if ok[r] and not n.startswith("_")}
    if pairs:
        true, found = {e[:2] for e in true}, {e[:2] for e in found}
    return true & found, found - true, true - found


def main() -> None:
    folder, which, loud = Path(sys.argv[1]), (sys.argv[2:3] or ["look"])[0], "-v" in sys.argv
    totals = {True: [0, 0, 0], False: [0, 0, 0]}
    cells = books = 0
    for file in sorted(folder.glob("????????????.json")):
        text = file.read_text()
        if not text:
            continue
        traced = json.loads(text)
        origin = ORIGIN.get(file.stem, traced["path"])
        if which != "all" and part(origin) != which:
            continue
        if not any(traced["ok"]):
            continue
        books += 1
        cells += sum(traced["ok"])
        for pairs in (True, False):
            got = scored(traced, pairs)
            totals[pairs] = [a + len(b) for a, b in zip(totals[pairs], got)]
        if loud:
            good, vain, missed = scored(traced)
            for title, some in (("VAIN", vain), ("MISSED", missed)):
                for p, r, n in sorted(some):
                    print(title, origin[-40:], f"{p}→{r}", n)
                    if "-s" in sys.argv:
                        for c in (p, r):
                            lines = [
                                l for l in traced["sources"][c].split("\n") if re.search(rf"\b{re.escape(n)}\b", l)
                            ]
                            print("      ", c, lines[:4])
    for pairs, (good, vain, missed) in totals.items():
        kind = "cell→cell" if pairs else "by name"
        print(
            f"{which} {kind}: {books} notebooks, {cells} cells, {good + missed} true edges: "
            f"precision {good / max(1, good + vain):.3f} recall {good / max(1, good + missed):.3f}"
        )


ORIGIN: dict[str, str] = {}
if (Path(sys.argv[1]) / "origin.json").exists():
    ORIGIN = json.loads((Path(sys.argv[1]) / "origin.json").read_text())
main()
