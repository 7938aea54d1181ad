"""The command `verify`: one or more notebooks, with the daemon or without.

In a project with stepper, the daemon replays the notebooks. Elsewhere, and in the
program `notebook-stepper`, this process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from stepper.cli.keyboard_interrupt import (
    INTERRUPTED,
    NOTICE,
    InterruptHandler,
)
from stepper.cli.rendering import RENDERINGS, RunProgress, print_json
from stepper.cli.terminal import print_text, write_text
from stepper.common.dataclass_decode import decode
from stepper.common.errors import DaemonError, StepperError, UsageError
from stepper.common.paths import Paths, resolve_project
from stepper.common.project_walk import is_project_folder
from stepper.hook import daemon_client
from stepper.messages.verification import github_annotations, junit_report
from stepper.messages.verification.notebook_outcome import (
    NotebookOutcome,
    format_outcome,
    format_summary,
)
from stepper.notebooks.source_lines import find_source_lines
from stepper.policy.commands.cli_commands import Verify
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.commands.command_schema import parse_arguments
from stepper.policy.comparison.verify_results import VerifyResult
from stepper.session.progress_events import ProgressCallback, Waiting

if TYPE_CHECKING:
    from stepper.daemon.replay.standalone import StandaloneReplays

# Set by the program `notebook-stepper`, which never uses a daemon.
STANDALONE = "stepper.cli.verify_command.standalone"
SUFFIX = ".ipynb"
NOT_STARTED = "the command was interrupted before the replay started"


@dataclass
class VerifyCall:
    """A call of the command.

    `options` are the values of its options. `project` is None if stepper is not
    installed in the current folder. `outcomes` are the outcomes so far, by the index of
    the notebook. `interrupted` means that Ctrl-C stopped the replays.
    """

    notebooks: Sequence[str | None]
    options: Mapping[str, Any]
    output_format: str
    project: str | None
    outcomes: dict[int, NotebookOutcome] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def is_single(self) -> bool:
        """Whether an error of the notebook is the error of the command."""
        return len(self.notebooks) == 1 and self.output_format in ("text", "json")

    def list_outcomes(self) -> list[NotebookOutcome]:
        """Return the outcomes in the order of the notebooks."""
        return [self.outcomes[index] for index in sorted(self.outcomes)]

    def add_result(self, index: int, result: VerifyResult, project: str) -> None:
        """Add the result for a notebook, and print it. `project` is a folder."""
        source_lines: Mapping[int, int] = {}
        if self.output_format in ("junit", "github"):
            source_lines = _read_source_lines(os.path.join(project, result.notebook))
        outcome = NotebookOutcome(result.notebook, result, source_lines=source_lines)
        self._add(index, outcome)

    def add_error(self, index: int, error: StepperError) -> None:
        """Add the reason why a notebook was not verified, and print it.

        Raise the error instead if it is the error of the command.
        """
        if self.is_single:
            raise error
        name = "the current notebook"
        typed_name = self.notebooks[index]
        if typed_name is not None:
            name = _get_path_in_project(typed_name, self.project)
        outcome = NotebookOutcome(
            name, None, error.message, error.hint, error.exit_code
        )
        self._add(index, outcome)

    def _add(self, index: int, outcome: NotebookOutcome) -> None:
        """Keep the outcome of a notebook, and print its report.

        The formats `json` and `junit` print one document at the end. For `junit`, the
        report is printed to standard error.
        """
        self.outcomes[index] = outcome
        if self.output_format == "text":
            print_text(format_outcome(outcome))
        elif self.output_format == "github":
            print_text(github_annotations.format_github_report(outcome))
        elif self.output_format == "junit":
            print_text(format_outcome(outcome), err=True)

    def print_end(self) -> None:
        """Print the rest of the report after the replay of all notebooks."""
        outcomes = self.list_outcomes()
        if self.output_format == "json":
            documents = [_make_document(outcome) for outcome in outcomes]
            print_json(documents[0] if self.is_single else documents)
            return
        if len(self.notebooks) > 1:
            print_text(format_summary(outcomes), err=self.output_format == "junit")
        if self.output_format == "junit":
            write_text(junit_report.format_junit(outcomes))
        elif self.output_format == "github":
            annotations = github_annotations.format_annotations(outcomes)
            if annotations:
                print_text(annotations, is_output=True)

    def get_exit_code(self) -> int:
        """Return the exit code: the most serious one of the notebooks."""
        if self.interrupted:
            return INTERRUPTED
        codes: list[int] = [0]
        for outcome in self.list_outcomes():
            is_different = outcome.result is not None and not outcome.reproduces
            codes.append(1 if is_different else outcome.exit_code)
        return max(codes)


def verify(as_json: bool, **options: Any) -> int:
    """Replay notebooks, print the results and return the exit code.

    `options` are the values of the arguments of the command. Raise UsageError if they
    can't be combined, and the StepperError of a single notebook.
    """
    parse_arguments(Verify, options)  # raises UsageError for an invalid value
    is_standalone = click.get_current_context().meta.get(STANDALONE, False)
    project = None
    if not is_standalone:
        project = resolve_project(daemon_client.get_current_folder(), sys.prefix)
    names = options.pop("notebooks") or []
    if is_standalone and not names:
        raise UsageError(
            "name the notebooks or their folder", "notebook-stepper verify NOTEBOOK"
        )
    output_format = "json" if as_json else options["format"]
    call = VerifyCall(_expand(names, project), options, output_format, project)
    if options["from_cell"] and len(call.notebooks) > 1:
        raise UsageError("--from can't be used with several notebooks")
    if options["checkpoint"] and (project is None or not options["from_cell"]):
        raise UsageError("--checkpoint needs --from CELL and a live kernel")
    if project is None:
        _run_standalone(call)
    elif options["python"]:
        raise UsageError(
            "--python can't be used in a project with stepper: the project's"
            " interpreter runs the notebook",
            "notebook-stepper verify --python PATH  # ignores the installation",
        )
    else:
        _run_with_daemon(call, project)
    call.print_end()
    return call.get_exit_code()


def _expand(names: Sequence[str], project: str | None) -> list[str | None]:
    """Return the notebooks that the arguments name, each only once.

    Without arguments, the only item is None: the current notebook. Raise UsageError if
    there is no project with a current notebook, or if a folder or glob contains no
    notebooks.
    """
    if not names:
        if project is None:
            raise UsageError(
                "name the notebooks: stepper is not installed in this folder, so there"
                " is no current notebook",
                CommandLines("NOTEBOOK").shell("verify"),
            )
        return [None]
    # The keys are real paths: a link and its target are the same notebook.
    notebooks: dict[str, str | None] = {}
    for name in names:
        for notebook in _expand_name(name):
            notebooks.setdefault(os.path.realpath(notebook), notebook)
    return [*notebooks.values()]


def _expand_name(name: str) -> list[str]:
    """Return the notebooks that a name, a folder or a glob stands for.

    Raise UsageError if a folder contains no notebooks, or if none match a glob.
    """
    if os.path.isdir(name):
        notebooks = _find_below(name)
    elif glob.has_magic(name) and not os.path.exists(name):
        matches = glob.glob(name, recursive=True)
        notebooks = sorted(path for path in matches if path.endswith(SUFFIX))
    else:
        return [name]
    if not notebooks:
        raise UsageError(f"{name} contains no notebooks")
    return notebooks


def _find_below(folder: str) -> list[str]:
    """Return the notebooks in a folder and its subfolders.

    Hidden notebooks and folders, and Python environments, are left out.
    """
    notebooks = []
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if is_project_folder(name, os.path.join(root, name))
        ]
        for name in names:
            if name.endswith(SUFFIX) and not name.startswith("."):
                notebooks.append(os.path.normpath(os.path.join(root, name)))
    return sorted(notebooks)


def _get_path_in_project(name: str, project: str | None) -> str:
    """Return the path of a notebook relative to its project, as in results.

    `project` is None if stepper is not installed. If there is no file with this name,
    return the name.
    """
    for path in (name, name + SUFFIX):
        if not os.path.isfile(path):
            continue
        real_path = os.path.realpath(path)
        if project is None:
            from stepper.daemon.replay.standalone_paths import find_project_folder

            project = find_project_folder(real_path)
        return os.path.relpath(real_path, project)
    return name


def _read_source_lines(path: str) -> Mapping[int, int]:
    """Return the lines of the sources of a notebook's code cells, by their numbers."""
    try:
        with open(path, encoding="utf-8") as stream:
            return find_source_lines(stream.read())
    except (OSError, UnicodeDecodeError):
        return {}


