"""Connection details of a kernel, for other Jupyter clients that attach to it."""

from __future__ import annotations

import os
import shlex

from stepper.common.errors import KernelUnreachableError, StepperError
from stepper.common.text import one_line
from stepper.messages import attached_clients
from stepper.messages.quoted_output import format_location
from stepper.policy.commands.command_lines import CommandLines
from stepper.session.responses import AttachResponse
from stepper.session.session import Session


async def get_connection_details(session: Session) -> AttachResponse:
    """Return the details that clients need to attach to a notebook's running kernel.

    Raise StepperError if the notebook has no running kernel, or if the kernel cannot be
    reached.
    """
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None or await kernel.check_death() is not None:
        raise _create_no_kernel_error(session)
    if kernel.unreachable_reason:
        raise KernelUnreachableError(kernel.unreachable_reason)
    description = kernel.describe()
    location = format_location(
        description.location, description.walltime_left, description.problem
    )
    location = location or f"pid {description.pid}"
    connection_file = kernel.ensure_connection_file()
    console = None
    settings = []
    url = None
    if connection_file:
        console = f"jupyter console --existing {shlex.quote(connection_file)}"
        folder = shlex.quote(os.path.dirname(connection_file))
        settings = [
            "--ServerApp.allow_external_kernels=True",
            f"--ServerApp.external_connection_dir={folder}",
        ]
        text = attached_clients.format_attach(session.name, location, console, settings)
    else:
        url = description.url or None
        text = attached_clients.format_attach_by_url(
            session.name, location, kernel.id, description.url
        )
    return AttachResponse(
        notebook=session.name,
        kernel=kernel.id,
        where=location,
        file=connection_file or None,
        console=console,
        settings=settings,
        url=url,
        python=description.python,
        text=text,
    )


def _create_no_kernel_error(session: Session) -> StepperError:
    """Return the error for a notebook without a running kernel."""
    queue_status = session.kernel_manager.queue_status
    reason = "the notebook has no running kernel"
    if queue_status:
        reason = f"its kernel has not started yet ({queue_status.text})"
    command = CommandLines(session.name).shell("kernels wait")
    return StepperError(
        f"cannot attach to {one_line(session.name)}: {reason}",
        f"{command}  # starts the kernel, or waits for it",
    )
