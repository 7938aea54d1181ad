"""Fault + facts → one suggestion for the agent, in one line: from what the kernel and the project hold, or nothing.

`ROWS` is read from the top: the first row whose class the fault has, and which finds something to say, decides. What
has no row gets what the failing line's operands hold, else the first line of its class's docstring.
"""

from __future__ import annotations

from collections.abc import Callable

from stepper.diagnosis.around import Around, Facts
from stepper.diagnosis.suggest_clues import clue_words
from stepper.diagnosis.suggest_files import file_not_found
from stepper.diagnosis.suggest_members import attribute_error, index_error
from stepper.diagnosis.suggest_names import import_error, key_error, module_not_found, name_error
from stepper.diagnosis.suggest_values import operands, type_error, unicode_error, value_error
from stepper.ground.text import one_line
from stepper.policy.model import Fault

LONGEST, ROOM = 420, 330


def hint(fault: Fault, look: Facts, around: Around) -> str:
    """Return one line of facts that the fix needs, '' where there are none."""
    classes = set(fault.mro or (fault.ename,))
    clues, late = clue_words(look, around), clue_words(look, around, late=True)
    for name, row in ROWS:
        if name in classes:
            said = row(fault, look, around)
            if said:
                return joined(clues, said, late)
    return joined(clues, operands(fault, look, around), late) or documented(fault)


def documented(fault: Fault) -> str:
    """Return the first line of the class's docstring, as its words; '' where it has none."""
    return f'its class says: "{one_line(fault.doc, 300)}"' if fault.doc else ""


def joined(clues: str, said: str, late: str) -> str:
    """Return the clues, what was said besides them and what the variables held, each where there is room."""
    told = ""
    for part in (clues, said, late):
        both = "; ".join(filter(None, (told, part)))
        if not told or len(both) <= ROOM:
            told = both
    return shortened(told)


def shortened(text: str) -> str:
    """Return the text in one line of at most `LONGEST` characters."""
    text = " ".join(text.split("\n"))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def timeout(fault: Fault, look: Facts, around: Around) -> str:
    """The line that was running; how a cell gets more time."""
    more = "a first line `# stepper: timeout=10m` gives a cell more time"
    held = operands(fault, look, around)
    return "; ".join(filter(None, (running(fault, look, around) or "which line was running is not known", held, more)))


def running(fault: Fault, look: Facts, around: Around) -> str:
    """Return the line that was running, '' where it is not known."""
    if not fault.frames:
        return ""
    inner = fault.frames[-1]
    text = next((text for number, text in inner.context if number == inner.line), "").strip()
    text = text or "".join(around.source.split("\n")[inner.line - 1 : inner.line]).strip()  # a sample has no context
    of = around.place({"cell": inner.cell, "file": inner.file})
    return f"line {inner.line} of {of} was running: `{text}`"


def memory_limit(fault: Fault, look: Facts, around: Around) -> str:
    """The largest variables."""
    return "; ".join(around.largest)


ROWS: tuple[tuple[str, Callable[[Fault, Facts, Around], str]], ...] = (
    ("Timeout", timeout),
    ("KernelDied", running),
    ("MemoryLimit", memory_limit),
    ("NameError", name_error),
    ("ModuleNotFoundError", module_not_found),
    ("ImportError", import_error),
    ("KeyError", key_error),
    ("AttributeError", attribute_error),
    ("IndexError", index_error),
    ("FileNotFoundError", file_not_found),
    ("NotADirectoryError", file_not_found),
    ("IsADirectoryError", file_not_found),
    ("TypeError", type_error),
    ("UnicodeError", unicode_error),
    ("ValueError", value_error),
)
