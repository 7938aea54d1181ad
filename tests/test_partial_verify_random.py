"""Partial replays of random notebooks agree with full replays."""

from __future__ import annotations

import json
import os
import random

import pytest

from stepper.policy.dataflow import partial_replay
from tests.conftest import code
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = [UNCLOSED, pytest.mark.nightly]
CASES = int(os.environ.get("CASES", "30"))
NAMES = ("a", "b", "c")
STATEMENTS = (
    "{x} = [{n}]",
    "{x} = {y}",
    "{x} = {y} + [{n}]",
    "{x} = [{y}, {n}]",
    "{x}.append({n})",
    "{x} += [{n}]",
    "{x} = list({y})",
    "def f(v):\n    v.append({n})\nf({x})",
    "del {x}\n{x} = {n}, {y}",
    "for {x} in range({n}): pass",
)


def make_source(generator: random.Random, is_first: bool) -> str:
    if is_first:
        return "a = [1]; b = [2]; c = [3]\nprint(a, b, c)"
    statement = generator.choice(STATEMENTS).format(
        x=generator.choice(NAMES), y=generator.choice(NAMES), n=generator.randrange(9)
    )
    return f"{statement}\nprint({generator.choice(NAMES)})"


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_verdicts_are_those_of_a_full_replay(
    project: Quick, monkeypatch: pytest.MonkeyPatch, with_checkpoint: bool
) -> None:
    """Every cell counts as slow, so that all values are loaded, if possible."""
    monkeypatch.setattr(partial_replay, "QUICK_SECONDS", 0.0)
    partial_count = loaded_count = 0
    for case in range(CASES):
        generator = random.Random(case)
        name = f"n{case}"
        sources = [make_source(generator, number == 0) for number in range(6)]
        cells = [code(source, f"c{number}") for number, source in enumerate(sources)]
        notebook = project.notebook(f"{name}.ipynb", cells)
        project.stepper("run", name, check=None)
        for _ in range(generator.choice((0, 0, 1, 2, 3))):
            index = generator.randrange(1, 6)
            if generator.random() < 0.5:
                new_source = make_source(generator, False)
                notebook.replace(f"c{index}", new_source)
            else:
                source = json.loads(notebook.path.read_text())["cells"][index]["source"]
                notebook.replace(f"c{index}", "".join(source) + "\n")
        full = project.json("verify", name, "--once", check=None)
        start = generator.randrange(2, 7)
        options = ["--checkpoint"] if with_checkpoint else []
        partial = project.json(
            "verify", name, "--once", "--from", str(start), *options, check=None
        )
        partial_count += partial["partial"]
        for cell, other in zip(full["cells"], partial["cells"], strict=True):
            loaded_count += other["verdict"] == "skipped" and bool(other["difference"])
            if other["verdict"] != "skipped":
                assert cell["verdict"] == other["verdict"], (case, start, cell, other)
        project.stepper("shutdown", name)
    assert partial_count > CASES / 5
    assert bool(loaded_count) is with_checkpoint
