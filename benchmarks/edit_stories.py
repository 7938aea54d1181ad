"""Edit a cell in the middle of notebooks, run what is stale, and compare with a replay.

    python benchmarks/edit_stories.py                      # 30 public notebooks: minutes
    python benchmarks/edit_stories.py --random 40 --seed 7 # random notebooks
    python benchmarks/edit_stories.py --folder FOLDER      # the notebooks below FOLDER
    python benchmarks/edit_stories.py -v --json

The public notebooks are those with ten or more code cells in source distributions on
the package index (`tests/dataflow/score.py`); they are downloaded at run time. With
`--folder`, they are those below a folder, smaller files first. In each, stepper runs
all cells. Then a number in a cell near the middle changes as Claude Code edits it, and
`stepper run --stale` runs. The state must be that of a new kernel that runs the edited
notebook from the top. Names that differ between two such kernels are nondeterministic
and are left out.

A random notebook has five cells with operations on shared objects. Cells are replaced,
replaced by versions that fail, deleted and appended at random. The state at the end
must be that of a new kernel that runs the final cells. `--middle-inserts` also inserts
cells between others.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.state_restore import (  # noqa: E402
    HIDDEN_STATE,
    PACKAGES,
    Difference,
    InvalidRunError,
    State,
    compare_states,
    create_project,
    find_names_not_restored,
    get_report,
    get_state,
    is_named,
    list_words,
)
from tests.conftest import Notebook, Project, code  # noqa: E402
from tests.dataflow.score import NEEDED, unpack_notebooks  # noqa: E402
from tests.environments import environment  # noqa: E402

CONFIG = """
kernel_cwd: notebook
max_cells: 1000
max_retries: 100
cell_timeout_seconds: 30
"""
MIN_CELLS = 10
MAX_EDITS = 6  # tries to change a number with an effect
MAX_SECONDS = 60.0  # of one run of all cells
EXTRA = ("ipykernel>=7", "ipywidgets", "watermark")
# Cells that need a network, a terminal, or minutes.
UNSUITABLE = re.compile(
    r"https?://|^\s*[!%]\s*(pip|conda)|fetch_|load_example|download|input\(|"
    r"^%%(bash|sh|html|javascript)|^\s*!|load_dataset|widget|animation",
    re.MULTILINE,
)
OUTCOMES = ("equal", "named", "failed", "SILENT")


@dataclass
class Story:
    """The outcome of one notebook."""

    notebook: str
    outcome: str
    edit: str = ""
    names: int = 0
    wrong_names: list[str] = field(default_factory=list)
    nondeterministic: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)  # settings that differ
    seconds: float = 0.0


@dataclass(frozen=True)
class Edit:
    """A changed number in a cell."""

    cell: int
    source: str
    text: str


class UnsuitableNotebookError(Exception):
    """A notebook does not run here, or has no number whose change has an effect."""


def read_code_cells(path: Path) -> list[str]:
    """Return the sources of a notebook's code cells."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return [
        "".join(cell["source"])
        for cell in document.get("cells", ())
        if cell["cell_type"] == "code" and "".join(cell["source"]).strip()
    ]


def is_suitable(path: Path) -> bool:
    """Return whether a notebook has enough code cells and needs nothing from outside."""
    try:
        sources = read_code_cells(path)
    except (ValueError, KeyError, UnicodeDecodeError):
        return False
    return len(sources) >= MIN_CELLS and not UNSUITABLE.search("\n".join(sources))


def list_edits(sources: Sequence[str]) -> Iterator[Edit]:
    """Yield changes of one number in a cell, from the middle of the notebook outwards."""
    middle = len(sources) // 2
    order = sorted(range(1, len(sources) - 1), key=lambda n: abs(n - middle))
    for index in order:
        yield from list_number_changes(index, sources[index])


