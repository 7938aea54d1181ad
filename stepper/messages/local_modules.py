"""The lines of a report on the project's modules that changed since they were imported."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.local_modules import ModuleChanges, OldModule

MOST = 5  # modules that are named in a line, and lines


def lines(changes: ModuleChanges, notebook: str) -> list[str]:
    """Return the lines on modules that were reloaded, and on those that were not."""
    found = []
    if changes.reloaded:
        objects = (
            "; objects made before keep the values they were made with"
            if changes.classes
            else ""
        )
        verb = "it was" if len(changes.reloaded) == 1 else "they were"
        found.append(
            f"Reloaded: {_names(changes.reloaded)} (changed since {verb} imported){objects}."
        )
    if changes.dependents:
        verb = "uses" if len(changes.dependents) == 1 else "use"
        pronoun = "it is" if len(changes.dependents) == 1 else "they are"
        found.append(
            f"Also reloaded: {_names(changes.dependents)} ({verb} a changed module"
            f" when {pronoun} imported)."
        )
    found += [
        _old(module, CommandLines(notebook).shell("run --all"))
        for module in changes.old[:MOST]
    ]
    if len(changes.old) > MOST:
        found.append(
            f"Warning: {len(changes.old) - MOST} more changed modules were not reloaded."
        )
    for name, module in [pair for pair in changes.lost if len(pair) == 2][:MOST]:
        where = f"{one_line(module, 100)} no longer defines `{one_line(name, 60)}`"
        found.append(
            f"Warning: {where}; the notebook's `{one_line(name, 60)}` is still the old one."
        )
    return found


def _names(names: Sequence[str]) -> str:
    some = [one_line(name, 100) for name in names[:MOST]]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(some) + more


def _old(module: OldModule, run_all: str) -> str:
    name, file = one_line(module.name, 100), one_line(module.file, 200)
    where = f"{file}, line {module.line}" if module.line else file
    error = one_line(module.error, 200)
    old = "the kernel still has the old code"
    if module.why == "deleted":
        what = f"Warning: {name} was not reloaded: {file} was deleted; {old}."
        return f"{what} To fix this, restore the file or remove its imports."
    if module.why == "compiled":
        what = f"Warning: {name} changed ({file}) and can't be reloaded, because it is"
        return f"{what} a compiled module; {old}. To fix this, run: `{run_all}`"
    if module.why in ("syntax", "raised"):
        what = f"Warning: {name} changed and could not be reloaded ({where}: {error});"
        fix = f"To fix this, correct {file}: the next cell reloads it."
        return f"{what} {old}. {fix}"
    if module.why == "dependent":
        what = f"Warning: {name} uses a changed module when it is imported, and could"
        fix = "To fix this, correct the error: the next cell reloads the modules."
        return f"{what} not be reloaded ({where}: {error}); {old}. {fix}"
    if module.why == "interrupted":
        what = f"Warning: {name} changed ({file}), and its reload was interrupted:"
        return f"{what} the cell did not run. The next cell tries the reload again."
    if module.why == "autoreload":
        what = f"Warning: {name} changed ({file}), and %autoreload is set up not to"
        return f"{what} reload it; {old}."
    what = (
        f"Warning: {name} changed since it was imported ({file}) and was not reloaded"
    )
    fix = f"To load the new code, run: `{run_all}`"
    return f"{what} (`local_modules: warn`); {old}. {fix}"


def other_sources(names: Sequence[str]) -> str:
    """Return the line on modules that changed between the recorded runs and those now; '' for none."""
    if not names:
        return ""
    verb = "has" if len(names) == 1 else "have"
    return f"Changed since the recorded runs: {_names(names)} {verb} another source now, so values may differ."
