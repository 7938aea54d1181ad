"""Check whether a retry starts from the state that a run from the top would give.

    python benchmarks/state_restore.py                      # all cases: minutes
    python benchmarks/state_restore.py --topic frames -v    # one topic, with differences
    python benchmarks/state_restore.py --json

Each case of `tests/state_changes` runs in a kernel of its own: the setup, the cell that
changes state (and usually fails), the retry, all through stepper's hooks. A second
kernel runs setup and retry from the top. `tests/state_changes/state_dump.py` describes
the state of both kernels as text. The outcome of a case is one of:

- equal: both states and the outputs of the retry are the same.
- named: each difference belongs to a name that a report lists as not restored, or to a
  name in a cell of which a report says that it read such a name (hidden state). Of an
  alias, one of the names is enough.
- failed: the retry or a cell below it raises an error only in the first kernel.
- SILENT: there is a difference that no report mentions.

Requires an environment with the packages that the cases need; cases that need other
packages are left out. `--python` selects another interpreter.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stepper.install import trust  # noqa: E402
from tests import state_changes  # noqa: E402
from tests.conftest import Answer, Notebook, Project, code, scratch  # noqa: E402
from tests.environments import environment  # noqa: E402
from tests.state_changes import Case  # noqa: E402

PACKAGES = ("numpy", "pandas>=2.2,<4", "matplotlib", "scikit-learn>=1.4,<2", "seaborn")
CONFIG = "kernel_cwd: notebook\nmax_cells: 1000\nmax_retries: 20\n"
DUMP_SOURCE = ROOT / "tests" / "state_changes" / "state_dump.py"
# It binds no name in the namespace of the user.
DUMP = (
    "(lambda names: (exec(compile(__import__('io').open({source!r}).read(), {source!r},"
    " 'exec'), names), names['write_state'](get_ipython(), {path!r}, {folder!r})))"
    "({{'__name__': 'state_dump'}}) and None"
)
# A child of the kernel describes the state, so that the kernel's objects stay as they are.
DUMP_IN_CHILD = (
    "(lambda os: (lambda child: os.waitpid(child, 0) if child else ({dump}, os._exit(0)))"
    "(os.fork()))(__import__('os')) and None"
)
OUTCOMES = ("equal", "named", "failed", "SILENT")
# Random numbers are compared if the replayed cells set a seed.
SEEDS = {
    "random numbers": re.compile(r"(?<!np\.)(?<!numpy\.)\brandom\.seed\("),
    "numpy random numbers": re.compile(r"\b(np|numpy)\.random\.seed\("),
    "torch random numbers": re.compile(r"manual_seed\("),
}
HIDDEN_STATE = re.compile(
    r"\bcells? ([\d, and]+) read [^.\n]*value could not be restored"
)
NOT_RESTORED = re.compile(r"not restored[^:\n]*: (.*)", re.IGNORECASE)
RESTORED = re.compile(r"\b(was|were) restored")
PARENTHESES = re.compile(r" *\([^()]*(\([^()]*\)[^()]*)*\)")
SENTENCE_END = re.compile(r"[.;](?: |$)")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class InvalidRunError(Exception):
    """A cell of a case did not fail or succeed as the case says."""


@dataclass
class State:
    """The description of a kernel's state, and the outputs of the cells that matter."""

    names: dict[str, list[str]]
    aliases: list[str]
    settings: dict[str, list[str]]
    outputs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    # Names in cells that are reported to have read a value that was not restored.
    doubtful: set[str] = field(default_factory=set)


@dataclass
class Difference:
    """A difference between two states, and the names that it belongs to.

    With `is_identity`, the values are equal, but not the same objects are shared.
    """

    roots: tuple[str, ...]
    text: str
    is_identity: bool = False


@dataclass
class Result:
    """The outcome of a case."""

    topic: str
    name: str
    outcome: str
    external: bool
    differences: list[Difference]
    not_restored: str
    wrongly_restored: list[str]  # reported as restored, but different
    seconds: float
    error: str = ""