def list_number_changes(index: int, source: str) -> Iterator[Edit]:
    """Yield changes of the numbers that a cell assigns or passes to a call."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines(keepends=True)
    numbers = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    ]
    for node in numbers[:2]:
        value = node.value * 1.25 or 0.5
        if type(node.value) is int:
            value = node.value + 1
        changed = repr(value)
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1].encode()
        edited = (
            line[: node.col_offset] + changed.encode() + line[node.end_col_offset :]
        )
        parts = [*lines[: node.lineno - 1], edited.decode(), *lines[node.lineno :]]
        text = f"cell {index + 1}: {node.value} → {changed}"
        yield Edit(index, "".join(parts), text)


def run_cells(project: Project, path: Path, sources: Sequence[str]) -> Notebook:
    """Write a notebook and run all its cells; raise UnsuitableNotebookError on errors."""
    cells = [code(source, f"cell{number}") for number, source in enumerate(sources)]
    name = str(path.relative_to(project.folder / "notebooks"))
    notebook = project.notebook(name, cells)
    try:
        response = project.stepper("run", notebook.name, check=None)
    except subprocess.TimeoutExpired as error:
        project.stepper("interrupt", notebook.name, check=None)
        shut_down(notebook)
        raise UnsuitableNotebookError("takes longer than two minutes") from error
    if response.returncode:
        shut_down(notebook)
        lines = (response.stdout + response.stderr).split("\n")
        raise UnsuitableNotebookError("\n".join(lines[-3:]).strip())
    return notebook


def shut_down(notebook: Notebook) -> None:
    """Shut down a notebook's kernel."""
    notebook.project.stepper("shutdown", notebook.name, check=None)


def replay(project: Project, path: Path, sources: Sequence[str]) -> State:
    """Return the state of a new kernel that has run all cells."""
    notebook = run_cells(project, path, sources)
    try:
        return get_state(notebook)
    finally:
        shut_down(notebook)
        path.unlink()


def choose_edit(
    project: Project, path: Path, sources: list[str]
) -> tuple[Edit, list[str], State]:
    """Return an edit that has an effect, the edited sources and their state."""
    started_at = time.monotonic()
    original = replay(project, path, sources)
    if time.monotonic() - started_at > MAX_SECONDS:
        raise UnsuitableNotebookError(f"takes longer than {MAX_SECONDS:.0f} s")
    for _, edit in zip(range(MAX_EDITS), list_edits(sources), strict=False):
        edited = [*sources]
        edited[edit.cell] = edit.source
        try:
            state = replay(project, path, edited)
        except UnsuitableNotebookError:
            continue
        if state.names != original.names:
            return edit, edited, state
    raise UnsuitableNotebookError("no number has an effect")


@dataclass
class Verdict:
    """The comparison of a live kernel with two replays.

    Names decide the outcome. `settings` are differences outside the namespace.
    """

    outcome: str
    differences: list[Difference]
    settings: list[str]
    nondeterministic: list[str]

    @property
    def wrong_names(self) -> list[str]:
        """The names that differ."""
        return sorted({root for each in self.differences for root in each.roots})


def judge_story(live: State, first: State, second: State) -> Verdict:
    """Compare the state of the live kernel with that of two replays."""
    unstable = {
        root
        for difference in compare_states(first, second)
        for root in difference.roots
    }
    stable_differences = [
        difference
        for difference in compare_states(live, first)
        if not unstable & {*difference.roots}
    ]
    settings = [
        root
        for difference in stable_differences
        for root in difference.roots
        if root in first.settings
    ]
    differences = [
        difference
        for difference in stable_differences
        if not {*settings} & {*difference.roots}
    ]
    text = find_names_not_restored(live.reports)
    unnamed = [
        difference
        for difference in differences
        if not any(is_named(root, text) for root in difference.roots)
        and live.doubtful.isdisjoint(difference.roots)
    ]
    outcome = "named" if differences else "equal"
    if unnamed:
        outcome = "SILENT"
    if live.errors:
        outcome = "failed"
    return Verdict(outcome, unnamed or differences, settings, sorted(unstable))


