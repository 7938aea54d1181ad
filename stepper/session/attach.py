"""Those beside stepper on a notebook's kernel: how one attaches to it."""

from __future__ import annotations

import os
import shlex

from stepper.common.errors import KernelUnreachableError, StepperError
from stepper.common.text import one_line
from stepper.messages import attached_clients
from stepper.messages.quoted_output import format_location
from stepper.policy.commands.command_lines import CommandLines
from stepper.session.responses import Attached
from stepper.session.session import Session


async def attach(session: Session) -> Attached:
    """Return what attaches to the living kernel; raise StepperError where there is none."""
    kernel = await session.keeper.find()
    if kernel is None or await kernel.death() is not None:
        why = (
            f"{session.keeper.queued.text}: it is not there yet"
            if session.keeper.queued
            else "it has no kernel now"
        )
        mend = f"{CommandLines(session.name).shell('kernels wait')}  # starts one, or waits for it"
        raise StepperError(f"nothing attaches to {one_line(session.name)}: {why}", mend)
    if kernel.away:
        raise KernelUnreachableError(kernel.away)
    about = kernel.about()
    where = (
        format_location(about.where, about.left, about.trouble) or f"pid {about.pid}"
    )
    file = kernel.connection_file()
    if not file:
        text = attached_clients.format_attach_by_url(
            session.name, where, kernel.id, about.url
        )
        return Attached(
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
    return Attached(
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
