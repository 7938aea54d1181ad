"""Which cell reads what of which other one, in the order of their runs and of their places: what is stale, what hidden.

**Stale** is a cell whose provider above it ran later and gave another value. **Hidden state**: it read a value from
below, from a cell that is gone, or from what another client had the kernel run. Pure. (A few lines over 300: the order
of runs and that of places are one matter.)
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.policy.cell_changes import BY_PLACE, runnable, source_hash
from stepper.policy.dataflow.name_effects import (
    DEFINED,
    IMPORT,
    VALUE,
    Flow,
    Kept,
    changed_by,
)
from stepper.policy.journal_events import Elsewhere, Ran
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Cell, Outcome

BUILTIN = frozenset(vars(builtins))
# Where a provider of hidden state is; of the last two it is there, but isn't run any
# more, or doesn't bind the name.
# What another client had the kernel run is in no cell.
GONE, BELOW, OFF, UNBOUND, ELSEWHERE = "gone", "below", "off", "unbound", "elsewhere"
CLAUSES = {
    BELOW: "below it, binds",
    GONE: "which was deleted, had bound",
    OFF: "which is no longer run, had bound",
}
MODULE = "module"  # of a stale cell: a module that it used was reloaded
MOST = 100  # names of which a run's journal line tells what they hold
Reader = Callable[[str], Flow]
# the print of what a name holds, where that is known; else the run that bound it
Version = int | str


class Bound(NamedTuple):
    """By which run (or cell, by its place) a name was bound, or changed in place, last."""

    by: int
    kind: str
    version: Version
    kept: Kept | None = None


@dataclass(eq=False, repr=False)
class Order:
    """The notebook's names as cells follow each other, each a number."""

    bound: dict[str, Bound] = field(default_factory=dict)
    star: int | None = None  # who may have bound any other

    def follow(
        self,
        by: int,
        flow: Flow,
        told: Mapping[str, str] | None = None,
        ended: bool = True,
        gave: Collection[str] | None = None,
    ) -> dict[str, Bound]:
        """Take in one more; return by whom the names were bound that it reads.

        `told` by its kernel are names that it bound or changed, with the prints of those that are small; of a cell
        that failed these alone count. `gave` are those that it is known to have bound or changed when it ran.
        """
        told, known = told or {}, bool(told)
        reads, changes, binds = self.called(flow)
        if gave is not None:
            changes &= {*gave}
            told = dict.fromkeys({*gave} - binds.keys() - changes, "")
        found = {name: bound for name in reads if (bound := self._provider(name))}
        for name in changes - binds.keys():
            bound = self.bound.get(name)
            if bound is None or bound.kind != VALUE or not (ended or name in told):
                continue
            same = (
                told[name] == bound.version
                if name in told
                else known and isinstance(bound.version, str)
            )
            if not same:
                self.bound[name] = bound._replace(by=by, version=told.get(name) or by)
        for name, kind in binds.items():
            if ended or name in told:
                version = told.get(name) or self._print(name, flow) or by
                self.bound[name] = Bound(
                    by, kind, version, self._carried(name, kind, flow)
                )
        for name in told.keys() - binds.keys() - changes:
            self.bound[name] = Bound(by, VALUE, told[name] or by)
        for name in flow.deletes:
            self.bound.pop(name, None)
        self.star = by if flow.star else self.star
        return found

    def _print(self, name: str, flow: Flow) -> str:
        """Return what tells what is imported or defined: the same where its lines are, and what it was made of."""
        print_, kept = flow.prints.get(name, ""), flow.kept.get(name)
        of = (
            [
                f" {self.bound[each].version}"
                for each in sorted(kept.made_of)
                if each in self.bound
            ]
            if kept
            else ()
        )
        return print_ + "".join(of) if print_ else ""

    def _provider(self, name: str) -> Bound | None:
        bound = self.bound.get(name)
        if bound is None and self.star is not None and name not in BUILTIN:
            return Bound(self.star, VALUE, self.star)
        return bound

    def _carried(self, name: str, kind: str, flow: Flow) -> Kept | None:
        """Return what a name brings with it: of a function what it reads, of an object which methods change it."""
        if kind == DEFINED:
            return flow.kept.get(name)
        made = flow.made.get(name, "")
        of = flow.kept.get(made) or (
            self.bound[made].kept if made in self.bound else None
        )
        return Kept(methods=of.methods) if of is not None and of.methods else None

    def called(self, flow: Flow) -> tuple[set[str], set[str], dict[str, str]]:
        """Return what a cell reads, changes and binds, with what the functions of other cells do that it names."""
        reads, changes, binds, todo = (
            set(flow.reads),
            set(flow.changes),
            dict(flow.binds),
            [*flow.reads],
        )
        for function, arguments in flow.calls:
            kept = self.bound[function].kept if function in self.bound else None
            changes |= {*changed_by(kept, arguments)} if kept else set()
        for name, method in flow.methods:
            kept = self.bound[name].kept if name in self.bound else None
            changes |= {name} if kept and method in kept.methods else set()
        while todo:
            bound = self.bound.get(todo.pop())
            if bound is None or bound.kept is None:
                continue
            fresh = bound.kept.reads - reads - flow.binds.keys()
            reads |= fresh
            todo += fresh
            changes |= bound.kept.changes
            binds |= dict.fromkeys(bound.kept.binds, VALUE)
        return reads, changes, binds


