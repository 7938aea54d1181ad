"""The namespace of a kernel, as reported by the helper in the kernel.

The helper sends these dataclasses as JSON, so their field names are also in
`kernels/in_kernel`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeVar

T = TypeVar("T")
Names = tuple[str, ...]
# Texts by name.
Texts = dict[str, str]


@dataclass(frozen=True)
class Variable:
    """Facts about a variable, without the value."""

    type: str  # `module.Name`; only the name for builtins
    len: int | None = None
    bytes: int = 0
    shape: tuple[int | str, ...] | None = None
    # Fingerprint of a small value, or empty: equal values have equal fingerprints.
    print: str = ""


@dataclass(frozen=True)
class KernelEnvironment:
    """The properties of a kernel that seldom change.

    The helper sends them only if they changed. `mark` identifies this version.
    """

    mark: str
    imported: Names  # modules
    path: Names  # sys.path
    # Whether import hooks find modules that are not in a folder of `path`.
    other_finders: bool
    # Magics that can be called without `%`; None if any name may be one.
    magics: Names | None
    builtins: Names
    python: tuple[int, int]
    # Versions of Python and of the packages that cells imported.
    versions: Texts = field(default_factory=dict)
    # The modules of the project that each module of the project imports.
    local_imports: dict[str, Names] = field(default_factory=dict)


@dataclass(frozen=True)
class Namespace:
    """The names that the user defined in a kernel.

    `modules` maps aliases to modules, `functions` maps names to signatures.
    """

    modules: Texts = field(default_factory=dict)
    functions: Texts = field(default_factory=dict)
    classes: Names = ()
    variables: dict[str, Variable] = field(default_factory=dict)
    # All names that a cell can read, including builtins; empty if unknown.
    names: Names = ()
    own_input: bool = False  # whether the user assigned `input`
    cwd: str = ""
    # Names that the last cell assigned, or whose values it visibly changed.
    rebound: Names = ()
    lasting: KernelEnvironment | None = None

    def with_names(self, names: Collection[str]) -> Namespace:
        """Return the namespace with more names, whose values are not known.

        A namespace with unknown names is returned as it is.
        """
        if not self.names:
            return self
        return replace(self, names=tuple(dict.fromkeys((*self.names, *names))))

    def without_names(self, names: Collection[str]) -> Namespace:
        """Return the namespace without some names."""
        return replace(
            self,
            modules=_remove_keys(self.modules, names),
            functions=_remove_keys(self.functions, names),
            classes=tuple(name for name in self.classes if name not in names),
            variables=_remove_keys(self.variables, names),
            names=tuple(name for name in self.names if name not in names),
        )

    def __bool__(self) -> bool:
        """Return whether a kernel reported a namespace."""
        return self != UNKNOWN_NAMESPACE


def _remove_keys(values: dict[str, T], names: Collection[str]) -> dict[str, T]:
    """Return a dict without the keys that are in `names`."""
    remaining_values = {}
    for name, value in values.items():
        if name not in names:
            remaining_values[name] = value
    return remaining_values


UNKNOWN_NAMESPACE = Namespace()
