"""How other Jupyter clients attach to a notebook's kernel."""

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


async def attach(session: Session) -> AttachResponse:
    """Return how to attach to the running kernel of a notebook.

    Raise StepperError if the notebook has no running kernel.
    """
    kernel = await session.kernel_manager.find()
    if kernel is None or await kernel.check_death() is not None:
        why = (
            f"{session.kernel_manager.queue_status.text}: it is not there yet"
            if session.kernel_manager.queue_status
            else "it has no kernel now"
        )
        hint = f"{CommandLines(session.name).shell('kernels wait')}  # starts one, or waits for it"
        raise StepperError(f"nothing attaches to {one_line(session.name)}: {why}", hint)
    if kernel.unreachable_reason:
        raise KernelUnreachableError(kernel.unreachable_reason)
    about = kernel.describe()
    where = (
        format_location(about.location, about.walltime_left, about.problem)
        or f"pid {about.pid}"
    )
    file = kernel.get_connection_file()
    if not file:
        text = attached_clients.format_attach_by_url(
            session.name, where, kernel.id, about.url
        )
        return AttachResponse(
            session.name,
            kernel.id,
            where,
            None,
            None,
            [],
            about.url or None,
            about.python,
            text,
        )
    console = f"jupyter console --existing {shlex.quote(file)}"
    folder = shlex.quote(os.path.dirname(file))
    settings = [
        "--ServerApp.allow_external_kernels=True",
        f"--ServerApp.external_connection_dir={folder}",
    ]
    text = attached_clients.format_attach(session.name, where, console, settings)
    return AttachResponse(
        session.name,
        kernel.id,
        where,
        file,
        console,
        settings,
        None,
        about.python,
        text,
    )
