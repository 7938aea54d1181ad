"""The places where kernels may run: what `stepper kernels` lists, which a notebook takes. Loaded with the first ask."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stepper.common.errors import KernelError, UsageError
from stepper.common.paths import Paths
from stepper.common.text import one_line
from stepper.daemon.request import Request, report_progress
from stepper.kernels import backend_registry
from stepper.policy import kernel_config
from stepper.policy.model import Limits
from stepper.session import responses, user_commands
from stepper.session.protocols import KernelMetadata
from stepper.session.session import Session

WAIT_SECONDS = 0.3  # between two looks at a queue that another request waits in
LOOK_SECONDS = 10.0  # at a place, whatever lies between
ASK = "it was not accepted by you: nothing was asked of it"


async def metadata(request: Request, name: str) -> KernelMetadata:
    """Return what a notebook says of its kernel that is to run in that place; raise UsageError, KernelError."""
    limits = request.workspace.config.limits()
    if name != kernel_config.LOCAL and name not in limits.kernels:
        known = ", ".join([*limits.kernels, kernel_config.LOCAL])
        why = f"there is no kernel {one_line(name, 100)!r} in `kernels:` of .stepper/config.yaml ({known})"
        raise UsageError(why, "stepper kernels  # shows them")
    place, workspace = limits.kernels.get(name), request.workspace
    # its server is asked
    if place is not None and not place.is_local and not place.is_python:
        workspace.place(workspace.paths.project, request.caller.environ, name)
    return await backend_registry.metadata(
        place,
        request.caller.environ,
        workspace.paths.find_trusted_python(limits.python),
    )


async def use(
    request: Request, session: Session, name: str
) -> responses.CurrentNotebookResponse:
    """Have a notebook's kernel run in another place from the next one on; return that it does."""
    found, usual = (
        await metadata(request, name),
        request.workspace.config.limits().kernel,
    )
    had = session.state.plan.kernel or usual
    user_commands.use_kernel(session, "" if name == usual else name, found)
    kernel = await session.kernel_manager.find()
    lives = session.kernel_manager.queue_status or (
        kernel is not None and await kernel.check_death() is None
    )
    had = (
        session.kernel_manager.backend_name or had
    )  # it may have been named otherwise since
    return responses.CurrentNotebookResponse(
        session.name, name, elsewhere=had if lives and had != name else None
    )


async def wait(request: Request, session: Session) -> responses.KernelWaitResponse:
    """Wait until a notebook's kernel is there, started where none is and nobody else starts one. Raise StepperError."""
    async with report_progress(request, session):
        while (
            session.kernel_manager.kernel is None
            and session.lock.locked()
            and not request.caller.disconnected.is_set()
        ):
            # it comes for a cell, whose end is not waited for
            await asyncio.sleep(WAIT_SECONDS)
        if session.kernel_manager.kernel is None:
            async with session.turn(caller=request.caller):
                session.read()  # none is begun for another language's notebook
                await session.kernel_manager.get_kernel(
                    request.caller.environ, request.caller.disconnected
                )
    return responses.KernelWaitResponse(
        session.name, await session.kernel_manager.get_status()
    )


async def listed(request: Request) -> list[responses.KernelBackendEntry]:
    """Return the places, the project's interpreter first; those that were accepted are looked at."""
    limits, workspace = request.workspace.config.limits(), request.workspace
    python = workspace.paths.find_python(limits.python)
    told = (
        kernel_config.LOCAL,
        "local",
        python,
        limits.kernel == kernel_config.LOCAL,
        workspace.paths.trusts_python(python),
    )
    try:
        workspace.place(
            workspace.paths.project, request.caller.environ, kernel_config.LOCAL
        )
        local = responses.KernelBackendEntry(*told, True)
    except KernelError as error:
        local = responses.KernelBackendEntry(
            *told, False, error.message, mend=error.hint
        )
    return [local, *await named(workspace.paths, limits, request.caller.environ)]


async def named(
    paths: Paths, limits: Limits, environ: Mapping[str, str]
) -> list[responses.KernelBackendEntry]:
    """Return the places that the configuration names, all looked at at once: those that were accepted, no other."""
    return await asyncio.gather(
        *(_look(paths, limits, place, environ) for place in limits.kernels.values())
    )


async def _look(
    paths: Paths,
    limits: Limits,
    place: kernel_config.BackendConfig,
    environ: Mapping[str, str],
) -> responses.KernelBackendEntry:
    accepted = paths.trusts_backend(place.definition)
    told = (
        place.name,
        place.kind,
        kernel_config.describe_backend(place),
        place.name == limits.kernel,
        accepted,
    )
    if not accepted:
        return responses.KernelBackendEntry(*told, None, ASK, mend="stepper trust")
    python = paths.find_trusted_python(limits.python)
    try:
        found = await asyncio.wait_for(
            backend_registry.look(place, environ, python), LOOK_SECONDS
        )
    except KernelError as error:
        return responses.KernelBackendEntry(
            *told, False, error.message, mend=error.hint
        )
    except asyncio.TimeoutError:
        return responses.KernelBackendEntry(
            *told, False, f"{place.name} did not answer within {LOOK_SECONDS:g} s"
        )
    doubt = backend_registry.doubt(place)
    return responses.KernelBackendEntry(
        *told,
        None if doubt else True,
        doubt,
        found,
        unchecked=backend_registry.unchecked(place),
    )
