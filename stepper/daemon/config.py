"""`.stepper/config.yaml` → Limits. Every key has a default; a wrong one is named with file, line and nearest key."""

from __future__ import annotations

import difflib
import json
import os
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import yaml

from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.common.text import one_line
from stepper.policy import notebook_globs
from stepper.policy.model import Limits

LONGEST = 20_000  # characters
# more of them cost PyYAML seconds, in which the daemon answers nobody
MOST_BRACKETS = 100
LARGEST = 1e9  # of any number: thirty years, in seconds


def _number(value: Any, least: float = 0, most: float = LARGEST) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and value > 0
        and least <= value <= most
    )


def _whole(value: Any, least: int = 0) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value <= LARGEST
    )


def _name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _inside(folder: Any) -> bool:
    """Whether a rule `Edit(FOLDER/**)` speaks of that folder alone: `**` would allow all."""
    return (
        notebook_globs.is_valid(folder)
        and notebook_globs.is_folder(folder)
        and os.path.normpath(folder) != "."
    )


def _covering(value: Any) -> bool:
    return (
        all(map(notebook_globs.is_valid, [value] if isinstance(value, str) else value))
        if isinstance(value, str | list)
        else False
    )


def _module_mode(value: Any) -> bool:
    # YAML reads `off` as False
    return value is False or value in ("reload", "warn", "off")


NUMBER, WHOLE = ("a number above 0", _number), ("a whole number", _whole)
FLAG = ("true or false", lambda value: isinstance(value, bool))
# What a value must be, and the check of it.
RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "cell_timeout_seconds": NUMBER,
    "max_cell_timeout_seconds": NUMBER,
    "report_after_seconds": NUMBER,
    "heartbeat_seconds": NUMBER,
    "queue_seconds": NUMBER,
    "queue": FLAG,
    "max_retries": WHOLE,
    "network_retries": WHOLE,
    "max_cells": ("a whole number above 0", lambda value: _whole(value, 1)),
    "max_output_bytes": (
        "a whole number of at least 1000",
        lambda value: _whole(value, 1000),
    ),
    "max_widget_state_bytes": WHOLE,
    "max_memory_percent": (
        "a number from 1 to 100",
        lambda value: _number(value, 1, 100),
    ),
    "notebooks_dir": (
        "a folder inside the project, not hidden, without * ? [ ] { } ( ) !",
        _inside,
    ),
    "notebooks": (
        "a list of folders and globs inside the project, not hidden, without { } ( ) !",
        _covering,
    ),
    "kernel_cwd": (
        "`notebook` or `project`",
        lambda value: value in ("notebook", "project"),
    ),
    "python": ("a path", lambda value: value is None or _name(value)),
    "kernel_idle_hours": NUMBER,
    "max_kernels": ("a whole number above 0", lambda value: _whole(value, 1)),
    "preflight": FLAG,
    "local_modules": ("`reload`, `warn` or `off`", _module_mode),
    "record_timing": FLAG,
    "auto_run": ("`always` or `ask`", lambda value: value in ("always", "ask")),
    "verify": ("`asked` or `auto`", lambda value: value in ("asked", "auto")),
    "verify_seconds": NUMBER,
    "kernel": ("the name of one of `kernels:`, or `local`", _name),
    "kernels": (
        "a mapping of names to kernel backends",
        lambda value: isinstance(value, dict),
    ),
    "hide_env": (
        "a list of names, such as `AWS_*`",
        lambda value: isinstance(value, list) and all(map(_name, value)),
    ),
}
assert set(RULES) == {item.name for item in fields(Limits)}


def parse(text: str, name: str) -> Limits:
    """Return the limits that a configuration's text sets; raise UsageError naming file, line and nearest key."""
    if len(text) > LONGEST:
        raise UsageError(f"{name} is larger than {LONGEST:,} characters")
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise UsageError(
            f"{name} is not read: YAML with more than {MOST_BRACKETS} brackets"
        )
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):  # a few of them make gigabytes
                raise UsageError(
                    f"{name}, line {token.start_mark.line + 1}: an alias (*) has no place here"
                )
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _once(node, name)
        data = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            f"{name}, line {line}: not valid YAML: {error.problem}"
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{name}: not valid YAML: {error}") from None
    except (ValueError, AttributeError, LookupError) as error:
        # `!!int x`, the 31st of June
        raise UsageError(f"{name}: a value can't be read: {error}") from None
    if data is None:
        return Limits()
    if not isinstance(data, dict):
        raise UsageError(f"{name}, line 1: a mapping of keys to values is expected")
    lines = (
        {key.value: key.start_mark.line + 1 for key, _ in node.value} if node else {}
    )
    for key, value in data.items():
        where = f"{name}, line {lines.get(key, 1)}"
        if key not in RULES:
            near = difflib.get_close_matches(str(key)[:100], RULES, n=1, cutoff=0.4)
            hint = (
                f"the nearest key is `{near[0]}`"
                if near
                else "known keys: " + ", ".join(RULES)
            )
            raise UsageError(f"{where}: unknown key `{str(key)[:100]}`", hint)
        expected, allowed = RULES[key]
        if not allowed(value):
            raise UsageError(
                f"{where}: `{key}` must be {expected}, not {reprlib.repr(value)}"
            )
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data.items()
    }
    if values.get("local_modules") is False:
        values["local_modules"] = "off"
    if isinstance(values.get("notebooks"), str):
        values["notebooks"] = (values["notebooks"],)
    if "kernels" in values or "kernel" in values:
        _put_kernels(values, node, name, lines)
    return Limits(**values)


