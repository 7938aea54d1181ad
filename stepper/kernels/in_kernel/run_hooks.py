"""The helper's one private message for each run, published within the execution, and what must be done before a run.

Within the execution (IPython's `post_run_cell`), because `user_expressions` come back empty when a cell raised and
every further round trip costs 3 to 4 ms.
"""

from __future__ import annotations

import faulthandler
import json
import re
import signal
import sys
import types
from typing import Any

import zmq

from stepper.kernels.in_kernel import (
    iopub_buffer,
    module_reload,
    subprocess_output,
    warmup,
)
from stepper.kernels.in_kernel.cell_sources import (
    remember_scratch,
    remember_source,
    run_state,
)
from stepper.kernels.in_kernel.namespace_summary import (
    list_user_variables,
    remember_values,
    summarize_namespace,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    is_error,
    shell,
    suppressed_errors,
)
from stepper.kernels.in_kernel.value_fingerprints import find_rebound_names

SECONDS = 1.0
# What a source or an imported module must hold for a part of the helper to be worth its
# 20 to 100 ms.
WORTH = {
    "matplotlib_facts": ("matplotlib", "plt", "plot", "seaborn", "sns"),
    "warning_checks": ("pandas", "numpy", "except", "warn"),
    "shell_commands": ("!", "%", "get_ipython"),
}
# … and what it holds where it may write files. What is not caught is told without a
# claim of whose it is.
WRITES = re.compile(
    r"open|writ|save|dump|export|mkdir|makedirs|rmtree|unlink|rename|touch|shutil|Path|"
    r"download|retrieve|extract|checkpoint|memmap|tofile|[Ss]tore|logging|sqlite|%run|"
    r"Popen|subprocess|multiprocessing|joblib|\bos\b|\bexec\b|\btrain|"
    r"\.to_(?!datetime|dict|frame|list|numeric|numpy|period|records|timedelta)"
)
MAGIC = re.compile(r"^\s*[%!]|=\s*[%!]", re.MULTILINE)
CACHE = shell.displayhook.cache_size
# how a part is loaded, which there are; the parts that are loaded
parts: dict[str, Any] = {"load": None, "names": ()}


def parent() -> Any:
    return shell.kernel.get_parent("shell")


def before_run(info: Any) -> None:
    run_state["shown"] = id(getattr(sys, "last_value", None))
    request = parent()["header"]["msg_id"]
    if request == run_state.get("request"):  # a cell runs another one
        return
    run_state["request"] = request
    if is_scratch():
        shell.displayhook.cache_size = 0  # what it shows is nobody's `_` or `Out`
    mode = parent()["metadata"].get("stepper_modules")
    run_state["modules"] = (
        call_safely(module_reload.before, info.raw_cell, mode)
        if mode in ("reload", "warn")
        else None
    )
    for name, words in WORTH.items():
        if name in parts["names"] and any(
            word in info.raw_cell or word in sys.modules for word in words
        ):
            part(name)
    if "matplotlib_facts" in parts:
        parts["matplotlib_facts"].reset()
    if "file_writes" in parts["names"] and call_safely(may_write_files, info.raw_cell):
        part("file_writes")
    for name in ("warning_checks", "shell_commands", "file_writes"):
        if name in parts:
            call_safely(parts[name].before, info.raw_cell)


def may_write_files(raw: str) -> bool:
    """Whether a cell may write files, by its source; the project's own modules may always."""
    return bool(WRITES.search(raw)) or module_reload.may_import_local(raw)


def part(name: str) -> Any:
    """A part of the helper, loaded where it is not."""
    if name not in parts:
        found = parts["load"](name)
        call_safely(getattr(found, "begin", bool))
        parts[name] = found
    return parts[name]


def is_scratch() -> bool:
    """Whether `stepper eval` asked."""
    return parent()["content"].get("store_history") is False


def after_run(result: Any) -> None:
    if result.info.store_history:
        remember_source(result.execution_count, result.info.raw_cell)
    elif is_scratch():
        shell.displayhook.cache_size = CACHE
        remember_scratch(result.info.raw_cell)
    known = result.info.store_history or is_scratch()  # else a cell runs another one
    run_state["attributed"] = run_state["number"] if known else 0
    call_safely(module_reload.forget)
    call_safely(module_reload.register)
    local = run_state.pop("modules", None)
    error = result.error_before_exec or result.error_in_exec
    # one may show an error and end well: %time, %%capture
    if error is None and MAGIC.search(result.info.raw_cell):
        last = getattr(sys, "last_value", None)
        error = last if is_error(last) and id(last) != run_state["shown"] else None
    odd = (
        call_safely(parts["warning_checks"].after, result.info.raw_cell, error is None)
        if "warning_checks" in parts
        else []
    )
    shown = (
        call_safely(parts["matplotlib_facts"].collected)
        if "matplotlib_facts" in parts
        else []
    )
    ended = (
        call_safely(parts["shell_commands"].after, result.info.raw_cell, error)
        if "shell_commands" in parts
        else []
    )
    asked = (
        parent()["metadata"].get("stepper_criterion")
        if error is None and "criterion_check" in parts["names"]
        else ""
    )
    met = call_safely(lambda: part("criterion_check").holds(asked)) if asked else None
    tell(
        error,
        doubts=odd or [],
        figures=shown or [],
        commands=ended or [],
        **({"criterion": met} if met else {}),
        **({"scratch": True} if is_scratch() else {}),
        **({"modules": local} if local else {}),
    )


