"""Doubts about a run that ended well: warnings, swallowed errors, what became of the frames that the cell names.

Each run is watched by itself: after it `warnings.showwarning` and IPython's `ast_transformers` are as they were.
"""

from __future__ import annotations

import ast
import sys
import warnings

from stepper.diagnosis.inside.bindings import Cell
from stepper.diagnosis.inside.compared import compare
from stepper.diagnosis.inside.frames import look
from stepper.diagnosis.inside.swallowed import HELPER, listen, said, start, stop, swallowed
from stepper.kernel.inside.base import clock, files, guarded, name_of, shell
from stepper.kernel.inside.cells import TIMED, cell_magic, now, place, raw_lines

FACTS, WARNINGS = 10, 20
BEFORE, AFTER = 0.1, 0.15  # seconds
state = {"run": None}  # the run that is watched; the stand-ins of former ones only pass on


class Run:
    def __init__(self, raw):
        self.raw, self.trees, self.warned, self.seen = raw, [], {}, {}
        self.showing = None


class Reader(ast.NodeTransformer):
    """IPython hands it the tree of the cell, and those of what the cell's magics run.

    It is the last in IPython's list and leaves it at once: no cell sees it, and IPython does not go over the tree once
    more, as it does where transformers are left. Before a cell magic it stays.
    """

    def visit(self, tree):
        guarded(read, state["run"], tree)
        return tree


def leave():
    if reader in shell.ast_transformers:
        shell.ast_transformers.remove(reader)


reader = Reader()


def begin():
    sys.modules[HELPER].swallowed = swallowed


def before(raw):
    """Begin to watch a run."""
    if state["run"] is not None:  # its end was not told
        after(state["run"].raw, False)
    run = Run(raw)
    start()
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        run.seen = guarded(look, raw, clock() + BEFORE) or {}
    if pandas is not None or "except" in raw or "pandas" in raw:
        shell.ast_transformers.append(reader)
    run.showing = listening(unwrapped(warnings.showwarning), run)
    state["run"] = run
    warnings.showwarning = run.showing


def after(raw, ok):
    """End it; the facts where the run ended well, the weightiest first."""
    run = state["run"]
    if run is None or raw != run.raw:  # what a cell runs ends before the cell
        return []
    state["run"] = None
    leave()
    if warnings.showwarning is run.showing:  # else the user's own stays
        warnings.showwarning = unwrapped(run.showing)
    errors = stop()
    if not ok:
        return []
    facts = [guarded(error_fact, *told) for told in errors]
    facts += guarded(of_frames, run) or []
    facts += [guarded(warning_fact, *key, *told) for key, told in run.warned.items()]
    facts = [fact for fact in facts if fact is not None]
    left = len(facts) - FACTS
    return facts if left <= 0 else [*facts[:FACTS], {"kind": "more", "count": left}]


def read(run, tree):
    run.trees.append(tree)
    if len(run.trees) > 1 or not run.raw.lstrip().startswith("%%") or "timeit" in run.raw:
        leave()
    if "except" in run.raw:
        listen(tree, run.raw)


def of_frames(run):
    if not run.trees or "pandas" not in sys.modules:
        return []
    deadline = clock() + AFTER
    current = look(run.raw, deadline)
    odd = any(seen.rows == 0 or seen.blank for seen in current.values())
    return compare(run.seen, current, Cell(run.trees)) if odd or "merge" in run.raw or "join" in run.raw else []


def error_fact(filename, line, head, name, message, count):
    line = line_of(filename, line)
    if line is None or "except" not in raw_lines(now["number"])[line - 1]:
        return None
    return {"kind": "swallowed", "line": line, "head": head, "error": name, "message": message, "count": count}


def warning_fact(category, message, filename, line, count):
    fact = {"kind": "warning", "category": category, "message": message, "count": count}
    line = guarded(line_of, filename, line)
    return fact if line is None else {**fact, "line": line}


def line_of(filename, line):
    """The line of the cell as it was written, or None where it is none of this cell's."""
    if filename in TIMED:
        magic = cell_magic(now["number"])
        return None if magic is None else min(magic[1] + line, len(raw_lines(now["number"])))
    if filename not in files():
        return None
    number, line = place(filename, line)
    return line if number == now["number"] else None


def unwrapped(showing):
    return getattr(showing, "__dict__", {}).get("stepper_passes_to", showing)


def listening(original, run):
    """A stand-in for `warnings.showwarning`, which users may keep, call and replace."""

    def showwarning(message, category, filename, lineno, file=None, line=None):
        __tracebackhide__ = True
        if run is state["run"]:
            guarded(heard, run, message, category, filename, lineno)
        return original(message, category, filename, lineno, file, line)

    showwarning.stepper_passes_to = original
    return showwarning


def heard(run, message, category, filename, line):
    key = name_of(category), said(message) if type(message) is not str else message.split("\n")[0]
    if key in run.warned:
        run.warned[key][2] += 1
    elif len(run.warned) < WARNINGS:
        run.warned[key] = [filename, line, 1]
