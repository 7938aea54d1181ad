"""Fixtures: a scratch project with its own daemon and kernels.

Tests drive the project through the hook process and the command line.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest

from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.hook import daemon_client
from stepper.install import installer, trust
from stepper.policy import journal_reducer
from stepper.policy.commands.command_lines import CommandLines
from tests import forked_cli as forked
from tests import forked_kernels
from tests.slurm.lab import cluster  # noqa: F401 (a fixture for all)

if TYPE_CHECKING:
    from tests.chromium import Browser

# Installations of the tests are recorded apart from the user's own.
STATE = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="stepper-tests-")
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
# else each daemon and kernel compiles its imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
forked_kernels.fork_kernels()
# On a slow machine, the first input of a test can take a minute.
hypothesis.settings.register_profile(
    "slow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("slow")
ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ("python", "compiled")
NIGHTLY_MODULE = re.compile(
    r"^pytestmark = (\[\s*)?pytest\.mark\.nightly\b(?!_)", re.MULTILINE
)
CLIENT = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()"


class Project:
    """A repository in which stepper is installed."""

    session = "session-1"  # of the client

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = Paths(str(folder))
        self.compiled = ""  # the path of the compiled client, if it is used
        self.daemons = True  # daemons started by commands are forks
        (folder / ".stepper").mkdir(parents=True, exist_ok=True)
        (folder / "notebooks").mkdir(exist_ok=True)
        trust.save_record(self.paths, {"python": sys.executable})

    def config(self, text: str) -> None:
        (self.folder / ".stepper" / "config.yaml").write_text(text)

    def stepper(
        self,
        *arguments: str,
        check: int | None = 0,
        cwd: Path | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run the CLI."""
        result = forked.run(
            list(arguments), cwd or self.folder, timeout, daemons=self.daemons
        )
        assert check is None or result.returncode == check, (
            result.stdout + result.stderr
        )
        return result

    def json(self, *arguments: str, check: int | None = 0) -> Any:
        result = self.stepper(*arguments, "--json", check=check)
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    def new(self, *steps: str, problem: str = "a problem") -> Notebook:
        response = self.json(
            "new", problem, *(part for step in steps for part in ("--step", step))
        )
        return Notebook(self, self.folder / response["notebook"])

    def notebook(
        self,
        name: str,
        cells: list[dict[str, Any]] = [],  # noqa: B006
        minor: int = 5,
        **metadata: Any,
    ) -> Notebook:
        """Write a notebook by hand."""
        path = self.folder / "notebooks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "cells": cells,
                    "metadata": metadata,
                    "nbformat": 4,
                    "nbformat_minor": minor,
                },
                indent=1,
            )
        )
        return Notebook(self, path)

    def ask(self, command: str, **arguments: Any) -> None:
        """Send a request to the running daemon; ignore the response."""
        payload = json.dumps(arguments).encode()
        with contextlib.suppress(StepperError, OSError):
            daemon_client.send_request(
                self.paths, command.encode(), payload, launch=False
            )

    def kill_kernels(self) -> None:
        """Kill all kernels and make the daemon notice it."""
        for record in Path(self.paths.kernels).rglob("*.json"):
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                pid = json.loads(record.read_text())["provisioner"]["pid"]
                psutil.Process(pid).kill()
                self.ask("eval", source="1", notebook=record.stem)

    def resume_all(self) -> None:
        """Resume each stopped notebook: a command without a notebook acts on the only stopped one."""
        for journal in sorted(Path(self.paths.journals).rglob("*.jsonl")):
            lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
            if journal_reducer.replay(lines).stop is not None:
                self.ask("continue", notebook=journal.stem)

    def kill_daemon(self) -> None:
        """Kill the daemon and wait. A dying daemon may still accept connections."""
        process = psutil.Process(self.json("status")["daemon"]["pid"])
        process.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)

    def client(self, event: str) -> list[str]:
        """Return the command that the hook script executes."""
        if self.compiled:
            return [self.compiled, sys.executable, str(ROOT), str(self.folder), event]
        return [
            sys.executable,
            "-I",
            "-S",
            "-c",
            CLIENT,
            str(ROOT),
            str(self.folder),
            event,
        ]

    def hook(
        self, event: str, stdin: bytes | dict[str, Any], timeout: float = 120
    ) -> Answer:
        """Run the hook process as the hook script does."""
        data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
        result = subprocess.run(
            self.client(event),
            input=data,
            capture_output=True,
            timeout=timeout,
            cwd=self.folder,
        )
        assert result.returncode == 0, result.stderr.decode()
        assert result.stderr == b"", result.stderr.decode()
        return Answer(result.stdout)


