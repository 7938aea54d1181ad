"""Warnings about data frames that a cell changed.

A frame can become empty, a merge can multiply its rows, and columns can lose all their
values. There is no warning if the cell seems to do this on purpose, for example if it
searches for missing values or selects rows.

The assignments are read from the cell's source; nothing is evaluated. Only instances of
pandas' own classes are inspected, not of the user's subclasses. Their sizes and labels
are stored, but the objects are not, so that their memory can be freed.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from typing import Any, Iterator, NamedTuple

from stepper.diagnosis.in_kernel.swallowed_errors import LOOPS, list_blocks
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    get_top_module,
    is_one_of,
    shell,
    shorten,
)

# Names of frames that should be empty: the beginnings of words, then whole words.
# `_merge` is the column of merge(…, indicator=True).
PROBLEM_NAMES = re.compile(
    r"(?:^|_)(?:error|miss|dup|invalid|outlier|null|violat|anomal|conflict|mism"
    r"|unmatch|orphan|fail|issue|problem|warn|diff|extra|leftover|remain|reject"
    r"|unknown|empty|negative|suspic|overlap|wrong|incons|unexp|dropped|exclu|broken"
    r"|corrupt|pending|weird|imposs|faulty|incompl|unpars|leak|common|shared|intersect"
    r"|unused|removed|stale|blank|changed|merge\b"
    r"|(?:err|bad|nan?|neg|gap|odd|both|too|lost|zero|check|only|without|inf|no|not|tmp"
    r"|temp|anti)s?\d*(?:_|$))",
    re.IGNORECASE,
)
# A search for missing, duplicate or unknown values: df[df.a.isna()],
# df[~df.a.isin(known)].
PROBLEM_SEARCH = re.compile(
    r"(?:^|[\[(&|])\s*[^~&|]*\.(?:isna|isnull|duplicated)\(|~[^&|]*\.isin\("
)
# A frame without rows: head(0), [:0], or a constructor without a named value.
NO_ROWS = re.compile(
    r"\bhead\(0\)|\[0?:0\]|\b(?:DataFrame|Series)\((?!(?:data=)?[^,)=]*[a-z]\w*[,)])"
)
MERGE = re.compile(r"\bmerge\(|\.join\(")
MERGE_KIND = re.compile(r"'(left|right|outer|inner|cross)'")
ROW_ADDITION = re.compile(
    r"\b(?:explode|melt|stack|concat|append|reindex|resample|repeat|wide_to_long"
    r"|asfreq)\(|\bvalidate="
)
# Calls that replace values, possibly by missing values.
VALUE_MAPPING = re.compile(
    r"\b(?:map|to_numeric|to_datetime|to_timedelta|reindex|where)\("
)
ROW_SELECTION = re.compile(
    r"\b(?:query|head|tail|sample|dropna|drop|nlargest|nsmallest|filter|mask)\(|[<>]"
    r"|[=!]="
)
STRING = re.compile(r"'([^']*)'")
NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_CELLS = 5_000_000  # of a frame whose values are inspected
MAX_COLUMNS = 2000
HEAD_ROWS = 50
MAX_SHOWN = 3  # columns or frames that a warning names
LABEL_LIMIT = 60  # characters
NAME_LIMIT = 40
LIBRARIES = ("numpy", "pandas")
PLAIN_TYPES = (str, int, float, bool, type(None))
Fact = dict[str, Any]


class FrameState:
    """The number of rows and the labels of a data frame or series at one moment.

    `labels` is empty and `blank` is None if the frame could not be inspected, for
    example because it was too large.
    """

    def __init__(self, value: Any, deadline: float) -> None:
        self.id = id(value)
        self.rows = len(value)
        self.is_frame = value.ndim == 2
        self.labels: tuple[str, ...] = ()
        # The labels of columns without any value, or None if they are unknown.
        self.blank: set[str] | None = None
        width = 1
        if self.is_frame:
            width = value.shape[1]
        cell_count = width * self.rows
        if width > MAX_COLUMNS or cell_count > MAX_CELLS:
            return
        if clock() >= deadline:
            return
        frame = value
        if not self.is_frame:
            frame = value.to_frame()
        call_safely(self.read_columns, frame, deadline)

    def read_columns(self, frame: Any, deadline: float) -> None:
        """Set `labels` and `blank` from a data frame.

        Neither is set if a label or dtype could run the user's code, or if the labels
        are not unique. Only `labels` is set if the deadline passes.
        """
        # The `isna` of another dtype could be the user's code.
        for dtype in frame.dtypes.tolist():
            if get_top_module(type(dtype)) not in LIBRARIES:
                return
        texts = []
        for label in frame.columns.tolist():
            if not is_plain_label(label):
                return
            text = shorten(str(label), LABEL_LIMIT)
            texts.append(text)
        is_unique = len(set(texts)) == len(texts)
        if not is_unique:
            return
        self.labels = tuple(texts)
        blank = set()
        # Nearly all columns have a value in the first rows.
        head = frame.iloc[:HEAD_ROWS]
        is_filled = head.notna().to_numpy()
        has_value = is_filled.any(axis=0).tolist()
        for index, text in enumerate(texts):
            if has_value[index] or not self.rows:
                continue
            if clock() > deadline:
                return
            column = frame.iloc[:, index]
            if not column.notna().any():
                blank.add(text)
        self.blank = blank

    def has_values(self, label: str) -> bool | None:
        """Return whether a column has values, or None if this is unknown."""
        if self.blank is None or label not in self.labels:
            return None
        return label not in self.blank


def is_plain_label(label: Any) -> bool:
    """Return whether a label is safe to format: `str()` does not run the user's code.

    Such labels are plain values, values of NumPy and pandas, and tuples of them.
    """
    kind = type(label)
    if kind is tuple:
        return all(map(is_plain_label, label))
    return is_one_of(kind, PLAIN_TYPES) or get_top_module(kind) in LIBRARIES


def capture_frames(source: str, deadline: float) -> dict[str, FrameState]:
    """Return the states of the frames and series that a cell uses, by variable name.

    Frames that are reached after the deadline have a state without labels.
    """
    pandas = vars(sys.modules["pandas"])
    kinds = (pandas.get("DataFrame"), pandas.get("Series"))
    variables = list(shell.user_ns.items())
    frames = {}
    for name, value in variables:
        if not is_one_of(type(value), kinds):
            continue
        if type(name) is not str or name.startswith("_"):
            continue
        if name not in source:
            continue
        word = re.escape(name)
        if re.search(rf"\b{word}\b", source):
            frames[name] = FrameState(value, deadline)
    return frames


class Assignment(NamedTuple):
    """An assignment to a variable, or to columns of the data frame in a variable."""

    name: str  # of the variable
    # Empty for an assignment to the variable itself. An unknown column is "".
    columns: list[str]
    value: str  # source of the assigned expression
    in_loop: bool


def iterate_assignments(
    body: list[ast.stmt],
    *,
    in_loop: bool,
) -> Iterator[Assignment]:
    """Yield the assignments in statements, except in functions and classes, in order.

    `in_loop` is whether the statements are part of a loop.
    """
    for statement in body:
        if isinstance(statement, SCOPES):
            continue
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield from _split_assignment(statement, in_loop)
        is_loop = isinstance(statement, LOOPS)
        for block in list_blocks(statement):
            yield from iterate_assignments(block, in_loop=in_loop or is_loop)


def _split_assignment(
    statement: ast.Assign | ast.AnnAssign | ast.AugAssign,
    in_loop: bool,
) -> Iterator[Assignment]:
    """Yield an assignment for each name or column that a statement assigns.

    `in_loop` says whether the statement is part of a loop.
    """
    if statement.value is None:
        return
    value = ast.unparse(statement.value)
    targets: list[Any] = []
    if isinstance(statement, ast.Assign):
        targets += statement.targets
    else:
        targets.append(statement.target)
    for target in targets:
        text = ast.unparse(target)
        target_value = value
        if isinstance(statement, ast.AugAssign):
            target_value = f"{text} + {value}"  # x += 1 depends on x
        names = NAME.findall(text)
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            columns = _list_target_columns(target)
            if names:
                yield Assignment(names[0], columns, target_value, in_loop)
            continue
        for name in names:
            # In `a, b = …`, the value of each name is unknown.
            name_value = target_value if text == name else ""
            yield Assignment(name, [], name_value, in_loop)


def _list_target_columns(target: ast.Subscript | ast.Attribute) -> list[str]:
    """Return the columns that a target such as `df["a"]` or `df.a` names.

    Return a list with an empty string if the column is unknown, as in `df[x]`.
    """
    text = ast.unparse(target)
    columns: list[str] = STRING.findall(text)
    if columns:
        return columns
    attribute = getattr(target, "attr", "")
    return [attribute]


def list_names(source: str) -> list[str]:
    """Return the distinct names in an expression, in order."""
    code = STRING.sub("''", source)
    names = NAME.findall(code)
    return list(dict.fromkeys(names))


def compare_frames(
    before: dict[str, FrameState],
    after: dict[str, FrameState],
    trees: list[ast.Module],
) -> list[Fact]:
    """Return facts about suspicious changes, at most one of each kind per frame.

    `before` and `after` are the states before and after the run, by variable name.
    `trees` are the syntax trees of the executed code.
    """
    comparison = FrameComparison(before, after, trees)
    checks = (
        comparison.find_multiplied_rows,
        comparison.find_lost_rows,
        comparison.find_blank_columns,
    )
    facts: dict[Any, Fact] = {}
    for check in checks:
        for name, state in after.items():
            fact = check(name, state)
            if fact is None:
                continue
            # Several names can refer to the same frame.
            key = (state.id, fact["kind"])
            facts.setdefault(key, fact)
    return list(facts.values())


def create_fact(kind: str, text: str) -> Fact:
    """Return a fact: its kind, such as "empty", and the text for the report."""
    return {"kind": kind, "text": text}


def shorten_name(name: str) -> str:
    """Return a name shortened for a message."""
    return shorten(name, NAME_LIMIT)


def format_operands(row_counts: dict[str, Any]) -> str:
    """Return frames with their numbers of rows: `a (10) and b (20)`."""
    parts = []
    for name, rows in row_counts.items():
        short_name = shorten_name(name)
        parts.append(f"{short_name} ({rows:,})")
    return " and ".join(parts)


def format_row_counts(row_counts: dict[str, int]) -> str:
    """Return the first frames with their numbers of rows: `a has 10, b has 20`."""
    parts: list[str] = []
    for name, rows in row_counts.items():
        if len(parts) == MAX_SHOWN:
            break
        short_name = shorten_name(name)
        parts.append(f"{short_name} has {rows:,}")
    return ", ".join(parts)


def describe_empty_frame(name: str, row_counts: dict[str, int]) -> str:
    """Return a sentence on an empty frame.

    `row_counts` are the numbers of rows of the frames from which the frame was
    computed, and of the frame itself before the run.
    """
    short_name = shorten_name(name)
    if list(row_counts) == [name]:
        return f"{short_name} has 0 rows now ({row_counts[name]:,} before)"
    text = f"{short_name} has 0 rows"
    if row_counts:
        text += f"; {format_row_counts(row_counts)}"
    return text


def format_columns(columns: list[str]) -> str:
    """Return the first column labels in quotes, and the number of further columns."""
    parts = []
    for column in columns[:MAX_SHOWN]:
        short_name = shorten_name(column)
        parts.append(f'"{short_name}"')
    text = ", ".join(parts)
    other_count = len(columns) - MAX_SHOWN
    if other_count > 0:
        text += f" and {other_count} more"
    return text


def is_problem_search(source: str, names: list[str]) -> bool:
    """Return whether an expression seems to select rows with problems.

    Such rows are, for example, duplicates. `names` are the names in the expression.
    """
    if PROBLEM_SEARCH.search(source):
        return True
    words = [*names, *STRING.findall(source)]
    return any(map(PROBLEM_NAMES.search, words))


class FrameComparison:
    """The states of frames before and after a run, and the assignments in the run."""

    def __init__(
        self,
        before: dict[str, FrameState],
        after: dict[str, FrameState],
        trees: list[ast.Module],
    ) -> None:
        self.before = before
        self.after = after
        self.source = "\n".join(map(ast.unparse, trees))
        self.assignments: list[Assignment] = []
        for tree in trees:
            self.assignments += iterate_assignments(tree.body, in_loop=False)

    def list_bindings(self, name: str) -> list[Assignment]:
        """Return the assignments to a name itself, not to its columns."""
        bindings = []
        for assignment in self.assignments:
            if assignment.name == name and not assignment.columns:
                bindings.append(assignment)
        return bindings

    def count_operand_rows(self, assignment: Assignment) -> dict[str, int | None]:
        """Return the number of rows of each frame in an assignment's value.

        The numbers are those at the time of the assignment. A number is None if it is
        unknown.
        """
        counts = {}
        for operand in list_names(assignment.value):
            if operand in self.before or operand in self.after:
                rows = self._count_rows(operand, assignment)
                counts[operand] = rows
        return counts

    def _count_rows(self, operand: str, assignment: Assignment) -> int | None:
        """Return a frame's number of rows at an assignment, or None if it is unknown.

        If the cell does not assign the frame, return the larger of its numbers before
        and after the run. The number is unknown if the frame was assigned several
        times, or if its state at the assignment was not recorded.
        """
        bindings = self.list_bindings(operand)
        if not bindings:
            # The cell did not assign the frame, but may have changed it in place.
            row_counts = []
            for states in (self.before, self.after):
                if operand in states:
                    row_counts.append(states[operand].rows)
            return max(row_counts)
        if len(bindings) > 1:
            return None
        # The order by identity, because a cell may repeat an assignment.
        order = list(map(id, self.assignments))
        is_assigned_before = order.index(id(bindings[0])) < order.index(id(assignment))
        states_at_assignment = self.after if is_assigned_before else self.before
        state = states_at_assignment.get(operand)
        if state is None:
            return None
        return state.rows

    def find_multiplied_rows(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if a merge has too many rows, or None.

        The result of a one-to-one or one-to-many merge cannot have more rows than its
        operands together.
        """
        bindings = self.list_bindings(name)
        if not bindings:
            return None
        assignment = bindings[-1]
        value = assignment.value
        if assignment.in_loop or not MERGE.search(value):
            return None
        if ROW_ADDITION.search(value):
            return None
        operands = self.count_operand_rows(assignment)
        counts = [count for count in operands.values() if count is not None]
        is_complete = len(counts) == len(operands)
        if not is_complete or len(counts) < 2:
            return None
        kinds = set(MERGE_KIND.findall(value))
        if not kinds:
            default_kind = "inner" if "merge(" in value else "left"
            kinds.add(default_kind)
        if "cross" in kinds:
            return None
        if state.rows == math.prod(counts):
            return None  # a cross product, which is probably intended
        limit = max(counts) if kinds == {"inner"} else sum(counts)
        if state.rows <= limit:
            return None
        short_name = shorten_name(name)
        sizes = format_operands(operands)
        text = f"{short_name} has {state.rows:,} rows, more than {sizes}"
        return create_fact("multiplied", text)

    def find_lost_rows(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if a frame became empty unintentionally, or None."""
        if state.rows:
            return None
        bindings = self.list_bindings(name)
        if not bindings and not self._was_emptied_in_place(name, state):
            return None
        if self._is_inspected(name) or self._is_intended(name, bindings):
            return None
        if not bindings:
            old_counts = {name: self.before[name].rows}
            text = describe_empty_frame(name, old_counts)
            return create_fact("empty", text)
        assignment = bindings[-1]
        counts = self.count_operand_rows(assignment)
        is_merge = MERGE.search(assignment.value) is not None
        if is_merge and len(counts) > 1 and all(counts.values()):
            short_name = shorten_name(name)
            operands = format_operands(counts)
            text = f"{short_name} has 0 rows: no row matched in the merge of {operands}"
            return create_fact("emptied", text)
        filled_counts = {operand: count for operand, count in counts.items() if count}
        text = describe_empty_frame(name, filled_counts)
        return create_fact("empty", text)

    def _was_emptied_in_place(self, name: str, state: FrameState) -> bool:
        """Return whether the run removed all rows of a frame without an assignment.

        `state` is the state of the frame, which is empty now.
        """
        old_state = self.before.get(name)
        if old_state is None or old_state.id != state.id:
            return False
        return old_state.rows > 0

    def _is_inspected(self, name: str) -> bool:
        """Return whether the cell shows a frame or its size, or loops over frames.

        A loop over frames assigns each frame to the name.
        """
        word = re.escape(name)
        pattern = (
            rf"\b{word}\.(?:empty|shape|size)\b"
            rf"|\b(?:len|display|print|assert)\b.*\b{word}\b"
            rf"|^{word}\Z"
            rf"|^\s*(?:async )?for .*\b{word}\b.* in "
        )
        match = re.search(pattern, self.source, re.MULTILINE)
        return match is not None

    def _is_intended(self, name: str, bindings: list[Assignment]) -> bool:
        """Return whether a frame is empty on purpose.

        A frame is empty on purpose if it is assigned in a loop, created empty, computed
        from an empty frame, or the result of a search for problems. The name of the
        frame can also show that its rows are problems, such as `duplicates`.
        """
        for assignment in bindings:
            value = assignment.value
            if NO_ROWS.search(STRING.sub("", value)):
                return True
            names = list_names(value)
            if self._has_empty_frame(names, name):
                return True
            # df = df[~df.id.isin(bad)] is not a search for problems.
            if name in names:
                continue
            if assignment.in_loop or is_problem_search(value, names):
                return True
        return bool(PROBLEM_NAMES.search(name))

    def _has_empty_frame(self, names: list[str], target: str) -> bool:
        """Return whether a frame with one of these names is empty.

        The states before and after the run are checked, for `target` only the state
        before.
        """
        for name in names:
            states = [self.before.get(name)]
            if name != target:
                states.append(self.after.get(name))
            for state in states:
                if state is not None and state.rows == 0:
                    return True
        return False

    def find_blank_columns(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if columns of a frame lost all their values, or None."""
        if not state.blank or state.rows < 2:
            return None
        word = re.escape(name)
        if re.search(rf"\bfor .*\b{word}\b.* in ", self.source):
            return None
        lost = []
        for label in state.labels:
            if label in state.blank and self._has_lost_values(name, label):
                lost.append(label)
        if not lost:
            return None
        short_name = shorten_name(name)
        columns = format_columns(lost)
        if not state.is_frame:
            text = f"{short_name} is all NaN now"
        elif len(lost) == 1:
            text = f"column {columns} of {short_name} is all NaN now"
        else:
            text = f"columns {columns} of {short_name} are all NaN now"
        return create_fact("blank", text)

    def _has_lost_values(self, name: str, label: str) -> bool:
        """Return whether a column lost all its values because of a mapping or a merge.

        Columns that were blank before, or are computed from blank ones, do not count.
        """
        if self._may_have_been_blank(name, label):
            return False
        bindings = [assignment.value for assignment in self.list_bindings(name)]
        column_values = self._list_column_values(name, label, bindings)
        if column_values:  # the cell assigned the column
            value = column_values[-1]
            source_columns = STRING.findall(value)
            had_values = self._had_values(value, source_columns, name, label)
            is_mapping = VALUE_MAPPING.search(value) is not None
            return is_mapping and False not in had_values
        value = bindings[-1] if bindings else ""
        if self._may_lose_values_on_purpose(value):
            return False
        # A merge adds a suffix to a label of both frames.
        label_before = re.sub("_[xy]$", "", label)
        source_columns = [label, label_before]
        had_values = self._had_values(value, source_columns, name, label)
        return False not in had_values and True in had_values

    def _may_lose_values_on_purpose(self, expression: str) -> bool:
        """Return whether blank columns may be the correct result of an expression.

        This is the case if the expression selects rows, if all its merges are explicit
        inner merges, or if it contains neither a mapping nor a merge.
        """
        expression_without_strings = STRING.sub("''", expression)
        if ROW_SELECTION.search(expression_without_strings):
            return True
        merge_kinds = set(MERGE_KIND.findall(expression))
        if merge_kinds == {"inner"}:
            return True
        has_mapping = VALUE_MAPPING.search(expression) is not None
        has_merge = MERGE.search(expression) is not None
        return not has_mapping and not has_merge

    def _may_have_been_blank(self, name: str, label: str) -> bool:
        """Return whether a column may have been blank before the run."""
        state = self.before.get(name)
        if state is None:
            return False
        return state.blank is None or label in state.blank

    def _list_column_values(
        self,
        name: str,
        label: str,
        bindings: list[str],
    ) -> list[str]:
        """Return the expressions assigned to a column.

        `bindings` are the expressions assigned to the frame. An expression that
        contains `label=`, such as `df.assign(label=…)`, also assigns the column.
        """
        values = []
        for assignment in self.assignments:
            if assignment.name == name and label in assignment.columns:
                values.append(assignment.value)
        word = re.escape(label)
        keyword = re.compile(rf"\b{word}=")
        for value in bindings:
            if keyword.search(value):
                values.append(value)
        return values

    def _had_values(
        self,
        source: str,
        columns: list[str],
        name: str,
        label: str,
    ) -> list[bool | None]:
        """Return whether the columns of the frames in an expression had values.

        The list has an entry for each frame and each column. The entry is None if the
        column is unknown. For the column `label` of the frame `name`, only the state
        before the run counts.
        """
        results: list[bool | None] = []
        for frame in list_names(source):
            for column in columns:
                state = self.before.get(frame)
                is_target = (frame, column) == (name, label)
                if state is None and not is_target:
                    state = self.after.get(frame)
                had_values = None
                if state is not None:
                    had_values = state.has_values(column)
                results.append(had_values)
        return results