def told(flow: Flow, known: Namespace) -> dict[str, str]:
    """Return what a kernel tells of the names that a cell bound: name → print of its value, '' of a large one."""
    prints = {name: variable.print for name, variable in known.variables.items()}
    static = [name for name in (*flow.binds, *flow.changes) if prints.get(name)]
    some = dict.fromkeys(
        (*static, *(name for name in known.rebound if not name.startswith("_")))
    )
    return {name: prints.get(name, "") for name in [*some][:MOST]}


class Past(NamedTuple):
    """A cell's run: what it read of which other runs, and what it gave."""

    run: int
    key: str
    cell_id: str
    number: int
    source_hash: str
    reads: Mapping[str, Bound]
    gave: Mapping[str, Version]
    ended: bool  # well
    uses: Collection[str] = ()  # modules whose names it read, as in `Flow.modules`


class Star(NamedTuple):
    """A cell's `from … import *`: the modules, and the names that it bound otherwise."""

    modules: Collection[str]
    binds: Collection[str]


def _uses(uses: Collection[str], module: str, known: Collection[str]) -> bool:
    """Whether imports of `Flow.modules` are of a module; `known` are all of the project's."""
    for used in uses:
        source, _, name = used.partition(":")
        if not name:
            # `import a` gives all that is imported of it: `a.b.f()`
            if module == source or module.startswith(f"{source}."):
                return True
            continue
        submodule = f"{source}.{name}"
        if module == (submodule if submodule in known else source):
            return True
    return False


def key(cell_id: str, source: str) -> str:
    """Return what a cell is known by: its id, or its source where it has none of its own."""
    return source if BY_PLACE.fullmatch(cell_id) else cell_id


def _keys(cells: Iterable[Cell]) -> list[str]:
    return [key(cell.id, source_hash(cell.source)) for cell in cells]


@dataclass(eq=False, repr=False)
class History:
    """The runs of a notebook's cells in their order, taken in as they come."""

    flow: Reader
    taken: int = 0
    kernel: str = ""
    order: Order = field(default_factory=Order)
    last: dict[str, Past] = field(default_factory=dict)  # a cell's key → its last run
    by: dict[int, Past] = field(default_factory=dict)  # runs
    runs: Sequence[Ran] = ()
    others: int = 0  # executions of other clients that were taken in
    # name → the modules that it may be of
    imports: dict[str, set[str]] = field(default_factory=dict)
    # of the project → the source that the last run had
    modules: dict[str, str] = field(default_factory=dict)
    # of those, which changed → the first run with that source
    changes: dict[str, int] = field(default_factory=dict)
    # of the project → those of the project that they import
    imports_of: dict[str, Collection[str]] = field(default_factory=dict)
    # runs with `from … import *` → the modules, and the names that they bound otherwise
    stars: dict[int, Star] = field(default_factory=dict)

    def catch_up(
        self,
        runs: Sequence[Ran],
        sources: Mapping[str, str],
        others: Sequence[Elsewhere] = (),
    ) -> None:
        """Take in the runs that came since; another notebook's of that name begin anew."""
        if runs is not self.runs:
            self.__dict__.update(History(self.flow, runs=runs).__dict__)
        for run in runs[self.taken :]:
            self.taken += 1
            self._modules(run)
            source = sources.get(run.source_hash)
            if source is None:
                continue
            if run.kernel != self.kernel:
                self.kernel, self.order = run.kernel, Order()
            self._besides(others, run.run)
            ended = run.outcome is Outcome.OK  # a failure that its tag expects is one
            flow = self.flow(source)
            reads = self.order.follow(run.run, flow, run.bound, ended)
            self.imports.update(flow.modules)
            if "*" in flow.modules:
                self.stars[run.run] = Star(flow.modules["*"], flow.binds.keys())
            uses = flow.uses.union(
                *(self._modules_of(name, bound) for name, bound in reads.items())
            )
            gave = {
                name: bound.version
                for name, bound in self.order.bound.items()
                if bound.by == run.run
            }
            cell = key(run.cell_id, run.source_hash)
            past = Past(
                run.run,
                cell,
                run.cell_id,
                run.number,
                run.source_hash,
                reads,
                gave,
                ended,
                uses,
            )
            self.last[cell] = self.by[run.run] = past

    def _modules_of(self, name: str, bound: Bound) -> Collection[str]:
        """Return the modules from which a name was imported."""
        star = self.stars.get(bound.by)
        if bound.kind == IMPORT:
            return self.imports.get(name, ())
        return star.modules if star and name not in star.binds else ()

    def _modules(self, run: Ran) -> None:
        """Take note of the project's modules that had another source in a run than in those before."""
        self.imports_of.update(run.imports)
        for name, version in run.packages.items():
            if version.startswith("source "):
                if self.modules.get(name, version) != version:
                    self.changes[name] = run.run
                self.modules[name] = version

    def changed_since(self, run: Past) -> list[tuple[str, str]]:
        """Return the modules that a run used and that changed after it, directly or through another module: its name."""
        changed = {name for name, first in self.changes.items() if first > run.run}
        if not changed:
            return []
        used = [name for name in self.modules if _uses(run.uses, name, self.modules)]
        through = dict.fromkeys(used, "")
        for name in used:
            for other in self.imports_of.get(name, ()):
                if other not in through:
                    through[other] = through[name] or name
                    used.append(other)
        return sorted((name, through[name]) for name in changed & through.keys())

    def _besides(self, others: Sequence[Elsewhere], before: int) -> None:
        """Take in what other clients had the kernel run before that run: as by runs of numbers below 0."""
        for each in others[self.others :]:
            if each.after >= before:
                return
            self.others += 1
            if each.kernel == self.kernel:
                self.order.follow(-self.others, Flow(), each.bound)
                gave = {
                    name: bound.version
                    for name, bound in self.order.bound.items()
                    if bound.by == -self.others
                }
                self.by[-self.others] = Past(
                    -self.others, "", "", 0, "", {}, gave, True
                )


