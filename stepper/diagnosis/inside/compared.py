"""What became of the frames that a cell names: emptied, multiplied by a merge, columns that lost all their values.

What the cell means to do is no doubt: where it asks for what is missing, fills a column with nothing, chooses rows.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import sys

from stepper.diagnosis.inside.expressions import (
    called,
    calls,
    calls_of,
    constants,
    inside,
    is_blank,
    keywords,
    made_empty,
    merges_of,
    names_of,
    seeks,
    uses,
    whole_names,
)
from stepper.diagnosis.inside.frames import many_to_many
from stepper.kernel.inside.base import guarded, shell
from stepper.kernel.inside.cells import now

# Names of what one hopes to be empty: first how they begin, then whole words.
PROBLEMS = re.compile(
    r"(?:^|_)(?:error|miss|dup|invalid|outlier|null|violat|anomal|conflict|mism|unmatch|orphan|fail|issue|problem|warn|diff"
    r"|extra|leftover|remain|reject|unknown|empty|negative|suspic|overlap|wrong|incons|unexp|dropped|exclu|broken|corrupt"
    r"|pending|weird|imposs|faulty|incompl|unpars|leak|common|shared|intersect|unused|removed|stale|blank|changed"
    r"|(?:err|bad|nan?|neg|gap|odd|both|too|lost|zero|check|only|without|inf|no|not|tmp|temp)s?\d*(?:_|$))",
    re.IGNORECASE,
)
ANTI = re.compile(r"_merge|left_only|right_only|_anti$")
GROWS = {"explode", "melt", "stack", "concat", "append", "reindex", "resample", "repeat", "wide_to_long", "asfreq"}
MAKES = {"map", "reindex", "assign", "concat", "to_numeric", "to_datetime", "to_timedelta", "replace"}
TURNS = {"map", "to_numeric", "to_datetime", "to_timedelta"}


def compare(before, after, cell):
    """The facts about frames after a run: {name: Seen} before it and after it, and the cell that ran."""
    view = View(before, after, cell)
    return [*view.merges(), *view.empties(), *view.blanks()]


def hoped_for(name, value):
    """Whether nothing to be found is good news: what is wrong, missing or twice was sought."""
    if PROBLEMS.search(name):
        return True
    names = names_of(value)
    if name in names:  # df = df[~df.id.isin(bad)]
        return False
    strings = [one.value for one in inside(value) if isinstance(one, ast.Constant) and type(one.value) is str]
    return any(map(PROBLEMS.search, names)) or any(map(ANTI.search, strings)) or seeks(value)


class View:
    def __init__(self, before, after, cell):
        self.before, self.after, self.cell, self.told = before, after, cell, set()

    def rows_at(self, name, order, target):
        """A frame's rows as a statement met it; None where that can't be known."""
        bound = self.cell.bound.get(name, [])
        if not bound:
            return max(seen[name].rows for seen in (self.before, self.after) if name in seen)
        early = any(one.order < order for one in bound)
        known = self.after if early else self.before
        if len(bound) > 1 or name not in known or (name == target and early):
            return None
        return known[name].rows

    def operands(self, value, order, target):
        frames = {*self.before, *self.after}
        named = [one for one in inside(value) if called(one) in frames]
        named.sort(key=lambda one: (one.lineno, one.col_offset))
        return {one.id: self.rows_at(one.id, order, target) for one in named}

    # merges

    def merges(self):
        found = []
        for name, bound in self.cell.bound.items():
            if name in self.after and not bound[-1].looped:
                result = shell.user_ns.get(name)
                found.append(self.merge(name, result, bound[-1].value, bound[-1].order))
        if merges_of(self.cell.last):
            shown = (shell.user_ns.get("_oh") or {}).get(now["number"])
            if type(shown) is vars(sys.modules["pandas"]).get("DataFrame"):
                found.append(self.merge("", shown, self.cell.last, self.cell.order + 1))
        return [fact for fact in found if fact is not None]

    def merge(self, name, result, value, order):
        made, rows = merges_of(value), len(result)
        given = self.operands(value, order, name) if made else {}
        if len(given) < 2 or None in given.values() or any("validate" in keywords(call) for call, *_ in made):
            return None
        fact = {"name": name, "rows": rows, "operands": [[one, count] for one, count in given.items()]}
        if rows == 0 and min(given.values()) > 0:
            if name in self.cell.looked | {""} or hoped_for(name, value) or not {*given} <= whole_names(value):
                return None
            self.told.add(name)
            return {"kind": "emptied", **fact}
        hows = {how for *_, how in made}
        if rows <= max(given.values()) or "cross" in hows or calls_of(value) & GROWS or self.crossed(rows, given):
            return None
        if rows <= sum(given.values()) and hows != {"inner"} and not self.many(result, made):
            return None
        return {"kind": "multiplied", **fact}

    def many(self, result, made):
        """Whether a left or right merge paired many with many: one with many may well have more rows than either."""
        if len(made) != 1 or made[0][3] not in ("left", "right"):
            return False
        call, left, right, how = made[0]
        other = shell.user_ns.get(called(right if how == "left" else left))
        keys = [one.value for one in call.keywords if one.arg in ("on", "right_on" if how == "left" else "left_on")]
        keys = constants(keys[0]) if keys else ()
        return bool(keys) and guarded(many_to_many, other, result, list(keys)) is True

    def crossed(self, rows, given):
        """Whether all were paired with all, by a constant key made for that."""
        values = [one.value for bound in self.cell.bound.values() for one in bound] + [self.cell.last]
        made = [one.value for value in values for call in calls(value) for one in call.keywords]
        made += [one.value for each in self.cell.columns.values() for one in each]
        keyed = any(isinstance(one, ast.Constant) and type(one.value) is int for one in made)
        return keyed and rows == functools.reduce(operator.mul, given.values())

    # empty frames

    def empties(self):
        found, ids = [], set()
        known = [*self.before.items(), *self.after.items()]
        empty = {name for name, seen in known if seen.rows == 0}
        for name, seen in self.after.items():
            bound, old = self.cell.bound.get(name, []), self.before.get(name)
            in_place = old is not None and old.id == seen.id and old.rows > 0
            if seen.rows or not (bound or in_place) or seen.id in ids or name in self.told:
                continue
            if name in self.cell.looked | self.cell.targets or self.no_wonder(name, bound, empty):
                continue
            ids.add(seen.id)
            counts = self.operands(bound[-1].value, bound[-1].order, name) if bound else {name: old.rows}
            found.append({"kind": "empty", "name": name, "operands": [[one, n] for one, n in counts.items() if n]})
        return found

    def no_wonder(self, name, bound, empty):
        values = [one.value for one in bound]
        if not bound:
            return hoped_for(name, None)
        # A frame of a loop's last turn; one made empty, to be filled; one made of what is empty already.
        if any(one.looped and not one.mentions(name) for one in bound) or any(map(made_empty, values)):
            return True
        sources = {one for value in values for one in names_of(value)}
        was = name in sources and name in self.before and self.before[name].rows == 0
        return was or bool((sources & empty) - {name}) or any(hoped_for(name, value) for value in values)

    # columns without a value

    def blanks(self):
        found, ids = [], set()
        for name, seen in self.after.items():
            if not seen.blank or seen.rows < 2 or name in self.cell.targets or seen.id in ids:
                continue
            lost = self.lost(name, seen)
            columns = [label for label in seen.labels if label in lost]
            if columns:
                ids.add(seen.id)
                columns = columns if seen.framed else []
                found.append({"kind": "blank", "name": name, "columns": columns[:3], "count": len(columns)})
        return found

    def lost(self, name, seen):
        """The labels that lost their values in this cell, and not on purpose."""
        old, bound, written = self.before.get(name), self.cell.bound.get(name, []), self.cell.columns.get(name, [])
        values = [one.value for one in bound]
        given = {one.arg: one.value for value in values for call in calls(value) for one in call.keywords if one.arg}
        assigned = {column: one.value for one in written for column in one.columns}
        meant = {column for one in written for column in one.columns if is_blank(one.value)}
        meant |= {label for label, value in given.items() if is_blank(value)}
        called = {one for value in values for one in calls_of(value)}
        joined = self.from_others(name, seen, values) if bound else set()
        if old is not None and (old.id == seen.id or (bound and all(one.mentions(name) for one in bound))):
            if old.blank is None:
                return set()
            kept = {*old.labels} if seen.rows >= old.rows else set()  # fewer rows are a choice of rows
            made = {*assigned} | ({*given} if "assign" in called else set())
            found = (seen.blank - old.blank) & (kept | made)
            found -= {label for label in assigned if self.of_nothing(assigned[label])}
            return (found | (joined - {*old.labels})) - meant
        if any(one.startswith("read_") for one in called):
            joined = set()
        found = {label for label in seen.blank & {*assigned} if self.derived(name, seen, label, assigned[label])}
        return (found | joined) - meant

    def from_others(self, name, seen, values):
        """The labels without a value that had some in a frame which this one was made of."""
        value = values[-1]
        made, names = merges_of(value), set()
        for _, left, right, how in made:  # an inner merge is a choice of rows
            names |= whole_names(right) if how in ("left", "outer") else set()
            names |= whole_names(left) if how in ("right", "outer") else set()
        if made:
            names &= whole_names(value)
        elif calls_of(value) & MAKES:
            names = whole_names(value)
        known = [self.before.get(one) if one == name else self.after.get(one, self.before.get(one)) for one in names]
        filled = {label for one in known if one and one.blank is not None for label in {*one.labels} - one.blank}
        return {label for label in seen.blank if label in filled or re.sub("_[xy]$", "", label) in filled}

    def of_nothing(self, value):
        """Whether it is made of a column that had no value before the cell."""
        return any(one in self.before and column in (self.before[one].blank or ()) for one, column in uses(value))

    def derived(self, name, seen, label, value):
        """Whether a column was made of others that have values, or its own values were turned into something else."""
        used = {column for one, column in uses(value) if one == name} & {*seen.labels}
        if label in used:
            return bool(calls_of(value) & TURNS)
        return bool(used) and not used & seen.blank
