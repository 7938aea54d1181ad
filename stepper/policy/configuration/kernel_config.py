"""Parse and validate the kernel backends, the section `kernels:` of the configuration.

Each kind of backend parses its own keys with the rules of this module. The user must
accept the definition of a backend with `stepper trust`, because the definition contains
hosts, scripts and tokens.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# The backend that needs no definition: the project's interpreter on this machine.
LOCAL = "local"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
KERNELSPEC_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # as in jupyter_client
MAX_INTEGER = 1 << 31
MAX_KEY_CHARACTERS = 100  # of a key in a message
# The keys that lead to a value in the section `kernels:`.
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class BackendDescription:
    """The properties of a backend that follow from its settings alone.

    `text` describes the backend in a few words, without any secrets.
    """

    text: str
    # The kernel is a process on this machine and runs in the notebook's folder.
    is_local: bool = False
    # The language of the kernel is known to be Python.
    is_python: bool = True
    # stepper attaches to one running kernel, which it does not own.
    attaches: bool = False
    # The kernel runs in a folder of the backend, not in the notebook's folder.
    has_own_folder: bool = False
    # Environment variables with secrets, which other backends' kernels do not inherit.
    secret_variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackendConfig:
    """The configuration of a kernel backend.

    `definition` is the value in the configuration file. The type of `settings` depends
    on the kind of backend. `problem` says why the backend cannot be used, for example
    because its module cannot be imported; it is empty for a usable backend.
    """

    name: str
    definition: Mapping[str, Any]
    settings: Any
    description: BackendDescription
    problem: str = ""

    @property
    def kind(self) -> str:
        """The kind of backend, such as `slurm`."""
        return next(iter(self.definition))


class ParsedSettings(NamedTuple):
    """The settings of a backend, and the fields of BackendConfig derived from them."""

    settings: Any
    description: BackendDescription
    problem: str = ""


# Parses the settings of a backend. The path leads to the settings, for error messages.
SettingsParser = Callable[[Any, KeyPath], ParsedSettings]


class BackendConfigError(ValueError):
    """The definition of a backend is invalid.

    `path` contains the keys that lead to the invalid value. `hint` is an additional
    sentence for the user.
    """

    def __init__(self, path: KeyPath, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.hint = hint


class Rule(NamedTuple):
    """A rule for the values of a key."""

    description: str  # of a valid value, such as "a whole number above 0"
    is_valid: Callable[[Any], bool]


def is_text(value: Any) -> bool:
    """Return whether a value is a string on one line that is not blank."""
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number above 0."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 < value < MAX_INTEGER


def make_pattern_check(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    """Return a function that checks whether a value is text that matches a pattern."""

    def matches_pattern(value: Any) -> bool:
        return isinstance(value, str) and pattern.fullmatch(value) is not None

    return matches_pattern


def make_mapping_check(names: re.Pattern[str]) -> Callable[[Any], bool]:
    """Return a function that checks whether a value maps names to texts.

    The names must match the pattern `names`. A text may be empty, but must not contain
    line breaks or control characters.
    """
    is_name = make_pattern_check(names)

    def is_mapping(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        are_names = all(map(is_name, value))
        return are_names and all(map(_is_line, value.values()))

    return is_mapping


def _is_line(value: Any) -> bool:
    """Return whether a value is a string on one line, which may be empty."""
    return isinstance(value, str) and (value == "" or value.isprintable())


def _is_shell_code(value: Any) -> bool:
    """Return whether a value is a text that can be written to a shell script."""
    if not isinstance(value, str) or "\0" in value:
        return False
    has_surrogates = value != value.encode("utf-8", "replace").decode()
    return not has_surrogates


def _is_list_of_flags(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _is_absolute_path(value: Any) -> bool:
    """Return whether a value is an absolute path or starts with `~`.

    A relative path would be in the project, where a `git pull` can change the file.
    """
    return is_text(value) and value.startswith(("/", "~"))


TEXT = Rule("a non-empty string on one line", is_text)
SHELL = Rule("shell code", _is_shell_code)
FLAGS = Rule("a list of flags", _is_list_of_flags)
COUNT = Rule("a whole number above 0", is_count)
KERNELSPEC = Rule("the name of a kernelspec", make_pattern_check(KERNELSPEC_NAME))
PATH = Rule("an absolute path or a path that starts with ~", _is_absolute_path)


def check_keys(
    values: Any,
    rules: Mapping[str, Rule],
    path: KeyPath,
    required: Iterable[str] = (),
    confidential: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the validated values of a backend by key, with tuples instead of lists.

    `path` leads to `values`, for error messages. Raise BackendConfigError if `values`
    is not a mapping, a key is unknown, a `required` key is missing, or a value is
    invalid. The error does not quote values of `confidential` keys, which may contain a
    token.
    """
    if not isinstance(values, dict):
        raise BackendConfigError(
            path, f"must be a mapping; allowed keys: {', '.join(rules)}"
        )
    arguments = {}
    for key, value in values.items():
        if key not in rules:
            key_path = (*path, str(key)[:MAX_KEY_CHARACTERS])
            raise build_unknown_key_error(key_path, rules)
        rule = rules[key]
        if not rule.is_valid(value):
            is_quotable = key not in confidential
            actual = f", not {reprlib.repr(value)}" if is_quotable else ""
            raise BackendConfigError(
                (*path, key), f"must be {rule.description}{actual}"
            )
        arguments[key] = tuple(value) if isinstance(value, list) else value
    for key in required:
        if key not in values:
            raise BackendConfigError(
                path, f"must have the key `{key}`: {rules[key].description}"
            )
    return arguments


