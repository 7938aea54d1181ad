"""Where a shell command installs packages, where that is another interpreter than this one. Nothing is run to know."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import Any

PIP, PYTHON = re.compile(r"pip[\d.]*"), re.compile(r"python[\d.]*")
CONDA = {"conda", "mamba", "micromamba"}
ASSIGNED = re.compile(r"\w+=")
SHEBANG = re.compile(
    rb"#! *(\S*python[\d.]*)\s|#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\""
)
BY_ENV = re.compile(rb"#! */usr/bin/env (python[\d.]*)\s")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
VALUED = {
    "-r",
    "-c",
    "-e",
    "-t",
    "-i",
    "-f",
    "-p",
    "-n",
    "--python",
    "--prefix",
    "--name",
    "--channel",
    "--target",
    "--index-url",
    "--extra-index-url",
    "--requirement",
    "--constraint",
    "--find-links",
}
# somebody who says where knows where
ELSEWHERE = {"--target", "-t", "--root", "--dry-run"}


def installs(command: str, done: bool, lacks_pip: bool) -> dict[str, Any] | None:
    """The packages that a command installs, and into which other interpreter ('': this one, but it lacks pip)."""
    for words in simple(command):
        program, rest, given = parsed(words)
        names = (
            wanted(rest)
            if rest[:1] == ["install"] and not ELSEWHERE.intersection(rest)
            else None
        )
        if names is None:
            continue
        python = interpreter(program, given)
        if lacks_pip and (not python or same(python)):
            return {"wanted": names, "into": "", "own": sys.executable}
        if not python and done and program and not all(map(there, names)):
            # a shim: what it started is not known, but it is none that this kernel sees
            python = program
        if python and not same(python):
            return {"wanted": names, "into": python, "own": sys.executable}
    return None


def simple(command: str) -> list[list[str]]:
    """The simple commands of a command line, as words; without what only goes before them."""
    found: list[list[str]] = [[]]
    for line in command.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();|&")
        lexer.whitespace_split = True
        try:
            for word in lexer:
                found[-1].append(word) if word.strip("();|&") else found.append([])
        except ValueError:  # quotes that do not end
            found.pop()
        found.append([])
    for words in found:
        while words and (
            ASSIGNED.match(words[0])
            or words[0] in ("sudo", "env", "time", "command", "exec")
        ):
            del words[0]
    return [words for words in found if words]


def parsed(words: list[str]) -> tuple[str, list[str], str]:
    """The program that decides where it goes, its words from the verb on, and the interpreter that they name."""
    name, rest = os.path.basename(words[0]), words[1:]
    given = next(
        (rest[n + 1] for n, word in enumerate(rest[:-1]) if word == "--python"), ""
    )
    given = given or next(
        (word[9:] for word in rest if word.startswith("--python=")), ""
    )
    if PYTHON.fullmatch(name) and "-m" in rest[:-1]:
        module, rest = rest[rest.index("-m") + 1], rest[rest.index("-m") + 2 :]
        if module not in ("pip", "uv"):
            return "", [], ""
        name = module if module == "uv" else name
    elif not PIP.fullmatch(name) and name not in CONDA | {"uv"}:
        return "", [], ""
    if name == "uv":
        rest = rest[1:] if rest[:1] == ["pip"] else []
        given = given or next(
            (rest[n + 1] for n, word in enumerate(rest[:-1]) if word == "-p"), ""
        )
        given = given or (active() if "--system" not in rest else "")
    elif name in CONDA:
        prefix = next(
            (
                rest[n + 1]
                for n, word in enumerate(rest[:-1])
                if word in ("-p", "--prefix")
            ),
            "",
        )
        named = {"-n", "--name"}.intersection(rest)
        prefix = prefix or ("" if named else os.environ.get("CONDA_PREFIX", ""))
        return "", rest, os.path.join(prefix, "bin", "python") if prefix else ""
    start = next((n for n, word in enumerate(rest) if word == "install"), len(rest))
    return "" if name == "uv" else shutil.which(words[0]) or "", rest[start:], given


def active() -> str:
    """The interpreter that uv installs for: the active environment's, else that of a `.venv` here or above."""
    folder = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or ""
    above = os.getcwd()
    while not folder and above != os.path.dirname(above):
        if os.path.isfile(os.path.join(above, ".venv", "pyvenv.cfg")):
            folder = os.path.join(above, ".venv")
        above = os.path.dirname(above)
    return os.path.join(folder, "bin", "python") if folder else ""


def wanted(rest: list[str]) -> list[str]:
    """What is to be installed: requirements, and `-r FILE`."""
    found: list[str] = []
    last = ""
    rest = rest[
        : next(
            (n for n, word in enumerate(rest) if re.match(r"[\d&]*[<>]", word)),
            len(rest),
        )
    ]
    for word in rest[1:]:
        if last in ("-r", "--requirement"):
            found += ["-r", word]
        elif last not in VALUED and not word.startswith("-") and word != ".":
            found.append(word)
        last = word
    return [word[:100] for word in found[:10]]


def interpreter(program: str, given: str) -> str:
    """The Python that a program stands for: itself, or the one of a script's first line; '' where it is not known."""
    if given:
        inside = os.path.join(given, "bin", "python")
        return inside if os.path.isdir(given) else shutil.which(given) or ""
    try:
        with open(program, "rb") as stream:
            head = stream.read(1000)
    except OSError:
        return ""
    if not head.startswith(b"#!"):
        return program if PYTHON.fullmatch(os.path.basename(program)) else ""
    if found := SHEBANG.match(head):
        return os.fsdecode(found[1] or found[2])
    by_env = BY_ENV.match(head)
    return interpreter(shutil.which(os.fsdecode(by_env[1])) or "", "") if by_env else ""


def same(python: str) -> bool:
    """Whether what another Python gets is this one's too."""
    own, other = home(sys.executable), home(python)
    return own == other or (
        other == os.path.realpath(sys.executable) and sees_the_base()
    )


def home(python: str) -> str:
    """What tells an interpreter from others: its virtual environment, else the file that it is."""
    prefix = os.path.dirname(os.path.realpath(os.path.dirname(os.path.abspath(python))))
    return (
        prefix
        if os.path.isfile(os.path.join(prefix, "pyvenv.cfg"))
        else os.path.realpath(python)
    )


def sees_the_base() -> bool:
    """Whether this is a virtual environment that has the packages of the Python that it was made of."""
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as stream:
            return bool(
                re.search(
                    r"include-system-site-packages\s*=\s*true",
                    stream.read(4000),
                    re.IGNORECASE,
                )
            )
    except OSError:
        return False


def there(requirement: str) -> bool:
    """Whether this kernel sees a distribution; of what is no plain name nothing is known."""
    name = NAME.match(requirement)
    if not name or "/" in requirement or requirement.startswith("-"):
        return True
    from importlib import metadata

    try:
        metadata.distribution(name[0])
    except metadata.PackageNotFoundError:
        return False
    return True