def tell(error: BaseException | None = None, **facts: Any) -> None:
    began = clock()
    message = parent()
    if error is not None:
        facts["fault"] = call_safely(
            lambda: part("exception_facts").describe_exception(error)
        )
        if "error_facts" in parts["names"]:
            facts.update(call_safely(lambda: part("error_facts").facts(error)) or {})
    call_safely(remember_values)
    facts["namespace"] = (
        call_safely(
            summarize_namespace,
            began + SECONDS,
            message["metadata"].get("stepper_known"),
        )
        or {}
    )
    facts["seconds"] = round(clock() - began, 4)
    if suppressed_errors:
        facts["swallowed"] = dict(suppressed_errors)
        suppressed_errors.clear()
    try:
        send(facts, message)
    except UnicodeEncodeError:  # a lone surrogate in a name or a text of the user's
        send(
            json.loads(
                json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace")
            ),
            message,
        )


def send(
    facts: dict[str, Any], message: Any, frames: list[bytes] | None = None
) -> None:
    shell.kernel.session.send(
        shell.kernel.iopub_socket,
        "stepper_facts",
        facts,
        parent=message,
        buffers=frames,
    )


def recall(request: str) -> None:
    """For a daemon that was not there: what a run published."""
    told, frames = iopub_buffer.of(request)
    send({"record": told}, parent(), frames)


def on_pre_run(info: Any) -> None:
    warmup.busy()
    call_safely(before_run, info)


def on_post_run(result: Any) -> None:
    call_safely(subprocess_output.drain)
    call_safely(after_run, result)
    iopub_buffer.last["payload"] = (
        call_safely(lambda: list(shell.payload_manager._payload)) or []
    )
    call_safely(
        warmup.idle,
        lambda: [
            part(name)
            for name in ("exception_facts", *({"error_facts"} & {*parts["names"]}))
        ],
    )


def begin(version: str, stack: str, load: Any, names: list[str]) -> None:
    parts.update(load=load, names=names)
    name = "_stepper_helper"
    # the table of the audit hook that an earlier helper added: it can't be removed
    handlers = getattr(sys.modules.get(name), "audit_handlers", None)
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(
        version=version,
        tell=tell,
        recall=recall,
        end=end,
        come=unbounded,
        audit_handlers=handlers,
    )
    shell.events.register("pre_run_cell", on_pre_run)
    shell.events.register("post_run_cell", on_post_run)
    call_safely(sampled, stack)
    call_safely(unbounded)
    call_safely(iopub_buffer.begin)
    call_safely(module_reload.register)
    # what is there already, no cell that is to come has bound
    call_safely(lambda: find_rebound_names(list_user_variables(), {}))


def end() -> None:
    """For a helper of another version, which takes over."""
    shell.events.unregister("pre_run_cell", on_pre_run)
    shell.events.unregister("post_run_cell", on_post_run)
    call_safely(iopub_buffer.end)
    for name in ("matplotlib_facts", "shell_commands", "file_writes"):
        if name in parts:
            call_safely(parts[name].end)


def unbounded() -> None:
    """ZeroMQ drops what is over 1,000 messages where the daemon reads more slowly than a cell writes.

    It holds for those who listen now; each daemon that comes has it said. Not before each run: where somebody who
    listened is just leaving, libzmq tells a pipe that is freed, and the kernel dies of SIGSEGV.
    """
    thread = shell.kernel.iopub_thread
    thread.schedule(lambda: thread.socket.setsockopt(zmq.SNDHWM, 0))


def sampled(stack: str) -> None:
    """Let a signal write down what runs: also where Python itself can't answer, stuck in C or deaf to an interrupt.

    SIGURG, because whoever has no handler for it ignores it. A crash is written where nobody has to read it from a
    pipe: the kernel's own stderr, which ipykernel keeps a copy of.
    """
    faulthandler.enable(
        getattr(sys.stderr, "_original_stdstream_copy", None) or 2, all_threads=False
    )
    if stack:  # none where nobody could send the signal
        faulthandler.register(
            signal.SIGURG,
            file=open(stack, "ab", 0),  # noqa: SIM115  # it stays open
            all_threads=True,
        )
