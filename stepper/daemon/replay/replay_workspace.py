"""The workspace of `stepper verify`: a copy of the notebook, and replay kernels.

Each request has its own folder in `.stepper/verify/`. If a daemon is killed, the next
daemon shuts down the kernels of the replays and removes the folders. This module is
imported when a notebook is verified.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepper.common import secure_files
from stepper.common.errors import KernelError, StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.project_walk import is_environment, scan_folder
from stepper.common.text import one_line
from stepper.daemon import backend_commands
from stepper.daemon.replay.replay_file_changes import FolderSnapshot
from stepper.daemon.request import Request, report_progress
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.kernels.outputs import image_diff
from stepper.notebooks.notebook_document import Document
from stepper.policy import journal_events
from stepper.policy.commands import cli_commands
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.verify_results import VerifyResult
from stepper.policy.model import Death, KernelMetadata, Limits
from stepper.session import notebook_commands, progress_events
from stepper.session.caller import Caller
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session
from stepper.session.session_state.notebook_journal import format_now
from stepper.session.verification.verify import ReplayOptions, verify

if TYPE_CHECKING:
    from stepper.daemon.workspace.project_notebooks import Workspace
    from stepper.policy.configuration.kernel_config import BackendConfig

# Files in the folder of a replay.
RECORD = "kernel.json"
COPY = "notebook.ipynb"
SCRATCH = "scratch"
CHECKPOINT = "checkpoint"
MAX_SCRATCH_BYTES = 1 << 30
# The marker in outputs that were truncated at `max_output_bytes`.
TRUNCATION_MARKER = b"left out by stepper (max_output_bytes)"
HASH_SEED = "PYTHONHASHSEED"
NOT_COPIED = (".stepper", ".git")

replay_numbers = itertools.count(1)
log = logging.getLogger("stepper")


@dataclass(frozen=True)
class ReplayWorkspace:
    """The folder of a verify request, and the launch configuration of its kernels."""

    original: str  # the path of the notebook
    folder: str
    launch: LaunchConfig
    limits: Limits
    # The working directory of the notebook's own kernels.
    original_cwd: str
    # The backend from `--kernel`, if given, and the metadata of its kernel.
    backend_name: str = ""
    metadata: KernelMetadata | None = None

    @property
    def notebook(self) -> str:
        """The path of the copy of the notebook."""
        return os.path.join(self.folder, COPY)


async def verify_notebook(
    request: Request, session: Session, options: cli_commands.Verify
) -> VerifyResult:
    """Replay a notebook, and compare the outputs with the recorded outputs.

    One replay of the project runs at a time, or `options.jobs`. Raise StepperError if
    the notebook can't be replayed.
    """
    workspace = request.workspace
    disconnected = request.caller.disconnected
    path = workspace.resolve(os.path.join(workspace.paths.project, session.name))
    # An invalid notebook is reported before a folder is created or a lock acquired.
    _read_notebook(session, options)
    backend_name = options.kernel or session.state.plan.kernel
    limits = workspace.config.load_limits()
    backend = limits.kernels.get(backend_name or limits.kernel)
    _check_backend(backend, options, session.name)
    metadata = None
    if options.kernel:
        metadata = await backend_commands.get_metadata(request, options.kernel)
    launch = replace(
        workspace.get_launch_config(path, request.caller.environ, backend_name),
        exits_with_daemon=True,
    )
    replay_name = f"{os.getpid()}-{next(replay_numbers)}"
    replay_workspace = ReplayWorkspace(
        original=path,
        folder=os.path.join(workspace.paths.verify, replay_name),
        launch=launch,
        limits=limits,
        original_cwd=launch.cwd,
        backend_name=options.kernel or "",
        metadata=metadata,
    )
    workspace.replays.add(disconnected)
    try:
        async with _replay_slot(request, options.jobs):
            try:
                return await _replay(request, session, replay_workspace, options)
            except OSError as error:
                hint = getattr(error, "hint", "") or "df -h .stepper"
                message = f"{session.name} can't be replayed: {_explain(error)}"
                raise StepperError(message, hint) from error
            finally:
                environ = request.caller.environ
                await remove_workspaces(workspace.paths, [replay_name], lambda: environ)
    finally:
        workspace.replays.discard(disconnected)


async def _replay(
    request: Request,
    session: Session,
    replay_workspace: ReplayWorkspace,
    options: cli_commands.Verify,
) -> VerifyResult:
    """Replay a notebook in a workspace, and return the result.

    Raise OSError if the workspace can't be created, and StepperError if the replay
    fails.
    """
    document = _read_notebook(session, options)
    path = replay_workspace.original
    paths = request.workspace.paths
    cwd = await asyncio.to_thread(
        _create_folder, paths, replay_workspace, options.scratch
    )
    replay_workspace = replace(
        replay_workspace,
        launch=replace(replay_workspace.launch, cwd=cwd),
        limits=_get_replay_limits(replay_workspace.limits, path),
    )
    snapshot = await asyncio.to_thread(FolderSnapshot, cwd, path)
    backend = replay_workspace.launch.backend
    if backend is not None and not backend.description.is_local:
        name = one_line(backend.name, 100)
        description = backend.description.text
        line = f"the replay uses a separate kernel on {name} ({description})"
        request.progress(progress_events.Waiting(line=line))
    return await verify(
        session,
        document,
        _build_options(request, session, replay_workspace, options),
        request.caller,
        request.progress,
        snapshot.list_changes,
    )


def _read_notebook(session: Session, options: cli_commands.Verify) -> Document:
    """Return the notebook of a session.

    Raise NotebookError if the file is invalid or its language is not supported.
    """
    if options.kernel:
        # The kernel in `--kernel` may support any language.
        return session.file.read()
    return session.read()


async def verify_in_background(workspace: Workspace, session: Session) -> None:
    """Verify a complete notebook, and add the result to the undelivered reports.

    Nothing is added if the daemon exits before the end.
    """
    caller = Caller(workspace.environ)
    request = Request(
        workspace,
        caller,
        workspace.paths.project,
        progress=lambda event: None,
        daemon_info={},
    )
    try:
        result = await verify_notebook(request, session, cli_commands.Verify())
        text = result.text
    except StepperError as error:
        text = f"{one_line(session.name)} could not be verified: {error.message}"
    if caller.disconnected.is_set():  # the daemon is exiting
        return
    event = journal_events.Undelivered(at=format_now(), text=f"stepper: {text}")
    session.journal.log(event)
    workspace.update_markers()


def _check_backend(
    backend: BackendConfig | None, options: cli_commands.Verify, name: str
) -> None:
    """Raise StepperError if a backend does not support a replay with these options.

    `name` is the name of the notebook.
    """
    if backend is None:
        return
    if backend.description.attaches:
        command = CommandLines(name).shell("verify --kernel NAME")
        raise KernelError(
            f"`kernels.{backend.name}` is a single existing kernel, but a replay needs"
            " a new kernel",
            f"{command}  # `stepper kernels` lists the names",
        )
    if options.checkpoint and not backend.description.is_local:
        raise UsageError(
            "--checkpoint can't be used with a kernel on another machine: the values"
            " are saved on this machine"
        )
    if options.scratch and not backend.description.is_local:
        raise UsageError(
            "--scratch can't be used with a kernel on another machine: the copy of the"
            " working directory is on this machine"
        )


@contextlib.asynccontextmanager
async def _replay_slot(request: Request, limit: int) -> AsyncIterator[None]:
    """Wait until fewer than `limit` replays of the project run, and run as one of them.

    Replays may write the same files, so the default limit is 1. Raise StepperError if
    the caller disconnects during the wait.
    """
    slots = request.workspace.replay_slots
    if slots.is_full(limit):
        line = "waiting for another replay of this project"
        request.progress(progress_events.Waiting(line=line))
    acquisition = asyncio.create_task(slots.acquire(limit))
    disconnection = asyncio.create_task(request.caller.disconnected.wait())
    try:
        await asyncio.wait(
            [acquisition, disconnection], return_when=asyncio.FIRST_COMPLETED
        )
        is_acquired = acquisition.done()
    finally:
        acquisition.cancel()
        disconnection.cancel()
    if not is_acquired:
        raise StepperError(
            "nothing ran: the request was cancelled while it waited for another replay"
        )
    try:
        yield
    finally:
        slots.release()


def _build_options(
    request: Request,
    session: Session,
    replay_workspace: ReplayWorkspace,
    options: cli_commands.Verify,
) -> ReplayOptions:
    """Return the options of a replay, with the function that opens its sessions."""
    launch = replay_workspace.launch
    conditions = []
    if launch.backend is not None:
        conditions.append(f"in {launch.backend.name}")
    if options.scratch:
        conditions.append("in a copy of its folder")
    checkpoint_folder = ""
    if options.checkpoint:
        checkpoint_folder = os.path.join(replay_workspace.folder, CHECKPOINT)
    first_seed = 0
    configured_seed = launch.environ.get(HASH_SEED, "")
    if configured_seed.isdecimal():
        first_seed = int(configured_seed)

    @contextlib.asynccontextmanager
    async def open_session(seed: int) -> AsyncIterator[Session]:
        """Open the session of a replay whose kernel has this hash seed."""
        if options.scratch and seed != first_seed:
            paths = request.workspace.paths
            await asyncio.to_thread(_renew_scratch, paths, replay_workspace)
        replay = await _open_replay(request, session.name, replay_workspace, seed)
        async with report_progress(request, replay):
            yield replay

    return ReplayOptions(
        open_session,
        image_diff.compare_pixels,
        options.once,
        where=", ".join(conditions),
        seed=first_seed,
        is_scratch=options.scratch,
        from_cell=options.from_cell or "",
        checkpoint_folder=checkpoint_folder,
    )


async def _open_replay(
    request: Request, name: str, replay_workspace: ReplayWorkspace, seed: int
) -> Session:
    """Return a session for a new copy of the notebook.

    `seed` is the value of PYTHONHASHSEED for the session's kernel.
    """
    folder = os.path.join(replay_workspace.folder, str(seed))
    secure_files.create_folder(folder)
    copy = os.path.join(folder, COPY)
    await asyncio.to_thread(shutil.copyfile, replay_workspace.notebook, copy)
    launch = replay_workspace.launch
    environ = {**launch.environ, HASH_SEED: str(seed)}
    replay = request.workspace.open_replay(
        name,
        copy,
        os.path.join(folder, RECORD),
        replace(launch, environ=environ),
        replay_workspace.limits,
    )
    metadata = replay_workspace.metadata
    if metadata is not None:
        notebook_commands.use_kernel(replay, replay_workspace.backend_name, metadata)
    return replay


def _create_folder(
    paths: Paths, replay_workspace: ReplayWorkspace, is_scratch: bool
) -> str:
    """Create the folder of a replay, with a copy of the notebook.

    If `is_scratch` is true, also copy the kernels' working directory. Return the
    working directory for the kernels. Raise OSError if a copy can't be written, and
    UsageError if the directory is too large.
    """
    secure_files.create_folder(replay_workspace.folder)
    shutil.copyfile(replay_workspace.original, replay_workspace.notebook)
    if not is_scratch:
        return replay_workspace.original_cwd
    return _copy_working_directory(paths, replay_workspace)


def _copy_working_directory(paths: Paths, replay_workspace: ReplayWorkspace) -> str:
    """Copy the working directory of the kernels, and return the path of the copy.

    The copy is inside a copy of the project in which all other files are links. Raise
    UsageError if the directory is larger than MAX_SCRATCH_BYTES.
    """
    _check_size(paths, replay_workspace)
    relative_cwd = paths.relpath(replay_workspace.original_cwd)
    source = paths.project
    target = os.path.join(replay_workspace.folder, SCRATCH)
    os.mkdir(target)
    for part in relative_cwd.split(os.sep):
        if part == ".":
            continue
        for entry in scan_folder(source):
            # The copy itself is in the folder of stepper's own files.
            if entry.name != part and entry.path != paths.home:
                os.symlink(entry.path, os.path.join(target, entry.name))
        source = os.path.join(source, part)
        target = os.path.join(target, part)
        os.mkdir(target)
    shutil.copytree(
        source,
        target,
        symlinks=True,
        ignore=_list_not_copied,
        copy_function=_copy_existing,
        dirs_exist_ok=True,
    )
    return target


def _copy_existing(source: str, target: str) -> None:
    """Copy a file, unless it was removed meanwhile, such as a temporary file."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _explain(error: OSError) -> str:
    """Return the reason for an error, or for the first one if several files failed."""
    if isinstance(error, shutil.Error) and error.args[0]:
        source, _, reason = error.args[0][0]
        return f"{source} can't be copied: {reason}"
    return error.strerror or str(error)


