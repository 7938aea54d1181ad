"""Values that a partial replay takes from the live kernel.

The live kernel pickles the values in a scratch execution. `partial_replays` selects
only names whose values have not changed since their cell ran.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepper.common.errors import StepperError, UsageError
from stepper.common.text import one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, Outcome
from stepper.session.caller import Caller
from stepper.session.protocols import Kernel
from stepper.session.session import Session
from stepper.session.verification import checkpoint_code

MAX_BYTES = 2 << 30  # of the values of one cell
# The code runs in a namespace of its own, so that it binds no names of the user.
PROGRAM = (
    "exec(compile({source!r}, '<stepper checkpoint>', 'exec'),"
    " {{'__name__': 'stepper_checkpoint', 'namespace': globals()}})"
)
MARK = "stepper checkpoint: "  # begins the printed line with the problems


@dataclass(frozen=True)
class Checkpoint:
    """The values of names after a cell, in a file."""

    names: Sequence[str]
    path: str


async def get_live_kernel(session: Session) -> Kernel:
    """Return the running kernel of a notebook.

    Raise UsageError if no kernel is running, or if it runs on another machine.
    """
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None or await kernel.check_death() is not None:
        raise UsageError(
            f"--checkpoint: {session.name} has no live kernel",
            CommandLines(session.name).shell("run"),
        )
    if session.kernel_manager.is_remote:
        raise UsageError("--checkpoint needs a live kernel on this machine")
    return kernel


async def save_values(
    session: Session, names_by_path: Mapping[str, Sequence[str]], caller: Caller
) -> dict[str, str]:
    """Save values of the live kernel to files.

    `names_by_path` contains the names whose values each file gets. Return an error
    message for each file that could not be saved, by path. Raise StepperError if the
    code that saves the values fails.
    """
    source = inspect.getsource(checkpoint_code)
    groups = {path: [*names] for path, names in names_by_path.items()}
    source += (
        f"\nimport json\nproblems = {{path: save(namespace, names, path, {MAX_BYTES})"
        f" for path, names in {groups!r}.items()}}\n"
        f"print({MARK!r} + json.dumps(problems))\n"
    )
    async with session.take_turn(caller=caller):
        kernel = await get_live_kernel(session)
        execution = await _execute(session, kernel, source, caller)
    for output in execution.outputs:
        _, mark, text = str(output.get("text", "")).rpartition(MARK)
        if mark:
            problems: dict[str, str] = json.loads(text.partition("\n")[0])
            return {path: problem for path, problem in problems.items() if problem}
    reason = _describe_failure(execution)
    raise StepperError(f"--checkpoint: the values could not be saved ({reason})")


async def load_values(
    fresh: Session, cell: Cell, checkpoint: Checkpoint, caller: Caller
) -> None:
    """Load the values of a checkpoint in the kernel of a replay.

    `cell` is the cell that computed the values. Raise StepperError if the values cannot
    be loaded.
    """
    kernel = await fresh.kernel_manager.get_or_start_kernel(
        caller.environ, caller.disconnected
    )
    source = inspect.getsource(checkpoint_code)
    source += f"\nload(namespace, {os.path.abspath(checkpoint.path)!r})\n"
    execution = await _execute(fresh, kernel, source, caller)
    if execution.outcome is not Outcome.OK:
        names = ", ".join(f"`{name}`" for name in checkpoint.names)
        verify = CommandLines(fresh.name).shell("verify")
        raise StepperError(
            f"the results of cell {cell.number} ({one_line(names, 300)}) could not be"
            f" loaded ({_describe_failure(execution)})",
            f"{verify}  # without --checkpoint",
        )


async def _execute(
    session: Session, kernel: Kernel, source: str, caller: Caller
) -> Execution:
    """Execute code in its own namespace, as a scratch execution."""
    limits = session.limits()
    code = PROGRAM.format(source=source)
    return await session.execute(
        kernel, code, caller, limits.verify_timeout, limits, scratch=True
    )


def _describe_failure(execution: Execution) -> str:
    """Return the error of an execution on one line, or the outcome without an error."""
    if execution.fault is not None:
        error = f"{execution.fault.ename}: {execution.fault.evalue}"
        return one_line(error, 300)
    return f"outcome: {execution.outcome}"
