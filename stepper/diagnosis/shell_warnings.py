"""Doubts about shell lines: what ended with an exit code, what installed packages for another interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from signal import Signals
from typing import Any

from stepper.common.json_decode import decode_valid_items
from stepper.common.text import one_line
from stepper.diagnosis.project_environment import Surroundings

# characters of a command; lines that it wrote last, of one, of a doubt
COMMAND, TAIL, WRITTEN, LINE = 80, 3, 120, 600
# How a shell complains of a line that it goes on after: a `%%bash` has one exit code,
# its last line's.
COMPLAINT = re.compile(r"^(?:\S*/)?(?:ba|da|k|z)?sh: (?:line )?\d+: .+", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """What the kernel's helper tells of a shell line; `own` stands where it installs something, not for `own`."""

    text: str
    code: int = 0
    line: int = 0  # of the cell; 0: elsewhere
    count: int = 1
    tail: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    into: str = ""  # '': it lacks pip
    own: str = ""


def lines(facts: Any, around: Surroundings) -> list[str]:
    """Return a doubt for each, those first that installed something elsewhere."""
    commands = decode_valid_items(Command, facts)
    return [
        _worded(command, around)
        for command in sorted(commands, key=lambda command: not command.into)
    ]


def complaints(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a doubt about what a shell said on stderr of lines that it could not run."""
    texts = [
        str(output.get("text")) for output in outputs if output.get("name") == "stderr"
    ]
    said = [
        one_line(found[0], WRITTEN)
        for text in texts
        for found in COMPLAINT.finditer(text)
    ]
    return (
        [f'a shell could not run a line of its script: "{" / ".join(said[-TAIL:])}"']
        if said
        else []
    )


def _worded(command: Command, around: Surroundings) -> str:
    said = []
    if command.into:
        into, own = one_line(command.into, WRITTEN), one_line(command.own, WRITTEN)
        said.append(f"installs for {into}, not for this kernel's interpreter {own}")
    if command.code:
        tail = [
            line for line in (one_line(line, WRITTEN) for line in command.tail) if line
        ][-TAIL:]
        wrote = f', having written last "{" / ".join(tail)}"' if tail else ""
        times = f"{command.count} × " if command.count > 1 else ""
        said.append(times + _ended(command.code) + wrote)
    install = (
        around.install_command(command.own, *command.wanted)
        if command.wanted and command.own
        else ""
    )
    if install:
        said.append(f"what installs for this kernel: {install}")
    where = f"line {command.line}: " if command.line else ""
    return one_line(
        f"{where}`{one_line(command.text, COMMAND)}` {'; '.join(said)}", LINE
    )


def _ended(code: int) -> str:
    try:
        return (
            f"was ended by {Signals(-code).name} (exit code {code})"
            if code < 0
            else f"ended with exit code {code}"
        )
    except ValueError:  # IPython makes 128 - code of each code above 128
        return f"ended with exit code {128 - code}"
