"""Texts about undo: the initial state of a cell's next version, and restored values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from stepper.common.text import one_line
from stepper.messages.run_report import format_seconds
from stepper.messages.stale_cells import format_cells, join_words
from stepper.messages.status_text import format_bytes
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.undo_model import NEW, RestoreResult, UndoFacts, Unprotected

# The maximum numbers of names in one list, and of names that are not restored.
MAX_NAMES = 8
MAX_EXCEPTIONS = 20
LONG_SECONDS = 10.0  # after a longer run, the report says how to keep new names
NAME_LIMIT = 60  # characters
REASON_LIMIT = 100  # characters
# Reasons for names that were not restored.
NO_REPORT = "the kernel did not report whether it was restored"
NOT_KEPT = "the state before the run was not kept"
# After an undo, if code outside the cells ran since the undone runs began.
OTHER_CODE = (
    "Not undone: changes by scratch executions and other clients in the meantime. The"
    " names that they changed keep their values."
)


def format_next_start(
    facts: UndoFacts, has_files: bool, seconds: float, comment: str = "#"
) -> list[str]:
    """Return a list with the line on the initial state of a cell's next version.

    `facts` are the facts on a run that failed or was interrupted after `seconds`.
    `has_files` says that the report names files that the cell changed, which are not
    restored. `comment` starts a comment. The list is empty if the run changed nothing
    but files.
    """
    exceptions = [
        _format_unprotected(name, value) for name, value in facts.unprotected.items()
    ]
    unrestored_names = _limit(exceptions)
    if has_files:
        unrestored_names.append("files")
    unrestored_text = ", ".join(unrestored_names)
    actions = _describe_actions(facts, seconds, comment)
    if actions:
        text = "the next version starts from the state before this cell ran: "
        text += ", ".join(actions)
        if unrestored_names:
            text += f"; not restored: {unrestored_text}"
        return [text]
    if exceptions:
        return [
            f"not restored before the next version of this cell runs: {unrestored_text}"
        ]
    return []


def _describe_actions(facts: UndoFacts, seconds: float, comment: str) -> list[str]:
    """Return clauses on the names that will be restored and removed.

    After a run of at least LONG_SECONDS, the clause on removed names says how to keep
    them. The arguments are those of `format_next_start`.
    """
    restorable_names: list[str] = []
    removable_names: list[str] = []
    for name, change in facts.changes.items():
        if name in facts.unprotected:
            continue
        names = removable_names if change == NEW else restorable_names
        names.append(name)
    actions = []
    if restorable_names:
        actions.append(f"{_join_names(restorable_names)} will be restored")
    if removable_names:
        removal = f"{_join_names(removable_names)} will be removed"
        if seconds >= LONG_SECONDS:
            pronoun = "it" if len(removable_names) == 1 else "them"
            removal += (
                f" (to keep {pronoun}, start that version with"
                f" `{comment} stepper: keep`)"
            )
        actions.append(removal)
    return actions


def _format_unprotected(name: str, value: Unprotected) -> str:
    """Return a name that cannot be restored, with the reason in parentheses."""
    reason = one_line(value.reason, REASON_LIMIT)
    if value.bytes:
        reason += f", {format_bytes(value.bytes)}"
    change = "changed" if value.is_changed else "may have changed"
    return f"{_quote(name)} ({reason}; {change})"


def format_restore(result: RestoreResult) -> list[str]:
    """Return a list with the note on values that were restored before a run.

    The list is empty if nothing had to be restored.
    """
    text = _describe_result(result)
    if text:
        return [f"before this run, {text}"]
    return []


def format_deletion(number: int, result: RestoreResult) -> str:
    """Return the sentence on values that were restored because a cell was deleted.

    The text is empty if nothing had to be restored. `number` is the number that the
    cell had.
    """
    text = _describe_result(result)
    if not text:
        return ""
    if _is_failure(result):
        return (
            f"Cell {number} was deleted, but its changes could not be undone: {text}."
        )
    return f"Cell {number} was deleted, so its changes were undone: {text}."


def format_lost_deletion(number: int, asks_again: bool) -> str:
    """Return the text on a deleted cell whose undo has no known result.

    `number` is the number that the cell had. `asks_again` says that stepper requests
    the result again before the next run.
    """
    text = (
        f"Cell {number} was deleted, but the kernel did not report whether it undid the"
        " changes of this cell."
    )
    if asks_again:
        text += " stepper asks again before the next run."
    return text


def format_requested(numbers: Sequence[int], result: RestoreResult) -> str:
    """Return the clause on the runs of cells that were undone on request.

    `numbers` are the numbers of the cells; 0 stands for a deleted cell.
    """
    subject = _format_subject(numbers)
    text = _describe_result(result)
    if not text:
        return f"nothing in the kernel had to be restored for {subject}"
    if _is_failure(result):
        return f"the changes of {subject} in the kernel could not be undone: {text}"
    return f"the changes of {subject} in the kernel were undone: {text}"


def format_lost_request(numbers: Sequence[int]) -> str:
    """Return the clause on a requested undo without a known result.

    `numbers` are the numbers of the cells; 0 stands for a deleted cell.
    """
    return (
        f"stepper tried to undo the changes of {_format_subject(numbers)} in the"
        " kernel, but the kernel did not report whether it undid them"
    )


def _format_subject(numbers: Sequence[int]) -> str:
    """Return a phrase for cells by their numbers; 0 stands for a deleted cell."""
    existing_numbers = [number for number in numbers if number]
    subjects = []
    if existing_numbers:
        subjects.append(format_cells(existing_numbers))
    if len(existing_numbers) < len(numbers):
        subjects.append("a deleted cell")
    return " and ".join(subjects)


def _is_failure(result: RestoreResult) -> bool:
    """Return whether something had to be restored, and nothing was."""
    return bool(result.not_restored) and not result.restored and not result.removed


def _describe_result(result: RestoreResult) -> str:
    """Return a clause on the names that were restored, removed and not restored.

    Return an empty string if nothing had to be restored.
    """
    clauses = []
    if result.restored:
        verb = _choose_verb(result.restored)
        clauses.append(f"{_join_names(result.restored)} {verb} restored")
    if result.removed:
        verb = _choose_verb(result.removed)
        clauses.append(f"{_join_names(result.removed)} {verb} removed")
    if result.not_restored:
        names = [
            f"{_quote(name)} ({one_line(reason, REASON_LIMIT)})"
            for name, reason in result.not_restored.items()
        ]
        clauses.append(f"not restored: {', '.join(_limit(names))}")
    return "; ".join(clauses)


def _choose_verb(names: Collection[str]) -> str:
    """Return "was" or "were" after names.

    The name of a global state may be plural, such as `warning filters`.
    """
    name = next(iter(names))
    is_plural = len(names) > 1 or (not _is_variable(name) and name.endswith("s"))
    return "were" if is_plural else "was"


def format_removed_name(name: str) -> str:
    """Return a clause on a name that is removed before the cell runs again."""
    return (
        f"{_quote(name)} was bound only by an earlier version of this cell, whose"
        " changes are undone before this version runs"
    )


def format_undone_name(
    name: str, numbers: Sequence[int], commands: CommandLines
) -> str:
    """Return the suggestion for a name that is undefined because cells are stale.

    `numbers` are the numbers of these cells.
    """
    command = commands.shell("run --stale")
    effect = "this change was"
    if len(numbers) > 1:
        effect = "these changes were"
    return (
        f"{format_cells(numbers)} had changed {_quote(name)}, and {effect} undone. To"
        f" run the stale cells, run: `{command}`"
    )


def format_removed_below(name: str, number: int) -> str:
    """Return a clause on a name that is removed because a cell below bound it.

    `number` is the number of that cell, or 0 if the cell was deleted.
    """
    binder = "a deleted cell"
    if number:
        binder = f"cell {number} below"
    return (
        f"{_quote(name)} is bound only by {binder}; the changes of that cell are undone"
        " before this cell runs again"
    )


def format_recomputation(
    names: Collection[str], numbers: Sequence[int], seconds: float
) -> str:
    """Return the note on cells that computed values again, by their numbers."""
    return (
        f"{format_cells(numbers)} ran again first ({format_seconds(seconds)}), because"
        f" {_join_names(sorted(names))} could not be restored"
    )


def format_failed_recomputation(names: Collection[str], number: int) -> str:
    """Return the note on a cell that failed while it computed values again.

    `names` are the variables with these values. `number` is the number of the cell that
    needs the values, and that did not run.
    """
    return (
        f"this cell ran again because {_join_names(sorted(names))} could not be"
        f" restored. It failed, so cell {number}, which needs its values, did not run"
    )


def format_costly_recomputation(
    names: Collection[str], seconds: float, commands: CommandLines
) -> str:
    """Return the note on values that can only be computed again by a restore.

    `seconds` is the duration of the last runs of the cells that a restore runs.
    """
    shown_names = _limit([_quote(name) for name in sorted(names)])
    return (
        f"not restored: {', '.join(shown_names)}. To compute all values again in a new"
        f" kernel ({format_seconds(seconds)}), run: `{commands.shell('restore')}`"
    )


def _join_names(names: Iterable[str]) -> str:
    """Return names as an enumeration; at most MAX_NAMES are named."""
    return join_words([_quote(name) for name in names], MAX_NAMES)


def _limit(items: Sequence[str]) -> list[str]:
    """Return the first items, and the number of the others as the last item."""
    if len(items) <= MAX_EXCEPTIONS:
        return [*items]
    shown = [*items[: MAX_EXCEPTIONS - 1]]
    return [*shown, f"{len(items) - len(shown)} more"]


def _is_variable(name: str) -> bool:
    """Return whether `name` is the name of a variable, not of a global state."""
    return " " not in name


def _quote(name: str) -> str:
    """Return a variable in backticks, or the name of a global state as it is."""
    short = one_line(name, NAME_LIMIT)
    if _is_variable(name):
        return f"`{short}`"
    return short
