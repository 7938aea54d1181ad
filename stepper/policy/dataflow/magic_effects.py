"""The effects of IPython magics on names.

The effects are derived from the text of a magic alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stepper.policy.dataflow.outside_state import (
    CONFIGURED,
    ENVIRONMENT,
    name_file,
    name_part,
)

# Magics whose argument is Python code that runs in the notebook's namespace.
CODE_MAGICS = (
    "time",
    "timeit",
    "prun",
    "lprun",
    "memit",
    "mprun",
)
INSPECTION_MAGICS = ("pinfo", "pinfo2", "psource", "pdoc", "pfile")
# Options in front of the code, such as `-q`, `-n 10` and `-f name`.
OPTIONS = r"(?:-(?:[DTfms]\s*\S+|\w+(?:\s*\d+)?)\s+)*(?:--\s+)?"
# `$name`, `${name}` or `{expression}` in a shell command, which IPython replaces. The
# expression ends before a conversion or format, as in `{name!r}`.
EXPANSION = re.compile(r"(?<!\$)\$\{?([^\W\d]\w*)|\{([^{}!:]+)")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# A name in an expression, but no attribute.
NAME = re.compile(r"(?<![.\w])[^\W\d]\w*")
# An environment variable such as `$PATH`.
SHELL_VARIABLE = re.compile(r"\$\{?[A-Z][A-Z\d_]*\b")
# The methods of IPython's shell that run magics and shell commands.
METHODS = ("run_line_magic", "run_cell_magic", "system", "getoutput")


class MagicEffects(NamedTuple):
    """The effects of one magic on names.

    `code` is the Python code that the magic runs. If `discards_bindings` is true, the
    names that this code binds are discarded. `reads` and `binds` are names that the
    magic itself reads and binds. If `binds_any` is true, it may also bind other names.
    """

    code: Sequence[str] = ()
    discards_bindings: bool = False
    reads: Sequence[str] = ()
    binds: Sequence[str] = ()
    binds_any: bool = False
    # State outside the variables that the magic replaces → its text.
    outside_binds: Mapping[str, list[str]] = {}
    outside_reads: Sequence[str] = ()  # state that the magic only reads


def analyze_magic(method: str, arguments: Sequence[object]) -> MagicEffects:
    """Return the effects of calling a method of IPython's shell.

    IPython's input transformer replaces `%x`, `!x`, `x?` and `%%x` with calls such as
    `get_ipython().run_line_magic("x", "")`.
    """
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if method not in METHODS or not texts:
        return MagicEffects()
    if not method.startswith("run_"):
        reads = _find_expanded_names(texts[0])
        return MagicEffects(reads=reads)
    is_line_magic = method == "run_line_magic"
    name, line, cell, *_ = (*texts, "", "")  # the line and the cell may be missing
    words = line.split()
    identifiers = [word for word in words if word.isidentifier()]
    if name == "writefile" and words:
        return MagicEffects(outside_binds={name_file(words[-1]): [cell]})
    if name in ("env", "set_env") and words:
        return _analyze_env(line)
    if name == "config" and "=" in line:
        configured = CONFIGURED.get(line.partition(".")[0].strip())
        return MagicEffects(outside_binds={configured: [line]} if configured else {})
    if name == "capture":
        return MagicEffects([cell], binds=identifiers)
    if name in CODE_MAGICS:
        code = re.sub(OPTIONS, "", line, count=1)
        return MagicEffects([code, cell], discards_bindings=name == "timeit")
    if name == "store":
        return _analyze_store(words)
    if name == "run":
        scripts = [word for word in words if word.endswith((".py", ".ipy"))]
        return MagicEffects(
            reads=_find_expanded_names(line),
            binds_any=is_line_magic,
            outside_reads=[name_file(script) for script in scripts[:1]],
        )
    if name in INSPECTION_MAGICS:
        reads = re.findall(r"^\w+", line)
        return MagicEffects(reads=reads)
    outputs = []
    if not is_line_magic:  # such as `%%bash --out name`
        outputs = re.findall(r"--(?:out|err|proc)[ =](\w+)", line)
    return MagicEffects(
        reads=_find_expanded_names(line),
        binds=outputs,
        binds_any=is_line_magic and name == "pylab",
    )


def _analyze_env(line: str) -> MagicEffects:
    """Return the effects of `%env KEY`, which shows a variable, or `%env KEY=VALUE`."""
    key, *values = re.split(r"[\s=]", line.strip(), maxsplit=1)
    variable = name_part(ENVIRONMENT, key)
    if not values:
        return MagicEffects(outside_reads=[variable])
    # IPython keeps `$PATH` as text, because Python has most likely no such name.
    names = _find_expanded_names(SHELL_VARIABLE.sub("", line))
    code = "" if names else line  # empty, because the value depends on the names
    return MagicEffects(reads=names, outside_binds={variable: [code]})


def _analyze_store(words: Sequence[str]) -> MagicEffects:
    """Return the effects of `%store name`, `%store -r name` and `%store name >file`.

    `words` are the words of the line. IPython keeps stored variables in a database.
    """
    for index, word in enumerate(words):
        if word.startswith(">"):
            path = word.lstrip(">")
            files = {name_file(path): [""]} if path else {}
            written = [word for word in words[:index] if word.isidentifier()]
            return MagicEffects(reads=written, outside_binds=files)
    variables = [word for word in words if word.isidentifier()]
    stored = [f"stored variable {variable!r}" for variable in variables]
    if "-r" in words:
        restores_all = words == ["-r"]
        return MagicEffects(
            binds=variables, binds_any=restores_all, outside_reads=stored
        )
    if not variables or words[0].startswith("-"):
        return MagicEffects()
    # The stored value depends on the variable.
    return MagicEffects(reads=variables, outside_binds={name: [""] for name in stored})


def _find_expanded_names(line: str) -> list[str]:
    """Return the Python names whose values IPython inserts into a shell command."""
    names = []
    for name, expression in EXPANSION.findall(line):
        if name:
            names.append(name)
        names += NAME.findall(QUOTED.sub("", expression))
    return names