def run_public_story(project: Project, path: Path) -> Story:
    """Edit a public notebook; return the outcome."""
    started_at = time.monotonic()
    name = str(path.relative_to(project.folder / "notebooks"))
    sources = read_code_cells(path)
    try:
        replay_path = path.with_name(f"{path.stem}-replay.ipynb")
        edit, edited, first = choose_edit(project, replay_path, sources)
        second = replay(project, replay_path, edited)
        live = run_live_edit(project, path, sources, edit)
    except (
        UnsuitableNotebookError,
        InvalidRunError,
        subprocess.SubprocessError,
    ) as error:
        return Story(name, "unsuitable", str(error))
    verdict = judge_story(live, first, second)
    return Story(
        name,
        verdict.outcome,
        edit.text,
        len(first.names),
        verdict.wrong_names,
        verdict.nondeterministic,
        verdict.differences[:8],
        verdict.settings,
        round(time.monotonic() - started_at, 1),
    )


def run_live_edit(
    project: Project, path: Path, sources: Sequence[str], edit: Edit
) -> State:
    """Run a notebook, edit a cell through the hook, run what is stale."""
    live_path = path.with_name(f"{path.stem}-live.ipynb")
    notebook = run_cells(project, live_path, sources)
    try:
        answer = notebook.replace(f"cell{edit.cell}", edit.source)
        stale = project.stepper("run", notebook.name, "--stale", check=None)
        state = get_state(notebook)
    finally:
        shut_down(notebook)
        live_path.unlink()
    state.reports = [get_report(answer), stale.stdout]
    if " ran ok" not in state.reports[0]:
        state.errors.append(state.reports[0])
    if stale.returncode:
        state.errors.append(stale.stdout + stale.stderr)
    return state


def download_notebooks(folder: Path) -> list[Path]:
    """Return the public notebooks in random order."""
    folder.mkdir()
    paths = [*filter(is_suitable, unpack_notebooks(sys.executable, folder))]
    random.Random(0).shuffle(paths)
    return paths


def copy_notebooks(source: Path, folder: Path) -> list[Path]:
    """Copy a folder with all its files; return its notebooks, smaller ones first."""
    shutil.copytree(source, folder)
    paths = {path.read_bytes(): path for path in sorted(folder.rglob("*.ipynb"))}
    return sorted(filter(is_suitable, paths.values()), key=lambda p: p.stat().st_size)


def run_public_stories(
    count: int, jobs: int, python: str, source: Path | None
) -> list[Story]:
    """Return the outcomes of at least `count` public notebooks that can be edited."""
    stories: list[Story] = []
    with create_project(python) as project, ThreadPoolExecutor(jobs) as pool:
        project.config(CONFIG)
        folder = project.folder / "notebooks" / "packages"
        paths = copy_notebooks(source, folder) if source else download_notebooks(folder)
        while paths and sum(each.outcome in OUTCOMES for each in stories) < count:
            chosen, paths = paths[: 2 * jobs], paths[2 * jobs :]
            stories += pool.map(lambda path: run_public_story(project, path), chosen)
            show_progress(stories)
    return stories


# The first cell of each random notebook binds all names that the others use.
FIRST_CELL = """
import random
import numpy as np
import pandas as pd
random.seed({a})
np.random.seed({b})
class Box:
    count = 0
    def __init__(self):
        self.items = []
        self.total = 0
    def put(self, item):
        self.items.append(item)
        Box.count += 1
def bump(k):
    global n
    n += k
    log.append(n)
def make_counter():
    seen = []
    def count(k):
        seen.append(k)
        return len(seen)
    return count
def scale(value):
    return value * 2
def numbers():
    yield from range(1000)
n = {a}
nums = [{a}, {b}, 3]
alias = nums
table = {{"a": [{b}]}}
nested = {{"list": nums, "deep": {{"k": [1]}}}}
arr = np.arange(6.0) + {a}
view = arr[1:4]
df = pd.DataFrame({{"x": [1.0, 2.0, {b}.0], "y": list("abc")}})
other = df
box = Box()
log = []
count = make_counter()
gen = numbers()
words = {{"a", "b"}}
"""
STATEMENTS = (
    "n += {k}",
    "n = n * {k} % 101",
    "nums.append(n)",
    "nums = nums + [{k}]",
    "nums[0] += {k}",
    "nums.sort()",
    "alias.append({k})",
    "alias = nums",
    "alias = list(alias)",
    "table.setdefault('k{k}', []).append(n)",
    "table['a'].append({k})",
    "table = dict(table, z={k})",
    "nested['deep']['k'].append({k})",
    "nested['n'] = n",
    "arr *= {k}",
    "arr[{k} % 6] = n",
    "arr = arr + {k}",
    "view += {k}",
    "view = arr[2:5]",
    "df['c{k}'] = df['x'] * {k}",
    "df['x'] += {k}",
    "df = df[df['x'] > -{k}]",
    "df.loc[df.index[:1], 'x'] = n",
    "df = df.drop(columns='y', errors='ignore')",
    "other['z'] = {k}",
    "other = df.copy()",
    "bump({k})",
    "box.put(n)",
    "box.total += {k}",
    "box.items = box.items[-2:]",
    "draw = random.random()",
    "nums.append(round(random.random(), 6))",
    "noise = np.random.rand(2)",
    "arr[0] = np.random.rand()",
    "step = next(gen)",
    "times = count({k})",
    "n = scale(n)",
    "def scale(value): return value + {k}",
    "words.add('w{k}')",
    "for i in range({k} % 4): nums.append(i)",
    "pair = (nums, {k})",
    "total = sum(nums) + n",
    "summary = [len(df), box.total, sorted(words)]",
)
FAILURES = ("[][0]", "{}['missing']", "int('x')", "df['missing']", "arr.reshape(7)")


