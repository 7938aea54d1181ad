"""`stepper verify`: where a replay has its copy of the notebook, its kernels' records, its folder. Loaded when asked.

Each replay has a folder of its own below `.stepper/verify/`. What a daemon that was killed left there, the next one
ends and removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepper.common import secure_files
from stepper.common.errors import KernelError, StepperError, UsageError
from stepper.common.paths import Paths
from stepper.common.project_walk import scan_folder
from stepper.common.text import one_line
from stepper.daemon import kernels_commands as places
from stepper.daemon.replay_file_changes import FolderSnapshot
from stepper.daemon.request import Request, report_progress
from stepper.kernels import backend_registry
from stepper.kernels.outputs import image_diff
from stepper.policy import journal_events
from stepper.policy.commands import cli_commands
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.verify_results import VerifyResult
from stepper.policy.configuration import kernel_config
from stepper.policy.model import Death, Limits
from stepper.session import notebook_commands, progress_events
from stepper.session.clients import Caller
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import KernelMetadata, LaunchConfig
from stepper.session.session import Session
from stepper.session.verification.verify import ReplayOptions, verify

if TYPE_CHECKING:
    from stepper.daemon.workspace.project_notebooks import Workspace
    from stepper.policy.configuration.kernel_config import BackendConfig

RECORD, COPY = "kernel.json", "notebook.ipynb"
SCRATCH_BYTES = 1 << 30  # of a folder that is copied
# what a recording says of which the limit left something out
CUT = b"left out by stepper (max_output_bytes)"
SEED = "PYTHONHASHSEED"
numbers = itertools.count(1)
log = logging.getLogger("stepper")


@dataclass(frozen=True)
class Room:
    """What the replays of one request have: their folder, where their kernels run, which kernel was asked for."""

    folder: str
    place: LaunchConfig
    cwd: str
    limits: Limits
    kernel: str = ""
    metadata: KernelMetadata | None = None


async def asked(
    request: Request, session: Session, told: cli_commands.Verify
) -> VerifyResult:
    """Replay a notebook and return what came of it, one replay of the project at a time; raise StepperError."""
    workspace, caller = request.workspace, request.caller
    path = workspace.resolve(os.path.join(workspace.paths.project, session.name))
    # a kernel that is named may run any language
    read = session.file.read if told.kernel else session.read
    # what is no notebook, or of another language, is said before anything is made or
    # waited for
    read()
    name = told.kernel or session.state.plan.kernel
    limits = workspace.config.limits()
    _own_kernel(limits.kernels.get(name or limits.kernel), told, session.name)
    metadata = await places.get_metadata(request, told.kernel) if told.kernel else None
    place = replace(
        workspace.get_launch_config(path, caller.environ, name), exits_with_daemon=True
    )
    workspace.replays.add(caller.disconnected)
    try:
        async with _turn(workspace, request):
            folder = os.path.join(
                workspace.paths.verify, f"{os.getpid()}-{next(numbers)}"
            )
            try:
                document = read()
                cwd = await asyncio.to_thread(
                    _prepared, workspace.paths, path, folder, place.cwd, told.scratch
                )
                room = Room(
                    folder,
                    place,
                    cwd,
                    _limits(limits, path),
                    told.kernel or "",
                    metadata,
                )
                written = await asyncio.to_thread(FolderSnapshot, cwd, path)
                way = _way(request, session, room, told)
                if place.backend is not None and not place.backend.is_local:
                    where = (
                        f"{one_line(place.backend.name, 100)}"
                        f" ({kernel_config.describe_backend(place.backend)})"
                    )
                    request.progress(
                        progress_events.Waiting(
                            line=f"the replay has a kernel of its own in {where}"
                        )
                    )
                return await verify(
                    session,
                    document,
                    way,
                    caller,
                    request.progress,
                    written.list_changes,
                )
            except OSError as error:
                why = f"{session.name} can't be replayed: {error.strerror}"
                raise StepperError(
                    why, getattr(error, "hint", "") or "df -h .stepper"
                ) from error
            finally:
                await clear(
                    workspace.paths, [os.path.basename(folder)], lambda: caller.environ
                )
    finally:
        workspace.replays.discard(caller.disconnected)


async def unasked(workspace: Workspace, session: Session) -> None:
    """Replay a notebook that has become complete; what came of it is told with the next prompt."""
    request = Request(
        workspace,
        Caller(workspace.environ),
        workspace.paths.project,
        lambda told: None,
        {},
    )
    try:
        told = (await asked(request, session, cli_commands.Verify())).text
    except StepperError as error:
        told = f"{one_line(session.name)} could not be verified: {error.message}"
    if not request.caller.disconnected.is_set():  # the daemon ends
        session.log(
            journal_events.Undelivered(at=format_now(), text=f"stepper: {told}")
        )
        workspace.update_markers()


def _own_kernel(at: BackendConfig | None, told: cli_commands.Verify, name: str) -> None:
    """Raise StepperError where no kernel of a replay's own can be had in a place, or not as it is asked for."""
    if (
        at is not None
        and isinstance(at.settings, kernel_config.JupyterSettings)
        and at.settings.kernel_id
    ):
        why = (
            f"`kernels.{at.name}` is one kernel that is there: a replay needs one of"
            " its own"
        )
        verify = CommandLines(name).shell("verify --kernel NAME")
        raise KernelError(why, f"{verify}  # `stepper kernels` lists the names")
    if told.scratch and at is not None and not at.is_local:
        raise UsageError(
            "--scratch copies the notebook's folder on this machine, and its kernel is"
            " elsewhere"
        )


