"""What became of the frames that a cell names: emptied, multiplied by a merge, columns that lost all their values.

What the cell means to do is no doubt: where it asks for what is missing, fills a column with nothing, chooses rows.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from stepper.diagnosis.inside.frames import Seen, many_to_many
from stepper.diagnosis.inside.statements import (
    Binding,
    Cell,
    calls,
    constants,
    given,
    inside,
    joins,
    name_of,
    names_of,
    uses,
)
from stepper.kernel.inside.base import guarded, shell

# Names of what one hopes to be empty: first how they begin, then whole words.
PROBLEMS = re.compile(
    r"(?:^|_)(?:error|miss|dup|invalid|outlier|null|violat|anomal|conflict|mism|unmatch|orphan|fail|issue|problem|warn|diff"
    r"|extra|leftover|remain|reject|unknown|empty|negative|suspic|overlap|wrong|incons|unexp|dropped|exclu|broken|corrupt"
    r"|pending|weird|imposs|faulty|incompl|unpars|leak|common|shared|intersect|unused|removed|stale|blank|changed|merge\b"
    r"|(?:err|bad|nan?|neg|gap|odd|both|too|lost|zero|check|only|without|inf|no|not|tmp|temp|anti)s?\d*(?:_|$))",
    re.IGNORECASE,
)
# What is missing or twice is sought, or what is not known: df[df.a.isna()], df[~df.a.isin(known)].
SOUGHT = re.compile(r"(?:^|[\[(&|])\s*[^~&|]*\.(?:isna|isnull|duplicated)\(|~[^&|]*\.isin\(")
NO_ROWS = re.compile(r"\bhead\(0\)|\[0?:0\]")
GROWS = {"explode", "melt", "stack", "concat", "append", "reindex", "resample", "repeat", "wide_to_long", "asfreq"}
TURNS = {"map", "to_numeric", "to_datetime", "to_timedelta"}  # each value into another one, or into none
CHOICES = {"query", "head", "tail", "sample", "dropna", "drop", "nlargest", "nsmallest", "filter", "where", "mask"}
Fact = dict[str, Any]


def compare(before: dict[str, Seen], after: dict[str, Seen], cell: Cell) -> list[Fact]:
    """The facts about frames after a run: as they were before it and after it, and the cell that ran."""
    view = View(before, after, cell)
    facts = [*view.multiplied(), *view.empties(), *view.blanks()]
    return [*{(fact.pop("id", 0), fact["kind"]): fact for fact in reversed(facts)}.values()][::-1]


class View:
    """A cell beside its frames as they were and as they are."""

    def __init__(self, before: dict[str, Seen], after: dict[str, Seen], cell: Cell) -> None:
        self.before, self.after, self.cell = before, after, cell

    def operands(self, value: ast.expr | None, order: int, target: str) -> dict[str, int | None]:
        """The frames that a statement names, in its order, and their rows as it met them; None: unknown."""
        frames = {*self.before, *self.after}
        names = [part for part in inside(value) if isinstance(part, ast.Name) and part.id in frames]
        names.sort(key=lambda part: (part.lineno, part.col_offset))
        return {part.id: self.rows(part.id, order, target) for part in names}

    def rows(self, name: str, order: int, target: str) -> int | None:
        bound = self.cell.bound.get(name, [])
        if not bound:
            return max(seen[name].rows for seen in (self.before, self.after) if name in seen)
        early = bound[0].order < order
        known = (self.after if early else self.before).get(name)
        return None if known is None or len(bound) > 1 or (name == target and early) else known.rows

    def multiplied(self) -> list[Fact]:
        """The merges that have more rows than either side."""
        last = {name: bound[-1] for name, bound in self.cell.bound.items() if name in self.after}
        facts = [self.merged(name, bound) for name, bound in last.items() if joins(bound.value) and not bound.looped]
        return [fact for fact in facts if fact is not None]

    def merged(self, name: str, bound: Binding) -> Fact | None:
        value, result = bound.value, shell.user_ns.get(name)
        operands, made = self.operands(value, bound.order, name), joins(value)
        counts, hows = [count for count in operands.values() if count is not None], {how for _, how in made}
        if len(counts) < max(2, len(operands)) or len(result) <= max(counts) or "cross" in hows:
            return None
        if {name for name, _ in calls(value)} & GROWS or any(given(call, "validate") for call, _ in made):
            return None
        if len(result) == math.prod(counts):  # all with all, by a key for that
            return None
        if len(result) <= sum(counts) and hows != {"inner"} and not (hows == {"left"} and many(result, *made[0])):
            return None
        return {
            "kind": "multiplied",
            "name": name,
            "rows": len(result),
            "operands": [*operands.items()],
            "id": id(result),
        }

    def empties(self) -> list[Fact]:
        """The frames that have no rows now, and not on purpose."""
        facts, looked = [], self.cell.looked() | self.cell.targets
        for name, seen in self.after.items():
            bound, old = self.cell.bound.get(name, []), self.before.get(name)
            in_place = old is not None and old.id == seen.id and old.rows > 0
            if seen.rows or not (bound or in_place) or name in looked or self.no_wonder(name):
                continue
            counts = self.operands(bound[-1].value, bound[-1].order, name) if bound else {name: old and old.rows}
            merged = bound and joins(bound[-1].value) and len(counts) > 1 and all(counts.values())
            operands = [(operand, count) for operand, count in counts.items() if count]
            facts.append({"kind": "emptied" if merged else "empty", "name": name, "operands": operands, "id": seen.id})
        return facts

    def no_wonder(self, name: str) -> bool:
        """A frame of a loop's last turn; one made empty, to be filled; of what is empty already; hoped to be empty."""
        if PROBLEMS.search(name):
            return True
        for value, looped, *_ in self.cell.bound.get(name, []):
            sources = names_of(value)
            empty = {source for source in sources if source in self.before and self.before[source].rows == 0}
            empty |= {source for source in sources - {name} if source in self.after and self.after[source].rows == 0}
            if empty or (looped and name not in sources) or made_empty(value):
                return True
            if name not in sources and hoped_for(value):  # not df = df[~df.id.isin(bad)]
                return True
        return False

    def blanks(self) -> list[Fact]:
        """The columns that have no value now, and not on purpose."""
        facts = []
        for name, seen in self.after.items():
            if seen.blank and seen.rows > 1 and name not in self.cell.targets:
                lost = [label for label in seen.labels if label in seen.blank and self.lost(name, label)]
                columns = lost if seen.framed else []
                fact = {"kind": "blank", "name": name, "columns": columns[:3], "count": len(columns), "id": seen.id}
                facts += [fact] if lost else []
        return facts

    def lost(self, name: str, label: str) -> bool:
        """Whether a column without a value was made of others that have some: by a statement, or with the frame."""
        old, bound = self.before.get(name), self.cell.bound.get(name, [])
        if old is not None and (old.blank is None or label in old.blank):
            return False
        values = [column.value for column in self.cell.columns.get(name, []) if label in column.columns]
        values += [value for binding in bound for _, call in calls(binding.value) for value in given(call, label)]
        if not values and not (bound and fits(bound[-1].value)):
            return False
        value = values[-1] if values else bound[-1].value
        whole = {(source, column) for source in names_of(value) for column in (label, re.sub("_[xy]$", "", label))}
        filled = [self.filled(*source, own=(name, label)) for source in (uses(value) if values else whole)]
        if (name, label) in uses(value) and old is None:  # else it may have been so in its file
            return bool(TURNS & {call for call, _ in calls(value)})
        return True in filled and not (values and False in filled)

    def filled(self, frame: str, column: str, own: tuple[str, str]) -> bool | None:
        """Whether a column had values when another was made of it; None where that is unknown."""
        seen = self.before.get(frame) or (None if (frame, column) == own else self.after.get(frame))
        return None if seen is None or seen.blank is None or column not in seen.labels else column not in seen.blank