@dataclass
class RandomNotebook:
    """A notebook with random cells, and the sources that its cells should have."""

    notebook: Notebook
    rng: random.Random
    has_middle_inserts: bool
    cells: list[tuple[str, str]] = field(default_factory=list)  # id, source
    reports: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of the last `run --stale`
    doubtful: set[str] = field(default_factory=set)  # see `State`

    def create_source(self, failure: str = "") -> str:
        """Return the source of a random cell."""
        statements = self.rng.choices(STATEMENTS, k=self.rng.randint(1, 4))
        lines = [each.format(k=self.rng.randint(1, 9)) for each in statements]
        return "\n".join([*lines, failure] if failure else lines)

    def append(self, source: str, position: int | None = None) -> None:
        """Insert a cell, by default at the end."""
        index = len(self.cells) if position is None else position
        after = self.cells[index - 1][0] if index else None
        cell_id, answer = self.notebook.insert(source, after)
        self.cells.insert(index, (cell_id, source))
        self.add_report(f"insert at {index}: {source!r}", get_report(answer))

    def add_report(self, action: str, report: str) -> None:
        """Record an action and its report."""
        self.actions.append(action)
        self.reports.append(report)
        for match in HIDDEN_STATE.finditer(report):
            for number in map(int, re.findall(r"\d+", match[1])):
                _, source = self.cells[number - 1]
                self.doubtful |= list_words(source)

    def replace(self, index: int, source: str) -> None:
        """Replace a cell."""
        cell_id = self.cells[index][0]
        answer = self.notebook.replace(cell_id, source)
        self.cells[index] = (cell_id, source)
        self.add_report(f"replace {index}: {source!r}", get_report(answer))

    def act(self) -> None:
        """Do something random."""
        index = self.rng.randrange(1, len(self.cells))
        action = self.rng.random()
        if action < 0.35:
            self.replace(index, self.create_source())
        elif action < 0.7:
            self.replace(index, self.create_source(self.rng.choice(FAILURES)))
            self.replace(index, self.create_source())
        elif action < 0.8 and len(self.cells) > 3:
            answer = self.notebook.delete(self.cells.pop(index)[0])
            self.add_report(f"delete {index}", get_report(answer))
        elif action < 0.9:
            self.append(
                self.create_source(), index if self.has_middle_inserts else None
            )
        else:
            self.run_stale()

    def run_stale(self) -> None:
        """Run the stale cells."""
        arguments = ("run", self.notebook.name, "--stale")
        response = self.notebook.project.stepper(*arguments, check=None)
        report = response.stdout + response.stderr
        self.add_report("run --stale", report)
        self.errors = [report] if response.returncode else []


