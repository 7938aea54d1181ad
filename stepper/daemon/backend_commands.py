"""Handlers of the commands on kernel backends: `stepper kernels`, `use --kernel`.

This module is imported when the first of these commands arrives. Only backends that the
user accepted with `stepper trust` are contacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from stepper.common.errors import KernelError, UsageError
from stepper.common.paths import Paths
from stepper.daemon.launch_config import format_unknown_backend
from stepper.daemon.request import Request, report_progress
from stepper.kernels import backend_registry
from stepper.policy.configuration import kernel_config
from stepper.policy.model import KernelMetadata, Limits
from stepper.session import notebook_commands, responses
from stepper.session.session import Session

QUEUE_POLL_SECONDS = 0.3  # the polling interval while another request starts the kernel
CHECK_SECONDS = 10.0  # the timeout for the check of a backend
NOT_ACCEPTED = "you have not accepted this backend, so stepper did not contact it"


async def get_metadata(request: Request, name: str) -> KernelMetadata:
    """Return the notebook metadata for kernels of the backend `name`.

    Raise UsageError if the backend is not configured. Raise KernelError if the backend
    must be contacted, but was not accepted or can't be reached.
    """
    workspace = request.workspace
    limits = workspace.config.load_limits()
    if name != kernel_config.LOCAL and name not in limits.kernels:
        raise UsageError(
            format_unknown_backend(name, limits),
            "stepper kernels  # lists the backends",
        )
    backend = limits.kernels.get(name)
    description = None
    if backend is not None:
        description = backend.description
    if description and not description.is_local and not description.is_python:
        # The backend is contacted, so it must be accepted.
        workspace.get_launch_config(
            workspace.paths.project, request.caller.environ, name
        )
    python = workspace.paths.find_trusted_python(limits.python)
    return await backend_registry.get_metadata(backend, request.caller.environ, python)


async def use_backend(
    request: Request, session: Session, name: str
) -> responses.CurrentNotebookResponse:
    """Select the backend `name` for the notebook's next kernel.

    If the notebook has a kernel on another backend, the response contains the name of
    that backend.
    """
    metadata = await get_metadata(request, name)
    default = request.workspace.config.load_limits().kernel
    former_backend = session.state.plan.kernel or default
    # An empty name selects the default, even if the configuration changes later.
    plan_kernel = "" if name == default else name
    notebook_commands.use_kernel(session, plan_kernel, metadata)
    kernel = await session.kernel_manager.find_or_attach()
    is_alive = kernel is not None and await kernel.check_death() is None
    has_kernel = bool(session.kernel_manager.queue_status) or is_alive
    # The configuration may have given the backend another name since the kernel
    # started.
    current_backend = session.kernel_manager.backend_name or former_backend
    other_backend = None
    if has_kernel and current_backend != name:
        other_backend = current_backend
    return responses.CurrentNotebookResponse(
        session.name, name, elsewhere=other_backend
    )


async def wait_for_kernel(
    request: Request, session: Session
) -> responses.KernelWaitResponse:
    """Wait until the kernel of a notebook has started, and return its status.

    Start the kernel unless another request is starting it. Raise StepperError if the
    kernel can't be started.
    """
    manager = session.kernel_manager
    async with report_progress(request, session):
        # If another request is starting the kernel for a cell, wait only for the
        # kernel, not for the cell.
        while (
            manager.kernel is None
            and session.requests.is_locked
            and not request.caller.disconnected.is_set()
        ):
            await asyncio.sleep(QUEUE_POLL_SECONDS)
        if manager.kernel is None:
            async with session.take_turn(caller=request.caller):
                # Raises an error if the notebook's language is not supported.
                session.read()
                await manager.get_or_start_kernel(
                    request.caller.environ, request.caller.disconnected
                )
    return responses.KernelWaitResponse(session.name, await manager.get_status())


async def list_backends(request: Request) -> list[responses.KernelBackendEntry]:
    """Return all kernel backends, `local` first.

    Backends that the user accepted are contacted, to check whether they are reachable.
    """
    workspace = request.workspace
    environ = request.caller.environ
    limits = workspace.config.load_limits()
    python = workspace.paths.find_python(limits.python)
    is_reachable = True
    problem = ""
    hint = ""
    try:
        workspace.get_launch_config(
            workspace.paths.project, environ, kernel_config.LOCAL
        )
    except KernelError as error:
        is_reachable = False
        problem = error.message
        hint = error.hint
    local = responses.KernelBackendEntry(
        name=kernel_config.LOCAL,
        kind="local",
        about=python,
        usual=limits.kernel == kernel_config.LOCAL,
        accepted=workspace.paths.trusts_python(python),
        reachable=is_reachable,
        why=problem,
        mend=hint,
    )
    return [local, *await check_backends(workspace.paths, limits, environ)]


async def check_backends(
    paths: Paths, limits: Limits, environ: Mapping[str, str]
) -> list[responses.KernelBackendEntry]:
    """Return an entry for each configured kernel backend.

    Backends that the user accepted are contacted, all at the same time.
    """
    checks = (
        _check_backend(paths, limits, backend, environ)
        for backend in limits.kernels.values()
    )
    return await asyncio.gather(*checks)


async def _check_backend(
    paths: Paths,
    limits: Limits,
    backend: kernel_config.BackendConfig,
    environ: Mapping[str, str],
) -> responses.KernelBackendEntry:
    """Return the entry of a kernel backend.

    The backend is contacted only if the user accepted it, for at most CHECK_SECONDS.
    """
    entry = responses.KernelBackendEntry(
        name=backend.name,
        kind=backend.kind,
        about=backend.description.text,
        usual=backend.name == limits.kernel,
        accepted=paths.trusts_backend(backend.definition),
    )
    if not entry.accepted:
        return replace(entry, why=NOT_ACCEPTED, mend="stepper trust")
    python = paths.find_trusted_python(limits.python)
    check = backend_registry.check_backend(backend, environ, python)
    try:
        result = await asyncio.wait_for(check, CHECK_SECONDS)
    except KernelError as error:
        return replace(entry, reachable=False, why=error.message, mend=error.hint)
    except asyncio.TimeoutError:
        problem = f"{backend.name} did not respond within {CHECK_SECONDS:g} s"
        return replace(entry, reachable=False, why=problem)
    is_reachable = None if result.uncertainty else True
    return replace(
        entry,
        reachable=is_reachable,
        why=result.uncertainty,
        offers=result.offers,
        unchecked=result.unchecked,
    )
