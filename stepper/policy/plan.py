"""Plans: parse and edit steps, find the step of a cell, convert plans to and from JSON.

Plans are immutable: the functions that edit a plan return a new one.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from stepper.policy import cell_directives
from stepper.policy.model import Cell, CellEdit, Key, Plan, Step, StepKind, StepStatus
from stepper.policy.notebook_state import State

MAX_SLUG_LENGTH = 40
# Step ids must be less than this.
MAX_ID = 1 << 31
SEPARATOR = "::"
LONG = "long"
COMPARISON_SIGNS = str.maketrans({"≥": ">=", "≤": "<=", "≠": "!="})
# The operator of an assignment, but not `==`, `<=` or `+=`.
SINGLE_EQUALS = re.compile(r"(?<![=<>!:+\-*/%&|^@])=(?!=)")
# Only this many of these operators are examined, because all combinations are tried.
MAX_EQUALS = 6
# A comparison without its right side.
INCOMPLETE_COMPARISON = re.compile(r"(.*?)\s*(<=|>=|==|!=|<|>|=)", re.DOTALL)
# Exceptions that ast.parse raises for invalid source.
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
# Exceptions that JSON data raises if it is not a plan.
DATA_ERRORS = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class _StepParts(NamedTuple):
    """The parts of a step's text; an omitted part is None."""

    title: str
    criterion: str | None
    long: bool | None


def make_slug(problem: str) -> str:
    """Return the words of a problem for a file name, in lower case and joined by `_`.

    The result has at most MAX_SLUG_LENGTH ASCII characters and ends with a whole word
    if possible. Return "notebook" if the problem has no ASCII words.
    """
    decomposed_text = unicodedata.normalize("NFKD", problem.lower())
    ascii_text = decomposed_text.encode("ascii", "ignore").decode()
    slug = "_".join(re.findall(r"[a-z0-9]+", ascii_text))
    if len(slug) > MAX_SLUG_LENGTH:
        whole_words = slug[: MAX_SLUG_LENGTH + 1].rpartition("_")[0]
        slug = whole_words or slug[:MAX_SLUG_LENGTH]
    return slug or "notebook"


def parse_step(step_id: int, text: str) -> Step:
    """Parse the text of a step: `TITLE :: CRITERION :: long`.

    CRITERION and `long` can be omitted. Raise ValueError if the title is empty or the
    criterion is mistyped.
    """
    parts = _split_step(text)
    return make_checked_step(
        step_id, parts.title, parts.criterion or "", long=bool(parts.long)
    )


def _split_step(text: str) -> _StepParts:
    """Split the text of a step at `::`.

    The parts are not stripped. `long` is False if the text has a criterion, but does
    not end with `:: long`.
    """
    title, separator, rest = text.partition(SEPARATOR)
    if not separator:
        return _StepParts(title, criterion=None, long=None)
    criterion, second_separator, last = rest.rpartition(SEPARATOR)
    if last.strip() != LONG:
        return _StepParts(title, criterion=rest, long=False)
    if not second_separator:  # `TITLE :: long`
        return _StepParts(title, criterion=None, long=True)
    return _StepParts(title, criterion, long=True)


def make_step(
    step_id: int,
    title: str,
    criterion: str = "",
    kind: str = "step",
    *,
    long: bool = False,
) -> Step:
    """Return a step; white space in its title and criterion is normalized.

    The criterion is not checked. Raise ValueError if the title is empty or the kind is
    unknown.
    """
    title = " ".join(title.split())
    criterion = " ".join(criterion.split())
    if not title:
        raise ValueError(f"step {step_id} has no title")
    return Step(step_id, title, criterion, StepKind(kind), long)


def make_checked_step(
    step_id: int,
    title: str,
    criterion: str = "",
    kind: str = "step",
    *,
    long: bool = False,
) -> Step:
    """Return a step that was written by the user or the agent.

    Raise ValueError if the title is empty, the kind is unknown or the criterion is
    mistyped (see `find_criterion_problem`).
    """
    step = make_step(step_id, title, criterion, kind, long=long)
    problem = find_criterion_problem(step.criterion)
    if problem:
        raise ValueError(f"step {step_id}: {problem}")
    return step