class Answer:
    """The output of the hook."""

    def __init__(self, stdout: bytes) -> None:
        self.stdout = stdout
        self.data: dict[str, Any] = json.loads(stdout) if stdout else {}
        specific = self.data.get("hookSpecificOutput", {})
        self.text: str = specific.get("additionalContext", "")
        self.denied: str = (
            specific.get("permissionDecisionReason", "")
            if specific.get("permissionDecision") == "deny"
            else ""
        )
        self.line: str = self.data.get("systemMessage", "")
        self.stop: str = self.data.get("stopReason", "")


class Notebook:
    """A notebook, edited as NotebookEdit does, with the hooks that the client runs."""

    def __init__(self, project: Project, path: Path, session: str = "") -> None:
        self.project, self.path, self.session = (
            project,
            path,
            session or project.session,
        )

    @property
    def name(self) -> str:
        """The notebook's path relative to the project."""
        return str(self.path.relative_to(self.project.folder))

    @property
    def commands(self) -> CommandLines:
        """The notebook's command lines, with its name if there are several notebooks."""
        notebooks = [*self.path.parent.glob("*.ipynb")]
        return CommandLines(self.name if len(notebooks) > 1 else "")

    @property
    def raw(self) -> dict[str, Any]:
        return json.loads(self.path.read_text(encoding="utf-8"))

    def cell(self, cell_id: str) -> dict[str, Any]:
        return next(cell for cell in self.raw["cells"] if cell.get("id") == cell_id)

    def payload(
        self, event: str, tool: str, tool_input: dict[str, Any], **extra: Any
    ) -> dict[str, Any]:
        return {
            "session_id": self.session,
            "transcript_path": "/nowhere",
            "cwd": str(self.project.folder),
            "hook_event_name": event,
            "permission_mode": "default",
            "tool_name": tool,
            "tool_input": tool_input,
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
            **extra,
        }

    def edited(
        self, mode: str, source: str, cell_id: str | None = None, kind: str = "code"
    ) -> dict[str, Any]:
        """Change the file as the client does and return the PostToolUse payload."""
        before = self.path.read_text(encoding="utf-8")
        raw = json.loads(before)
        cells, ids = raw["cells"], [cell.get("id") for cell in raw["cells"]]
        tool_input: dict[str, Any] = {
            "notebook_path": str(self.path),
            "new_source": source,
        }
        index = (
            int(cell_id[5:])
            if cell_id and cell_id.startswith("cell-")
            else ids.index(cell_id)
            if cell_id
            else -1
        )
        tool_response: dict[str, Any] = {
            "new_source": source,
            "cell_type": kind,
            "language": "python",
            "edit_mode": mode,
            "error": "",
        }
        if cell_id:
            tool_input["cell_id"] = cell_id
        if mode == "insert":
            tool_input |= {"cell_type": kind, "edit_mode": "insert"}
            new_cell: dict[str, Any] = {
                "cell_type": kind,
                "source": source,
                "metadata": {},
            }
            if raw["nbformat_minor"] >= 5:
                new_cell = {
                    "cell_type": kind,
                    "id": uuid.uuid4().hex[:8],
                    "source": source,
                    "metadata": {},
                }
                tool_response["cell_id"] = new_cell["id"]
            if kind == "code":
                new_cell |= {"execution_count": None, "outputs": []}
            cells.insert(index + 1, new_cell)
        elif mode == "replace":
            cells[index]["source"] = source
            cells[index] |= {"execution_count": None, "outputs": []}
            tool_response["cell_id"] = cell_id
        else:
            tool_input["edit_mode"] = "delete"
            del cells[index]
            tool_response["cell_id"] = cell_id
        after = json.dumps(raw, indent=1, ensure_ascii=False)
        self.path.write_text(after, encoding="utf-8")
        tool_response |= {
            "notebook_path": str(self.path),
            "original_file": before,
            "updated_file": after,
        }
        return self.payload(
            "PostToolUse",
            "NotebookEdit",
            tool_input,
            tool_response=tool_response,
            duration_ms=8,
        )

    def insert(
        self, source: str, after: str | None = "last", kind: str = "code"
    ) -> tuple[str, Answer]:
        """Insert a cell (below the last one by default); return its id and the hook's answer."""
        if after == "last":
            after = self.raw["cells"][-1].get("id") if self.raw["cells"] else None
        payload = self.edited("insert", source, after, kind)
        return payload["tool_response"].get("cell_id", ""), self.project.hook(
            "PostToolUse", payload
        )

    def replace(self, cell_id: str, source: str) -> Answer:
        return self.project.hook("PostToolUse", self.edited("replace", source, cell_id))

    def delete(self, cell_id: str) -> Answer:
        return self.project.hook("PostToolUse", self.edited("delete", "", cell_id))

    def write(self, cells: list[dict[str, Any]], **metadata: Any) -> Answer:
        """Write the whole file, as the Write tool does."""
        text = json.dumps(
            {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        )
        self.path.write_text(text)
        tool_input = {"file_path": str(self.path), "content": text}
        tool_response = {"type": "update", "filePath": str(self.path), "content": text}
        return self.project.hook(
            "PostToolUse",
            self.payload(
                "PostToolUse", "Write", tool_input, tool_response=tool_response
            ),
        )

    def before(
        self, mode: str, source: str, cell_id: str | None = None, kind: str = "code"
    ) -> Answer:
        """Run the PreToolUse hook for an edit, without making the edit."""
        tool_input = {
            "notebook_path": str(self.path),
            "new_source": source,
            "cell_type": kind,
            "edit_mode": mode,
        }
        if cell_id:
            tool_input["cell_id"] = cell_id
        return self.project.hook(
            "PreToolUse", self.payload("PreToolUse", "NotebookEdit", tool_input)
        )

    def batch_end(self, *tools: str) -> Answer:
        """Run the PostToolBatch hook for a message with these tools."""
        key = {
            "Read": "file_path",
            "Write": "file_path",
            "NotebookEdit": "notebook_path",
        }
        calls = [
            {"tool_name": tool, "tool_input": {key[tool]: str(self.path)}}
            for tool in tools
        ]
        return self.project.hook(
            "PostToolBatch", self.payload("PostToolBatch", "", {}, tool_calls=calls)
        )


def make_env(env: str | Path, stepper: Path = ROOT) -> None:
    """Create an environment as install.sh does, without network access.

    It has the packages of this environment, and stepper from a checkout.
    """
    venv.create(env, symlinks=True)
    (site,) = Path(env).glob("lib/python3*/site-packages")
    (site / "here.pth").write_text(f"{stepper}\n{sysconfig.get_path('purelib')}\n")


@functools.cache
def compiled_client() -> str:
    """Return the compiled client. It is compiled once per process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    if not installer.compile_client(Path(folder, "hook")):
        assert not os.environ.get("CI"), (
            "there is no C compiler, or client.c does not compile"
        )
        pytest.skip("there is no C compiler")
    return os.path.join(folder, "hook")


def bare_env(paths: Paths) -> Path:
    """Create the empty environment folder of a project and the link to it."""
    env = Path(paths.env)
    (env / "bin").mkdir(parents=True)
    installer.link(Path(paths.env_link), env)
    return env


def code(source: str, cell_id: str | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a code cell as JSON."""
    cell = {
        "cell_type": "code",
        "source": source,
        "metadata": metadata,
        "execution_count": None,
        "outputs": [],
    }
    return {"id": cell_id, **cell} if cell_id else cell


def text_of(cell: dict[str, Any]) -> str:
    """Return all stream text of a cell's outputs."""
    return "".join(
        "".join(out["text"])
        for out in cell["outputs"]
        if out["output_type"] == "stream"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """By day, skip modules whose tests are all nightly: importing them takes seconds."""
    if config.option.markexpr != "not nightly" or collection_path.suffix != ".py":
        return None
    is_nightly = NIGHTLY_MODULE.search(collection_path.read_text())
    return True if is_nightly else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects the tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases after the first N of a test with `nightly_after(N)` as nightly."""
    counts: collections.Counter[str] = collections.Counter()
    for item in items:
        marker = item.get_closest_marker("nightly_after")
        if marker is None:
            continue
        test = item.nodeid.partition("[")[0]
        counts[test] += 1
        if counts[test] > marker.args[0]:
            item.add_marker(pytest.mark.nightly)


def mark_nightly(values: Iterable[Any], *daytime: Any) -> list[Any]:
    """Return the values of a parameter, all but the daytime ones marked as nightly."""
    values = [*values]
    assert {*daytime} <= {*values}
    return [
        value if value in daytime else pytest.param(value, marks=pytest.mark.nightly)
        for value in values
    ]


# If a test only checks the client itself, `make test` uses the compiled one.
ONE_CLIENT = pytest.mark.parametrize(
    "project", mark_nightly(CLIENTS, "compiled"), indirect=True
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A scratch project. Its daemon and kernels are shut down after the test."""
    yield from scratch(tmp_path / "repo", usual_client())


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose daemon lasts for all tests of a module."""
    yield from scratch(tmp_path_factory.mktemp("lasting") / "repo", usual_client())


@pytest.fixture
def fresh_project(tmp_path: Path) -> Iterator[Project]:
    """A scratch project for one test, in modules whose `project` is shared."""
    yield from scratch(tmp_path / "repo", usual_client())


def reuse_project(module_project: Project) -> Iterator[Project]:
    """Yield the shared project for one test, which uses its own notebooks.

    Files that cells of earlier tests wrote are removed before the test. Kernels are
    killed and the configuration is removed after it.
    """
    for path in (module_project.folder / "notebooks").glob("*"):
        if path.is_file() and path.suffix != ".ipynb":
            # the daemon removes its temporary file meanwhile
            path.unlink(missing_ok=True)
    # undelivered reports of the previous test do not belong to this one
    module_project.session = uuid.uuid4().hex
    yield module_project
    (module_project.folder / ".stepper" / "config.yaml").unlink(missing_ok=True)
    module_project.kill_kernels()
    module_project.resume_all()


def usual_client() -> str:
    """Return the client that install.sh chooses on this machine."""
    return "compiled" if shutil.which("cc") else "python"


def scratch(folder: Path, client: str = "python") -> Iterator[Project]:
    """Yield a project in `folder` whose hooks use `client`, one of CLIENTS."""
    new_project = Project(folder)
    new_project.compiled = compiled_client() if client == "compiled" else ""
    try:
        yield new_project
    finally:  # also if a fixture that wraps this one fails
        new_project.stepper("shutdown", check=None)
        shutil.rmtree(new_project.paths.runtime, ignore_errors=True)
    log = new_project.folder / ".stepper" / "daemon.log"
    if log.exists() and "Traceback" in log.read_text():
        raise AssertionError(
            "the daemon's log holds a traceback:\n" + log.read_text()[-3000:]
        )
    assert os.path.exists(new_project.folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, shared by the tests of a module."""
    from tests import chromium
    from tests.npm_packages import Unavailable, unavailable

    try:
        new_browser = chromium.Browser()
    except Unavailable as reason:
        unavailable(reason)
    yield new_browser
    new_browser.close()


@pytest.fixture
def spawned_kernels() -> Iterator[None]:
    """Start kernels as for users, not as forks: with imports and random set order."""
    forked_kernels.spawn_kernels()
    yield
    forked_kernels.fork_kernels()
