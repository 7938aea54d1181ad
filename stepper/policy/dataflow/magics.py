"""What IPython's magics do to a notebook's names, as far as their words tell: which code they run, read, bind. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# whose code is Python in these names
RUNS = ("time", "timeit", "prun", "lprun", "memit", "mprun", "capture")
ASKS = ("pinfo", "pinfo2", "psource", "pdoc", "pfile")
OPTIONS = r"(?:-\w+(?:\s*\d+)?\s+)*(?:--\s+)?"
EXPANDED = r"(?<!\$)\$\{?([A-Za-z_]\w*)|\{([A-Za-z_]\w*)"


class Magic(NamedTuple):
    """What one does: `code` in Python, whose names stay unless it is `apart`; `any` name may be bound."""

    code: Sequence[str] = ()
    apart: bool = False
    reads: Sequence[str] = ()
    binds: Sequence[str] = ()
    any: bool = False


def magic(how: str, told: Sequence[object]) -> Magic:
    """Return what IPython's `%x`, `!x`, `x?` and `%%x` do, which became calls of `get_ipython()`'s method `how`."""
    texts = [part for part in told if isinstance(part, str)]
    if (
        how not in ("run_line_magic", "run_cell_magic", "system", "getoutput")
        or not texts
    ):
        return Magic()
    if not how.startswith("run_"):
        return Magic(reads=_expanded(texts[0]))
    name, line, cell = (*texts, "", "")[:3]
    if name == "capture":
        return Magic(
            [cell], binds=[word for word in line.split() if word.isidentifier()]
        )
    if name in RUNS:
        return Magic([re.sub(OPTIONS, "", line, count=1), cell], apart=name == "timeit")
    if name == "store" and "-r" in line.split():
        return Magic(
            binds=[word for word in line.split() if word.isidentifier()],
            any=line.strip() == "-r",
        )
    if name in ASKS:
        return Magic(reads=re.findall(r"^\w+", line))
    line_magic = how == "run_line_magic"
    # by `%%bash` and the like
    written = [] if line_magic else re.findall(r"--(?:out|err|proc)[ =](\w+)", line)
    return Magic(
        reads=_expanded(line),
        binds=written,
        any=line_magic and name in ("run", "pylab"),
    )


def _expanded(line: str) -> list[str]:
    return [first or second for first, second in re.findall(EXPANDED, line)]