def _make_document(outcome: NotebookOutcome) -> Any:
    """Return the JSON document on a notebook."""
    from stepper.session import responses

    if outcome.result is not None:
        response = json.loads(responses.to_json(outcome.result))
        return RENDERINGS["verify"].document(response)
    return {
        "notebook": outcome.notebook,
        "error": outcome.error,
        "hint": outcome.hint,
        "exit_code": outcome.exit_code,
    }


def _run_with_daemon(call: VerifyCall, project: str) -> None:
    """Let the project's daemon replay the notebooks."""
    paths = Paths(project)
    shows_progress = call.output_format == "text" and len(call.notebooks) == 1
    progress = RunProgress(quiet=not shows_progress)
    interrupt_handler = InterruptHandler(runs_code=True)

    def send(notebook: str | None) -> VerifyResult:
        """Let the daemon replay a notebook, or the current one; return the result.

        Raise StepperError if the replay fails, or after Ctrl-C.
        """
        if interrupt_handler.interrupted:
            raise StepperError(NOT_STARTED)
        payload = json.dumps({**call.options, "notebook": notebook})
        body = daemon_client.send_request(
            paths,
            b"verify",
            payload.encode(),
            progress,
            on_connect=interrupt_handler.add_connection,
        )
        return decode(VerifyResult, json.loads(body or b"null"))

    with progress, interrupt_handler:
        if len(call.notebooks) == 1:
            _record(call, 0, partial(send, call.notebooks[0]), project)
        else:
            # In threads, because each request waits for its response.
            with ThreadPoolExecutor(call.options["jobs"]) as executor:
                futures = [executor.submit(send, name) for name in call.notebooks]
                for index, future in enumerate(futures):
                    _record(call, index, future.result, project)
    call.interrupted = interrupt_handler.interrupted