@contextlib.asynccontextmanager
async def _turn(workspace: Workspace, request: Request) -> AsyncIterator[None]:
    """Wait for the replay that is under way: both would write the same files. Raise StepperError."""
    if workspace.replay_lock.locked():
        request.progress(
            progress_events.Waiting(line="waiting for another replay of this project")
        )
    waits = [
        asyncio.create_task(each)
        for each in (
            workspace.replay_lock.acquire(),
            request.caller.disconnected.wait(),
        )
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    mine = waits[0].done()
    for each in waits:
        each.cancel()
    if not mine:
        raise StepperError(
            "interrupted while it waited for another replay: nothing ran"
        )
    try:
        yield
    finally:
        workspace.replay_lock.release()


def _way(
    request: Request, session: Session, room: Room, told: cli_commands.Verify
) -> ReplayOptions:
    given = room.place.environ.get(SEED, "")
    at = room.place.backend
    where = [f"in {at.name}"] if at else []
    where += ["in a copy of its folder"] if told.scratch else []

    @contextlib.asynccontextmanager
    async def fresh(seed: int) -> AsyncIterator[Session]:
        """Give a session on a copy of the notebook, whose kernel has that hash seed."""
        folder = os.path.join(room.folder, str(seed))
        secure_files.make_folder(folder)
        copy = os.path.join(folder, COPY)
        await asyncio.to_thread(shutil.copyfile, os.path.join(room.folder, COPY), copy)
        place = replace(
            room.place, cwd=room.cwd, environ={**room.place.environ, SEED: str(seed)}
        )
        made = request.workspace.replay(
            session.name, copy, os.path.join(folder, RECORD), place, room.limits
        )
        if room.metadata is not None:
            notebook_commands.use_kernel(made, room.kernel, room.metadata)
        async with report_progress(request, made):
            yield made

    return ReplayOptions(
        fresh,
        image_diff.compare_pixels,
        told.once,
        ", ".join(where),
        int(given) if given.isdecimal() else 0,
    )


def _prepared(paths: Paths, path: str, folder: str, cwd: str, scratch: bool) -> str:
    """Copy the notebook, and with `scratch` its folder; return where the kernels run. Raise OSError, UsageError."""
    secure_files.make_folder(folder)
    shutil.copyfile(path, os.path.join(folder, COPY))
    return _scratch(paths, path, folder, cwd) if scratch else cwd


def _scratch(paths: Paths, path: str, folder: str, cwd: str) -> str:
    """Copy the folder in which the kernels would run; what lies beside it and above it is there by links."""
    size = sum(_sizes(cwd))
    if size > SCRATCH_BYTES:
        why = (
            f"{paths.relpath(cwd)} holds more than {SCRATCH_BYTES / 1e9:.1f} GB, the"
            " most that --scratch copies"
        )
        verify = CommandLines(paths.relpath(path)).shell("verify")
        raise UsageError(
            why,
            f"{verify}  # without --scratch; the result lists the files that change",
        )
    here, there = paths.project, os.path.join(folder, "scratch")
    os.mkdir(there)
    parts = [part for part in paths.relpath(cwd).split(os.sep) if part != "."]
    for part in parts:
        for entry in scan_folder(here):
            if entry.name not in (part, os.path.basename(paths.home)):
                os.symlink(entry.path, os.path.join(there, entry.name))
        here, there = os.path.join(here, part), os.path.join(there, part)
    shutil.copytree(here, there, symlinks=True, ignore=_besides, dirs_exist_ok=True)
    return there


def _besides(folder: str, names: list[str]) -> Iterable[str]:
    """Return what is left out of a copy: stepper's own and git's, environments."""
    return [
        name
        for name in names
        if name in (".stepper", ".git") or _is_environment(os.path.join(folder, name))
    ]


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _sizes(folder: str) -> Iterable[int]:
    """Give the sizes of what would be copied, no more than it takes to be too much."""
    total = 0
    for root, folders, names in os.walk(folder):
        left_out = {*_besides(root, folders)}
        folders[:] = [name for name in folders if name not in left_out]
        for name in names:
            with contextlib.suppress(OSError):
                total += (size := os.lstat(os.path.join(root, name)).st_size)
                yield size
        if total > SCRATCH_BYTES:
            return


def _limits(limits: Limits, path: str) -> Limits:
    """Return the limits of a replay: what was recorded whole, without stepper, is to come whole."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= limits.max_output_bytes or CUT in stream.read():
            return limits
    return replace(limits, max_output_bytes=2 * size)


async def clear(
    paths: Paths, left: Iterable[str], environ: Callable[[], Mapping[str, str]]
) -> list[str]:
    """End the kernels that replays left and remove their folders; return those whose kernels can't be ended now.

    A server's may want a token, which comes with whoever asks.
    """
    stay = list[str]()
    for name in left:
        folder = os.path.join(paths.verify, name)
        records = [
            os.path.join(folder, each, RECORD)
            for each in secure_files.list_names(folder)
        ]
        try:
            for record in filter(os.path.exists, records):
                provider = backend_registry.BackendLauncher(
                    record, paths.runtime, {}, environ
                )
                kernel = await provider.attach()
                if kernel is not None and not isinstance(kernel, Death):
                    await kernel.shutdown()
                await provider.cancel_request()
        except (StepperError, OSError) as error:
            log.warning("a replay's kernel could not be ended: %s", error)
            stay.append(name)
        else:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return stay
