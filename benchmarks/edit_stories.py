"""Edit a cell in the middle of notebooks, run what is stale, and compare with a replay.

    python benchmarks/edit_stories.py                      # 30 public notebooks: minutes
    python benchmarks/edit_stories.py --random 40 --seed 7 # random notebooks
    python benchmarks/edit_stories.py --folder FOLDER      # the notebooks below FOLDER
    python benchmarks/edit_stories.py -v --json --log FILE # a line for each notebook

The public notebooks are those with ten or more code cells in source distributions on
the package index (`tests/dataflow/score.py`); they are downloaded at run time. With
`--folder`, they are those below a folder, smaller files first. In each, stepper runs
all cells. Then a number in a cell near the middle changes as Claude Code edits it, and
`stepper run --stale` runs. The state must be that of a new kernel that runs the edited
notebook from the top. Names that differ between two such kernels are nondeterministic
and are left out; a notebook counts if at least half of the names remain, among them one
that the edit changes. To make more names deterministic, all kernels have the same hash
seed, and a cell above all others seeds the random numbers. If a cell fails here, for
example because it needs other data, the notebook consists of the cells above this cell.

The outcome of a notebook is one of:

- equal: the values of all names are equal. `identity` counts those in which equal
  values are shared differently: `a is b` in only one of the kernels.
- named: each difference belongs to a name that a report lists as not restored, or is a
  number in a text, such as the default name `sys[3]`, and a report lists the package
  counters.
- failed: a cell raises an error only in the live kernel.
- SILENT: there is another difference.

A random notebook has five cells with operations on shared objects. Cells are replaced,
replaced by versions that fail, deleted and appended at random. The state at the end
must be that of a new kernel that runs the final cells. `--middle-inserts` also inserts
cells between others. For these, other shared objects are a difference, too.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
cell_timeout_seconds: 400
report_after_seconds: 400
"""
MIN_CELLS = 10
MAX_EDITS = 4  # tries to change a number with an effect
MAX_SECONDS = 600.0  # of one run of all cells
# The first cell of a public notebook in all kernels.
SEED_CELL = """import random
import numpy as np
random.seed(1)
np.random.seed(1)"""
COMMENT = re.compile(r"#[^\n'\"]*$", re.MULTILINE)
# Numbers in a text, such as in the default name of an object.
TEXT = re.compile(r"'[^']*'")
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
    identity: list[Difference] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)  # settings that differ
    seconds: float = 0.0
    not_restored: str = ""  # names and states in the reports


@dataclass(frozen=True)
class Edit:
    """A changed number in a cell."""

    cell: int
    source: str
    text: str


class UnsuitableNotebookError(Exception):
    """A notebook does not run here, or has no number whose change has an effect.

    `succeeded` is the number of cells above the first one that failed.
    """

    def __init__(self, message: str, succeeded: int = 0) -> None:
        super().__init__(message)
        self.succeeded = succeeded


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
    text = COMMENT.sub("", "\n".join(sources))
    return len(sources) >= MIN_CELLS and not UNSUITABLE.search(text)


def list_edits(sources: Sequence[str]) -> Iterator[Edit]:
    """Yield changes of one number in a cell, from the middle of the notebook outwards.

    Numbers in assignments precede others, which rarely have an effect.
    """
    middle = len(sources) // 2
    order = sorted(range(1, len(sources) - 1), key=lambda n: abs(n - middle))
    for in_assignment in (True, False):
        for index in order:
            yield from list_number_changes(index, sources[index], in_assignment)


