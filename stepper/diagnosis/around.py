"""What the suggestions for broken source are made of. To go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepper.diagnosis.inside.near import closest, listed

Facts = Mapping[str, Any]
__all__ = ["Around", "Facts", "closest", "listed"]


@dataclass(frozen=True)
class Around:
    """A broken source and the kernel's folder."""

    source: str = ""
    cwd: str = ""
