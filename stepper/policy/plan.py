"""A plan and its names: from arguments to steps, from a problem to a file name, to and from JSON."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepper.policy import cell_directives
from stepper.policy.model import Cell, CellEdit, Key, Plan, Step, StepKind, StepStatus
from stepper.policy.notebook_state import State

SLUG_LENGTH = 40
LONG = "long"
SIGNS = str.maketrans({"≥": ">=", "≤": "<=", "≠": "!="})
# what assigns in Python, and a comparison without its right side
SINGLE_EQUALS = re.compile(r"(?<![=<>!:+\-*/%&|^@])=(?!=)")
DANGLING = re.compile(r"(.*?)\s*(<=|>=|==|!=|<|>|=)", re.DOTALL)
IS_PROSE = re.compile(r"\bis\b(?!(?: not)? (?:None|True|False)\b)")  # "it is good"


def make_slug(problem: str) -> str:
    """Return a file name's part: lower case, ASCII, words joined by `_`, at most 40 characters."""
    plain = (
        unicodedata.normalize("NFKD", problem.lower())
        .encode("ascii", "ignore")
        .decode()
    )
    name = "_".join(re.findall(r"[a-z0-9]+", plain))
    if len(name) > SLUG_LENGTH:  # whole words, as many as there is room for
        name = name[: SLUG_LENGTH + 1].rpartition("_")[0] or name[:SLUG_LENGTH]
    return name or "notebook"


def parse_step(number: int, text: str) -> Step:
    """Return the step that `--step "TITLE :: CRITERION :: long"` names; raise ValueError where the title is empty."""
    title, criterion, long = _told_of(text)
    return make_checked_step(number, title, criterion or "", long=bool(long))


def _told_of(text: str) -> tuple[str, str | None, bool | None]:
    """Return a step's title, its criterion and whether it is long; None for what the text says nothing of."""
    title, mark, rest = text.partition("::")
    criterion, second, last = rest.rpartition("::")
    if last.strip() == LONG:
        return title, criterion if second else None, True
    return (title, rest, False) if mark else (title, None, None)


def make_step(
    number: int, title: str, criterion: str = "", kind: str = "step", long: bool = False
) -> Step:
    """Return a step with its texts on one line each; raise ValueError on an empty title or unknown kind."""
    title, criterion = " ".join(title.split()), " ".join(criterion.split())
    if not title:
        raise ValueError(f"step {number} has no title")
    return Step(number, title, criterion, StepKind(kind), long)


def make_checked_step(
    number: int, title: str, criterion: str = "", kind: str = "step", long: bool = False
) -> Step:
    """Return a step of a plan that is made or changed; raise ValueError also on a criterion with a slip of the pen."""
    made = make_step(number, title, criterion, kind, long)
    if problem := find_criterion_problem(made.criterion):
        raise ValueError(f"step {number}: {problem}")
    return made


def find_criterion_problem(criterion: str) -> str:
    """Return why a criterion that is meant to compare does not, '' for prose and for one that does."""
    text = criterion.strip(" `").translate(SIGNS)
    if parse_criterion(text) or _parses(text):
        return ""
    compared = SINGLE_EQUALS.sub("==", text)
    if compared != text and parse_criterion(compared):
        return f"the criterion `{text}` has `=`; to compare, write `{compared}`"
    dangling = DANGLING.fullmatch(text)
    if dangling and _parses(dangling[1]):
        what = f"the criterion `{text}` ends with `{dangling[2]}`"
        return f"{what}: nothing is compared with `{dangling[1]}`"
    return ""


