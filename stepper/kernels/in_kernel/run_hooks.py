"""The hooks that run before and after each cell, and the helper's message on the run.

The message is published during the execution, by a handler of IPython's `post_run_cell`
event. `user_expressions` would be empty after an exception, and a separate request
would take 3 to 4 ms.
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
    output_drain,
    statement_times,
    traceback_warmup,
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
from stepper.kernels.in_kernel.value_fingerprints import update_fingerprints

SUMMARY_SECONDS = 1.0
HELPER = "_stepper_helper"  # in sys.modules
# A part is loaded when a cell contains one of its words, or when a module with such a
# name is imported. Loading takes 20 to 100 ms.
PART_WORDS = {
    "matplotlib_facts": ("matplotlib", "plt", "plot", "seaborn", "sns"),
    "suspicious_results": ("pandas", "numpy", "except", "warn"),
    "shell_commands": ("!", "%", "get_ipython"),
}
UNDO_PART = "undo_hooks"
PARTS_BEFORE_RUN = ("suspicious_results", "shell_commands", "file_writes")
PARTS_TO_UNINSTALL = ("matplotlib_facts", "shell_commands", "file_writes")
# A cell with one of these words may write files. Other cells' writes are not recorded.
WRITES = re.compile(
    r"open|writ|save|dump|export|mkdir|makedirs|rmtree|unlink|rename|touch|shutil|Path|"
    r"download|retrieve|extract|checkpoint|memmap|tofile|[Ss]tore|logging|sqlite|%run|"
    r"Popen|subprocess|multiprocessing|joblib|\bos\b|\bexec\b|\btrain|"
    r"\.to_(?!datetime|dict|frame|list|numeric|numpy|period|records|timedelta)"
)
MAGIC = re.compile(r"^\s*[%!]|=\s*[%!]", re.MULTILINE)
CACHE_SIZE = shell.displayhook.cache_size
# The loaded parts by name.
parts: dict[str, Any] = {}
# "load" is the function that loads a part, and "names" are the names of all parts.
part_loader: dict[str, Any] = {"load": None, "names": ()}


def get_request() -> Any:
    """Return the request that the kernel is executing."""
    return shell.kernel.get_parent("shell")


def prepare_run(info: Any) -> None:
    """Reload changed modules, start the parts that a cell needs, and take its image.

    `info` is IPython's ExecutionInfo. For code that a cell executes with `run_cell`,
    only the last exception is stored.
    """
    # Magics can show an error and still succeed: `find_error` looks for a new error.
    run_state["earlier_error"] = id(getattr(sys, "last_value", None))
    request = get_request()
    request_id = request["header"]["msg_id"]
    if request_id == run_state.get("request"):
        return  # code that a cell executes with `run_cell`
    run_state["request"] = request_id
    if is_scratch():
        # The result of a scratch execution must not appear in `_` or `Out`.
        shell.displayhook.cache_size = 0
    mode = request["metadata"].get("stepper_modules")
    changes = None
    if mode in ("reload", "warn"):
        changes = call_safely(module_reload.update_modules, info.raw_cell, mode)
    run_state["modules"] = changes
    load_needed_parts(info.raw_cell)
    if "matplotlib_facts" in parts:
        parts["matplotlib_facts"].reset()
    for name in PARTS_BEFORE_RUN:
        if name in parts:
            call_safely(parts[name].start_run, info.raw_cell)
    reloaded = [] if changes is None else changes["reloaded"] + changes["dependents"]
    start_undoable_run(request["metadata"].get("stepper_undo"), reloaded)
    call_safely(statement_times.start_run)


def undo_before_run() -> None:
    """Undo earlier runs before a run, if its request asks for this."""
    request = get_request()
    undo_request = request["metadata"].get("stepper_undo")
    is_nested = request["header"]["msg_id"] == run_state.get("request")
    if undo_request and not is_nested:
        load_part(UNDO_PART).restore_before_run(undo_request)


def start_undoable_run(undo_request: Any, reloaded: list[str]) -> None:
    """Record the state before a run, if the run's request asks for this.

    `undo_request` is the undo request in the metadata of the run's request, or None.
    `reloaded` are the modules that were reloaded for the run.
    """
    run_state["undo"] = undo_request
    if undo_request:
        call_safely(start_undo_part, undo_request, reloaded)
    elif UNDO_PART in parts:
        call_safely(parts[UNDO_PART].start_external)


def start_undo_part(undo_request: Any, reloaded: list[str]) -> None:
    """Load the undo part, and let it record the state before a run."""
    load_part(UNDO_PART).start_run(undo_request, reloaded)


def finish_undoable_run(has_failed: bool) -> Any:
    """Complete the image of a run, and return the undo part's facts on the run.

    Return None if the part is not loaded.
    """
    if UNDO_PART not in parts:
        return None
    if run_state.pop("undo", None):
        return call_safely(parts[UNDO_PART].finish_run, has_failed)
    return call_safely(parts[UNDO_PART].finish_external)


def undo_runs(text: str) -> None:
    """Undo runs, and publish the result. `text` is the daemon's request as JSON."""
    part = load_part(UNDO_PART)
    send_message({"undo": part.undo(text)}, get_request())


