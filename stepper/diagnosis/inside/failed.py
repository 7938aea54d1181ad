"""All that is told of a cell that failed. It is loaded when the first one does: most cells never need it."""

from __future__ import annotations

from stepper.diagnosis.inside.changed import changes
from stepper.diagnosis.inside.fault import fault
from stepper.diagnosis.inside.look import look
from stepper.kernel.inside.base import guarded


def facts(error):
    return {"fault": guarded(fault, error), "look": guarded(look, error) or {}, "changed": guarded(changes, error)}