def _where(provider: Past, there: Collection[str]) -> str:
    """Return where a provider is that is not among the cells that run; `there` are all."""
    return ELSEWHERE if provider.run < 0 else OFF if provider.key in there else GONE


class Because(NamedTuple):
    """Why a cell is marked: a name, and the cell that provides it; of hidden state `where` that is."""

    name: str
    provider: str  # its id
    number: int
    where: str = ""  # GONE, BELOW, OFF, UNBOUND, ELSEWHERE or MODULE
    through: str = ""  # the module that the cell used and that imports this one


class Marked(NamedTuple):
    """A cell that is stale, or holds hidden state."""

    cell: Cell
    because: Sequence[Because]


@dataclass(eq=False, repr=False)
class Follows:
    """What of a notebook no longer follows, from the top."""

    stale: Sequence[Marked] = ()
    hidden: Sequence[Marked] = ()
    # a cell's id → those above that it reads of
    providers: Mapping[str, set[str]] = field(default_factory=dict)


def at_the_end(cells: Sequence[Cell], ran: Sequence[Cell], past: History) -> bool:
    """Whether the cells that just ran stand below all others that ever did, none of which is gone."""
    keys = {
        key(cell.id, source_hash(cell.source)): cell.index
        for cell in cells
        if cell.is_code
    }
    if past.last.keys() - keys.keys():
        return False
    if any(
        read.by < 0
        for cell in ran
        if (its := past.last.get(key(cell.id, source_hash(cell.source))))
        for read in its.reads.values()
    ):
        return False
    runs = [
        its.run
        for cell in ran
        if (its := past.last.get(key(cell.id, source_hash(cell.source))))
    ]
    if any(first >= min(runs, default=0) for first in past.changes.values()):
        return False
    first, own = min(cell.index for cell in ran), {cell.id for cell in ran}
    return all(
        at < first
        for name, at in keys.items()
        if name in past.last and past.last[name].cell_id not in own
    )


