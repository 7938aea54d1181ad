"""Messages about project modules that changed after the kernel imported them."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import format_count, one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.reloaded_modules import ModuleChanges, OldModule

MAX_MODULES = 5  # in one line, and lines of warnings


def format_module_changes(changes: ModuleChanges, notebook: str) -> list[str]:
    """Return lines on reloaded modules, and warnings on outdated code and names.

    Code is outdated if its module was not reloaded. A name is outdated if the reloaded
    module no longer defines it.
    """
    lines = []
    if changes.reloaded:
        verb = "it was" if len(changes.reloaded) == 1 else "they were"
        objects = ""
        if changes.classes:
            objects = "; existing objects keep their values"
        lines.append(
            f"Reloaded: {_join_names(changes.reloaded)} (changed since {verb}"
            f" imported){objects}."
        )
    if changes.dependents:
        is_one = len(changes.dependents) == 1
        verb = "uses" if is_one else "use"
        pronoun = "it is" if is_one else "they are"
        lines.append(
            f"Also reloaded: {_join_names(changes.dependents)} ({verb} a changed module"
            f" when {pronoun} imported)."
        )
    run_all = CommandLines(notebook).shell("run --all")
    for module in changes.old[:MAX_MODULES]:
        lines.append(_format_not_reloaded(module, run_all))
    hidden_count = len(changes.old) - MAX_MODULES
    if hidden_count > 0:
        modules = format_count(hidden_count, "more changed module")
        verb = "was" if hidden_count == 1 else "were"
        lines.append(f"Warning: {modules} {verb} not reloaded.")
    return lines + _format_lost_names(changes)


def _format_lost_names(changes: ModuleChanges) -> list[str]:
    """Return the warnings on names that reloaded modules no longer define."""
    # The kernel sent these lists, which may be invalid.
    lost_names = [pair for pair in changes.lost if len(pair) == 2]
    lines = []
    for name, module_name in lost_names[:MAX_MODULES]:
        shown = one_line(name, 60)
        lines.append(
            f"Warning: {one_line(module_name, 100)} no longer defines `{shown}`; the"
            f" notebook's `{shown}` is still the old one."
        )
    hidden_name_count = len(lost_names) - MAX_MODULES
    if hidden_name_count > 0:
        names = format_count(hidden_name_count, "more name")
        verb = "is" if hidden_name_count == 1 else "are"
        lines.append(f"Warning: {names} of reloaded modules {verb} no longer defined.")
    return lines


def _join_names(names: Sequence[str]) -> str:
    """Return the first MAX_MODULES names, and the number of the others."""
    text = ", ".join(one_line(name, 100) for name in names[:MAX_MODULES])
    hidden_count = len(names) - MAX_MODULES
    if hidden_count > 0:
        return f"{text} and {hidden_count} more"
    return text


def _format_not_reloaded(module: OldModule, run_all: str) -> str:
    """Return the warning on a module that was not reloaded.

    `run_all` is the command that runs all cells in a new kernel.
    """
    name = one_line(module.name, 100)
    file = one_line(module.file, 200)
    position = f"{file}, line {module.line}" if module.line else file
    error = one_line(module.error, 200)
    old_code = "the kernel still has the old code"
    if module.why == "deleted":
        return (
            f"Warning: {name} was not reloaded: {file} was deleted; {old_code}."
            " To fix this, restore the file or remove the imports of this module."
        )
    if module.why == "compiled":
        return (
            f"Warning: {name} has changed ({file}) and can't be reloaded, because it is"
            f" a compiled module; {old_code}. To fix this, run: `{run_all}`"
        )
    if module.why in ("syntax", "raised"):
        return (
            f"Warning: {name} changed and could not be reloaded ({position}: {error});"
            f" {old_code}. To fix this, correct {file}: the next cell reloads the"
            " module."
        )
    if module.why == "dependent":
        return (
            f"Warning: {name} uses a changed module when it is imported, and could not"
            f" be reloaded ({position}: {error}); {old_code}."
            " To fix this, correct the error: the next cell reloads the modules."
        )
    if module.why == "interrupted":
        return (
            f"Warning: {name} changed ({file}), and its reload was interrupted: the"
            " cell did not run. The next cell tries the reload again."
        )
    if module.why == "autoreload":
        return (
            f"Warning: {name} changed ({file}), and %autoreload is configured not to"
            f" reload this module; {old_code}."
        )
    return (
        f"Warning: {name} has changed since it was imported ({file}) and was not"
        f" reloaded (`local_modules: warn`); {old_code}. To load the new code, run:"
        f" `{run_all}`"
    )


def format_changed_since_recorded(names: Sequence[str]) -> str:
    """Return the line on modules that changed since the recorded runs.

    Return an empty string if there are no such modules.
    """
    if not names:
        return ""
    return (
        f"Changed since the recorded runs: {_join_names(names)}. The outputs may differ"
        " for this reason."
    )
