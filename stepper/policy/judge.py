"""A run that begins, and what its end means: outcome, exception, death and memory → fault and verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from stepper.policy import classify
from stepper.policy.changes import RAISES_TAG, source_hash
from stepper.policy.events import Started
from stepper.policy.model import Cell, Death, Fault, Key, Outcome, Run, Verdict

KEPT = "the kernel's state is kept"
LOST = "all variables are lost"


def judge(
    outcome: Outcome,
    fault: Fault | None,
    tags: tuple[str, ...],
    death: Death | None = None,
    memory: str = "",
    built: str = "",
) -> tuple[Fault | None, Verdict]:
    """Return the fault, with classes of its own for what is no exception, and what follows.

    `memory` tells what the guard saw, `built` what had built the variables that are lost where the kernel died.
    """
    lost = f"kernel died ({death.how}): {LOST}" + (f"; {built}" if built else "") if death else ""
    if outcome is Outcome.MEMORY:
        return Fault("MemoryLimit", f"{memory}; {lost if death else KEPT}", ("MemoryLimit",)), Verdict.UNRECOVERABLE
    if death and outcome is not Outcome.CANCELLED:
        said = lost + (f"\n{death.stderr}" if death.stderr else "")
        classes = ("KernelDied", death.cause) if death.cause else ("KernelDied",)
        frames, line = (fault.frames, fault.line) if fault else ((), None)
        return Fault("KernelDied", said, classes, line, frames), Verdict.UNRECOVERABLE
    if outcome is Outcome.TIMEOUT:
        fault = replace(fault or Fault("", ""), ename="Timeout", evalue=KEPT, mro=("Timeout",))
    if outcome is Outcome.ERROR and RAISES_TAG in tags:
        return fault, Verdict.FINE
    return fault, classify.of_run(outcome, fault)


@dataclass(frozen=True)
class Begun:
    """A run that begins: its number, what it counts for, when (UTC, and on the monotonic clock)."""

    number: int
    key: Key
    at: str
    clock: float
    tool_use_id: str | None
    repeat: int
    request: str = ""  # by which the kernel knows it
    timeout: float = 0.0  # seconds

    @property
    def wall_ns(self) -> int:
        """When it began, in nanoseconds of the clock that files are stamped by."""
        return int(datetime.fromisoformat(self.at.replace("Z", "+00:00")).timestamp() * 1e9)

    def event(self, cell: Cell, kernel: str) -> Started:
        """Return what the journal tells of it."""
        return Started(
            run=self.number,
            key=self.key,
            at=self.at,
            tool_use_id=self.tool_use_id,
            request=self.request,
            timeout=self.timeout,
            cell_id=cell.id,
            number=cell.number,
            index=cell.index,
            source=cell.source,
            tags=cell.tags,
            kernel=kernel,
        )

    def run(
        self, cell: Cell, outcome: Outcome, fault: Fault | None, verdict: Verdict, kernel: str, clock: float
    ) -> Run:
        """Return the run that it became."""
        return Run(
            run=self.number,
            cell_id=cell.id,
            number=cell.number,
            index=cell.index,
            step=self.key if isinstance(self.key, int) else None,
            source_hash=source_hash(cell.source),
            started_at=self.at,
            duration_s=round(clock - self.clock, 4),
            outcome=outcome,
            verdict=verdict,
            fault=fault,
            kernel=kernel,
            tool_use_id=self.tool_use_id,
            key=self.key,
        )