def get_state(notebook: Notebook, in_child: bool = False) -> State:
    """Return the state of a notebook's kernel.

    With `in_child`, a child process of the kernel describes the state.
    """
    path = notebook.path.with_suffix(".state.json")
    folder = str(notebook.path.parent)
    source = DUMP.format(source=str(DUMP_SOURCE), path=str(path), folder=folder)
    if in_child:
        source = DUMP_IN_CHILD.format(dump=source)
    arguments = ("eval", source, "--notebook", notebook.name)
    response = notebook.project.stepper(*arguments, check=None)
    if not path.exists():
        raise InvalidRunError(f"no description: {response.stdout} {response.stderr}")
    document = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return State(document["names"], document["aliases"], document["settings"])


def get_output(cell: dict[str, Any], folder: str) -> tuple[str, str]:
    """Return the text output of a cell and its error, without warnings."""
    parts = []
    error = ""
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            error = f"{output['ename']}: {output['evalue']}"
        elif output.get("name") == "stdout":
            parts.append("".join(output["text"]))
        elif "data" in output:
            parts.append("".join(output["data"].get("text/plain", "")))
    text = ADDRESS.sub("ADDRESS", "".join(parts)).replace(folder, "FOLDER")
    return text, error


def collect_outputs(notebook: Notebook, cell_ids: Sequence[str], state: State) -> None:
    """Add the outputs and errors of the cells to the state."""
    for cell_id in cell_ids:
        cell = notebook.cell(cell_id)
        text, error = get_output(cell, str(notebook.path.parent))
        state.outputs.append(text)
        if error:
            state.errors.append(error)


def require_outcome(answer: Answer, fails: bool, cell_name: str) -> str:
    """Return the text of a report; raise InvalidRunError if the outcome is another."""
    text = get_report(answer)
    if (" ran ok" in text) == fails:
        raise InvalidRunError(
            f"{cell_name} should{'' if fails else ' not'} fail: {text}"
        )
    return text


def get_report(answer: Answer) -> str:
    """Return the texts of a hook's response."""
    return "\n".join(filter(None, (answer.text, answer.stop, answer.line)))


def run_live(project: Project, case: Case, folder: str) -> State:
    """Run the setup, the cell, and the retry through the hooks; return the state."""
    setup = [code(source, f"setup{n}") for n, source in enumerate(case.setup)]
    notebook = project.notebook(f"{folder}/live.ipynb", setup)
    reports = [project.stepper("run", notebook.name, check=None).stdout]
    if reports[0].count("✓") != len(setup):
        raise InvalidRunError(f"the setup failed: {reports[0]}")
    cell_id, answer = notebook.insert(case.cell)
    fails = case.fails and case.action != "automatic"
    reports.append(require_outcome(answer, fails, "the cell"))
    below_ids = []
    for source in case.below:
        below_id, answer = notebook.insert(source)
        reports.append(require_outcome(answer, False, "a cell below"))
        below_ids.append(below_id)
    if case.second:
        answer = notebook.replace(cell_id, case.second)
        reports.append(require_outcome(answer, True, "the second version"))
    if "topped" in reports[-1]:
        project.stepper("continue", notebook.name, check=None)
    report_count = len(reports)
    retry_id, errors = run_retry(notebook, case, cell_id, reports)
    state = get_state(notebook)
    state.reports = reports
    state.errors = errors
    if any(map(HIDDEN_STATE.search, reports[report_count:])):
        state.doubtful = list_words("\n".join([case.retry, *case.below]))
    collect_outputs(notebook, [retry_id, *below_ids], state)
    project.stepper("shutdown", notebook.name, check=None)
    return state


