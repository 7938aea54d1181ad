"""What a cell's first line says to stepper: `# stepper: step=3 timeout=6h wait=45s wake="loss.*nan" scratch`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from stepper.policy import wake_regex

# In the comment of any language: a cell in which such a line is none ends with its
# kernel's own error.
FIRST_LINE = re.compile(r"\s*(#|//|--|;+|%+|/\*|\(\*)\s*stepper:\s*(.*?)(?:\s*\*[/)])?")
COMMENTS = {
    **dict.fromkeys(
        (
            "javascript",
            "typescript",
            "java",
            "scala",
            "kotlin",
            "groovy",
            "go",
            "rust",
            "swift",
            "c",
            "c++",
            "cpp",
            "csharp",
            "c#",
            "f#",
            "dart",
            "php",
            "zig",
            "stata",
        ),
        "//",
    ),
    **dict.fromkeys(("sql", "haskell", "lua", "ada", "agda", "elm"), "--"),
    **dict.fromkeys(
        ("scheme", "clojure", "lisp", "common-lisp", "common lisp", "racket"), ";"
    ),
    **dict.fromkeys(("matlab", "octave", "prolog", "erlang", "tex", "latex"), "%"),
}
WORD = re.compile(
    r"""([a-z]{1,9}=(?:"(?:\\.|[^"\\]){0,999}"|'(?:\\.|[^'\\]){0,999}')(?=[,\s]|$))|[^,\s]+"""
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
UNITS = {None: 1, "s": 1, "m": 60, "h": 3600}
KNOWN = 'step=NUMBER, timeout=30s|10m|6h|none, wait=45s|none, wake="PATTERN", scratch'


@dataclass(frozen=True)
class Directive:
    """`step` binds the cell to a step, `scratch` to none. What can't be read is in `problems`, which are told.

    `timeout` is its deadline, `wait` how long its report is waited for, in seconds (inf: without end). A printed line
    that matches the regular expression `wake` wakes the agent.
    """

    step: int | None = None
    scratch: bool = False
    timeout: float | None = None
    problems: tuple[str, ...] = ()
    wait: float | None = None
    wake: str = ""


def parse(source: str) -> Directive:
    """Return what the first line of a cell's source asks for, a comment in whatever language."""
    found = FIRST_LINE.fullmatch(source.split("\n", 1)[0].rstrip())
    if not found:
        return Directive()
    known, problems = dict[str, Any](), list[str]()
    for word, key, value in _words(found[2]):
        why = ""
        if key == "scratch" and word == key:
            known[key] = True
        elif key == "step" and value.isdecimal() and len(value) < 10:
            known[key] = int(value)
        elif (
            key in ("timeout", "wait")
            and (seconds := _seconds(value)) is not None
            and (seconds or key == "wait")
        ):
            known[key] = seconds
        elif key == "wake" and not (why := _unfit(word, value)):
            known[key] = value
        else:
            problems.append(
                f"`{found[1]} stepper: {word}` is {f'not taken: {why}' if why else f'not known: {KNOWN}'}"
            )
    return Directive(**known, problems=tuple(problems))


def comment(language: str) -> str:
    """Return what begins a comment in a language, as far as is known; in most it is `#`."""
    return COMMENTS.get(language.lower(), "#")


def _words(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each word, with what stands before and behind its `=`: in quotes there may be blanks and commas."""
    for found in WORD.finditer(text):
        key, _, value = found[0].partition("=")
        yield found[0], key, value[1:-1] if found[1] else value


def _unfit(word: str, pattern: str) -> str:
    if pattern[:1] in ("'", '"') and word.endswith(f"={pattern}"):
        return "its quotes are not closed"
    return wake_regex.problem(pattern)


def _seconds(value: str) -> float | None:
    duration = DURATION.fullmatch(value)
    return (
        inf
        if value == "none"
        else float(duration[1]) * UNITS[duration[2]]
        if duration
        else None
    )


def deadline(
    directive: Directive, default: float, maximum: float, of_call: float | None = None
) -> float:
    """Return the cell's deadline in seconds; one that the call gives comes before the first line's."""
    return min(of_call or directive.timeout or default, maximum)