def _renew_scratch(paths: Paths, replay_workspace: ReplayWorkspace) -> None:
    """Replace the copy of the working directory with a new one.

    The last replay may have changed files that the next one reads.
    """
    shutil.rmtree(os.path.join(replay_workspace.folder, SCRATCH), ignore_errors=True)
    _copy_working_directory(paths, replay_workspace)


def _check_size(paths: Paths, replay_workspace: ReplayWorkspace) -> None:
    """Raise UsageError if the working directory of the kernels is too large to copy."""
    cwd = replay_workspace.original_cwd
    if sum(_iterate_sizes(cwd)) <= MAX_SCRATCH_BYTES:
        return
    notebook = paths.relpath(replay_workspace.original)
    command = CommandLines(notebook).shell("verify")
    raise UsageError(
        f"{paths.relpath(cwd)} is larger than the maximum for --scratch,"
        f" {MAX_SCRATCH_BYTES / 1e9:.1f} GB",
        f"{command}  # without --scratch; the result lists the changed files",
    )


def _list_not_copied(folder: str, names: list[str]) -> Iterable[str]:
    """Return the names in a folder that are not copied.

    These are `.stepper`, `.git` and Python environments.
    """
    return [
        name
        for name in names
        if name in NOT_COPIED or is_environment(os.path.join(folder, name))
    ]