def look(cells: Sequence[Cell], past: History) -> Follows:
    """Return which cells are stale and which hold hidden state; one that was changed since it ran is neither."""
    some, order = runnable(cells), Order()
    keys, there = _keys(some), {*_keys(cells)}
    places = {name: place for place, name in enumerate(keys)}
    # no id, the same source: which one ran?
    twice = {name for name, count in Counter(keys).items() if count > 1}
    stale, hidden, providers = list[Marked](), list[Marked](), dict[str, set[str]]()

    def stands(run: Past, at: int) -> bool:
        return run.source_hash == source_hash(some[at].source)

    for place, cell in enumerate(some):
        mine = past.last.get(keys[place]) if keys[place] not in twice else None
        same = mine is not None and mine.source_hash == source_hash(cell.source)
        gave = mine.gave.keys() if mine and same and mine.ended else None
        above = order.follow(place, past.flow(cell.source), gave=gave)
        providers[cell.id] = {some[bound.by].id for bound in above.values()}
        if mine is None or not same:
            continue
        later, odd = list[Because](), list[Because]()
        later += [
            Because(name, "", 0, MODULE, through)
            for name, through in past.changed_since(mine)
        ]
        for name in sorted(above.keys() | mine.reads.keys()):
            read, provider = mine.reads.get(name), above.get(name)
            its = (
                past.last.get(keys[provider.by])
                if provider and keys[provider.by] not in twice
                else None
            )
            gives = its.gave.get(name) if its else None
            if read and gives == read.version:
                continue
            if provider and its and its.run > mine.run and gives is not None:
                later.append(
                    Because(name, some[provider.by].id, some[provider.by].number)
                )
            elif (
                read
                and (from_ := past.by.get(read.by))
                and from_.key not in {keys[place], *twice}
            ):
                at = places.get(from_.key)
                while (
                    provider is None
                    and at is not None
                    and at < place
                    and stands(from_, at)
                ):
                    # this one changed in place what the one before had bound
                    read = from_.reads.get(name)
                    if read is None or (before := past.by.get(read.by)) is None:
                        break
                    from_, at = before, places.get(before.key)
                if at is None:
                    odd.append(
                        Because(name, from_.cell_id, from_.number, _where(from_, there))
                    )
                elif at > place:
                    odd.append(Because(name, some[at].id, some[at].number, BELOW))
                elif provider is None and not stands(from_, at):
                    odd.append(Because(name, some[at].id, some[at].number, UNBOUND))
        stale += [Marked(cell, later)] if later else []
        hidden += [Marked(cell, odd)] if odd else []
    return Follows(stale, hidden, providers)


class Gap(NamedTuple):
    """A cell reads a name that no cell above it binds: that of a number does, or did, which is BELOW, GONE or OFF.

    Or none did, where that was ELSEWHERE.
    """

    cell: Cell
    name: str
    number: int
    where: str

    @property
    def provider(self) -> str:
        """Who binds it, or had bound it, as the beginning of a clause."""
        told = "an execution from elsewhere had bound"
        return (
            told
            if self.where == ELSEWHERE
            else f"cell {self.number}, {CLAUSES[self.where]}"
        )


def gaps(cells: Sequence[Cell], past: History) -> list[Gap]:
    """Return for which names the order of the cells can't reproduce, whatever ran here in which order."""
    some, order = runnable(cells), Order()
    flows, found = [past.flow(cell.source) for cell in some], list[Gap]()
    there, runs = {*_keys(cells)}, {*_keys(some)}
    gone = {
        name: each
        for each in past.by.values()
        if each.key not in runs
        for name in each.gave
    }
    binds = {
        name: cell.number
        for cell, flow in zip(some[::-1], flows[::-1], strict=True)
        for name in flow.binds
    }
    for place, (cell, flow) in enumerate(zip(some, flows, strict=True)):
        reads = order.called(flow)[0]
        for name in sorted(reads - order.follow(place, flow).keys() - BUILTIN):
            if binds.get(name, 0) > cell.number:
                found.append(Gap(cell, name, binds[name], BELOW))
            elif name not in binds and name in gone:
                found.append(
                    Gap(cell, name, gone[name].number, _where(gone[name], there))
                )
    return found


def unbound(cells: Sequence[Cell], past: History) -> list[tuple[Cell, str]]:
    """Return the names that cells read and that the source of no cell binds, as far as the analysis shows.

    The kernel may hold them all the same: an earlier or failed version of a cell may have bound them.
    """
    some = runnable(cells)
    order = Order()
    flows = [past.flow(cell.source) for cell in some]
    binds = {name for flow in flows for name in flow.binds}
    found = []
    for place, (cell, flow) in enumerate(zip(some, flows, strict=True)):
        reads = order.called(flow)[0]
        free = reads - order.follow(place, flow).keys() - BUILTIN - binds
        found += [(cell, name) for name in sorted(free)]
    return found


def had_bound(name: str, reader: str, cells: Sequence[Cell], past: History) -> str:
    """Return which cell binds a name that the cell of an id does not find in a replay, as a clause; '' for none."""
    gap = next(
        (
            gap
            for gap in gaps(cells, past)
            if gap.cell.id == reader and gap.name == name
        ),
        None,
    )
    if gap is not None:
        return f"{gap.provider} it"
    there = {key(cell.id, source_hash(cell.source)): cell for cell in runnable(cells)}
    gave = [
        (there[each.key], each)
        for each in past.by.values()
        if each.key in there and name in each.gave
    ]
    changed = [
        cell.number
        for cell, each in gave
        if each.source_hash != source_hash(cell.source)
    ]
    return f"cell {changed[-1]} had bound it before it was changed" if changed else ""