def _once(node: yaml.Node | None, name: str) -> None:
    """Raise UsageError where a key stands twice: YAML would take the last one without a word."""
    seen: dict[Any, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line, told = key.start_mark.line + 1, str(key.value)
        if told in seen:
            raise UsageError(
                f"{name}, line {line}: `{one_line(told, 100)}` stands in line {seen[told]} already"
            )
        seen[told] = line
        _once(value, name)


def _put_kernels(
    values: dict[str, Any], node: yaml.Node | None, name: str, lines: dict[str, int]
) -> None:
    """Put the places where kernels may run in the place of what names them; raise UsageError with the line."""
    from stepper.policy import kernel_config

    try:
        values["kernels"] = kernel_config.parse_backends(values.get("kernels", {}))
    except kernel_config.BackendConfigError as wrong:
        path = ("kernels", *wrong.path)
        raise UsageError(
            f"{name}, line {_line(node, path)}: `{one_line('.'.join(path), 300)}` {wrong.reason}",
            wrong.hint,
        ) from None
    named = values.get("kernel")
    if (
        named is not None
        and named != kernel_config.LOCAL
        and named not in values["kernels"]
    ):
        known = one_line(", ".join([*values["kernels"], kernel_config.LOCAL]), 500)
        which = one_line(named, 100)
        raise UsageError(
            f"{name}, line {lines['kernel']}: `kernel: {which}` is none of `kernels:` ({known})"
        )


def _line(node: yaml.Node | None, path: Sequence[str]) -> int:
    """Return the line in which the last of these keys stands, as far as they lead."""
    line, read = 1, yaml.SafeLoader("")
    for key in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        # a name as it reads: `on` is True
        held = next(
            (
                (name, value)
                for name, value in pairs
                if str(read.construct_object(name))[:100] == key
            ),
            None,
        )
        if held is None:
            break
        line, node = held[0].start_mark.line + 1, held[1]
    return line


def with_notebooks(text: str, patterns: Sequence[str], name: str) -> str:
    """Return a configuration's text with these patterns, in place of others; raise UsageError where it is wrong."""
    told = f"notebooks: {json.dumps([*patterns], ensure_ascii=False)}"
    parse(text, name)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in node.value if node else ():
        if key.value == "notebooks":
            block = isinstance(value, yaml.SequenceNode) and not value.flow_style
            end = (value.value[-1] if block else value).end_mark
            new = text[: key.start_mark.index] + told + text[end.index :]
            break
    else:
        new = text + "\n" * (bool(text) and not text.endswith("\n")) + told + "\n"
    parse(new, name)
    return new


class Config:
    """The project's limits, read again when the file changes."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self._limits = paths, Limits()
        self._stamp: tuple[int, ...] = ()  # of the file that they are of

    def limits(self) -> Limits:
        """Return the limits in force; raise UsageError where the file is wrong."""
        try:
            about = os.stat(self.paths.config)
            stamp: tuple[int, ...] = (about.st_mtime_ns, about.st_size, about.st_ino)
        except OSError:
            stamp = ()
        if stamp != self._stamp:
            self._limits, self._stamp = load(self.paths), stamp
        return self._limits


def load(paths: Paths) -> Limits:
    """Return the limits of the project; the defaults where there is no file. Raise UsageError."""
    name = paths.relpath(paths.config)
    # a FIFO would hang the daemon
    if os.path.exists(paths.config) and not os.path.isfile(paths.config):
        raise UsageError(f"{name} is not a regular file", f"ls -l {name}")
    try:
        with open(paths.config, encoding="utf-8") as stream:
            text = stream.read(LONGEST + 1)
    except FileNotFoundError:
        return Limits()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from error
    return parse(text, name)
