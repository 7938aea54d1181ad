"""What the end of a run means: outcome, exception, death and memory → fault and verdict."""

from __future__ import annotations

from dataclasses import replace

from stepper.core import classify
from stepper.core.changes import RAISES_TAG
from stepper.core.model import Fault, Outcome, Verdict

KEPT = "the kernel's state is kept"
LOST = "all variables are lost"


def judge(
    outcome: Outcome, fault: Fault | None, tags: tuple[str, ...], death: str = "", stderr: str = "", memory: str = ""
) -> tuple[Fault | None, Verdict]:
    """Return the fault, with classes of its own for what is no exception, and what follows.

    `death` tells how the kernel ended ('' while it lives), `stderr` what it wrote last, `memory` what the guard saw.
    """
    if outcome is Outcome.MEMORY:
        return Fault("MemoryLimit", f"{memory}; {LOST if death else KEPT}", ("MemoryLimit",)), Verdict.UNRECOVERABLE
    if death and outcome is not Outcome.CANCELLED:
        said = f"kernel died ({death}): {LOST}" + (f"\n{stderr}" if stderr else "")
        classes = ("KernelDied", "SystemExit") if "exit()" in death else ("KernelDied",)
        return Fault("KernelDied", said, classes), Verdict.UNRECOVERABLE
    if outcome is Outcome.TIMEOUT:
        fault = replace(fault or Fault("", ""), ename="Timeout", evalue=KEPT, mro=("Timeout",))
    if outcome is Outcome.ERROR and RAISES_TAG in tags:
        return fault, Verdict.FINE
    return fault, classify.of_run(outcome, fault)
