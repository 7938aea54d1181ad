"""What a cell's first line says to stepper: `# stepper: step=3 timeout=10m scratch`."""

from __future__ import annotations

import re
from dataclasses import dataclass

FIRST_LINE = re.compile(r"\s*#\s*stepper:\s*(.*)")
DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
UNITS = {None: 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Directive:
    """`step` binds the cell to a step, `scratch` to none; `timeout` is in seconds. `problems` are told."""

    step: int | None = None
    scratch: bool = False
    timeout: float | None = None
    problems: tuple[str, ...] = ()


def parse(source: str) -> Directive:
    """Return what the first line of a cell's source asks for; what can't be read is named in `problems`."""
    found = FIRST_LINE.fullmatch(source.split("\n", 1)[0].rstrip())
    if not found:
        return Directive()
    step, scratch, timeout, problems = None, False, None, []
    for word in re.split(r"[,\s]+", found[1].strip()):
        key, _, value = word.partition("=")
        duration = DURATION.fullmatch(value)
        if key == "scratch" and not value:
            scratch = True
        elif key == "step" and value.isdecimal() and len(value) < 10:
            step = int(value)
        elif key == "timeout" and duration and float(duration[1]) > 0:
            timeout = float(duration[1]) * UNITS[duration[2]]
        elif word:
            problems.append(f"`# stepper: {word}` is not known: step=NUMBER, timeout=30s|10m|1h, scratch")
    return Directive(step, scratch, timeout, tuple(problems))


def deadline(directive: Directive, default: float, maximum: float) -> float:
    """Return the cell's deadline in seconds."""
    return min(directive.timeout or default, maximum)