def load_needed_parts(raw: str) -> None:
    """Load the parts of the helper that a cell with this source needs."""
    for name, words in PART_WORDS.items():
        is_needed = any(word in raw or word in sys.modules for word in words)
        if is_needed and is_available(name):
            load_part(name)
    if is_available("file_writes") and call_safely(may_write_files, raw):
        load_part("file_writes")


def may_write_files(raw: str) -> bool:
    """Return whether a cell may write files, itself or in a module of the project."""
    return bool(WRITES.search(raw)) or module_reload.may_import_local(raw)


def is_available(name: str) -> bool:
    """Return whether the helper has a part with this name."""
    return name in part_loader["names"]


def load_part(name: str) -> Any:
    """Return a part of the helper. Load and install the part on the first call."""
    if name not in parts:
        part = part_loader["load"](name)
        if hasattr(part, "install"):
            call_safely(part.install)
        parts[name] = part
    return parts[name]


def is_scratch() -> bool:
    """Return whether the request is a scratch execution, outside the notebook."""
    return get_request()["content"].get("store_history") is False


def report_run(result: Any) -> None:
    """Record a finished execution, and publish the helper's message on it.

    The execution is a cell, a scratch execution, or code that a cell executes with
    `run_cell`.
    """
    raw = result.info.raw_cell
    is_cell = result.info.store_history
    if is_cell:
        # The execution count is None if IPython itself failed.
        remember_source(result.execution_count or 0, raw)
    elif is_scratch():
        shell.displayhook.cache_size = CACHE_SIZE
        remember_scratch(raw)
    # The changes of code that a cell executes are attributed to that cell.
    is_attributable = is_cell or is_scratch()
    undo_facts = None
    if is_attributable:
        undo_facts = finish_undoable_run(has_failed=not result.success)
    run_state["attributed"] = run_state["number"] if is_attributable else 0
    call_safely(module_reload.remove_rejection)
    call_safely(module_reload.record_new_modules)
    error = find_error(result)
    facts = collect_run_facts(raw, error)
    if undo_facts:
        facts["undo"] = undo_facts
    if is_attributable:
        times = call_safely(statement_times.finish_run, error is not None)
        if times:
            facts["times"] = times
    publish_facts(error, **facts)


def collect_run_facts(raw: str, error: BaseException | None) -> dict[str, Any]:
    """Evaluate the criterion of the plan step, and return the parts' facts on a run.

    `raw` is the source of the run. JSON can encode the result.
    """
    facts: dict[str, Any] = {
        "warnings": call_part("suspicious_results", "finish_run", raw, error is None),
        "figures": call_part("matplotlib_facts", "list_figures"),
        "commands": call_part("shell_commands", "finish_run", raw, error),
    }
    criterion = get_request()["metadata"].get("stepper_criterion")
    if criterion and error is None and is_available("criterion_check"):
        evaluation = call_safely(evaluate_criterion, criterion)
        if evaluation:
            facts["criterion"] = evaluation
    if is_scratch():
        facts["scratch"] = True
    module_changes = run_state.pop("modules", None)
    if module_changes:
        facts["modules"] = module_changes
    return facts


def find_error(result: Any) -> BaseException | None:
    """Return the exception of a run, or an exception that a magic showed, or None.

    A cell with %time or %%capture can show an error and still succeed.
    """
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    if error is None and MAGIC.search(result.info.raw_cell):
        last = getattr(sys, "last_value", None)
        if is_error(last) and id(last) != run_state["earlier_error"]:
            return last
    return error


def call_part(name: str, function_name: str, *arguments: Any) -> Any:
    """Call a function of a part, and return the result.

    Return [] if the part is not loaded, or if the function fails.
    """
    if name not in parts:
        return []
    return call_safely(getattr(parts[name], function_name), *arguments) or []


def evaluate_criterion(criterion: str) -> Any:
    """Return the result of a plan step's criterion as JSON, or None if unknown."""
    return load_part("criterion_check").evaluate_criterion(criterion)


def describe_error(error: BaseException) -> Any:
    """Return the facts on an exception as JSON."""
    return load_part("exception_facts").describe_exception(error)


def diagnose_error(error: BaseException) -> Any:
    """Return the findings on an exception, and the run's changes, as JSON.

    The changes are the names and files that the run has changed.
    """
    return load_part("error_facts").collect_facts(error)


def publish_facts(error: BaseException | None = None, **facts: Any) -> None:
    """Publish the helper's message: these facts, the error, and the namespace.

    The values of the variables are stored for a comparison after the next run.
    """
    began = clock()
    request = get_request()
    if error is not None:
        facts["fault"] = call_safely(describe_error, error)
        if is_available("error_facts"):
            facts.update(call_safely(diagnose_error, error) or {})
    call_safely(remember_values)
    known_mark = request["metadata"].get("stepper_known")
    deadline = began + SUMMARY_SECONDS
    namespace = call_safely(summarize_namespace, deadline, known_mark)
    facts["namespace"] = namespace or {}
    facts["seconds"] = round(clock() - began, 4)
    if suppressed_errors:
        facts["swallowed"] = dict(suppressed_errors)
        suppressed_errors.clear()
    try:
        send_message(facts, request)
    except UnicodeEncodeError:  # a lone surrogate in one of the user's strings
        text = json.dumps(facts, ensure_ascii=False)
        send_message(json.loads(text.encode("utf-8", "replace")), request)


