"""Find the cells whose values a cell uses, from the names in the sources."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.policy.dataflow.name_effects import NameUsage


def find_upstream_cells(usages: Sequence[NameUsage]) -> list[set[int]]:
    """Return for each cell the positions of the cells above whose values it uses.

    `usages` are the names that each cell uses. Cells that provide values indirectly,
    through other cells, are included.
    """
    # The cells that bound or changed the object of a name so far.
    providers = dict[str, set[int]]()
    all_inputs = list[set[int]]()
    for position, usage in enumerate(usages):
        inputs = set[int]()
        for name in _list_read_names(usage):
            if name in providers:
                inputs |= providers[name]
        for provider in sorted(inputs):
            inputs |= all_inputs[provider]
        all_inputs.append(inputs)
        _update_providers(providers, usage, position)
    return all_inputs


def _update_providers(
    providers: dict[str, set[int]], usage: NameUsage, position: int
) -> None:
    """Record the names that the cell at a position binds or changes."""
    changed_names = usage.changes | usage.passed
    for name in changed_names:
        if name in providers:
            providers[name].add(position)
    for name in usage.binds:
        providers[name] = {position}


def _list_read_names(usage: NameUsage) -> set[str]:
    """Return the names that a cell and its functions read."""
    names = set(usage.reads)
    for effects in usage.effects.values():
        names |= effects.reads
    return names