def _parses(text: str) -> bool:
    """Return whether a text is a Python expression."""
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def parse_criterion(criterion: str) -> str:
    """Return a criterion that compares, as Python; '' for one in prose, which the agent judges."""
    text = criterion.strip(" `").translate(SIGNS)
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    decides = isinstance(body, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call)
    return text if decides and not IS_PROSE.search(text) else ""


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as it stands in `metadata.stepper` and in the journal: without what says nothing."""
    told = {"problem": plan.problem, "steps": [_told(step) for step in plan.steps]}
    return {**told, "kernel": plan.kernel} if plan.kernel else told


def _told(step: Step) -> dict[str, Any]:
    more = {
        "criterion": step.criterion,
        "kind": step.kind.value * (step.kind is not StepKind.STEP),
        LONG: step.long,
    }
    return {
        "id": step.id,
        "title": step.title,
        **{name: value for name, value in more.items() if value},
    }


def from_json(data: Any) -> Plan | None:
    """Return the plan in `data`, or None where it is none: metadata may come from a stranger or be edited."""
    try:
        read = (
            make_step(
                int(item["id"]),
                str(item["title"]),
                str(item.get("criterion", "")),
                item.get("kind", "step"),
                item.get(LONG) is True,
            )
            for item in (data.get("steps", ()) if "kernel" in data else data["steps"])
        )
        made = Plan(
            str(data.get("problem", "")), tuple(read), str(data.get("kernel") or "")
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return None
    ids = {step.id for step in made.steps}
    return (
        made
        if len(ids) == len(made.steps) and all(0 < number < 1 << 31 for number in ids)
        else None
    )


def find_step_id(state: State, cells: Sequence[Cell], cell: Cell) -> int | None:
    """Return the id of the step that a code cell belongs to, or None for a cell in no step.

    Its own first line decides, then whose cell it is, then which step is open: while that one's failed cell exists,
    every other cell is a helper in no step. A step whose criterion is false has its cell: the work may go on past it.
    """
    asked = cell_directives.parse(cell.source)
    if asked.scratch:
        return None
    if asked.step is not None and state.plan.find_step(asked.step):
        return asked.step
    for step in state.plan.steps:
        if state.progress_of(step.id).cell_id == cell.id:
            return step.id
    number = state.find_open_step()
    progress = state.progress_of(number) if number is not None else None
    if (
        progress
        and progress.status is StepStatus.CRITERION_FALSE
        and find_cell(cells, progress.cell_id or "")
    ):
        number = state.find_open_step(StepStatus.CRITERION_FALSE)
    if cell.id in state.progress or (
        number is not None and find_failed_cell(state, cells, number) is not None
    ):
        return None  # it ran before, in no step; or it is a helper
    return number


def find_key(state: State, cells: Sequence[Cell], cell: Cell) -> Key:
    """Return under what a cell's runs are counted: its step, else its id; one re-created in the place of a failed
    cell that is gone takes over that one's count.
    """
    number = find_step_id(state, cells, cell)
    if number is not None:
        return number
    ids = {other.id for other in cells}
    for known, progress in state.progress.items():
        in_its_place = progress.cell_id not in ids and progress.index == cell.index
        if (
            isinstance(known, str)
            and progress.is_failing
            and (progress.cell_id == cell.id or in_its_place)
        ):
            return known
    return cell.id


def find_failed_cell(state: State, cells: Sequence[Cell], number: int) -> Cell | None:
    """Return the cell of a failed step that still stands in the notebook and waits for its fix, or None."""
    progress = state.progress_of(number)
    failed = progress.status is StepStatus.FAILED
    return next(
        (
            cell
            for cell in cells
            if failed and cell.is_code and cell.id == progress.cell_id
        ),
        None,
    )


def find_cell(cells: Sequence[Cell], name: str) -> Cell | None:
    """Return the cell with that id; `cell-INDEX` names a cell by its place, as Claude Code does."""
    number = re.fullmatch(r"cell-(\d+)", name)
    placed = cells[int(number[1])] if number and int(number[1]) < len(cells) else None
    return next((cell for cell in cells if cell.id == name), placed)


def find_edited_cell(cells: Sequence[Cell], edit: CellEdit) -> Cell | None:
    """Return the cell that was edited; without cell ids an insert is found below the cell it came after."""
    if edit.cell_id is not None:
        found = find_cell(cells, edit.cell_id)
    else:
        above = find_cell(cells, edit.after) if edit.after else None
        index = above.index + 1 if above else 0
        found = cells[index] if index < len(cells) else None
    same = [cell for cell in cells if cell.is_code and cell.source == edit.source]
    return found if found is None or found in same or len(same) != 1 else same[0]


def add_step(state: State, title: str, after: int | None) -> Plan:
    """Return the plan with one more step, at the end or after that step; raise ValueError."""
    new = parse_step(max((s.id for s in state.plan.steps), default=0) + 1, title)
    return _placed(state, state.plan.steps, new, after)


def edit_step(state: State, number: int, title: str) -> Plan:
    """Return the plan with that step's title changed, and what stands behind `::`; raise ValueError."""
    old = _not_run(state, number)
    name, criterion, long = _told_of(title)
    is_long = old.long if long is None else long
    if criterion is None:
        new = make_step(number, name, old.criterion, old.kind.value, is_long)
    else:
        new = make_checked_step(number, name, criterion, old.kind.value, is_long)
    return replace(
        state.plan, steps=tuple(new if s is old else s for s in state.plan.steps)
    )


def remove_step(state: State, number: int) -> Plan:
    """Return the plan without that step; raise ValueError."""
    gone = _not_run(state, number)
    return replace(
        state.plan, steps=tuple(s for s in state.plan.steps if s is not gone)
    )


def move_step(state: State, number: int, after: int) -> Plan:
    """Return the plan with that step after another one (0: first); raise ValueError."""
    return _placed(
        state, remove_step(state, number).steps, _not_run(state, number), after
    )


def _not_run(state: State, number: int) -> Step:
    found = state.plan.find_step(number)
    if found is None:
        raise ValueError(f"there is no step {number}")
    if state.progress_of(number).status is StepStatus.SKIPPED:
        reopen = state.commands.terminal("plan reopen", str(number))
        raise ValueError(f"step {number} is skipped: reopen it first ({reopen})")
    if state.progress_of(number).status is not StepStatus.PENDING:
        skip = state.commands.terminal("skip")
        raise ValueError(f"step {number} ran already: it can only be skipped ({skip})")
    return found


def _placed(
    state: State, steps: tuple[Step, ...], new: Step, after: int | None
) -> Plan:
    ids = [s.id for s in steps]
    if after and after not in ids:
        raise ValueError(f"there is no step {after} to put it after")
    at = len(steps) if after is None else ids.index(after) + 1 if after else 0
    ran = next(
        (
            s.id
            for s in steps[at:]
            if state.progress_of(s.id).status is not StepStatus.PENDING
        ),
        None,
    )
    if ran is not None and state.progress_of(ran).status is StepStatus.SKIPPED:
        raise ValueError(f"step {ran} is skipped: no step can be put before it")
    if ran is not None:
        raise ValueError(f"step {ran} ran already: no step can be put before it")
    return replace(state.plan, steps=(*steps[:at], new, *steps[at:]))
