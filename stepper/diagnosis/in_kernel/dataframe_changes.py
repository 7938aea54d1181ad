"""What became of the frames that a cell names: emptied, multiplied by a merge, columns that lost all their values.

What the cell means to do is no doubt: where it asks for what is missing, fills a column with nothing, chooses rows.
Assignments that the cell itself runs are read, as texts; nothing is evaluated. Of frames (pandas' own classes only, by
their own methods) their size and texts are kept, never the object.
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

# Names of what one hopes to be empty: first how they begin, then whole words.
PROBLEMS = re.compile(
    r"(?:^|_)(?:error|miss|dup|invalid|outlier|null|violat|anomal|conflict|mism|unmatch|orphan|fail|issue|problem|warn|diff"
    r"|extra|leftover|remain|reject|unknown|empty|negative|suspic|overlap|wrong|incons|unexp|dropped|exclu|broken|corrupt"
    r"|pending|weird|imposs|faulty|incompl|unpars|leak|common|shared|intersect|unused|removed|stale|blank|changed|merge\b"
    r"|(?:err|bad|nan?|neg|gap|odd|both|too|lost|zero|check|only|without|inf|no|not|tmp|temp|anti)s?\d*(?:_|$))",
    re.IGNORECASE,
)
# What is missing or twice is sought, or what is not known: df[df.a.isna()],
# df[~df.a.isin(known)].
SOUGHT = re.compile(
    r"(?:^|[\[(&|])\s*[^~&|]*\.(?:isna|isnull|duplicated)\(|~[^&|]*\.isin\("
)
# Made with no rows: head(0), [:0]; a frame of no named value.
NO_ROWS = re.compile(
    r"\bhead\(0\)|\[0?:0\]|\b(?:DataFrame|Series)\((?!(?:data=)?[^,)=]*[a-z]\w*[,)])"
)
JOINS, HOW = (
    re.compile(r"\bmerge\(|\.join\("),
    re.compile(r"'(left|right|outer|inner|cross)'"),
)
GROWS = re.compile(
    r"\b(?:explode|melt|stack|concat|append|reindex|resample|repeat|wide_to_long|asfreq)\(|\bvalidate="
)
# a value into another, or none
TURNS = re.compile(r"\b(?:map|to_numeric|to_datetime|to_timedelta|reindex|where)\(")
CHOICES = re.compile(
    r"\b(?:query|head|tail|sample|dropna|drop|nlargest|nsmallest|filter|mask)\(|[<>]|[=!]="
)
QUOTED, NAMES = re.compile(r"'([^']*)'"), re.compile(r"(?<![\w.])[^\W\d]\w*")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CELLS, COLUMNS, HEAD, LABEL, NAME = 5_000_000, 2000, 50, 60, 40
PLAIN = (str, int, float, bool, type(None))
Fact = dict[str, Any]


class Seen:
    def __init__(self, value: Any, deadline: float) -> None:
        self.id, self.rows, self.framed = id(value), len(value), value.ndim == 2
        self.labels: tuple[str, ...] = ()
        # the labels without any value; None where that is not known
        self.blank: set[str] | None = None
        width = value.shape[1] if self.framed else 1
        if width <= COLUMNS and width * self.rows <= CELLS and clock() < deadline:
            call_safely(self.read, value if self.framed else value.to_frame(), deadline)

    def read(self, value: Any, deadline: float) -> None:
        labels, kinds = value.columns.tolist(), value.dtypes.tolist()
        # else its `isna` may be anybody's
        known = all(top_module(type(kind)) in ("numpy", "pandas") for kind in kinds)
        texts = (
            tuple(shorten(str(label), LABEL) for label in labels)
            if known and all(map(plain, labels))
            else ()
        )
        if len({*texts}) < len(labels):
            return
        self.labels, blank = texts, set()
        # the first rows tell of nearly all columns
        filled = value.iloc[:HEAD].notna().to_numpy().any(axis=0).tolist()
        for index in [
            index for index, some in enumerate(filled) if not some and self.rows
        ]:
            if clock() > deadline:
                return
            if not value.iloc[:, index].notna().any():
                blank.add(texts[index])
        self.blank = blank


def plain(label: Any) -> bool:
    if type(label) is tuple:
        return all(map(plain, label))
    return is_one_of(type(label), PLAIN) or top_module(type(label)) in (
        "numpy",
        "pandas",
    )


def look(text: str, deadline: float) -> dict[str, Seen]:
    pandas = vars(sys.modules["pandas"])
    kinds = pandas.get("DataFrame"), pandas.get("Series")
    bound = [
        (name, value)
        for name, value in list(shell.user_ns.items())
        if is_one_of(type(value), kinds)
    ]
    bound = [
        (name, value)
        for name, value in bound
        if type(name) is str and name in text and name[:1] != "_"
    ]
    return {
        name: Seen(value, deadline)
        for name, value in bound
        if re.search(rf"\b{re.escape(name)}\b", text)
    }


class Made(NamedTuple):
    name: str
    columns: list[str]
    text: str  # of the value
    looped: bool


def assignments(body: list[ast.stmt], looped: bool = False) -> Iterator[Made]:
    for node in body:
        if (
            isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            and node.value is not None
        ):
            for target in (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            ):
                shown, text = ast.unparse(target), ast.unparse(node.value)
                # x += 1 is of x
                text = f"{shown} + {text}" if isinstance(node, ast.AugAssign) else text
                if isinstance(target, (ast.Subscript, ast.Attribute)):
                    columns = QUOTED.findall(shown) or [getattr(target, "attr", "")]
                    yield from (
                        Made(name, columns, text, looped)
                        for name in NAMES.findall(shown)[:1]
                    )
                else:  # of a, b = … it is not known which is made of what
                    yield from (
                        Made(name, [], text if shown == name else "", looped)
                        for name in NAMES.findall(shown)
                    )
        if not isinstance(node, SCOPES):
            for block in list_blocks(node):
                yield from assignments(block, looped or isinstance(node, LOOPS))


def names_in(text: str) -> list[str]:
    return list(dict.fromkeys(NAMES.findall(QUOTED.sub("''", text))))


def compare(
    before: dict[str, Seen], after: dict[str, Seen], trees: list[ast.Module]
) -> list[Fact]:
    """The facts about frames after a run, one of a kind a frame: as they were before it, after it, what ran."""
    view, facts = View(before, after, trees), dict[Any, Fact]()
    for kind in (view.multiplied, view.empty, view.blank):
        for name, seen in after.items():
            told = kind(name, seen)
            if told is not None:
                facts.setdefault((seen.id, told["kind"]), told)
    return [*facts.values()]


def fact(kind: str, text: str) -> Fact:
    return {"kind": kind, "text": text}


def cut(name: str) -> str:
    return shorten(name, NAME)


def sides(operands: dict[str, Any]) -> str:
    return " and ".join(f"{cut(name)} ({rows:,})" for name, rows in operands.items())


class View:
    def __init__(
        self, before: dict[str, Seen], after: dict[str, Seen], trees: list[ast.Module]
    ) -> None:
        self.before, self.after = before, after
        self.text = "\n".join(map(ast.unparse, trees))
        self.made = [made for tree in trees for made in assignments(tree.body)]

    def bound(self, name: str) -> list[Made]:
        return [made for made in self.made if made.name == name and not made.columns]

    def operands(self, name: str, made: Made) -> dict[str, int | None]:
        """The frames that a statement names, in its order, and their rows as it met them; None: unknown."""
        names = [
            one
            for one in names_in(made.text)
            if one in self.before or one in self.after
        ]
        return {one: self.rows(one, name, made) for one in names}

    def rows(self, name: str, target: str, made: Made) -> int | None:
        bound = self.bound(name)
        if not bound:
            return max(
                seen[name].rows for seen in (self.before, self.after) if name in seen
            )
        early = self.made.index(bound[0]) < self.made.index(made)
        known = (self.after if early else self.before).get(name)
        return (
            None
            if known is None or len(bound) > 1 or (name == target and early)
            else known.rows
        )

    def multiplied(self, name: str, seen: Seen) -> Fact | None:
        """More rows than a merge of one with one, or one with many, can have."""
        made = next(reversed(self.bound(name)), None)
        if (
            made is None
            or made.looped
            or not JOINS.search(made.text)
            or GROWS.search(made.text)
        ):
            return None
        operands, hows = self.operands(name, made), {*HOW.findall(made.text)}
        counts = [count for count in operands.values() if count is not None]
        # all with all
        if (
            len(counts) < max(2, len(operands))
            or "cross" in hows
            or seen.rows == math.prod(counts)
        ):
            return None
        inner = (hows or {"inner" if "merge(" in made.text else "left"}) == {"inner"}
        more = seen.rows > (max(counts) if inner else sum(counts))
        return (
            fact(
                "multiplied",
                f"{cut(name)} has {seen.rows:,} rows: more than {sides(operands)}",
            )
            if more
            else None
        )

    def empty(self, name: str, seen: Seen) -> Fact | None:
        """A frame that has no rows now, and not on purpose."""
        bound, old = self.bound(name), self.before.get(name)
        in_place = old is not None and old.id == seen.id and old.rows > 0
        # The cell looks itself at its length, or has it from a loop.
        looks = rf"\b{name}\.(?:empty|shape|size)\b|\b(?:len|display|print|assert)\b.*\b{name}\b|^{name}\Z"
        looked = re.search(
            rf"{looks}|^\s*(?:async )?for .*\b{name}\b.* in ", self.text, re.MULTILINE
        )
        if (
            seen.rows
            or not (bound or in_place)
            or looked
            or self.no_wonder(name, bound)
        ):
            return None
        counts = self.operands(name, bound[-1]) if bound else {name: old and old.rows}
        merged = (
            bound
            and JOINS.search(bound[-1].text)
            and len(counts) > 1
            and all(counts.values())
        )
        if merged:
            return fact(
                "emptied",
                f"{cut(name)} has 0 rows: nothing matched in the merge of {sides(counts)}",
            )
        sources = {operand: count for operand, count in counts.items() if count}
        if [*sources] == [name]:
            return fact(
                "empty", f"{cut(name)} has 0 rows now; before: {sources[name]:,}"
            )
        shown = ", ".join(
            f"{cut(source)} has {count:,}" for source, count in [*sources.items()][:3]
        )
        return fact(
            "empty", f"{cut(name)} has 0 rows" + (f"; {shown}" if shown else "")
        )

    def no_wonder(self, name: str, bound: list[Made]) -> bool:
        """A frame of a loop's last turn; one made empty, to be filled; of what is empty already; hoped to be empty."""
        for made in bound:
            names = names_in(made.text)
            sources = [self.before.get(one) for one in names]
            sources += [self.after.get(one) for one in names if one != name]
            sought = SOUGHT.search(made.text) or any(
                map(PROBLEMS.search, (*names, *QUOTED.findall(made.text)))
            )
            if any(
                seen is not None and seen.rows == 0 for seen in sources
            ) or NO_ROWS.search(QUOTED.sub("", made.text)):
                return True
            # not df = df[~df.id.isin(bad)]
            if name not in names and (made.looped or sought):
                return True
        return bool(PROBLEMS.search(name))

    def blank(self, name: str, seen: Seen) -> Fact | None:
        if (
            not seen.blank
            or seen.rows < 2
            or re.search(rf"\bfor .*\b{name}\b.* in ", self.text)
        ):
            return None
        lost = [
            label
            for label in seen.labels
            if label in seen.blank and self.lost(name, label)
        ]
        if not seen.framed or not lost:
            return fact("blank", f"{cut(name)} is all NaN now") if lost else None
        listed = ", ".join(f'"{cut(column)}"' for column in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        which = (
            f"column {listed} of {cut(name)} is"
            if len(lost) == 1
            else f"columns {listed}{more} of {cut(name)} are"
        )
        return fact("blank", f"{which} all NaN now")

    def lost(self, name: str, label: str) -> bool:
        """Whether a column without a value was made by a statement that turns values into others, or fetches them."""
        old = self.before.get(name)
        if old is not None and (old.blank is None or label in old.blank):
            return False
        own = [
            made.text
            for made in self.made
            if made.name == name and label in made.columns
        ]
        whole = [made.text for made in self.bound(name)]
        own += [text for text in whole if re.search(rf"\b{re.escape(label)}=", text)]
        text = (own or whole or [""])[-1]
        if not own and (
            CHOICES.search(QUOTED.sub("''", text)) or {*HOW.findall(text)} == {"inner"}
        ):
            return False
        columns = QUOTED.findall(text) if own else [label, re.sub("_[xy]$", "", label)]
        filled = [
            self.filled(frame, column, (name, label))
            for frame in names_in(text)
            for column in columns
        ]
        turned = TURNS.search(text) or (JOINS.search(text) and not own)
        return bool(turned and False not in filled and (own or True in filled))

    def filled(self, frame: str, column: str, own: tuple[str, str]) -> bool | None:
        """Whether a column had values when another was made of it; None where that is unknown."""
        seen = self.before.get(frame) or (
            None if (frame, column) == own else self.after.get(frame)
        )
        return (
            None
            if seen is None or seen.blank is None or column not in seen.labels
            else column not in seen.blank
        )
