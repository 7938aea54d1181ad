"""All that is told of a cell that failed. It is loaded when the first one does: most cells never need it."""

from __future__ import annotations

from .base import guarded
from .changed import changes
from .fault import fault
from .look import look


def facts(error):
    return {"fault": guarded(fault, error), "look": guarded(look, error) or {}, "changed": guarded(changes, error)}
