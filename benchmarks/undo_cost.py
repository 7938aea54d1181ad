"""Measure what the images before runs cost, over the cells of `tests/state_changes`.

    python benchmarks/undo_cost.py
    python benchmarks/undo_cost.py --python PYTHON   # with other packages

The cells of each topic run in one kernel, case by case. The time is the processor time
of the kernel's main thread for the image before a run and the comparison after it, so
that other processes on the machine do not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.state_restore import PACKAGES, find_missing_modules  # noqa: E402
from stepper.policy.dataflow.binding_table import BindingTable  # noqa: E402
from stepper.policy.dataflow.name_analysis import analyze_source  # noqa: E402
from stepper.policy.model import Limits  # noqa: E402
from stepper.policy.undo.undone_runs import list_mentioned_names  # noqa: E402
from stepper.policy.undo_model import UndoRequest  # noqa: E402
from stepper.session.cells.cell_undo import IMAGE_SECONDS  # noqa: E402
from tests import state_changes  # noqa: E402
from tests.environments import environment  # noqa: E402
from tests.state_changes import Case  # noqa: E402
from tests.test_kernel_helper import Lab  # noqa: E402

MEMORY = 512 << 20
USE_PROCESSOR_TIME = """
(lambda gc, time: [
    vars(module).update(clock=time.thread_time)
    for module in gc.get_objects()
    if type(module) is type(gc) and module.__name__ == "_stepper_helper"
    and "Recording" in vars(module)
])(__import__("gc"), __import__("time")) and None
"""
# Cells that would disturb the cells of the next case contain one of these words.
UNSUITABLE = ("sys.stdout", "pre_run_cell", "builtins", "os.kill")


class CostLab(Lab):
    """A kernel that measures the images of runs."""

    number = 0

    def measure(self, source: str) -> tuple[float, str]:
        """Run a cell; return the milliseconds for its image, and the source."""
        self.number += 1
        usage = analyze_source(source)
        names = list_mentioned_names(usage, BindingTable().resolve_usage(usage))
        request = UndoRequest(self.number, names, IMAGE_SECONDS, MEMORY)
        run = self.kernel.execute(source, 30, Limits(), undo=request)
        facts = self.loop.run_until_complete(run).undo
        seconds = facts.seconds if facts is not None else 0.0
        return seconds * 1000, source


def measure_topic(python: str, cases: list[Case]) -> list[tuple[float, str]]:
    """Return the milliseconds and the source of each run of a topic."""
    lab = CostLab(python)
    results = []
    try:
        lab.measure("pass")  # loads the helper's part for undo
        lab.ok(USE_PROCESSOR_TIME)
        for case in cases:
            sources = [*case.setup, case.cell, case.retry]
            if any(word in source for word in UNSUITABLE for source in sources):
                continue
            results += [lab.measure(source) for source in sources]
            lab.ok("%reset -f")
    finally:
        lab.close()
    return results


def format_row(label: str, results: list[tuple[float, str]]) -> str:
    """Return a row of the table."""
    times = sorted(milliseconds for milliseconds, _ in results)
    median = statistics.median(times)
    p95 = times[int(len(times) * 0.95)]
    return f"| {label} | {len(times)} | {median:.2f} | {p95:.1f} | {times[-1]:.1f} |"


def main() -> None:
    """Measure all topics and print a table."""
    parser = argparse.ArgumentParser(description="Measure the images before runs.")
    parser.add_argument("--python", help="the interpreter of the kernels")
    parser.add_argument("--topic", action="append", help="only the cases of a topic")
    arguments = parser.parse_args()
    python = arguments.python or environment(sys.executable, *PACKAGES)
    cases = state_changes.load_cases()
    needs = {need for case in cases for need in case.needs}
    missing = find_missing_modules(python, needs)
    topics: dict[str, list[Case]] = {}
    for case in cases:
        is_wanted = not arguments.topic or case.topic in arguments.topic
        if is_wanted and missing.isdisjoint(case.needs):
            topics.setdefault(case.topic, []).append(case)
    print("| topic | runs | median ms | p95 ms | maximum ms |")
    print("| --- | --- | --- | --- | --- |")
    all_results = []
    for topic, topic_cases in topics.items():
        results = measure_topic(python, topic_cases)
        print(format_row(topic, results), flush=True)
        all_results += results
    print(format_row("**all**", all_results))
    for milliseconds, source in sorted(all_results, reverse=True)[:8]:
        print(f"{milliseconds:.1f} ms: {source[:100]!r}")


if __name__ == "__main__":
    main()
