"""The configuration of a project: `.stepper/config.yaml`, parsed into `Limits`.

Every key has a default. An error message contains the file, the line and the nearest
valid key. The file may come from a stranger, so its size and nesting are checked before
PyYAML parses it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import yaml

from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.common.text import one_line
from stepper.notebooks.file_state import FileState, read_file_state
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits

MAX_CHARACTERS = 20_000
# PyYAML needs seconds for more brackets, and the daemon does not respond meanwhile.
MAX_BRACKETS = 100
MAX_NUMBER = 1e9  # about thirty years in seconds
MAX_WHOLE_NUMBER = 10**15  # a petabyte
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([KMG])B", re.IGNORECASE)
SIZE_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
# The maximum lengths of a key, of the path of a nested key, and of a list of names in a
# message.
MAX_KEY_CHARACTERS = 100
MAX_PATH_CHARACTERS = 300
MAX_LIST_CHARACTERS = 500


def _is_number(value: Any, minimum: float = 0, maximum: float = MAX_NUMBER) -> bool:
    """Return whether a value is a number above 0, from `minimum` to `maximum`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return value > 0 and minimum <= value <= maximum


def _is_whole_number(value: Any, minimum: int = 0) -> bool:
    """Return whether a value is an integer from `minimum` to MAX_WHOLE_NUMBER."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return minimum <= value <= MAX_WHOLE_NUMBER


def _is_name(value: Any) -> bool:
    """Return whether a value is a non-empty text without control characters."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_project_folder(folder: Any) -> bool:
    """Return whether a value is the relative path of a folder below the project.

    The folder may not exist.
    """
    is_folder = notebook_globs.is_valid(folder) and notebook_globs.is_folder(folder)
    # For the project itself, the permission rule `Edit(**)` would allow every edit.
    return is_folder and os.path.normpath(folder) != "."


def _is_pattern_list(value: Any) -> bool:
    """Return whether a value is a valid pattern or a list of valid patterns."""
    if isinstance(value, str):
        return notebook_globs.is_valid(value)
    return isinstance(value, list) and all(map(notebook_globs.is_valid, value))


def _is_module_mode(value: Any) -> bool:
    """Return whether a value is valid for `local_modules`."""
    # YAML reads `off` as False.
    return value is False or value in ("reload", "warn", "off")


def _parse_size(value: Any) -> int | None:
    """Return a size such as `536870912` or `512 MB` in bytes, or None if invalid."""
    if _is_whole_number(value):
        return int(value)
    match = None
    if isinstance(value, str):
        match = SIZE.fullmatch(value)
    if match is None:
        return None
    return int(float(match[1]) * SIZE_UNITS[match[2].upper()])


def _is_switch(value: Any) -> bool:
    """Return whether a value is `on` or `off`."""
    # YAML reads `on` and `off` as booleans.
    return isinstance(value, bool) or value in ("on", "off")


class Rule(NamedTuple):
    """The valid values of a key: a description, and the function that checks a value.

    The description follows "must be" in an error.
    """

    description: str
    is_valid: Callable[[Any], bool]


NUMBER = Rule("a number above 0", _is_number)
WHOLE = Rule("a whole number", _is_whole_number)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
RULES: dict[str, Rule] = {
    "cell_timeout_seconds": NUMBER,
    "max_cell_timeout_seconds": NUMBER,
    "report_after_seconds": NUMBER,
    "heartbeat_seconds": NUMBER,
    "queue_seconds": NUMBER,
    "queue": FLAG,
    "max_retries": WHOLE,
    "network_retries": WHOLE,
    "max_cells": Rule(
        "a whole number above 0", lambda value: _is_whole_number(value, 1)
    ),
    "max_output_bytes": Rule(
        "a whole number of at least 1000",
        lambda value: _is_whole_number(value, 1000),
    ),
    "max_widget_state_bytes": WHOLE,
    "max_memory_percent": Rule(
        "a number from 1 to 100",
        lambda value: _is_number(value, 1, 100),
    ),
    "notebooks_dir": Rule(
        "a folder inside the project, not hidden, without * ? [ ] { } ( ) !",
        _is_project_folder,
    ),
    "notebooks": Rule(
        "a list of folders and globs inside the project, not hidden, without { } ( ) !",
        _is_pattern_list,
    ),
    "kernel_cwd": Rule(
        "`notebook` or `project`",
        lambda value: value in ("notebook", "project"),
    ),
    "read": Rule("`digest` or `raw`", lambda value: value in ("digest", "raw")),
    "read_limit": Rule(
        "a whole number of at least 1000",
        lambda value: _is_whole_number(value, 1000),
    ),
    "python": Rule("a path", lambda value: value is None or _is_name(value)),
    "kernel_idle_hours": NUMBER,
    "max_kernels": Rule(
        "a whole number above 0", lambda value: _is_whole_number(value, 1)
    ),
    "preflight": FLAG,
    "local_modules": Rule("`reload`, `warn` or `off`", _is_module_mode),
    "record_timing": FLAG,
    "auto_run": Rule("`always` or `ask`", lambda value: value in ("always", "ask")),
    "verify": Rule("`asked` or `auto`", lambda value: value in ("asked", "auto")),
    "verify_seconds": NUMBER,
    "verify_timeout": NUMBER,
    "undo": Rule("`on` or `off`", _is_switch),
    "undo_memory": Rule(
        "a size, such as `512 MB`",
        lambda value: value is None or _parse_size(value) is not None,
    ),
    "recompute_seconds": NUMBER,
    "kernel": Rule("the name of one of `kernels:`, or `local`", _is_name),
    "kernels": Rule(
        "a mapping of names to kernel backends",
        lambda value: isinstance(value, dict),
    ),
    "hide_env": Rule(
        "a list of names, such as `AWS_*`",
        lambda value: isinstance(value, list) and all(map(_is_name, value)),
    ),
}
assert set(RULES) == {field.name for field in fields(Limits)}


