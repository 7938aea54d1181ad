"""Small cells that change the state of a kernel, as data for benchmarks/state_restore.py.

Each YAML file has the cases of one topic. The cells were written without knowledge of
how stepper restores state. `Case` describes the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

FOLDER = Path(__file__).parent
Action = Literal["replace", "again", "delete", "automatic"]


class InvalidCaseError(Exception):
    """A case in a YAML file has a wrong key or value."""


@dataclass(frozen=True)
class Case:
    """A cell that changes state, and the retry that must not see the change.

    `setup` are the cells above. `second` is another version that fails, between `cell`
    and the retry. `below` are cells that run between `cell` and the
    retry; afterwards `stepper run --stale` runs those that are stale. `action` is what
    happens to `cell`:

    - `replace`: the retry replaces it.
    - `again`: the file `ready` is written, then the same cell runs again.
    - `automatic`: stepper itself runs the cell again, because its error is transient.
    - `delete`: it is deleted, and the retry is a new cell at the end.

    `external` marks a change outside the kernel's memory, which stepper can only name.
    """

    topic: str
    name: str
    setup: tuple[str, ...]
    cell: str
    retry: str
    below: tuple[str, ...] = ()
    second: str = ""
    fails: bool = True
    action: Action = "replace"
    needs: tuple[str, ...] = ()
    external: bool = False

    @property
    def replayed_cells(self) -> tuple[str, ...]:
        """The cells that a new kernel runs from the top, without the failed version."""
        if self.action == "delete":
            return (*self.setup, *self.below, self.retry)
        return (*self.setup, self.retry, *self.below)


def load_cases() -> list[Case]:
    """Return the cases of all topics; raise InvalidCaseError if one is invalid."""
    cases = []
    for path in sorted(FOLDER.glob("*.yaml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        cases += [parse_case(path.stem, entry) for entry in entries]
    return cases


def parse_case(topic: str, entry: dict[str, Any]) -> Case:
    """Return the case of a YAML mapping."""
    fields = dict(entry)
    name = fields.get("name", "(without a name)")
    for key in ("setup", "below", "needs"):
        value = fields.get(key, ())
        fields[key] = (value,) if isinstance(value, str) else tuple(value)
    if fields.get("action") in ("again", "automatic"):
        fields.setdefault("retry", fields.get("cell"))
    try:
        case = Case(topic=topic, **fields)
    except TypeError as error:
        raise InvalidCaseError(f"{topic}: {name}: {error}") from error
    if case.action not in get_args(Action):
        raise InvalidCaseError(f"{topic}: {name}: unknown action {case.action!r}")
    return case