def list_number_changes(index: int, source: str, in_assignment: bool) -> Iterator[Edit]:
    """Yield changes of the first numbers in a cell, in or outside assignments."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines(keepends=True)
    numbers = []
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AugAssign)) != in_assignment:
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                numbers.append(node)
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
        response = project.stepper(
            "run", notebook.name, check=None, timeout=MAX_SECONDS
        )
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        project.stepper("interrupt", notebook.name, check=None)
        shut_down(notebook)
        message = f"takes longer than {MAX_SECONDS:.0f} s"
        raise UnsuitableNotebookError(message) from error
    if response.returncode:
        shut_down(notebook)
        lines = (response.stdout + response.stderr).strip().split("\n")
        counts = re.findall(r"(\d+) of \d+ cells ran ok", lines[-1])
        succeeded = int(counts[0]) if counts else 0
        raise UnsuitableNotebookError("\n".join(lines[-3:]), succeeded)
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


@dataclass(frozen=True)
class Choice:
    """An edit with an effect, and the states of two replays of the edited notebook."""

    edit: Edit
    first: State
    second: State


def choose_edit(
    project: Project, path: Path, sources: list[str], original: State
) -> Choice:
    """Return an edit that changes a name which is equal in two replays.

    `original` is the state after all cells with their original sources.
    """
    unstable = set[str]()
    for _, edit in zip(range(MAX_EDITS), list_edits(sources), strict=False):
        edited = [*sources]
        edited[edit.cell] = edit.source
        try:
            first = replay(project, path, edited)
            if not list_changed_names(original, first) - unstable:
                continue
            second = replay(project, path, edited)
        except UnsuitableNotebookError:
            continue
        unstable |= find_unstable_names(first, second)
        if list_changed_names(original, first) - unstable:
            return Choice(edit, first, second)
    raise UnsuitableNotebookError("no number has an effect")


def list_changed_names(before: State, after: State) -> set[str]:
    """Return the names whose values differ."""
    return {
        name
        for name, lines in after.names.items()
        if lines != before.names.get(name, ())
    }


def find_unstable_names(first: State, second: State) -> set[str]:
    """Return the names that differ between two replays."""
    return {
        root
        for difference in compare_states(first, second)
        for root in difference.roots
    }


@dataclass
class Verdict:
    """The comparison of a live kernel with two replays.

    Names decide the outcome. `settings` are differences outside the namespace, and
    `identity` those between shared objects with equal values.
    """

    outcome: str
    differences: list[Difference]
    identity: list[Difference]
    settings: list[str]
    unstable: set[str]

    @property
    def wrong_names(self) -> list[str]:
        """The names that differ."""
        return sorted({root for each in self.differences for root in each.roots})


def judge_story(
    live: State, first: State, second: State, compares_identity: bool
) -> Verdict:
    """Compare the state of the live kernel with that of two replays."""
    unstable = find_unstable_names(first, second)
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
    differences = []
    identity = []
    for difference in stable_differences:
        if {*settings} & {*difference.roots}:
            continue
        if difference.is_identity and not compares_identity:
            identity.append(difference)
        else:
            differences.append(difference)
    unnamed = [
        difference
        for difference in differences
        if not is_difference_named(difference, live, first)
    ]
    outcome = "named" if differences else "equal"
    if unnamed:
        outcome = "SILENT"
    if live.errors:
        outcome = "failed"
    return Verdict(outcome, unnamed or differences, identity, settings, unstable)


def is_difference_named(difference: Difference, live: State, replayed: State) -> bool:
    """Return whether a report of the live kernel names a difference."""
    text = find_names_not_restored(live.reports)
    if any(is_named(root, text) for root in difference.roots):
        return True
    if not live.doubtful.isdisjoint(difference.roots):
        return True
    # Numbers in default names explain other values, but no other sharing of objects.
    if difference.is_identity or not is_named("package counters", text):
        return False
    return all(
        root in live.names
        and root in replayed.names
        and hide_numbers(live.names[root]) == hide_numbers(replayed.names[root])
        for root in difference.roots
    )


def hide_numbers(lines: Sequence[str]) -> list[str]:
    """Return lines without the numbers in quoted texts."""
    return [
        TEXT.sub(lambda quoted: re.sub(r"\d+", "#", quoted[0]), line) for line in lines
    ]


def run_public_story(project: Project, path: Path) -> Story:
    """Edit a public notebook; return the outcome."""
    name = str(path.relative_to(project.folder / "notebooks"))
    sources = [SEED_CELL, *read_code_cells(path)]
    live_path = path.with_name(f"{path.stem}-live.ipynb")
    try:
        notebook, sources = run_first_cells(project, live_path, sources)
        try:
            return run_edit_story(project, path, notebook, sources, name)
        finally:
            shut_down(notebook)
            live_path.unlink()
    except (
        UnsuitableNotebookError,
        InvalidRunError,
        subprocess.SubprocessError,
        AssertionError,
        OSError,
        ValueError,
    ) as error:
        return Story(name, "unsuitable", str(error))


def run_first_cells(
    project: Project, path: Path, sources: list[str]
) -> tuple[Notebook, list[str]]:
    """Run the cells above the first one that fails here; return them, too."""
    try:
        return run_cells(project, path, sources), sources
    except UnsuitableNotebookError as error:
        # The cell that seeds the random numbers does not count.
        if error.succeeded <= MIN_CELLS:
            raise
        sources = sources[: error.succeeded]
        return run_cells(project, path, sources), sources


def run_edit_story(
    project: Project, path: Path, notebook: Notebook, sources: list[str], name: str
) -> Story:
    """Edit a notebook whose cells have run; return the outcome."""
    started_at = time.monotonic()
    replay_path = path.with_name(f"{path.stem}-replay.ipynb")
    original = get_state(notebook, in_child=True)
    choice = choose_edit(project, replay_path, sources, original)
    names = choice.first.names.keys()
    unstable = find_unstable_names(choice.first, choice.second) & names
    if 2 * len(unstable) > len(names):
        text = f"{len(unstable)} of {len(names)} names: {sorted(unstable)[:9]}"
        return Story(name, "nondeterministic", text)
    try:
        live = run_live_edit(notebook, choice.edit)
    except (
        InvalidRunError,
        subprocess.SubprocessError,
        AssertionError,
        OSError,
        ValueError,
    ) as error:
        # The notebook can be run and edited, so stepper is the cause.
        return Story(name, "failed", f"{choice.edit.text}: {error}")
    verdict = judge_story(live, choice.first, choice.second, compares_identity=False)
    return Story(
        name,
        verdict.outcome,
        choice.edit.text,
        len(names),
        verdict.wrong_names,
        sorted(verdict.unstable & names),
        verdict.differences[:8],
        verdict.identity[:8],
        verdict.settings,
        round(time.monotonic() - started_at, 1),
        find_names_not_restored(live.reports),
    )


def run_live_edit(notebook: Notebook, edit: Edit) -> State:
    """Edit a cell of a notebook through the hook, run what is stale."""
    answer = notebook.replace(f"cell{edit.cell}", edit.source)
    stale = notebook.project.stepper(
        "run", notebook.name, "--stale", check=None, timeout=MAX_SECONDS
    )
    state = get_state(notebook)
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


def run_public_stories(arguments: argparse.Namespace, python: str) -> list[Story]:
    """Return the outcomes of the required number of notebooks that can be edited."""
    stories: list[Story] = []
    jobs = arguments.jobs
    with create_project(python) as project, ThreadPoolExecutor(jobs) as pool:
        project.config(CONFIG)
        folder = project.folder / "notebooks" / "packages"
        if arguments.folder:
            paths = copy_notebooks(arguments.folder, folder)
        else:
            paths = download_notebooks(folder)
        futures = [pool.submit(run_public_story, project, path) for path in paths]
        for future in as_completed(futures):
            add_story(stories, future.result(), arguments.log)
            if sum(each.outcome in OUTCOMES for each in stories) >= arguments.notebooks:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return stories


def add_story(stories: list[Story], story: Story, log: Path | None) -> None:
    """Add a story to the others and to the log; show the progress."""
    stories.append(story)
    show_progress(stories)
    if log is not None:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"{json.dumps(asdict(story))}\n")


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
    verdict = judge_story(state, final_state, final_state, compares_identity=True)
    return Story(
        f"random {seed}",
        verdict.outcome,
        "\n".join(live.actions),
        len(final_state.names),
        verdict.wrong_names,
        [],
        verdict.differences[:8],
        settings=verdict.settings,
        seconds=round(time.monotonic() - started_at, 1),
        not_restored=find_names_not_restored(state.reports),
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
            add_story(stories, story, arguments.log)
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
    titles = ["notebooks", *OUTCOMES, "identity", "names", "other value", "unstable"]
    numbers = [
        len(judged),
        *(counts[outcome] for outcome in OUTCOMES),
        sum(bool(story.identity) for story in judged),
        names,
        wrong,
        unstable,
    ]
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"
    yield f"| {' | '.join(map(str, numbers))} |"
    settings = collections.Counter(name for story in judged for name in story.settings)
    yield f"\nSettings that differ, with the number of notebooks: {dict(settings)}"
    yield f"{counts['unsuitable']} notebooks cannot be run or edited here."
    yield f"In {counts['nondeterministic']}, most names differ between two replays."
    for story in stories if is_verbose else ():
        yield f"\n{story.outcome}: {story.notebook} ({story.seconds} s)\n{story.edit}"
        for difference in (*story.differences, *story.identity):
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
    parser.add_argument("--log", type=Path, help="a file for a line on each notebook")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-v", "--verbose", action="store_true", help="each notebook")
    return parser.parse_args()


def main() -> None:
    """Run the chosen stories and print the result."""
    arguments = parse_arguments()
    # All kernels iterate over sets of strings in the same order.
    os.environ["PYTHONHASHSEED"] = "0"
    requirements = PACKAGES if arguments.random else (*NEEDED, *EXTRA)
    python = arguments.python or environment(sys.executable, *requirements)
    if arguments.random:
        stories = run_random_stories(arguments, python)
    else:
        stories = run_public_stories(arguments, python)
    if arguments.json:
        print(json.dumps([asdict(story) for story in stories], indent=1))
    else:
        print("\n".join(format_stories(stories, arguments.verbose)))


if __name__ == "__main__":
    main()
