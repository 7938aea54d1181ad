"""Warnings about data frames that a cell changed.

A frame can become empty, a merge can multiply its rows, and columns can lose all their
values. There is no warning if the cell does this on purpose: it searches for missing
values, fills a column with nothing, or selects rows.

The assignments that the cell itself executes are read as text; nothing is evaluated.
Only pandas' own classes are inspected, with their own methods. Their sizes and labels
are kept, never the objects.
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
    is_one_of,
    shell,
    shorten,
    top_module,
)

# Names of frames that should be empty: the beginnings of words, then whole words.
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
# Replaces values by others, or by none.
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
    """The size of a data frame or series, and its labels, at one moment."""

    def __init__(self, value: Any, deadline: float) -> None:
        self.id = id(value)
        self.rows = len(value)
        self.is_frame = value.ndim == 2
        self.labels: tuple[str, ...] = ()
        # The labels of columns without any value; None if that is unknown.
        self.blank: set[str] | None = None
        width = value.shape[1] if self.is_frame else 1
        is_small = width <= MAX_COLUMNS and width * self.rows <= MAX_CELLS
        if is_small and clock() < deadline:
            frame = value if self.is_frame else value.to_frame()
            call_safely(self.read, frame, deadline)

    def read(self, frame: Any, deadline: float) -> None:
        """Read the labels and find the columns without values."""
        labels = frame.columns.tolist()
        # The `isna` of another dtype could be the user's code.
        for dtype in frame.dtypes.tolist():
            if top_module(type(dtype)) not in LIBRARIES:
                return
        if not all(map(is_plain_label, labels)):
            return
        texts = tuple(shorten(str(label), LABEL_LIMIT) for label in labels)
        if len(set(texts)) < len(labels):
            return
        self.labels = texts
        blank = set()
        # Nearly all columns have a value in the first rows.
        head = frame.iloc[:HEAD_ROWS]
        has_value = head.notna().to_numpy().any(axis=0).tolist()
        for index, text in enumerate(texts):
            if has_value[index] or not self.rows:
                continue
            if clock() > deadline:
                return
            if not frame.iloc[:, index].notna().any():
                blank.add(text)
        self.blank = blank


def is_plain_label(label: Any) -> bool:
    """Return whether a label consists of plain values, whose text is known."""
    kind = type(label)
    if kind is tuple:
        return all(map(is_plain_label, label))
    return is_one_of(kind, PLAIN_TYPES) or top_module(kind) in LIBRARIES


def capture_frames(source: str, deadline: float) -> dict[str, FrameState]:
    """Return the states of the frames and series that a cell names."""
    pandas = vars(sys.modules["pandas"])
    kinds = (pandas.get("DataFrame"), pandas.get("Series"))
    frames = {}
    for name, value in list(shell.user_ns.items()):
        if not is_one_of(type(value), kinds):
            continue
        if type(name) is not str or name[:1] == "_" or name not in source:
            continue
        if re.search(rf"\b{re.escape(name)}\b", source):
            frames[name] = FrameState(value, deadline)
    return frames


class Assignment(NamedTuple):
    """An assignment to a name, or to columns of it."""

    name: str
    columns: list[str]
    value: str  # as source
    in_loop: bool


def iterate_assignments(
    body: list[ast.stmt], in_loop: bool = False
) -> Iterator[Assignment]:
    """Yield the assignments of statements, in order; not those inside functions."""
    for statement in body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield from _split_assignment(statement, in_loop)
        if isinstance(statement, SCOPES):
            continue
        is_loop = in_loop or isinstance(statement, LOOPS)
        for block in list_blocks(statement):
            yield from iterate_assignments(block, is_loop)


def _split_assignment(
    statement: ast.Assign | ast.AnnAssign | ast.AugAssign, in_loop: bool
) -> Iterator[Assignment]:
    """Yield an assignment for each name that a statement assigns."""
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
            columns = STRING.findall(text) or [getattr(target, "attr", "")]
            for name in names[:1]:
                yield Assignment(name, columns, target_value, in_loop)
            continue
        for name in names:
            # In `a, b = …`, the value of each name is unknown.
            name_value = target_value if text == name else ""
            yield Assignment(name, [], name_value, in_loop)


def list_names(source: str) -> list[str]:
    """Return the names in an expression, in order."""
    names = NAME.findall(STRING.sub("''", source))
    return list(dict.fromkeys(names))


def compare_frames(
    before: dict[str, FrameState],
    after: dict[str, FrameState],
    trees: list[ast.Module],
) -> list[Fact]:
    """Return the facts on frames after a run, one of each kind for a frame.

    `trees` are the syntax trees of the executed code.
    """
    comparison = FrameComparison(before, after, trees)
    checks = (
        comparison.check_multiplied,
        comparison.check_empty,
        comparison.check_blank,
    )
    facts: dict[Any, Fact] = {}
    for check in checks:
        for name, state in after.items():
            found_fact = check(name, state)
            if found_fact is not None:
                # Several names can refer to the same frame.
                facts.setdefault((state.id, found_fact["kind"]), found_fact)
    return list(facts.values())


def create_fact(kind: str, text: str) -> Fact:
    """Return a fact for a report."""
    return {"kind": kind, "text": text}


def shorten_name(name: str) -> str:
    """Return a name for a message."""
    return shorten(name, NAME_LIMIT)


def format_operands(row_counts: dict[str, Any]) -> str:
    """Return frames with their numbers of rows: `a (10) and b (20)`."""
    parts = []
    for name, rows in row_counts.items():
        parts.append(f"{shorten_name(name)} ({rows:,})")
    return " and ".join(parts)


class FrameComparison:
    """Frames before and after a run, and the assignments between."""

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
            self.assignments += iterate_assignments(tree.body)

    def list_bindings(self, name: str) -> list[Assignment]:
        """Return the assignments to a name itself, not to its columns."""
        return [
            assignment
            for assignment in self.assignments
            if assignment.name == name and not assignment.columns
        ]

    def count_operand_rows(
        self, name: str, assignment: Assignment
    ) -> dict[str, int | None]:
        """Return the frames in an assignment to `name`, with their rows at that time.

        The number is None if it is unknown.
        """
        return {
            operand: self._count_rows(operand, name, assignment)
            for operand in list_names(assignment.value)
            if operand in self.before or operand in self.after
        }

    def _count_rows(
        self, operand: str, target: str, assignment: Assignment
    ) -> int | None:
        bindings = self.list_bindings(operand)
        if not bindings:
            states = [self.before.get(operand), self.after.get(operand)]
            return max(state.rows for state in states if state)
        index = self.assignments.index(assignment)
        is_assigned_before = self.assignments.index(bindings[0]) < index
        if len(bindings) > 1 or (operand == target and is_assigned_before):
            return None
        states_then = self.after if is_assigned_before else self.before
        state = states_then.get(operand)
        return None if state is None else state.rows

    def check_multiplied(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if a merge has more rows than its operands allow.

        A merge of one row with one, or with many, cannot have so many rows.
        """
        bindings = self.list_bindings(name)
        if not bindings:
            return None
        last = bindings[-1]
        if last.in_loop or not MERGE.search(last.value):
            return None
        if ROW_ADDITION.search(last.value):
            return None
        operands = self.count_operand_rows(name, last)
        counts = [count for count in operands.values() if count is not None]
        if len(counts) < max(2, len(operands)):
            return None
        kinds = set(MERGE_KIND.findall(last.value))
        if "cross" in kinds or state.rows == math.prod(counts):
            return None
        default_kind = "inner" if "merge(" in last.value else "left"
        is_inner = (kinds or {default_kind}) == {"inner"}
        limit = max(counts) if is_inner else sum(counts)
        if state.rows <= limit:
            return None
        text = (
            f"{shorten_name(name)} has {state.rows:,} rows: more than"
            f" {format_operands(operands)}"
        )
        return create_fact("multiplied", text)

    def check_empty(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if a frame has no rows now, and not on purpose."""
        bindings = self.list_bindings(name)
        old_state = self.before.get(name)
        was_emptied_in_place = (
            old_state is not None and old_state.id == state.id and old_state.rows > 0
        )
        if state.rows or not (bindings or was_emptied_in_place):
            return None
        if self._is_inspected(name) or self._is_intended(name, bindings):
            return None
        short_name = shorten_name(name)
        if bindings:
            counts = self.count_operand_rows(name, bindings[-1])
            is_merge = len(counts) > 1 and MERGE.search(bindings[-1].value)
            if is_merge and all(counts.values()):
                operands = format_operands(counts)
                return create_fact(
                    "emptied",
                    f"{short_name} has 0 rows: no row matched in the merge of"
                    f" {operands}",
                )
        else:
            counts = {name: old_state.rows if old_state else None}
        sources = {operand: count for operand, count in counts.items() if count}
        if list(sources) == [name]:
            return create_fact(
                "empty", f"{short_name} has 0 rows now; before: {sources[name]:,}"
            )
        text = f"{short_name} has 0 rows"
        shown = []
        for source, count in list(sources.items())[:MAX_SHOWN]:
            shown.append(f"{shorten_name(source)} has {count:,}")
        if shown:
            text = f"{text}; {', '.join(shown)}"
        return create_fact("empty", text)

    def _is_inspected(self, name: str) -> bool:
        """Return whether the cell shows the size of a frame, or gets it from a loop."""
        pattern = (
            rf"\b{name}\.(?:empty|shape|size)\b"
            rf"|\b(?:len|display|print|assert)\b.*\b{name}\b"
            rf"|^{name}\Z"
            rf"|^\s*(?:async )?for .*\b{name}\b.* in "
        )
        return bool(re.search(pattern, self.source, re.MULTILINE))

    def _is_intended(self, name: str, bindings: list[Assignment]) -> bool:
        """Return whether a frame is empty on purpose.

        It comes from the last turn of a loop, is created empty, is computed from an
        empty frame, or should be empty.
        """
        for assignment in bindings:
            if NO_ROWS.search(STRING.sub("", assignment.value)):
                return True
            names = list_names(assignment.value)
            states = [self.before.get(operand) for operand in names]
            states += [self.after.get(operand) for operand in names if operand != name]
            if any(state is not None and state.rows == 0 for state in states):
                return True
            # df = df[~df.id.isin(bad)] is no search for problems.
            if name in names:
                continue
            words = [*names, *STRING.findall(assignment.value)]
            is_search = PROBLEM_SEARCH.search(assignment.value) or any(
                map(PROBLEM_NAMES.search, words)
            )
            if assignment.in_loop or is_search:
                return True
        return bool(PROBLEM_NAMES.search(name))

    def check_blank(self, name: str, state: FrameState) -> Fact | None:
        """Return a fact if columns of a frame lost all their values."""
        if not state.blank or state.rows < 2:
            return None
        if re.search(rf"\bfor .*\b{name}\b.* in ", self.source):
            return None
        lost = [
            label
            for label in state.labels
            if label in state.blank and self._has_lost_values(name, label)
        ]
        if not lost:
            return None
        short_name = shorten_name(name)
        if not state.is_frame:
            return create_fact("blank", f"{short_name} is all NaN now")
        shown = ", ".join(f'"{shorten_name(column)}"' for column in lost[:MAX_SHOWN])
        if len(lost) == 1:
            text = f"column {shown} of {short_name} is all NaN now"
            return create_fact("blank", text)
        if len(lost) > MAX_SHOWN:
            shown += f" and {len(lost) - MAX_SHOWN} more"
        text = f"columns {shown} of {short_name} are all NaN now"
        return create_fact("blank", text)

    def _has_lost_values(self, name: str, label: str) -> bool:
        """Return whether a column is blank because of a mapping or a merge.

        Columns that were blank before, or are computed from blank ones, do not count.
        """
        old_state = self.before.get(name)
        if old_state is not None and old_state.blank is None:
            return False
        if old_state is not None and label in (old_state.blank or ()):
            return False
        bindings = [assignment.value for assignment in self.list_bindings(name)]
        column_values = [
            assignment.value
            for assignment in self.assignments
            if assignment.name == name and label in assignment.columns
        ]
        # df.assign(label=…)
        keyword = re.compile(rf"\b{re.escape(label)}=")
        column_values += [value for value in bindings if keyword.search(value)]
        if column_values:
            value = column_values[-1]
            had_values = self._had_values(value, STRING.findall(value), name, label)
            return bool(VALUE_MAPPING.search(value)) and False not in had_values
        value = bindings[-1] if bindings else ""
        if ROW_SELECTION.search(STRING.sub("''", value)):
            return False
        if set(MERGE_KIND.findall(value)) == {"inner"}:
            return False
        # A merge adds a suffix to a label of both frames.
        columns = [label, re.sub("_[xy]$", "", label)]
        had_values = self._had_values(value, columns, name, label)
        is_mapping = VALUE_MAPPING.search(value) or MERGE.search(value)
        return bool(is_mapping) and False not in had_values and True in had_values

    def _had_values(
        self, source: str, columns: list[str], name: str, label: str
    ) -> list[bool | None]:
        """Return for each frame and column in an expression whether it had values.

        The entry is None if that is unknown.
        """
        results: list[bool | None] = []
        for frame in list_names(source):
            for column in columns:
                state = self.before.get(frame)
                if state is None and (frame, column) != (name, label):
                    state = self.after.get(frame)
                if state is None or state.blank is None or column not in state.labels:
                    results.append(None)
                else:
                    results.append(column not in state.blank)
        return results