def find_criterion_problem(criterion: str) -> str:
    """Return why a criterion looks like a mistyped comparison, or an empty string.

    Other criteria are valid: expressions, and prose for the agent.
    """
    text = _clean_criterion(criterion)
    if _parse_expression(text) is not None:
        return ""
    comparison = _double_equals(text)
    if comparison:
        return f"the criterion `{text}` has `=`; to compare, write `{comparison}`"
    match = INCOMPLETE_COMPARISON.fullmatch(text)
    if match and _parse_expression(match[1]) is not None:
        left_side, operator = match.groups()
        return (
            f"the criterion `{text}` ends with `{operator}`: nothing is compared with"
            f" `{left_side}`"
        )
    return ""


def _double_equals(text: str) -> str:
    """Return a criterion as a comparison, with `==` in place of `=`.

    As few signs as possible are replaced, because the `=` of an argument such as
    `axis=0` is right. Return an empty string if no replacement gives an expression.
    """
    positions = [match.start() for match in SINGLE_EQUALS.finditer(text)]
    for count in range(1, len(positions[:MAX_EQUALS]) + 1):
        for replaced_positions in combinations(positions[:MAX_EQUALS], count):
            characters = [*text]
            for position in replaced_positions:
                characters[position] = "=="
            comparison = "".join(characters)
            if parse_criterion(comparison):
                return comparison
    return ""


def _clean_criterion(criterion: str) -> str:
    """Return a criterion without backquotes, and with Python's comparison operators.

    An expression keeps its characters, because they may be in a string.
    """
    text = criterion.strip(" `")
    if _parse_expression(text) is not None:
        return text
    return text.translate(COMPARISON_SIGNS)


def _parse_expression(text: str) -> ast.expr | None:
    """Return the syntax tree of a Python expression, or None for another text."""
    try:
        return ast.parse(text, mode="eval").body
    except PARSE_ERRORS:
        return None


def parse_criterion(criterion: str) -> str:
    """Return the Python expression of a criterion, or an empty string for prose.

    stepper evaluates expressions; the agent judges criteria in prose. A word or number
    is also an expression in Python, but counts as prose.
    """
    text = _clean_criterion(criterion)
    expression = _parse_expression(text)
    if not isinstance(expression, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call):
        return ""
    is_prose = any(map(_is_prose, ast.walk(expression)))
    return "" if is_prose else text


def _is_prose(node: ast.AST) -> bool:
    """Return whether a comparison is prose such as "it is good", not `x is None`."""
    if not isinstance(node, ast.Compare):
        return False
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if not isinstance(operator, ast.Is | ast.IsNot):
            continue
        if not isinstance(right, ast.Constant):
            return True
        if not isinstance(right.value, bool | None):
            return True
    return False


