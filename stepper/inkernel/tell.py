"""The helper's one private message for each run, published within the execution, and what must be done before a run.

Within the execution (IPython's `post_run_cell`), because `user_expressions` come back empty when a cell raised and
every further round trip costs 3 to 4 ms.
"""

from __future__ import annotations

import collections
import faulthandler
import signal
import sys
import types

from . import doubts, figures
from .base import clock, guarded, is_error, shell
from .cells import now, remember
from .changed import changes, keep
from .fault import fault
from .look import look
from .namespace import namespace

SECONDS = 1.0
recent = collections.deque(maxlen=64)


def parent():
    kernel = shell.kernel
    return kernel.get_parent("shell") if hasattr(kernel, "get_parent") else kernel._parent_header


def before_run(info):
    now["shown"] = id(getattr(sys, "last_value", None))
    request = parent()["header"]["msg_id"]
    if request != now.get("request"):  # else a cell runs another one
        now["request"] = request
        figures.reset()
        guarded(doubts.before, info.raw_cell)


def after_run(result):
    if result.info.store_history:  # else a cell runs it
        remember(result.execution_count, result.info.raw_cell)
    error = result.error_before_exec or result.error_in_exec
    if error is None:  # a magic may show an error and end well: %time of IPython 8, %%capture
        last = getattr(sys, "last_value", None)
        error = last if is_error(last) and id(last) != now["shown"] else None
    odd = guarded(doubts.after, result.info.raw_cell, error is None)
    tell(error, True, doubts=odd or [], figures=guarded(figures.collected) or [])


def tell(error=None, ran=False, **facts):
    began = clock()
    message = parent()
    if ran:
        recent.append({"id": message["header"]["msg_id"], "outcome": "error" if error is not None else "ok"})
    if error is not None:
        facts.update(fault=guarded(fault, error), look=guarded(look, error) or {}, changed=guarded(changes, error))
    guarded(keep)
    facts["namespace"] = guarded(namespace, began + SECONDS) or {}
    facts["seconds"] = round(clock() - began, 4)
    shell.kernel.session.send(shell.kernel.iopub_socket, "stepper_facts", facts, parent=message)


def on_pre_run(info):
    guarded(before_run, info)


def on_post_run(result):
    guarded(after_run, result)


def begin(version, stack):
    name = "_stepper_helper"
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(version=version, recent=recent, tell=tell, end=end)
    shell.events.register("pre_run_cell", on_pre_run)
    shell.events.register("post_run_cell", on_post_run)
    for start in (figures.begin, doubts.begin, lambda: sampled(stack)):
        guarded(start)


def end():
    """For a helper of another version, which takes over."""
    shell.events.unregister("pre_run_cell", on_pre_run)
    shell.events.unregister("post_run_cell", on_post_run)
    guarded(figures.end)


def sampled(stack):
    """Let a signal write down what runs: also where Python itself can't answer, stuck in C or deaf to an interrupt.

    SIGURG, because whoever has no handler for it ignores it.
    """
    faulthandler.register(signal.SIGURG, file=open(stack, "ab", 0), all_threads=True)  # noqa: SIM115  # kept open
