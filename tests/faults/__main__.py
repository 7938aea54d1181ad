"""`python -m tests.faults [CLASS …] [--misses] [--show NAME]`: class by class, how often a report holds the fact."""

from __future__ import annotations

import statistics
import sys

from tests.faults.corpus import Seen, python, seen


def table(found: list[Seen]) -> list[str]:
    """Return the figures as lines of Markdown: a row a class, and all."""
    rows = [
        "| class | cells | fact in the report | look, median ms | largest | words, median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups = list(dict.fromkeys(one.case.group for one in found))
    for group in [*groups, "all"]:
        of = [one for one in found if group in (one.case.group, "all")]
        holds = sum(one.holds for one in of)
        looks = [one.look * 1000 for one in of if not one.held] or [0.0]
        words = statistics.median(one.words for one in of)
        rows.append(
            f"| {group} | {len(of)} | {holds} ({100 * holds / len(of):.0f} %) | {statistics.median(looks):.1f}"
            f" | {max(looks):.0f} | {words:.0f} |"
        )
    return rows


def main(arguments: list[str]) -> None:
    """Run the corpus and print the figures; with --misses what was missed, with --show NAME a report."""
    shown = arguments[arguments.index("--show") + 1 :][:1] if "--show" in arguments else []
    names = tuple(one for one in arguments if not one.startswith("--") and one not in shown)
    found = []
    for one in seen(python(), names, preflight="--no-preflight" not in arguments):
        found.append(one)
        if one.stopped or one.ename != one.case.ename:
            print(f"!! {one.case.name}: {one.stopped or one.ename + ': ' + one.evalue}")
        if one.case.name in shown or (("--misses" in arguments) and not one.holds):
            print(
                f"\n== {one.case.name}: needs {one.case.needs} (/{one.case.fact}/)\n{one.case.cell}\n--\n{one.report.text}"
            )
    held = [one for one in found if one.held]
    wrong = [one.case.name for one in held if one.ename != one.case.ename]
    print("\n".join(table(found)))
    print(
        f"\nFound before they ran: {len(held)}; of these, cells that would have run or ended otherwise: {len(wrong)} {wrong or ''}"
    )
    print("Missed: " + ", ".join(one.case.name for one in found if not one.holds))


if __name__ == "__main__":
    main(sys.argv[1:])