def run_retry(
    notebook: Notebook, case: Case, cell_id: str, reports: list[str]
) -> tuple[str, list[str]]:
    """Carry out the case's action; return the id of the retry, and errors.

    Add the reports to `reports`.
    """
    project = notebook.project
    retry_id = cell_id
    has_failed = False
    if case.action == "replace":
        reports.append(get_report(notebook.replace(cell_id, case.retry)))
        has_failed = " ran ok" not in reports[-1]
    elif case.action == "again":
        (notebook.path.parent / "ready").write_text("ready\n")
        response = project.stepper("run", notebook.name, check=None)
        reports.append(response.stdout)
        has_failed = response.returncode != 0
    elif case.action == "delete":
        reports.append(get_report(notebook.delete(cell_id)))
    if case.below:
        response = project.stepper("run", notebook.name, "--stale", check=None)
        reports.append(response.stdout)
        has_failed = has_failed or response.returncode != 0
    if case.action == "delete":
        retry_id, answer = notebook.insert(case.retry)
        reports.append(get_report(answer))
        has_failed = has_failed or " ran ok" not in reports[-1]
    return retry_id, [reports[-1]] if has_failed else []


def run_replay(project: Project, case: Case, folder: str) -> State:
    """Run the final version of the cells from the top in a new kernel."""
    count = len(case.replayed_cells)
    cells = [code(source, f"cell{n}") for n, source in enumerate(case.replayed_cells)]
    notebook = project.notebook(f"{folder}/replay.ipynb", cells)
    if case.action == "again":
        (notebook.path.parent / "ready").write_text("ready\n")
    text = project.stepper("run", notebook.name, check=None).stdout
    if text.count("✓") != count:
        raise InvalidRunError(f"the replay failed: {text}")
    state = get_state(notebook)
    setup_count = len(case.setup)
    ids = [f"cell{n}" for n in range(setup_count, count)]
    if case.action == "delete":
        ids = [ids[-1], *ids[:-1]]
    collect_outputs(notebook, ids, state)
    project.stepper("shutdown", notebook.name, check=None)
    return state


def find_unseeded_settings(sources: Sequence[str]) -> set[str]:
    """Return the random numbers for which no cell sets a seed."""
    text = "\n".join(sources)
    return {name for name, pattern in SEEDS.items() if not pattern.search(text)}


def compare_states(
    live: State, replay: State, ignored: Container[str] = ()
) -> Iterator[Difference]:
    """Yield the differences between two states, except in `ignored` settings."""
    for name in sorted(live.names.keys() | replay.names.keys()):
        live_value, replay_value = live.names.get(name), replay.names.get(name)
        if live_value != replay_value:
            yield Difference((name,), describe_difference(live_value, replay_value))
    for alias in sorted({*live.aliases} ^ {*replay.aliases}):
        side = "only live" if alias in live.aliases else "only in the replay"
        roots = tuple(sorted(find_alias_roots(alias)))
        yield Difference(roots, f"{side}: {alias}", is_identity=True)
    for name in sorted(live.settings.keys() | replay.settings.keys()):
        if name in ignored:
            continue
        live_value, replay_value = live.settings.get(name), replay.settings.get(name)
        # A module that only one kernel has loaded affects nothing until its import.
        if (
            live_value != replay_value
            and live_value is not None
            and replay_value is not None
        ):
            yield Difference((name,), describe_difference(live_value, replay_value))


def find_alias_roots(alias: str) -> set[str]:
    """Return the names in the paths of a group of aliases."""
    paths = alias.partition(": ")[2].split(" = ")
    return {re.split(r"[.\[<( +]", path, maxsplit=1)[0] for path in paths}


def describe_difference(
    live_value: list[str] | None, replay_value: list[str] | None
) -> str:
    """Return the first line that differs, in both states."""
    if live_value is None:
        return "missing in the live kernel"
    if replay_value is None:
        return f"only in the live kernel: {live_value[0]}"
    live_only = [line for line in live_value if line not in set(replay_value)]
    replay_only = [line for line in replay_value if line not in set(live_value)]
    if not live_only and not replay_only:
        return "another order"
    return f"live {live_only[:1]}, replay {replay_only[:1]}"


