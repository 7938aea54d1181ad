"""What a kernel holds, as its helper tells it: the user's names in short, and what a cell can load and import."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variable:
    """A variable, never its value."""

    type: str  # as `module.Name`, builtins bare
    len: int | None = None
    bytes: int = 0
    shape: tuple[int | str, ...] | None = None
    print: str = ""  # of a small value: equal ones have the same


@dataclass(frozen=True)
class Lasting:
    """What seldom changes, so that the helper tells it once: `mark` is that of its state."""

    mark: str
    imported: tuple[str, ...]  # modules
    path: tuple[str, ...]  # sys.path
    # something finds modules that a listing of `path` does not show
    other_finders: bool
    magics: tuple[str, ...] | None  # callable without `%`; None where any name may be
    builtins: tuple[str, ...]
    python: tuple[int, int]
    # of the packages that cells imported, and of Python
    versions: dict[str, str] = field(default_factory=dict)
    # modules of the project → those of the project that they import
    local_imports: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Namespace:
    """The user's names: alias → module, function → signature, classes, variables."""

    modules: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    variables: dict[str, Variable] = field(default_factory=dict)
    # all that a cell can load, builtins too; none where that is not known
    names: tuple[str, ...] = ()
    own_input: bool = False  # the user has bound `input`
    cwd: str = ""
    # what the last cell bound, or changed in a way that is seen
    rebound: tuple[str, ...] = ()
    lasting: Lasting | None = None

    def __bool__(self) -> bool:
        """Whether a kernel told anything."""
        return self != UNKNOWN


UNKNOWN = Namespace()
