"""The distributions that provide modules, and the usual imports of names (`np`, `plt`).

Only the tables of `distributions.json` are used, never a guess, because a misspelled or
invented name may be registered as malware. The table of usual imports omits names with
two meanings (`st`, `F`) and names that are more likely a forgotten variable (`auc`,
`date`, `signal`).
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files

_FILE = files("stepper.diagnosis") / "distributions.json"
_TABLES = json.loads(_FILE.read_text("utf-8"))
DISTRIBUTIONS: dict[str, str] = _TABLES["distributions"]
# Distributions that have another name in conda than on PyPI.
CONDA_NAMES: dict[str, str] = _TABLES["conda"]
DEFINITIONS: dict[str, str] = _TABLES["definitions"]


def find_distribution(module: str) -> str | None:
    """Return the distribution that provides a module, or None if it is unknown."""
    parts = module.split(".")
    # google.cloud.storage is more specific than google.
    for count in range(len(parts), 0, -1):
        package = ".".join(parts[:count])
        distribution = DISTRIBUTIONS.get(package)
        if distribution:
            return distribution
    return None


def find_import_statement(name: str) -> str | None:
    """Return the usual import statement for a name, or None if there is none."""
    statement = DEFINITIONS.get(name)
    if statement:
        return statement
    if name.startswith("_") or name in _TABLES["variables"]:
        return None
    if name in sys.stdlib_module_names:
        return f"import {name}"
    return None
