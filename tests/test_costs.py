"""The cost of a step as counts of operations. Durations are measured in `benchmarks/`."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepper.policy.changed_cells import hash_source
from stepper.policy.dataflow import cell_dependencies, name_analysis, run_history
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.journal_events import RunEnded
from stepper.policy.model import Cell, Outcome, Verdict
from tests.conftest import ROOT, STATE, Project, bare_env, code

Counts = dict[str, int]
# A daemon that counts its operations for each hook event with Python's audit events.
# Replaced are only `os.fsync`, which has no audit event, the session's `send`, which
# sends requests to kernels, and the status line's check: it runs each second and is not
# part of a step.
COUNTING = """
import collections, json, os, sys
from jupyter_client.session import Session
from stepper.daemon import server
from stepper.daemon.statusline_file import StatusLineFile
from stepper.notebooks import background_io

counts, result_path = collections.Counter(), sys.argv.pop()

def describe_open(path, mode, flags):
    name = path.decode() if isinstance(path, bytes) else str(path)
    if flags & os.O_DIRECTORY:
        return "folders"
    kind = "notebook" if ".ipynb" in name else "journal" if name.endswith(".jsonl") else "other"
    return kind + (" writes" if flags & (os.O_WRONLY | os.O_RDWR) else " reads")

def count_event(event, args):
    if event == "open":
        # There is a second event for os.open.
        is_repeated = args[1] is not None and str(args[0]).startswith(sys.argv[1])
        counts[describe_open(*args)] += not is_repeated
    elif event in ("subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "os.system"):
        counts["processes"] += 1
    elif event == "import":
        counts["imports"] += 1
    elif event == "_thread.start_new_thread":
        counts["threads"] += 1

def count_calls(function, name):
    def count_and_call(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)
    return count_and_call

async def handle_and_count(*args):
    background_io.start_pending_jobs()  # of the previous step
    background_io.EXECUTOR.submit(int).result()
    counts.clear()
    response = await handle_event(*args)
    result = {name: count for name, count in counts.items() if count}
    with open(result_path + ".new", "w") as stream:
        json.dump(result, stream)
    os.replace(result_path + ".new", result_path)
    return response

handle_event, server.handle_event = server.handle_event, handle_and_count
StatusLineFile.update = lambda lines, measure_memory=True: None
os.fsync = count_calls(os.fsync, "fsyncs")
Session.send = count_calls(Session.send, "requests")
sys.addaudithook(count_event)
server.main()
"""


@pytest.fixture
def count_costs(project: Project, tmp_path: Path) -> Iterator[Callable[[], Counts]]:
    """Return the counts of the last hook event."""
    path = tmp_path / "counts.json"
    log = (tmp_path / "log").open("wb")
    with subprocess.Popen(
        [sys.executable, "-I", "-c", COUNTING, str(project.folder), str(path)],
        stderr=log,
    ) as daemon:
        while not os.path.exists(project.paths.socket):
            assert daemon.poll() is None, (tmp_path / "log").read_text()
        yield lambda: json.loads(path.read_text())
        project.stepper("shutdown")
    log.close()


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("cells", [10, 100])
def test_cost_of_a_step(
    project: Project, count_costs: Callable[[], Counts], cells: int
) -> None:
    filler = [
        code(f"x_{number} = {number}", f"cell-{number:03}") for number in range(cells)
    ]
    notebook = project.notebook("a.ipynb", filler)
    steps = []
    for number in range(6):
        assert "ran ok" in notebook.replace("cell-005", f"print({number})").text
        steps.append(count_costs())
    helper_times = []
    for counts in steps[3:]:  # earlier steps start the kernel and fill caches
        assert counts.pop("requests") == 1
        # before the cell runs and before its outputs are written
        assert counts.pop("notebook reads") == 2
        assert counts.pop("notebook writes") == 1
        # start, undo of the earlier run, run, report
        assert counts.pop("journal writes") == 4
        # the notebook; the journal is synced later in the background
        assert counts.pop("fsyncs") in (
            1,
            2,
        )
        # .stepper/batch: the notebook keeps its mtime until the message ends
        assert counts.pop("other writes") == 1
        # the memory guard reads the limits of the machine and the kernel's cgroups
        helper_times.append(counts.pop("other reads"))
        assert counts == {}, (
            "a step starts no process or thread, imports nothing and opens no folder again"
        )
    assert min(helper_times) <= 12  # the guard may sample twice on a busy machine


def test_cost_of_the_hook_before_an_edit(
    project: Project, count_costs: Callable[[], Counts]
) -> None:
    notebook = project.notebook("a.ipynb", [code("x = 1", "a")])
    for _ in range(3):
        assert notebook.before("replace", "x = 2", "a").stdout == b""
    costs = count_costs()
    assert costs.pop("notebook reads", 0) <= 1
    assert costs == {}


@pytest.mark.nightly
def test_cost_of_the_wake_hook_after_a_short_cell(
    project: Project, count_costs: Callable[[], Counts]
) -> None:
    notebook = project.notebook("a.ipynb", [code("x = 1", "a")])
    for _ in range(2):
        payload = notebook.edited("replace", "x = 2", "a")
        assert "ran ok" in project.hook("PostToolUse", payload).text
        assert project.hook("Wake", payload).stdout == b""
    costs = count_costs()
    assert costs == {}, "it reads, writes and starts nothing"


def test_hook_process_imports_only_startup_modules(
    project: Project,
) -> None:
    notebook = project.notebook("a.ipynb", [code("x = 1", "a")])
    notebook.replace("a", "x = 2")
    payload = json.dumps(notebook.edited("replace", "x = 3", "a")).encode()
    source = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()"

    def loaded(*command: str, stdin: bytes = b"") -> set[str]:
        python = [sys.executable, "-I", "-S", "-X", "importtime", "-c", *command]
        result = subprocess.run(python, input=stdin, capture_output=True, check=True)
        return {
            line.rpartition(b"|")[2].strip().decode()
            for line in result.stderr.splitlines()
        }

    modules = loaded(
        source, str(ROOT), str(project.folder), "PostToolUse", stdin=payload
    ) - loaded("pass")
    own_modules = {
        "stepper",
        "stepper.common",
        "stepper.hook",
        "stepper.common.wire_format",
        "stepper.common.errors",
        "stepper.common.hook_paths",
        "stepper.hook.daemon_client",
        "stepper.hook.hook_process",
        "stepper.hook.process",
    }
    assert modules == {*own_modules, "_socket", "_stat"}


def test_hook_script_starts_only_python(project: Project) -> None:
    """The PATH is empty: the script uses only shell builtins and the interpreter."""
    script, env = (
        project.folder / ".claude" / "hooks" / "stepper",
        bare_env(project.paths),
    )
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "hooks" / "stepper", script)
    (env / "packages").symlink_to(ROOT)
    (env / "bin" / "python").write_text("#!/bin/sh\necho started\n")
    (env / "bin" / "python").chmod(0o755)
    for name in ("batch", "active", "handed"):
        (project.folder / ".stepper" / name).touch()
    for recorded in (True, False):  # without a record, the script itself responds
        if not recorded:
            (project.folder / ".stepper" / "token").unlink()
        for event in (
            "PreToolUse",
            "PostToolUse",
            "PostToolBatch",
            "Stop",
            "UserPromptSubmit",
            "SessionStart",
            "Wake",
            "Rearm",
        ):
            environ = {"PATH": "/nowhere", "XDG_STATE_HOME": STATE}
            result = subprocess.run(
                [script, event], input=b"{}\n", capture_output=True, env=environ
            )
            assert (result.returncode, result.stderr) == (0, b""), event
            assert (result.stdout == b"started\n") == recorded, event
    lines = script.read_text().splitlines()
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    # and no subshell
    assert "$(" not in code and "`" not in code.replace("\\`", "")


@pytest.mark.parametrize("cells", [100, 200])
def test_cost_of_finding_stale_cells(cells: int) -> None:
    """Each source is analyzed once, and each query visits each cell once."""
    sources = {f"c{n}": f"x{n} = f(x{n - 1}, x0)" for n in range(cells)}
    read, requests = list[str](), list[str]()

    @functools.cache
    def flow(source: str) -> NameUsage:
        read.append(source)
        return name_analysis.analyze_source(source)

    def counted(source: str) -> NameUsage:
        requests.append(source)
        return flow(source)

    past, runs = run_history.History(counted), list[RunEnded]()
    notebook = [
        Cell(name, index, index + 1, "code", source)
        for index, (name, source) in enumerate(sources.items())
    ]
    source_by_hash = {hash_source(source): source for source in sources.values()}
    for cell in (*notebook, notebook[0]):
        options = {
            "outcome": Outcome.OK,
            "verdict": Verdict.FINE,
            "started_at": "2026-01-01T00:00:00Z",
            "duration_s": 0.0,
        }
        runs.append(
            RunEnded(
                run=len(runs) + 1,
                cell_id=cell.id,
                number=cell.number,
                index=cell.index,
                step=None,
                key=cell.id,
                source_hash=hash_source(cell.source),
                **options,
            )
        )
        past.catch_up(runs, source_by_hash)
    assert len(requests) == cells + 1 and len(read) == cells
    requests.clear()
    assert len(cell_dependencies.find_dependencies(notebook, past).stale) == cells - 1
    assert len(requests) == cells and len(read) == cells
