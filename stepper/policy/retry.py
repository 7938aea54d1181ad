"""Attempts + verdict + limits → go on, let the agent fix it, run it again after n seconds, or stop. A table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stepper.policy.model import Limits, Verdict


class Act(Enum):
    """What follows a run."""

    GO_ON = "go on"
    FIX = "the agent fixes the cell"
    AGAIN = "stepper runs the cell again"
    STOP = "stop and tell the person"


@dataclass(frozen=True)
class Decision:
    """What follows a run; `wait` in seconds where it runs again."""

    act: Act
    wait: float = 0.0


def decide(verdict: Verdict, attempts: int, repeats: int, limits: Limits) -> Decision:
    """Return what follows a run.

    `attempts` are the retries the agent has made for the step, this run included; `repeats` how often stepper itself
    has run this cell again because of a transient error.
    """
    if verdict in (Verdict.FINE, Verdict.CANCELLED):
        return Decision(Act.GO_ON)
    if verdict is Verdict.TRANSIENT and repeats < limits.network_retries:
        return Decision(Act.AGAIN, 2.0**repeats)
    if verdict is Verdict.RECOVERABLE and attempts < limits.max_retries:
        return Decision(Act.FIX)
    return Decision(Act.STOP)
