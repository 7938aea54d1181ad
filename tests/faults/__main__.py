"""`python -m tests.faults [CLASS …]`: class by class, how often a report holds the fact that the fix needs."""

from __future__ import annotations

import statistics
import sys

import click

from tests.faults.corpus import Bench, Case, Seen, examples, python, run_corpus

SHARE = 0.88  # of the cells' facts that reports must hold


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


@click.command()
@click.argument("classes", nargs=-1)
@click.option(
    "--folder",
    default=".",
    help="`unseen`: the cells that were written after the suggestions.",
)
@click.option(
    "--misses", is_flag=True, help="Show the reports that do not hold the fact."
)
@click.option("--show", default="", help="Show the report of this case.")
@click.option(
    "--no-preflight",
    is_flag=True,
    help="Run each cell, whatever is known of it before.",
)
def main(
    classes: tuple[str, ...], folder: str, misses: bool, show: str, no_preflight: bool
) -> None:
    """Run the corpus and print the figures, class by class."""
    found = []
    for one in run_corpus(python(), classes, folder, preflight=not no_preflight):
        found.append(one)
        if one.stopped or one.ename not in (one.case.ename, "KernelDied"):
            print(f"!! {one.case.name}: {one.stopped or one.ename + ': ' + one.evalue}")
        if one.case.name == show or (misses and not one.holds):
            print(
                f"\n== {one.case.name}: needs {one.case.needs} (/{one.case.fact}/)\n{one.case.cell}\n--\n{one.report.text}"
            )
    print("\n".join(table(found)))
    if not classes:
        played = [run_case(case) for case in examples()]
        print(
            f"\nExample notebooks: {len(played)}; their cells all ran ok: {all(one.report.ok for one in played)}"
        )
        found += played
    held = [one for one in found if one.held]
    wrong = [one.case.name for one in held if one.ename != one.case.ename]
    print(
        f"Found before they ran: {len(held)}; of these, cells that would have run or ended otherwise: {len(wrong)}"
    )
    doubts = sum(len(one.doubts) for one in found)
    cells = sum(len(one.case.prepare) for one in found)
    print(
        f"Cells that are to run ok: {cells}; stopped before they ran, or failed: {sum(len(one.stopped) for one in found)};"
    )
    print(f"doubts raised about them: {doubts}")
    for one in found:
        for doubt in one.doubts:
            print(f"  {one.case.name}: {doubt}")
    failures = [f"{one.case.name}: {text}" for one in found for text in one.swallowed]
    print(
        f"Failures of the helper's own that it kept quiet: {len(failures)}",
        *failures,
        sep="\n  ",
    )
    print(
        "Missed: "
        + (", ".join(one.case.name for one in found if not one.holds) or "none")
    )
    share = sum(one.holds for one in found) / max(1, len(found))
    if failures or (not classes and share < SHARE):
        sys.exit(1)


def run_case(case: Case) -> Seen:
    """Run one case in a kernel of its own."""
    bench = Bench(python())
    try:
        return bench.run(case)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