def find_names_not_restored(reports: Iterable[str]) -> str:
    """Return the enumerations after "not restored" in reports, without the reasons."""
    parts = []
    for text in reports:
        for match in NOT_RESTORED.finditer(text):
            names = PARENTHESES.sub("", match.group(1))
            parts.append(SENTENCE_END.split(names)[0])
    return " | ".join(parts)


def find_names_restored(reports: Iterable[str]) -> str:
    """Return the clauses of reports that say which names were restored."""
    clauses = [clause for text in reports for clause in re.split(r"[;\n]", text)]
    return " | ".join(filter(RESTORED.search, clauses))


def is_named(root: str, text: str) -> bool:
    """Return whether a text names a variable in backticks, or a setting or files."""
    if root.isidentifier() and root != "files":
        return f"`{root}`" in text
    return re.search(rf"(?<!\w){re.escape(root)}(?!\w)", text) is not None


def judge(
    live: State,
    replay: State,
    ignored: Container[str] = (),
    output_roots: tuple[str, ...] = (),
) -> tuple[str, list[Difference]]:
    """Return the outcome and the differences that decide it.

    `output_roots` are the names to which a difference in the outputs alone belongs.
    """
    differences = [*compare_states(live, replay, ignored)]
    if live.errors and not replay.errors:
        return "failed", [Difference((), live.errors[-1]), *differences]
    if live.outputs != replay.outputs and not differences:
        shown = f"output live {live.outputs!r}, replay {replay.outputs!r}"
        differences = [Difference(output_roots, shown)]
    text = find_names_not_restored(live.reports)
    unnamed = [
        difference
        for difference in differences
        if not any(is_named(root, text) for root in difference.roots)
        and live.doubtful.isdisjoint(difference.roots)
    ]
    if unnamed:
        return "SILENT", unnamed
    return ("named" if differences else "equal"), differences


def list_words(source: str) -> set[str]:
    """Return the words in a source that may be names."""
    return {*re.findall(r"\b[a-z_]\w*", source)}


def find_output_roots(case: Case) -> tuple[str, ...]:
    """Return the names in the retry; if files are part of the state, also "files"."""
    names = sorted(list_words(case.retry))
    return (*names, "files") if case.external else tuple(names)