def _iterate_sizes(folder: str) -> Iterator[int]:
    """Yield the sizes of the files to copy, in bytes.

    Stop when the total exceeds MAX_SCRATCH_BYTES.
    """
    total = 0
    for root, folders, names in os.walk(folder):
        not_copied = _list_not_copied(root, folders)
        folders[:] = [name for name in folders if name not in not_copied]
        for name in names:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(root, name)).st_size
                total += size
                yield size
        if total > MAX_SCRATCH_BYTES:
            return


def _get_replay_limits(limits: Limits, path: str) -> Limits:
    """Return the limits for the replay of the notebook at a path.

    Each cell runs once, so nothing is undone. If the notebook is larger than
    `max_output_bytes`, but no output was truncated, increase the limit, so that the
    outputs of the replay are complete too.
    """
    limits = replace(limits, undo=False)
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= limits.max_output_bytes or TRUNCATION_MARKER in stream.read():
            return limits
    return replace(limits, max_output_bytes=2 * size)


async def remove_workspaces(
    paths: Paths, names: Iterable[str], get_environ: Callable[[], Mapping[str, str]]
) -> list[str]:
    """Shut down the kernels of replays, and remove the replays' folders.

    `names` are the names of the folders. Return the names of folders that were not
    removed because a kernel could not be shut down, for example because a Jupyter
    server requires a token from a caller's environment.
    """
    remaining = []
    for name in names:
        folder = os.path.join(paths.verify, name)
        try:
            await _shut_down_kernels(paths, folder, get_environ)
        except (StepperError, OSError) as error:
            log.warning("the kernel of a replay could not be shut down: %s", error)
            remaining.append(name)
        else:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return remaining


async def _shut_down_kernels(
    paths: Paths, folder: str, get_environ: Callable[[], Mapping[str, str]]
) -> None:
    """Shut down the kernels with a kernel record in a folder.

    Raise StepperError or OSError if a kernel can't be shut down.
    """
    for name in secure_files.list_names(folder):
        record = os.path.join(folder, name, RECORD)
        if not os.path.exists(record):
            continue
        launcher = NotebookLauncher(record, paths.runtime, {}, get_environ)
        kernel = await launcher.attach()
        if kernel is not None and not isinstance(kernel, Death):
            await kernel.shutdown()
        await launcher.cancel_request()
