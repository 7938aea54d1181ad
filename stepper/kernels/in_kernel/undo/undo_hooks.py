"""The part of the helper that undoes runs. It connects the images with IPython.

The daemon requests an image or an undo by the metadata `stepper_undo` of an execute
request.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

from stepper.kernels.in_kernel import module_reload
from stepper.kernels.in_kernel.safe_inspect import call_safely, shell
from stepper.kernels.in_kernel.undo import before_images, image_restore
from stepper.kernels.in_kernel.undo.image_recording import list_bindings
from stepper.kernels.in_kernel.undo.package_counters import LABEL, counters
from stepper.kernels.in_kernel.undo.python_objects import scope

# The result of the restore before the current run, or None if nothing was restored.
last_restore: dict[str, Any] = {"result": None}
# The number of the run in progress, also if its image failed.
current: dict[str, int] = {"run": 0}
# The last undo outside of a run: the request and the facts.
last_undo: dict[str, Any] = {"request": "", "facts": None}


def install() -> None:
    """Set the function that says which files are part of the user's project."""
    scope.is_local_file = is_local_file


def is_local_file(path: str) -> bool:
    """Return whether a module's file is part of the user's project."""
    real_path = os.path.realpath(path)
    return module_reload.is_local(real_path)


def get_bindings() -> dict[str, Any]:
    """Return the names that the user's cells have bound, with their values."""
    bindings: dict[str, Any] = list_bindings(shell.user_ns, shell.user_ns_hidden)
    return bindings


def restore_before_run(request: dict[str, Any]) -> None:
    """Record the changes outside of runs, and undo earlier runs if this is requested.

    This happens before the user's callbacks for the run are called, and before changed
    modules are reloaded. `request` is the metadata of the run's request.
    """
    last_restore["result"] = None
    current["run"] = request["run"]
    with image_restore.ignore_interrupts():
        scope.namespace = shell.user_ns
        before_images.record_boundary(get_bindings())
        restore = request.get("restore")
        if restore:
            last_restore["result"] = restore_runs(restore)
            undo_counters = partial(counters.undo, is_repeated=True)
            call_safely(undo_counters, restore["own_runs"])
            module_reload.forget_removed_modules()
        before_images.record_names(get_bindings())


def restore_runs(request: dict[str, Any]) -> dict[str, Any]:
    """Undo runs, and return the result.

    If the undo fails, all requested names count as not restored.
    """
    unknown = before_images.find_unknown_runs(request["runs"])
    result: Any = call_safely(image_restore.restore, request, shell.user_ns)
    if not result:
        result = record_failed_restore(request)
    return {**result, "unknown": unknown}


def start_run(request: dict[str, Any], reloaded: list[str]) -> None:
    """Take the image of the next run. `reloaded` are the modules reloaded for it."""
    last_undo["request"] = ""
    current["run"] = request["run"]
    call_safely(counters.start_run)
    restore = request.get("restore")
    if restore and last_restore["result"] is None:
        # An interrupt came before the restore.
        last_restore["result"] = record_failed_restore(restore)
    scope.namespace = shell.user_ns
    bindings = get_bindings()
    before_images.record_boundary(bindings)
    if reloaded:
        before_images.forget_modules(set(reloaded))
    before_images.begin(request, bindings)


def record_failed_restore(restore: dict[str, Any]) -> dict[str, Any]:
    """Record that an undo failed, and return its result.

    All requested names count as not restored.
    """
    names = restore["names"]
    if names is None:
        names = list(get_bindings())
    not_restored = dict.fromkeys(names, "the undo failed")
    image_restore.record_failures(restore["runs"], not_restored)
    return {
        "restored": {},
        "removed": {},
        "not_restored": not_restored,
        "seconds": 0.0,
    }


def finish_run(has_failed: bool) -> dict[str, Any] | None:
    """Complete the image of the run that has ended, and return the facts on the run.

    The facts contain the result of the undo before the run, which is then cleared.
    Return None if there was no undo and the changes of the run are not known. If
    `has_failed` is true, an undo of the run also removes the modules that it imported.
    """
    result = last_restore["result"]
    last_restore["result"] = None
    facts: dict[str, Any] | None
    facts = call_safely(before_images.finish, get_bindings(), has_failed)
    have_counters_changed = call_safely(counters.finish_run, current["run"])
    if result:
        facts = facts or {"run": current["run"]}
        facts["restore"] = result
        if have_counters_changed:
            result["not_restored"]["package counters"] = LABEL
    return facts


def start_external() -> None:
    """Prepare for an execution outside of runs, such as that of another client."""
    last_undo["request"] = ""
    scope.namespace = shell.user_ns
    before_images.watch_external()


def finish_external() -> dict[str, Any]:
    """Record the objects and names that an execution outside of runs changed.

    Return the facts on the execution.
    """
    has_changed_objects = before_images.finish_external()
    bindings = get_bindings()
    rebound = before_images.record_boundary(bindings)
    before_images.record_names(bindings)
    return {
        "run": 0,
        # One name more than the limit tells the daemon that names are missing.
        "rebound": rebound[: before_images.MAX_CHANGES + 1],
        "ends_reach": has_changed_objects or bool(rebound),
    }


def undo(text: str) -> dict[str, Any]:
    """Undo runs while no cell runs, and return the facts. `text` is a JSON request.

    The daemon repeats a request if the facts were lost. In this case, the same facts
    are returned, and nothing else is undone.
    """
    with image_restore.ignore_interrupts():
        if last_undo["request"] != text:
            last_undo["facts"] = undo_on_request(json.loads(text))
            last_undo["request"] = text
    facts: dict[str, Any] = last_undo["facts"]
    return facts


def undo_on_request(request: dict[str, Any]) -> dict[str, Any]:
    """Undo the runs of a request, and return the facts.

    Nothing is undone if all names are requested and one of the runs never had an image.
    """
    runs = request["runs"]
    scope.namespace = shell.user_ns
    before_images.record_boundary(get_bindings())
    facts: dict[str, Any] = {"run": 0}
    is_complete = request["names"] is None
    unknown = before_images.find_unknown_runs(runs) if is_complete else []
    if unknown:
        facts["unknown"] = unknown
    else:
        facts["restore"] = restore_runs(request)
        own_runs = request["own_runs"] or runs
        undo_counters = partial(counters.undo, is_repeated=False)
        if call_safely(undo_counters, own_runs):
            facts["restore"]["not_restored"]["package counters"] = LABEL
        module_reload.forget_removed_modules()
        if is_complete:
            before_images.drop_undone(runs)
    bindings = get_bindings()
    before_images.record_names(bindings)
    facts["reach"] = before_images.find_reach()
    size = before_images.measure_images(bindings)
    facts["images"] = before_images.describe_images(size)
    return facts