def to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON data, as in `metadata.stepper` and in the journal.

    Default values are omitted, except for the problem and the steps.
    """
    data = {
        "problem": plan.problem,
        "steps": [_step_to_json(step) for step in plan.steps],
    }
    if plan.kernel:
        data["kernel"] = plan.kernel
    return data


def _step_to_json(step: Step) -> dict[str, Any]:
    """Return a step as JSON data, without default values."""
    data: dict[str, Any] = {"id": step.id, "title": step.title}
    if step.criterion:
        data["criterion"] = step.criterion
    if step.kind is not StepKind.STEP:
        data["kind"] = step.kind.value
    if step.long:
        data[LONG] = True
    return data


def from_json(data: Any) -> Plan | None:
    """Return the plan of JSON data, or None if the data is not a valid plan.

    The data may be invalid because users and other programs can edit notebooks.
    """
    try:
        # A notebook without a plan may name a kernel backend only.
        items = data.get("steps", ()) if "kernel" in data else data["steps"]
        steps = tuple(_step_from_json(item) for item in items)
        problem = str(data.get("problem", ""))
        plan = Plan(problem, steps, str(data.get("kernel") or ""))
    except DATA_ERRORS:
        return None
    ids = {step.id for step in plan.steps}
    are_unique = len(ids) == len(plan.steps)
    are_in_range = all(0 < step_id < MAX_ID for step_id in ids)
    return plan if are_unique and are_in_range else None


def _step_from_json(item: Mapping[str, Any]) -> Step:
    """Return the step of JSON data; raise one of DATA_ERRORS if it is invalid."""
    return make_step(
        int(item["id"]),
        str(item["title"]),
        str(item.get("criterion", "")),
        item.get("kind", "step"),
        long=item.get(LONG) is True,
    )


def find_step_id(state: State, cells: Sequence[Cell], cell: Cell) -> int | None:
    """Return the id of the step that a code cell belongs to, or None.

    1. A directive in the first line of the cell selects a step of the plan, or no step.
    2. A cell that has run keeps its step, or remains without a step.
    3. Any other cell belongs to the open step. If the failed cell of this step still
       exists, the other cell is a helper cell, which has no step.

    A step whose criterion is false is not the open step while its cell exists.
    """
    directive = cell_directives.parse(cell.source)
    if directive.scratch:
        return None
    if directive.step is not None and state.plan.find_step(directive.step):
        return directive.step
    for step in state.plan.steps:
        if state.get_progress(step.id).cell_id == cell.id:
            return step.id
    if cell.id in state.progress:  # the cell ran before, without a step
        return None
    open_step = _find_open_step(state, cells)
    if open_step is None or find_failed_cell(state, cells, open_step.id) is not None:
        return None
    return open_step.id


def _find_open_step(state: State, cells: Sequence[Cell]) -> Step | None:
    """Return the step that the next new cell may belong to, or None."""
    step = state.find_open_step()
    if step is None:
        return None
    progress = state.get_progress(step.id)
    if progress.status is not StepStatus.CRITERION_FALSE:
        return step
    if find_cell(cells, progress.cell_id or "") is None:
        return step
    return state.find_open_step(StepStatus.CRITERION_FALSE)


def find_key(state: State, cells: Sequence[Cell], cell: Cell) -> Key:
    """Return the key of a cell's progress.

    - For a cell that belongs to a step, the key is the id of the step.
    - A cell at the place of a deleted cell that failed gets the key of this cell, so
      the retries of the deleted cell count.
    - For any other cell, the key is the id of the cell.
    """
    step_id = find_step_id(state, cells, cell)
    if step_id is not None:
        return step_id
    ids = {other.id for other in cells}
    for key, progress in state.progress.items():
        if not isinstance(key, str) or not progress.is_failing:
            continue
        if progress.cell_id == cell.id:
            return key
        if progress.cell_id not in ids and progress.index == cell.index:
            return key
    return cell.id


def find_failed_cell(state: State, cells: Sequence[Cell], step_id: int) -> Cell | None:
    """Return the failed cell of a step if the notebook still contains it, or None."""
    progress = state.progress.get(step_id)
    if progress is None or progress.status is not StepStatus.FAILED:
        return None
    for cell in cells:
        if cell.is_code and cell.id == progress.cell_id:
            return cell
    return None


def find_cell(cells: Sequence[Cell], cell_id: str) -> Cell | None:
    """Return the cell with an id, or None if the id is unknown.

    If no cell has the id `cell-N`, return the cell at the index N.
    """
    for cell in cells:
        if cell.id == cell_id:
            return cell
    match = re.fullmatch(r"cell-([0-9]{1,9})", cell_id)
    if match is None:
        return None
    index = int(match[1])
    return cells[index] if index < len(cells) else None


def find_edited_cell(cells: Sequence[Cell], edit: CellEdit) -> Cell | None:
    """Return the cell that an edit wrote, or None if the notebook does not contain it.

    The cell is searched by its id or, without an id, below the cell `edit.after`. If
    the source of the cell there is not the written source, but exactly one code cell
    has the written source, return that code cell.
    """
    if edit.cell_id is not None:
        expected_cell = find_cell(cells, edit.cell_id)
    else:
        expected_cell = _find_inserted_cell(cells, edit.after)
    if expected_cell is None:
        return None
    matches = [cell for cell in cells if cell.is_code and cell.source == edit.source]
    if expected_cell not in matches and len(matches) == 1:
        return matches[0]
    return expected_cell


def _find_inserted_cell(cells: Sequence[Cell], after: str | None) -> Cell | None:
    """Return the cell below the cell `after`, or the first cell for None.

    Return None if one of the two cells does not exist.
    """
    index = 0
    if after:
        cell_above = find_cell(cells, after)
        if cell_above is None:
            return None
        index = cell_above.index + 1
    return cells[index] if index < len(cells) else None


def add_step(state: State, text: str, after: int | None) -> Plan:
    """Return the plan with a new step below the step `after`.

    If `after` is 0, the new step becomes the first step, and if it is None, the last.
    Raise ValueError if the text is not valid, or if no step can be inserted at this
    position.
    """
    last_id = max((step.id for step in state.plan.steps), default=0)
    step = parse_step(last_id + 1, text)
    return _insert_step(state, state.plan.steps, step, after)


def edit_step(state: State, step_id: int, text: str) -> Plan:
    """Return the plan with another text for a step.

    Parts that the text omits keep their values. However, a text with a criterion but
    without `:: long` removes `long`. Raise ValueError if the step does not exist, has
    run or was skipped, or if the text is not valid.
    """
    old_step = _get_pending_step(state, step_id)
    parts = _split_step(text)
    is_long = old_step.long if parts.long is None else parts.long
    if parts.criterion is None:
        new_step = make_step(
            step_id, parts.title, old_step.criterion, old_step.kind.value, long=is_long
        )
    else:
        new_step = make_checked_step(
            step_id, parts.title, parts.criterion, old_step.kind.value, long=is_long
        )
    steps = tuple(new_step if step is old_step else step for step in state.plan.steps)
    return replace(state.plan, steps=steps)


def remove_step(state: State, step_id: int) -> Plan:
    """Return the plan without a step.

    Raise ValueError if the step does not exist, has run or was skipped.
    """
    removed_step = _get_pending_step(state, step_id)
    steps = tuple(step for step in state.plan.steps if step is not removed_step)
    return replace(state.plan, steps=steps)


def move_step(state: State, step_id: int, after: int) -> Plan:
    """Return the plan with a step moved below the step `after`, or to the top for 0.

    Raise ValueError if the step does not exist, has run or was skipped, or if it cannot
    be inserted at the new position.
    """
    moved_step = _get_pending_step(state, step_id)
    if after == step_id:
        raise ValueError(f"step {step_id} can't be moved below itself")
    other_steps = tuple(step for step in state.plan.steps if step is not moved_step)
    return _insert_step(state, other_steps, moved_step, after)


def _get_pending_step(state: State, step_id: int) -> Step:
    """Return a step that can be changed.

    Raise ValueError if the step does not exist, has run or was skipped.
    """
    step = state.plan.find_step(step_id)
    if step is None:
        raise ValueError(f"there is no step {step_id}")
    status = state.get_progress(step_id).status
    if status is StepStatus.SKIPPED:
        reopen = state.commands.terminal("plan reopen", str(step_id))
        raise ValueError(f"step {step_id} is skipped: reopen it first ({reopen})")
    if status is not StepStatus.PENDING:
        raise ValueError(f"step {step_id} has already run: it can't be changed")
    return step


def _insert_step(
    state: State, steps: tuple[Step, ...], new: Step, after: int | None
) -> Plan:
    """Return the plan with `steps`, and with the step `new` below the step `after`.

    If `after` is 0, `new` becomes the first step, and if it is None, the last. Raise
    ValueError if the step `after` does not exist, or if a step below `new` has run or
    was skipped.
    """
    ids = [step.id for step in steps]
    if after and after not in ids:
        raise ValueError(f"step {after} does not exist: choose another position")
    index = 0
    if after is None:
        index = len(steps)
    elif after:
        index = ids.index(after) + 1
    for step in steps[index:]:
        status = state.get_progress(step.id).status
        if status is StepStatus.SKIPPED:
            raise ValueError(
                f"step {step.id} is skipped: no step can be inserted before it"
            )
        if status is not StepStatus.PENDING:
            raise ValueError(
                f"step {step.id} has already run: no step can be inserted before it"
            )
    return replace(state.plan, steps=(*steps[:index], new, *steps[index:]))