def fits(value: ast.expr | None) -> bool:
    """Whether an expression merges, maps or reindexes frames of which it leaves out no rows."""
    done, hows = {call for call, _ in calls(value)}, {how for _, how in joins(value)}
    chosen = done & CHOICES or any(isinstance(part, ast.Compare) for part in inside(value))
    return not chosen and bool(hows - {"inner"} or done & {*TURNS, "reindex"})


def hoped_for(value: ast.expr | None) -> bool:
    """Whether nothing to be found is good news: what is wrong, missing or twice was sought."""
    texts = [part.value for part in inside(value) if isinstance(part, ast.Constant) and type(part.value) is str]
    if any(PROBLEMS.search(str(word)) for word in (*names_of(value), *texts)):
        return True
    return value is not None and bool(SOUGHT.search(ast.unparse(value)))


def made_empty(value: ast.expr | None) -> bool:
    """Whether an expression makes a frame without rows in so many words: DataFrame(columns=…), head(0), df[:0]."""
    for name, call in calls(value):
        if name in ("DataFrame", "Series"):
            return not any(names_of(data) for data in (*call.args[:1], *given(call, "data")))
    return value is not None and bool(NO_ROWS.search(ast.unparse(value)))


def many(result: Any, call: ast.Call, how: str) -> bool:
    """Whether a left merge paired many with many: one with many may well have more rows than either."""
    names = [name_of(part) for part in (*call.args, *given(call, "right", "other"))]
    keys = [key for part in given(call, "on", "right_on") for key in constants(part)]
    other = shell.user_ns.get(next(filter(None, reversed(names)), ""))
    return bool(keys) and guarded(many_to_many, other, result, keys) is True