def send_message(
    facts: dict[str, Any], request: Any, frames: list[bytes] | None = None
) -> None:
    """Send a message of the helper on iopub, with a request as its parent.

    `frames` are the binary buffers of the message.
    """
    shell.kernel.session.send(
        shell.kernel.iopub_socket,
        "stepper_facts",
        facts,
        parent=request,
        buffers=frames,
    )


def publish_record(request_id: str) -> None:
    """Publish the recorded messages of a run, for a daemon that has not received them.

    `request_id` is the message id of the run's execute request.
    """
    record, frames = iopub_buffer.get_record(request_id)
    send_message({"record": record}, get_request(), frames)


def on_pre_execute() -> None:
    """Handle IPython's `pre_execute` event, which precedes `pre_run_cell`."""
    call_safely(undo_before_run)


def on_pre_run(info: Any) -> None:
    """Handle IPython's `pre_run_cell` event."""
    traceback_warmup.pause()
    call_safely(prepare_run, info)


def on_post_run(result: Any) -> None:
    """Handle IPython's `post_run_cell` event."""
    call_safely(output_drain.drain)
    call_safely(report_run, result)
    iopub_buffer.last_run.payload = call_safely(list_payload) or []
    call_safely(traceback_warmup.resume, load_error_parts)


def list_payload() -> list[Any]:
    """Return the payload of the execute reply, such as the text for a pager."""
    return list(shell.payload_manager._payload)


def load_error_parts() -> None:
    """Load the parts that describe an error."""
    load_part("exception_facts")
    if is_available("error_facts"):
        load_part("error_facts")


def install(version: str, stack_path: str, load: Any, names: list[str]) -> None:
    """Register the hooks, and create the module through which the daemon calls them.

    `stack_path` is the file for stack samples, or an empty string to disable them.
    `load` is a function that loads a part by its name, and `names` are the names of the
    parts.
    """
    part_loader.update(load=load, names=names)
    # The audit hook of an earlier helper cannot be removed, so its table is used again.
    audit_handlers = getattr(sys.modules.get(HELPER), "audit_handlers", None)
    sys.modules[HELPER] = types.ModuleType(HELPER)
    # Daemons of other versions call these functions by name: keep the names.
    vars(sys.modules[HELPER]).update(
        version=version,
        tell=publish_facts,
        recall=publish_record,
        undo=undo_runs,
        end=uninstall,
        on_reconnect=remove_iopub_limit,
        audit_handlers=audit_handlers,
    )
    shell.events.register("pre_execute", on_pre_execute)
    shell.events.register("pre_run_cell", on_pre_run)
    shell.events.register("post_run_cell", on_post_run)
    call_safely(enable_stack_samples, stack_path)
    call_safely(remove_iopub_limit)
    call_safely(iopub_buffer.install)
    call_safely(module_reload.record_new_modules)
    # The next cell must not be reported as the origin of names that exist already.
    call_safely(remember_existing_names)


def remember_existing_names() -> None:
    """Store the ids of all variables, for comparison after the first cell."""
    update_fingerprints(list_user_variables(), {})


def uninstall() -> None:
    """Remove the hooks before a helper of another version is installed."""
    shell.events.unregister("pre_execute", on_pre_execute)
    shell.events.unregister("pre_run_cell", on_pre_run)
    shell.events.unregister("post_run_cell", on_post_run)
    call_safely(iopub_buffer.uninstall)
    for name in PARTS_TO_UNINSTALL:
        if name in parts:
            call_safely(parts[name].uninstall)


def remove_iopub_limit() -> None:
    """Remove the limit of 1,000 messages, above which ZeroMQ drops iopub messages.

    The option applies to current subscribers, so each daemon that connects calls this
    function. The option must not be set before each run: if a subscriber is
    disconnecting, libzmq uses a freed pipe, and the kernel crashes with SIGSEGV.
    """
    thread = shell.kernel.iopub_thread
    thread.schedule(lambda: thread.socket.setsockopt(zmq.SNDHWM, 0))


def enable_stack_samples(stack_path: str) -> None:
    """Write the stacks of all threads to a file on SIGURG, even while C code runs.

    Nothing is written on SIGURG if `stack_path` is empty. Processes without a handler
    ignore SIGURG. The stack of a crash is written, too. ipykernel redirects stderr to a
    pipe, which may have no reader, so this stack is written to ipykernel's copy of the
    original stderr.
    """
    stderr_copy = getattr(sys.stderr, "_original_stdstream_copy", None)
    faulthandler.enable(stderr_copy or 2, all_threads=False)
    if stack_path:
        # The file must stay open.
        stream = open(stack_path, "ab", 0)  # noqa: SIM115
        faulthandler.register(signal.SIGURG, file=stream, all_threads=True)
