"""`python -m tests.faults [CLASS …]`: print how many reports of each class contain the fact."""

from __future__ import annotations

import statistics
import sys

import click

from tests.faults.corpus import Bench, Case, CaseResult, examples, python, run_corpus

SHARE = 0.88  # of the facts that reports must contain


def table(results: list[CaseResult]) -> list[str]:
    """Return the results as a Markdown table: a row for each class, and the total."""
    rows = [
        "| class | cells | fact in the report | look, median ms | largest | words, median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups = list(dict.fromkeys(result.case.group for result in results))
    for group in [*groups, "all"]:
        of = [result for result in results if group in (result.case.group, "all")]
        passed = sum(result.passed for result in of)
        milliseconds = [
            result.helper_seconds * 1000 for result in of if not result.blocked
        ] or [0.0]
        word_count = statistics.median(result.word_count for result in of)
        rows.append(
            f"| {group} | {len(of)} | {passed} ({100 * passed / len(of):.0f} %) | {statistics.median(milliseconds):.1f}"
            f" | {max(milliseconds):.0f} | {word_count:.0f} |"
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
    """Run the corpus and print the results of each class."""
    results = []
    for item in run_corpus(python(), classes, folder, preflight=not no_preflight):
        results.append(item)
        if item.stopped or item.ename not in (item.case.ename, "KernelDied"):
            print(
                f"!! {item.case.name}: {item.stopped or item.ename + ': ' + item.evalue}"
            )
        if item.case.name == show or (misses and not item.passed):
            print(
                f"\n== {item.case.name}: needs {item.case.needs} (/{item.case.fact}/)\n{item.case.cell}\n--\n{item.report.text}"
            )
    print("\n".join(table(results)))
    if not classes:
        played = [run_case(case) for case in examples()]
        print(
            f"\nExample notebooks: {len(played)}; their cells all ran ok: {all(entry.report.ok for entry in played)}"
        )
        results += played
    blocked_results = [result for result in results if result.blocked]
    wrong = [
        entry.case.name for entry in blocked_results if entry.ename != entry.case.ename
    ]
    print(
        f"Found before they ran: {len(blocked_results)}; of these, cells that would have run or ended otherwise: {len(wrong)}"
    )
    warning_count = sum(len(result.warnings) for result in results)
    cells = sum(len(result.case.prepare) for result in results)
    print(
        f"Preparing cells: {cells}; blocked by the preflight check, or failed: {sum(len(result.stopped) for result in results)};"
    )
    print(f"warnings about them: {warning_count}")
    for item in results:
        for warning in item.warnings:
            print(f"  {item.case.name}: {warning}")
    failures = [
        f"{result.case.name}: {text}" for result in results for text in result.swallowed
    ]
    print(
        f"Errors of the helper that it suppressed: {len(failures)}",
        *failures,
        sep="\n  ",
    )
    print(
        "Missed: "
        + (
            ", ".join(result.case.name for result in results if not result.passed)
            or "none"
        )
    )
    share = sum(result.passed for result in results) / max(1, len(results))
    if failures or (not classes and share < SHARE):
        sys.exit(1)


def run_case(case: Case) -> CaseResult:
    """Run one case in a new kernel."""
    bench = Bench(python())
    try:
        return bench.run(case)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