def parse_backends(
    section: Any,
    find_parser: Callable[[str], SettingsParser | None],
    kinds: Iterable[str],
) -> dict[str, BackendConfig]:
    """Return the backends of the section `kernels:` by name.

    `find_parser` returns the parser for a kind of backend, or None if the kind is
    unknown. `kinds` are the known kinds. Raise BackendConfigError if the section is
    invalid.
    """
    if not isinstance(section, dict):
        raise BackendConfigError(
            (),
            "must be a mapping of names to kernel backends",
            "For example: kernels: {r: {kernelspec: ir}}",
        )
    backends = {}
    for name, definition in section.items():
        path = (str(name)[:MAX_KEY_CHARACTERS],)
        _check_name(name, path)
        if not isinstance(definition, dict) or len(definition) != 1:
            raise BackendConfigError(
                path, f"must contain exactly one kind of backend: {', '.join(kinds)}"
            )
        kind, values = next(iter(definition.items()))
        parse_settings = find_parser(kind) if isinstance(kind, str) else None
        if parse_settings is None:
            kind_path = (*path, str(kind)[:MAX_KEY_CHARACTERS])
            raise build_unknown_key_error(kind_path, kinds)
        settings = parse_settings(values, (*path, kind))
        backends[name] = BackendConfig(name, definition, *settings)
    return backends


def _check_name(name: Any, path: KeyPath) -> None:
    """Raise BackendConfigError if a name is not valid for a backend."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BackendConfigError(
            path,
            "is not a valid name for a kernel backend:"
            " use letters, digits, `_`, `.` and `-`",
        )
    if name == LOCAL:
        raise BackendConfigError(
            path,
            f"cannot be defined: `{LOCAL}` is the project's interpreter on this"
            " machine. Use another name",
        )


def build_unknown_key_error(
    path: KeyPath, known_keys: Iterable[str]
) -> BackendConfigError:
    """Return the error for an unknown key.

    The hint suggests the most similar known key. If none is similar, it lists all known
    keys.
    """
    keys = [*known_keys]
    similar_keys = difflib.get_close_matches(path[-1], keys, n=1, cutoff=0.4)
    if similar_keys:
        hint = f"Did you mean `{similar_keys[0]}`?"
    else:
        hint = f"Known keys: {', '.join(keys)}"
    return BackendConfigError(path, "is not a known key", hint)