def _record(
    call: VerifyCall, index: int, get_result: Callable[[], VerifyResult], project: str
) -> None:
    """Add the result for a notebook, or the error that `get_result` raises."""
    try:
        result = get_result()
    except StepperError as error:
        call.add_error(index, error)
    else:
        call.add_result(index, result, project)


def _run_standalone(call: VerifyCall) -> None:
    """Replay the notebooks in this process."""
    try:
        asyncio.run(_replay_all(call))
    except asyncio.CancelledError:  # the second Ctrl-C
        raise KeyboardInterrupt from None


async def _replay_all(call: VerifyCall) -> None:
    """Replay the notebooks, as many at the same time as `--jobs` allows."""
    from stepper.daemon.replay.standalone import StandaloneReplays

    stopped = asyncio.Event()
    options = parse_arguments(Verify, call.options)
    replays = StandaloneReplays(options, dict(os.environ), stopped)
    slots = asyncio.Semaphore(options.jobs)
    with RunProgress(quiet=call.output_format == "json") as progress:
        report = progress.show if call.is_single else _show_waiting
        tasks = [
            asyncio.ensure_future(_replay(call, index, replays, slots, report))
            for index in range(len(call.notebooks))
        ]
        with _stop_on_signals(stopped, tasks):
            await asyncio.gather(*tasks)
    call.interrupted = stopped.is_set()


async def _replay(
    call: VerifyCall,
    index: int,
    replays: StandaloneReplays,
    slots: asyncio.Semaphore,
    report: ProgressCallback,
) -> None:
    """Replay a notebook when a slot is free, and add the result."""
    notebook = str(call.notebooks[index])
    async with slots:
        try:
            if replays.stopped.is_set():
                raise StepperError(NOT_STARTED)
            result = await replays.verify(notebook, report)
        except StepperError as error:
            if replays.stopped.is_set():
                error.exit_code = INTERRUPTED
            call.add_error(index, error)
        except Exception as error:
            if call.is_single:
                raise
            # The other notebooks are still replayed.
            message = f"internal error in stepper: {type(error).__name__}: {error}"
            call.add_error(index, DaemonError(message))
        else:
            call.add_result(index, result, replays.find_project(notebook))


def _show_waiting(event: Any) -> None:
    """Show why a replay waits, but not its progress."""
    if isinstance(event, Waiting):
        print_text(event.line, err=True)


@contextlib.contextmanager
def _stop_on_signals(
    stopped: asyncio.Event, tasks: Sequence[asyncio.Future[None]]
) -> Iterator[None]:
    """Stop the replays at Ctrl-C and SIGTERM; cancel them at the second signal."""

    def handle_signal() -> None:
        """Stop the replays, or cancel them if they have been stopped before."""
        if stopped.is_set():
            for task in tasks:
                task.cancel()
            return
        stopped.set()
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), NOTICE)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