def parse(text: str, file_name: str) -> Limits:
    """Return the limits for the text of a configuration file.

    Raise UsageError if the text is not valid. Its message contains `file_name`.
    """
    node, data = _load_yaml(text, file_name)
    if data is None:
        return Limits()
    if not isinstance(data, dict):
        raise UsageError(
            f"{file_name}, line 1: the file must contain a mapping of keys to values"
        )
    for key, value in data.items():
        name = str(key)[:MAX_KEY_CHARACTERS]
        line = _find_line(node, [name])
        _check_value(key, value, f"{file_name}, line {line}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    if values.get("local_modules") is False:
        values["local_modules"] = "off"
    if "undo" in values:
        values["undo"] = values["undo"] in (True, "on")
    if values.get("undo_memory") is not None:
        values["undo_memory"] = _parse_size(values["undo_memory"])
    if isinstance(values.get("notebooks"), str):
        values["notebooks"] = (values["notebooks"],)
    if "kernels" in values or "kernel" in values:
        _parse_kernels(values, node, file_name)
    return Limits(**values)


def _load_yaml(text: str, file_name: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node and the data of a YAML text.

    For an empty text, the node is None and the data is an empty mapping. Raise
    UsageError if the text is not valid YAML or exceeds a limit.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{file_name} is longer than {MAX_CHARACTERS:,} characters")
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise UsageError(
            f"{file_name} was not read: its YAML contains more than {MAX_BRACKETS}"
            " brackets"
        )
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            # A few aliases may expand to gigabytes.
            if isinstance(token, yaml.AliasToken):
                line = token.start_mark.line + 1
                raise UsageError(
                    f"{file_name}, line {line}: aliases (*) are not supported"
                )
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_duplicate_keys(node, file_name)
        data = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        line = 1
        if error.problem_mark:
            line = error.problem_mark.line + 1
        raise UsageError(
            f"{file_name}, line {line}: not valid YAML: {error.problem}"
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file_name}: not valid YAML: {error}") from None
    except (ValueError, AttributeError, LookupError) as error:
        # For example `!!int x`, or the 31st of June.
        raise UsageError(f"{file_name} contains an invalid value: {error}") from None
    return node, data


def _check_value(key: Any, value: Any, location: str) -> None:
    """Raise UsageError if a key is unknown or its value is not valid.

    `location` is the file and line for the message.
    """
    if key not in RULES:
        name = str(key)[:MAX_KEY_CHARACTERS]
        nearest = difflib.get_close_matches(name, RULES, n=1, cutoff=0.4)
        hint = "known keys: " + ", ".join(RULES)
        if nearest:
            hint = f"the nearest key is `{nearest[0]}`"
        raise UsageError(f"{location}: unknown key `{name}`", hint)
    rule = RULES[key]
    if not rule.is_valid(value):
        raise UsageError(
            f"{location}: `{key}` must be {rule.description}, not {reprlib.repr(value)}"
        )


def _check_duplicate_keys(node: yaml.Node | None, file_name: str) -> None:
    """Raise UsageError if a mapping contains a key twice.

    PyYAML would use the last value without an error.
    """
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_duplicate_keys(item, file_name)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in lines:
            quoted = one_line(name, MAX_KEY_CHARACTERS)
            raise UsageError(
                f"{file_name}, line {line}: duplicate key `{quoted}`, first used on"
                f" line {lines[name]}"
            )
        lines[name] = line
        _check_duplicate_keys(value, file_name)


def _parse_kernels(
    values: dict[str, Any], node: yaml.Node | None, file_name: str
) -> None:
    """Replace the value of `kernels` in `values` with the parsed backends.

    `node` is the root node of the file. Raise UsageError if a backend is not valid, or
    if `kernel` names an unknown backend.
    """
    from stepper.kernels import backend_registry
    from stepper.policy.configuration import kernel_config

    try:
        values["kernels"] = backend_registry.parse_backends(values.get("kernels", {}))
    except kernel_config.BackendConfigError as error:
        path = ("kernels", *error.path)
        key = one_line(".".join(path), MAX_PATH_CHARACTERS)
        raise UsageError(
            f"{file_name}, line {_find_line(node, path)}: `{key}` {error.reason}",
            error.hint,
        ) from None
    name = values.get("kernel")
    if name is None or name == kernel_config.LOCAL or name in values["kernels"]:
        return
    known_names = ", ".join([*values["kernels"], kernel_config.LOCAL])
    short_name = one_line(name, MAX_KEY_CHARACTERS)
    short_list = one_line(known_names, MAX_LIST_CHARACTERS)
    line = _find_line(node, ["kernel"])
    raise UsageError(
        f"{file_name}, line {line}: `kernel: {short_name}` is not defined"
        f" in `kernels:`; available: {short_list}"
    )


def _find_line(node: yaml.Node | None, path: Sequence[str]) -> int:
    """Return the line number of a nested key, or of its nearest existing parent."""
    line = 1
    for key in path:
        entry = _find_entry(node, key)
        if entry is None:
            break
        line = entry.key.start_mark.line + 1
        node = entry.value
    return line


class MappingEntry(NamedTuple):
    """The nodes of a key and its value in a YAML mapping."""

    key: yaml.Node
    value: yaml.Node


def _find_entry(node: yaml.Node | None, key: str) -> MappingEntry | None:
    """Return the entry of a mapping with a key, or None if there is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    loader = yaml.SafeLoader("")
    for key_node, value_node in node.value:
        # The key as YAML reads it: `on` is True.
        name = str(loader.construct_object(key_node))[:MAX_KEY_CHARACTERS]
        if name == key:
            return MappingEntry(key_node, value_node)
    return None


def replace_notebooks(text: str, patterns: Sequence[str], file_name: str) -> str:
    """Return the text of a configuration file with new patterns for `notebooks:`.

    Raise UsageError if the text is not valid before or after the change.
    """
    setting = f"notebooks: {json.dumps([*patterns], ensure_ascii=False)}"
    parse(text, file_name)
    entry = _find_entry(yaml.compose(text, Loader=yaml.SafeLoader), "notebooks")
    if entry is None:
        separator = "\n" if text and not text.endswith("\n") else ""
        new_text = f"{text}{separator}{setting}\n"
    else:
        last_node = entry.value
        if isinstance(last_node, yaml.SequenceNode) and not last_node.flow_style:
            # A list in block style ends below its last item, at the next key.
            last_node = last_node.value[-1]
        before = text[: entry.key.start_mark.index]
        after = text[last_node.end_mark.index :]
        new_text = before + setting + after
    parse(new_text, file_name)
    return new_text


class Config:
    """The limits of a project, read again after each change of the configuration."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        # The limits, and the state of the file when they were read. The defaults apply
        # if there is no file.
        self._limits = Limits()
        self._file_state: FileState | None = None

    def load_limits(self) -> Limits:
        """Return the current limits.

        Raise UsageError if the file is not valid or can't be read.
        """
        file_state = read_file_state(self.paths.config)
        if file_state != self._file_state:
            self._limits = load(self.paths)
            self._file_state = file_state
        return self._limits


def load(paths: Paths) -> Limits:
    """Return the limits in the project's configuration file.

    Return the defaults if there is no file. Raise UsageError if the file is not valid
    or can't be read.
    """
    name = paths.relpath(paths.config)
    # Reading from a FIFO would block the daemon.
    if os.path.exists(paths.config) and not os.path.isfile(paths.config):
        raise UsageError(f"{name} is not a regular file", f"ls -l {name}")
    try:
        with open(paths.config, encoding="utf-8") as stream:
            text = stream.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        return Limits()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from error
    return parse(text, name)
