"""Import name → distribution, and usual name → import statement: what `distributions.txt` knows; nothing is guessed.

Somebody may have registered a misspelt or invented name to catch those who install it unseen. So a name that stands in
no table there has no distribution, and never reaches an installer.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files


def _tables() -> dict[str, str]:
    text = (files("stepper.diagnosis") / "distributions.txt").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    parts = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


_TABLES = _tables()
DISTRIBUTIONS = {name: name.replace("_", "-") for name in _TABLES["dashed"].split()} | _pairs(_TABLES["distributions"])
SAME = frozenset(_TABLES["same"].split())
CONDA = _pairs(_TABLES["conda"])
ALIASES = (
    {name: f"import {module} as {name}" for name, module in _pairs(_TABLES["modules"]).items()}
    | {name: f"import {name}" for name in _TABLES["plain"].split()}
    | {
        name: f"from {module} import {name}"
        for module, names in (line.split(": ") for line in _TABLES["members"].strip().splitlines())
        for name in names.split()
    }
)
_VARIABLES = frozenset(_TABLES["variables"].split())


def distribution(name: str) -> str | None:
    """Return the distribution that holds a module, dotted or not; None where none is known."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):  # google.cloud.storage is more special than google
        known = DISTRIBUTIONS.get(".".join(parts[:count]))
        if known:
            return known
    return parts[0] if parts[0] in SAME else None


def definition(name: str) -> str | None:
    """Return the import statement that usually makes a name; None where the name has no usual meaning."""
    if name in ALIASES:
        return ALIASES[name]
    if name in sys.stdlib_module_names and not name.startswith("_") and name not in _VARIABLES:
        return f"import {name}"
    return None
