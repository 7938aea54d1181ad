"""Directives in a cell's first line.

For example: `# stepper: step=3 timeout=6h wait=45s wake="loss.*nan" scratch`. The line
must be a comment in the language of the cell; otherwise, the kernel reports a syntax
error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from stepper.policy.configuration import wake_regex

FIRST_LINE = re.compile(r"\s*(#|//|--|;+|%+|/\*|\(\*)\s*stepper:(.*)")
DEFAULT_COMMENT_MARKER = "#"
COMMENT_MARKERS = {
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
OPTION = re.compile(
    r"""([a-z]{1,9}=(?:"(?:\\.|[^"\\]){0,999}"|'(?:\\.|[^'\\]){0,999}')(?=[,\s]|$))"""
    r"""|[^,\s]+"""
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
UNIT_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}
SYNTAX = (
    'step=NUMBER, timeout=30s|10m|6h|none, wait=45s|none, wake="PATTERN", scratch, keep'
)


@dataclass(frozen=True)
class Directive:
    """The options of a cell's first line.

    `step` assigns the cell to a step, `scratch` to no step. With `keep`, names that a
    failed version of the cell bound are kept. `problems` are messages about options
    that are unknown or invalid.
    """

    step: int | None = None
    scratch: bool = False
    keep: bool = False
    # The cell's deadline in seconds; inf for none.
    timeout: float | None = None
    problems: tuple[str, ...] = ()
    # Seconds until the run continues in the background; inf for never.
    wait: float | None = None
    # A regular expression: a printed line that matches it wakes the agent.
    wake: str = ""


class _Option(NamedTuple):
    """An option of a directive, such as `timeout=6h` or `scratch`."""

    text: str  # the whole option
    key: str
    value: str  # the text after `=`, without quotes


def parse(source: str) -> Directive:
    """Return the directive in the first line of a cell's source.

    If the line is not a directive, the result has no options and no problems.
    """
    first_line = source.split("\n", 1)[0].rstrip()
    match = FIRST_LINE.fullmatch(first_line)
    if not match:
        return Directive()
    marker = match[1]
    option_list = match[2].removesuffix("*/").removesuffix("*)")
    values = dict[str, Any]()
    problems = list[str]()
    for option in _split_options(option_list):
        value = _parse_value(option)
        problem = _find_problem(option, value)
        if problem:
            problems.append(f"`{marker} stepper: {option.text}` is {problem}")
        else:
            values[option.key] = value
    return Directive(**values, problems=tuple(problems))


def _find_problem(option: _Option, value: Any) -> str:
    """Return why an option is not applied, or an empty string if it is.

    `value` is the parsed value of the option. The reason completes "OPTION is".
    """
    if value is None:
        return f"not a valid option. Options: {SYNTAX}"
    if option.key == "wake":
        reason = _find_wake_problem(option)
        return f"ignored: {reason}" if reason else ""
    return ""


def _split_options(text: str) -> Iterator[_Option]:
    """Yield the options, separated by spaces or commas outside of quotes."""
    for match in OPTION.finditer(text):
        key, _, value = match[0].partition("=")
        is_quoted = match[1] is not None
        yield _Option(match[0], key, value[1:-1] if is_quoted else value)


def _parse_value(option: _Option) -> Any:
    """Return the value of an option, or None if it is unknown or invalid."""
    key = option.key
    value = option.value
    if key in ("scratch", "keep") and option.text == key:
        return True
    if key == "step" and value.isdecimal() and len(value) < 10:
        return int(value)
    if key == "timeout":
        return _parse_duration(value) or None  # a deadline of 0 s is invalid
    if key == "wait":
        return _parse_duration(value)
    if key == "wake":
        return value
    return None


def _find_wake_problem(option: _Option) -> str:
    """Return why a wake pattern is ignored, or an empty string if it is valid."""
    pattern = option.value
    starts_with_quote = pattern[:1] in ("'", '"')
    # If the quotes are complete, `value` has none, and `text` ends with a quote.
    if starts_with_quote and option.text.endswith(f"={pattern}"):
        return "the closing quote is missing"
    return wake_regex.find_problem(pattern)


def _parse_duration(text: str) -> float | None:
    """Return a duration in seconds (infinity for `none`), or None if it is invalid."""
    if text == "none":
        return inf
    match = DURATION.fullmatch(text)
    if match is None:
        return None
    return float(match[1]) * UNIT_SECONDS[match[2]]


def get_comment_marker(language: str) -> str:
    """Return the characters that start a comment in a language.

    `language` is as in `language_info.name`. Return `#` for an unknown language.
    """
    return COMMENT_MARKERS.get(language.lower(), DEFAULT_COMMENT_MARKER)


def select_deadline(
    directive: Directive,
    default: float,
    maximum: float,
    call_timeout: float | None = None,
) -> float:
    """Return the deadline of a cell in seconds.

    The timeout of the tool call takes precedence over the timeout of the directive, and
    both over the default. The deadline is at most `maximum`.
    """
    return min(call_timeout or directive.timeout or default, maximum)