def run_case(
    project: Project, case: Case, number: int, has_two_replays: bool = False
) -> Result:
    """Run a case and judge it."""
    started_at = time.monotonic()
    ignored = find_unseeded_settings(case.replayed_cells)
    outcome = "invalid"
    differences: list[Difference] = []
    wrongly_restored: list[str] = []
    not_restored = ""
    error = ""
    try:
        run_first = run_replay if has_two_replays else run_live
        live = run_first(project, case, f"{number}/live")
        replay = run_replay(project, case, f"{number}/replay")
        outcome, differences = judge(live, replay, ignored, find_output_roots(case))
        not_restored = find_names_not_restored(live.reports)
        restored = find_names_restored(live.reports)
        roots = {root for difference in differences for root in difference.roots}
        wrongly_restored = sorted(root for root in roots if is_named(root, restored))
    except (InvalidRunError, AssertionError, KeyError, IndexError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return Result(
        case.topic,
        case.name,
        outcome,
        case.external,
        differences,
        not_restored,
        wrongly_restored,
        round(time.monotonic() - started_at, 2),
        error,
    )


def find_missing_modules(python: str, modules: Iterable[str]) -> set[str]:
    """Return the modules that an interpreter does not have."""
    source = (
        "import importlib.util, json, sys;"
        "print(json.dumps([n for n in sys.argv[1:] if not importlib.util.find_spec(n)]))"
    )
    command = [python, "-c", source, *sorted(modules)]
    return set(
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    )


@contextmanager
def create_project(python: str) -> Iterator[Project]:
    """Yield a scratch project whose kernels run with an interpreter."""
    with tempfile.TemporaryDirectory(prefix="stepper-states-") as folder:
        for project in scratch(Path(folder).resolve() / "repo", "compiled"):
            trust.save_record(project.paths, {"python": python})
            project.config(CONFIG)
            yield project


def run_cases(
    python: str, cases: Sequence[Case], jobs: int, has_two_replays: bool = False
) -> list[Result]:
    """Run the cases in parallel; print their number on a terminal."""
    results = []
    with create_project(python) as project, ThreadPoolExecutor(jobs) as pool:

        def run(numbered_case: tuple[int, Case]) -> Result:
            number, case = numbered_case
            return run_case(project, case, number, has_two_replays)

        for result in pool.map(run, enumerate(cases)):
            results.append(result)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{len(results)} of {len(cases)} ")
    return results


def format_table(results: Sequence[Result]) -> list[str]:
    """Return a table with a row for each topic, and a row with the sums."""
    counts: dict[str, collections.Counter[str]] = {}
    for result in results:
        for key in (result.topic, "**all**"):
            counts.setdefault(key, collections.Counter())[result.outcome] += 1
    topics = [*sorted(counts.keys() - {"**all**"}), "**all**"]
    lines = [
        f"| topic | cases | {' | '.join(OUTCOMES)} |",
        f"| --- | --- |{' --- |' * len(OUTCOMES)}",
    ]
    for topic in topics:
        row = counts[topic]
        cells = " | ".join(str(row[outcome]) for outcome in OUTCOMES)
        lines.append(f"| {topic} | {row.total()} | {cells} |")
    return lines


def format_case(result: Result) -> Iterator[str]:
    """Yield the lines on one case."""
    yield f"{result.outcome}: {result.topic}: {result.name} {result.error}"
    if result.wrongly_restored:
        yield f"    reported as restored: {', '.join(result.wrongly_restored)}"
    for difference in result.differences[:6]:
        roots = ", ".join(difference.roots)
        yield f"    {roots}: {difference.text[:300]}"


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Check the state that a retry sees.")
    parser.add_argument("--topic", action="append", help="only the cases of a topic")
    parser.add_argument("--case", help="only cases whose name contains this text")
    parser.add_argument("--python", help="the interpreter of the kernels")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--two-replays",
        action="store_true",
        help="check the comparison: compare two replays, which must be equal",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="each difference")
    return parser.parse_args()


def select_cases(arguments: argparse.Namespace, python: str) -> tuple[list[Case], int]:
    """Return the cases to run, and how many need a package that is missing."""
    cases = [
        case
        for case in state_changes.load_cases()
        if (not arguments.topic or case.topic in arguments.topic)
        and (arguments.case or "") in case.name
    ]
    missing = find_missing_modules(
        python, {need for case in cases for need in case.needs}
    )
    chosen = [case for case in cases if not missing & {*case.needs}]
    return chosen, len(cases) - len(chosen)


def main() -> None:
    """Run the chosen cases and print the result."""
    arguments = parse_arguments()
    python = arguments.python or environment(sys.executable, *PACKAGES)
    cases, left_out = select_cases(arguments, python)
    results = run_cases(python, cases, arguments.jobs, arguments.two_replays)
    if arguments.json:
        document = {"left_out": left_out, "cases": [asdict(each) for each in results]}
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(format_table(results)))
        print(f"\n{left_out} cases need a package that is missing.")
        wrong = [result.name for result in results if result.wrongly_restored]
        print(
            f"{len(wrong)} cases have a wrong name in a list of restored names: {wrong}"
        )
        for result in results:
            if arguments.verbose or result.outcome == "invalid":
                print("\n".join(format_case(result)))
    if any(result.outcome == "invalid" for result in results):
        sys.exit("there are invalid cases")


if __name__ == "__main__":
    main()
