"""Import name → distribution, and usual name → import statement: what `distributions.json` knows; nothing is guessed.

Somebody may have registered a misspelt or invented name to catch those who install it unseen. So a name that stands in
no table there has no distribution, and never reaches an installer. Of usual names those are left out that have two
meanings (`st`, `F`), and those that are rather a variable that its cell forgot to make (`auc`, `date`, `signal`).
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files

_TABLES = json.loads(
    (files("stepper.diagnosis") / "distributions.json").read_text("utf-8")
)
DISTRIBUTIONS: dict[str, str] = _TABLES["distributions"]
CONDA: dict[str, str] = _TABLES["conda"]  # what conda calls otherwise than PyPI does
DEFINITIONS: dict[str, str] = _TABLES["definitions"]


def distribution(name: str) -> str | None:
    """Return the distribution that holds a module, dotted or not; None where none is known."""
    parts = name.split(".")  # google.cloud.storage is more special than google
    known = (
        DISTRIBUTIONS.get(".".join(parts[:count])) for count in range(len(parts), 0, -1)
    )
    return next(filter(None, known), None)


def definition(name: str) -> str | None:
    """Return the import statement that usually makes a name; None where the name has no usual meaning."""
    module = (
        name in sys.stdlib_module_names
        and not name.startswith("_")
        and name not in _TABLES["variables"]
    )
    return DEFINITIONS.get(name) or (f"import {name}" if module else None)