def run_random_story(
    project: Project, seed: int, steps: int, has_middle_inserts: bool
) -> Story:
    """Edit a random notebook; return the outcome."""
    started_at = time.monotonic()
    rng = random.Random(seed)
    notebook = project.notebook(f"random-{seed}/live.ipynb")
    live = RandomNotebook(notebook, rng, has_middle_inserts)
    live.append(FIRST_CELL.format(a=rng.randint(1, 50), b=rng.randint(1, 50)))
    for _ in range(4):
        live.append(live.create_source())
    for _ in range(steps):
        live.act()
    live.run_stale()
    state = get_state(notebook)
    shut_down(notebook)
    state.reports = live.reports
    state.doubtful = live.doubtful
    path = notebook.path.with_name("replay.ipynb")
    final_state = replay(project, path, [source for _, source in live.cells])
    state.errors = live.errors
    verdict = judge_story(state, final_state, final_state)
    return Story(
        f"random {seed}",
        verdict.outcome,
        "\n".join(live.actions),
        len(final_state.names),
        verdict.wrong_names,
        [],
        verdict.differences[:8],
        verdict.settings,
        round(time.monotonic() - started_at, 1),
    )


def run_random_stories(arguments: argparse.Namespace, python: str) -> list[Story]:
    """Return the outcomes of random notebooks."""
    stories: list[Story] = []
    seeds = range(arguments.seed, arguments.seed + arguments.random)
    with create_project(python) as project, ThreadPoolExecutor(arguments.jobs) as pool:
        project.config(CONFIG)

        def run(seed: int) -> Story:
            steps = arguments.steps
            return run_random_story(project, seed, steps, arguments.middle_inserts)

        for story in pool.map(run, seeds):
            stories.append(story)
            show_progress(stories)
    return stories


def show_progress(stories: Sequence[Story]) -> None:
    """Print the number of stories to standard error."""
    counts = collections.Counter(story.outcome for story in stories)
    sys.stderr.write(f"{len(stories)} notebooks: {dict(counts)}\n")


def format_stories(stories: Sequence[Story], is_verbose: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    counts = collections.Counter(story.outcome for story in stories)
    judged = [story for story in stories if story.outcome in OUTCOMES]
    names = sum(story.names for story in judged)
    wrong = sum(len(story.wrong_names) for story in judged)
    unstable = sum(len(story.nondeterministic) for story in judged)
    yield f"| notebooks | {' | '.join(OUTCOMES)} | names | other value | unstable |"
    yield f"| --- |{' --- |' * (len(OUTCOMES) + 3)}"
    cells = " | ".join(str(counts[outcome]) for outcome in OUTCOMES)
    yield f"| {len(judged)} | {cells} | {names} | {wrong} | {unstable} |"
    settings = collections.Counter(name for story in judged for name in story.settings)
    yield f"\nSettings that differ, with the number of notebooks: {dict(settings)}"
    yield f"{counts['unsuitable']} notebooks cannot be run or edited here."
    for story in stories if is_verbose else ():
        yield f"\n{story.outcome}: {story.notebook} ({story.seconds} s)\n{story.edit}"
        for difference in story.differences:
            roots = ", ".join(difference.roots[:5])
            yield f"    {roots}: {difference.text[:300]}"


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description="Compare edited notebooks with replays."
    )
    parser.add_argument("--notebooks", type=int, default=30, help="public notebooks")
    parser.add_argument("--folder", type=Path, help="of notebooks, with their data")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the first notebook")
    parser.add_argument("--steps", type=int, default=6, help="random actions")
    parser.add_argument("--middle-inserts", action="store_true")
    parser.add_argument("--python", help="the interpreter of the kernels")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="each notebook")
    return parser.parse_args()


def main() -> None:
    """Run the chosen stories and print the result."""
    arguments = parse_arguments()
    requirements = PACKAGES if arguments.random else (*NEEDED, *EXTRA)
    python = arguments.python or environment(sys.executable, *requirements)
    if arguments.random:
        stories = run_random_stories(arguments, python)
    else:
        stories = run_public_stories(
            arguments.notebooks, arguments.jobs, python, arguments.folder
        )
    if arguments.json:
        print(json.dumps([asdict(story) for story in stories], indent=1))
    else:
        print("\n".join(format_stories(stories, arguments.verbose)))


if __name__ == "__main__":
    main()
