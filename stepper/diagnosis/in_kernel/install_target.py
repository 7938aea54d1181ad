"""The search for the interpreter into which a shell command installs packages.

Installations for another interpreter are reported, and a kernel's interpreter without
pip. No program is executed: the result is derived from the command line, the first line
of the installer's script, environment variables, `pyvenv.cfg` and the installed
distributions.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import Any, NamedTuple

PIP = re.compile(r"pip[\d.]*")
PYTHON = re.compile(r"python[\d.]*")
CONDA_PROGRAMS = {"conda", "mamba", "micromamba"}
COMMAND_PREFIXES = ("sudo", "env", "time", "command", "exec")
VARIABLE_ASSIGNMENT = re.compile(r"\w+=")
REDIRECTION = re.compile(r"[\d&]*[<>]")
# The first line of a script. The second form is used for long paths.
SHEBANG = re.compile(
    rb"#! *(\S*python[\d.]*)\s|#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\""
)
ENV_SHEBANG = re.compile(rb"#! */usr/bin/env (python[\d.]*)\s")
DISTRIBUTION_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
SYSTEM_PACKAGES = re.compile(r"include-system-site-packages\s*=\s*true", re.IGNORECASE)
OPTIONS_WITH_VALUE = {
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
# With these options the user chose the target on purpose, or nothing is installed.
EXPLICIT_TARGET_OPTIONS = {"--target", "-t", "--root", "--dry-run"}
MAX_REQUIREMENTS = 10
REQUIREMENT_LIMIT = 100  # characters
HEAD_SIZE = 1000  # bytes of a script in which its first lines are searched
MAX_CONFIG = 4000  # characters of pyvenv.cfg


class Installer(NamedTuple):
    """A command that may install packages.

    `program` is the path of the program that determines the interpreter, or an empty
    string if there is none. `words` begin with the subcommand. `python` is the
    interpreter or environment that the command names, or an empty string.
    """

    program: str
    words: list[str]
    python: str


NO_INSTALLER = Installer("", [], "")


def find_install_target(
    command: str,
    has_succeeded: bool,
    lacks_pip: bool,
) -> dict[str, Any] | None:
    """Return facts on a command that installs packages for another interpreter.

    `wanted` lists the requirements, `into` is the other interpreter, or a program that
    starts it, and `own` is the kernel's interpreter. `into` is empty if the kernel's
    interpreter lacks pip. Return None if the packages are installed for the kernel, or
    if this is unknown. `has_succeeded` says whether the command succeeded,
    and `lacks_pip` whether pip was not found.
    """
    for words in split_commands(command):
        installer = parse_installer(words)
        if installer.words[:1] != ["install"]:
            continue
        options = {word.partition("=")[0] for word in installer.words}
        if not EXPLICIT_TARGET_OPTIONS.isdisjoint(options):
            continue
        requirements = list_requirements(installer.words)
        python = find_interpreter(installer.program, installer.python)
        is_own = bool(python) and is_own_interpreter(python)
        target = {"wanted": requirements, "own": sys.executable}
        if lacks_pip and (is_own or not python):
            return {**target, "into": ""}
        if is_own:
            continue
        other = python
        if not python and has_succeeded:
            other = find_other_program(installer.program, requirements)
        if other:
            return {**target, "into": other}
    return None


def find_other_program(program: str, requirements: list[str]) -> str:
    """Return `program` if it installed the requirements for another interpreter.

    This is assumed if a requirement is not installed for the kernel. Return an empty
    string otherwise.
    """
    if not program or is_own_interpreter(program):
        return ""
    if all(map(is_installed, requirements)):
        return ""
    return program


def split_commands(command: str) -> list[list[str]]:
    """Split a command line into simple commands, and return the words of each command.

    Comments are removed, and so are variable assignments and programs such as `sudo`
    before a command. A command with unbalanced quotes is left out.
    """
    commands: list[list[str]] = [[]]
    joined_lines = command.replace("\\\n", " ")
    for line in joined_lines.split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();|&")
        lexer.whitespace_split = True
        lexer.commenters = ""  # shlex would also end a word such as `url#egg=x`
        try:
            for word in lexer:
                if word.startswith("#"):
                    break
                if word.strip("();|&"):
                    commands[-1].append(word)
                else:
                    commands.append([])
        except ValueError:  # unbalanced quotes
            commands.pop()
        commands.append([])
    for words in commands:
        while words and is_command_prefix(words[0]):
            del words[0]
    return [words for words in commands if words]


def is_command_prefix(word: str) -> bool:
    """Return whether a word is a variable assignment or a program such as `sudo`."""
    if word in COMMAND_PREFIXES:
        return True
    match = VARIABLE_ASSIGNMENT.match(word)
    return match is not None


def parse_installer(words: list[str]) -> Installer:
    """Parse the words of a simple command.

    Return NO_INSTALLER if the program is not a package installer. The command of a
    package installer need not install anything: see the words of the result.
    """
    program = words[0]
    name, arguments = find_installer(words)
    if not name:
        return NO_INSTALLER
    if name in CONDA_PROGRAMS:
        conda_python = find_conda_python(arguments)
        return Installer("", arguments, conda_python)
    python = find_python_option(words[1:])
    if name == "uv":
        if arguments[:1] != ["pip"]:
            return NO_INSTALLER
        arguments = arguments[1:]
        python = python or find_python_of_uv(arguments)
        return Installer("", get_install_command(arguments), python)
    program_path = shutil.which(program) or ""
    return Installer(program_path, get_install_command(arguments), python)


def find_installer(words: list[str]) -> tuple[str, list[str]]:
    """Return the name and the arguments of a package installer.

    The name is empty if the command is not that of a package installer. For
    `python -m pip` it is the name of the Python program, for `python -m uv` it is `uv`.
    """
    name = os.path.basename(words[0])
    arguments = words[1:]
    if PYTHON.fullmatch(name) and "-m" in arguments[:-1]:
        # `python -m pip` runs pip for this interpreter, and `python -m uv` runs uv.
        position = arguments.index("-m")
        module = arguments[position + 1]
        if module not in ("pip", "uv"):
            return "", []
        if module == "uv":
            name = "uv"
        return name, arguments[position + 2 :]
    if is_installer(name):
        return name, arguments
    return "", []


def find_python_of_uv(arguments: list[str]) -> str:
    """Return the interpreter of `uv pip`: from `-p`, or else the active one.

    Return an empty string with `--system`, or if no environment is active.
    """
    python = get_option(arguments, "-p")
    if not python and "--system" not in arguments:
        python = find_active_python()
    return python


def get_install_command(arguments: list[str]) -> list[str]:
    """Return the arguments from `install` on, without the options before it.

    Return an empty list if the subcommand is not `install`.
    """
    if "install" not in arguments:
        return []
    position = arguments.index("install")
    return arguments[position:]


def is_installer(name: str) -> bool:
    """Return whether a program with this name can install packages."""
    if name == "uv" or name in CONDA_PROGRAMS:
        return True
    match = PIP.fullmatch(name)
    return match is not None


def find_python_option(arguments: list[str]) -> str:
    """Return the value of `--python`, or an empty string if it is not given."""
    return get_option(arguments, "--python")


def get_option(arguments: list[str], *names: str) -> str:
    """Return the value of an option with one of these names.

    The value is the next argument, or follows the name and `=`. Return an empty string
    if the option is not given.
    """
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name not in names:
            continue
        if separator:
            return value
        next_arguments = arguments[index + 1 : index + 2]
        return "".join(next_arguments)
    return ""


def find_conda_python(arguments: list[str]) -> str:
    """Return the interpreter of the environment into which conda installs packages.

    Return an empty string if the environment is unknown.
    """
    prefix = get_option(arguments, "-p", "--prefix")
    name = get_option(arguments, "-n", "--name")
    if not prefix and not name:
        prefix = os.environ.get("CONDA_PREFIX", "")
    return get_python_path(prefix)


def get_python_path(environment: str) -> str:
    """Return the path of an environment's interpreter.

    Return an empty string if `environment` is empty.
    """
    if not environment:
        return ""
    return os.path.join(environment, "bin", "python")


def find_active_python() -> str:
    """Return the interpreter of the environment into which uv installs packages.

    This is the active environment, or else the `.venv` of the working directory or its
    nearest parent. Return an empty string if there is no environment.
    """
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        environment = os.environ.get(variable)
        if environment:
            return get_python_path(environment)
    folder = os.getcwd()
    while True:
        parent = os.path.dirname(folder)
        if folder == parent:
            return ""
        environment = os.path.join(folder, ".venv")
        config = os.path.join(environment, "pyvenv.cfg")
        if os.path.isfile(config):
            return get_python_path(environment)
        folder = parent


def list_requirements(words: list[str]) -> list[str]:
    """Return the requirements of an install command, including `-r` and its file."""
    requirements: list[str] = []
    previous_word = ""
    for word in words[1:]:
        if REDIRECTION.match(word):
            break
        is_value = previous_word in OPTIONS_WITH_VALUE
        if previous_word in ("-r", "--requirement"):
            requirements += ["-r", word]
        elif not is_value and not is_option_or_dot(word):
            requirements.append(word)
        previous_word = word
    first_requirements = requirements[:MAX_REQUIREMENTS]
    return [requirement[:REQUIREMENT_LIMIT] for requirement in first_requirements]


def is_option_or_dot(word: str) -> bool:
    """Return whether a word is an option or `.` (the current folder)."""
    return word.startswith("-") or word == "."


def find_interpreter(program: str, python: str) -> str:
    """Return the interpreter for which a command installs packages.

    This is `python`, the interpreter that the command names, or else the program itself
    or the interpreter in the first line of its script. Return an empty string if the
    interpreter is unknown.
    """
    if python:
        if os.path.isdir(python):
            return get_python_path(python)
        return shutil.which(python) or ""
    try:
        with open(program, "rb") as stream:
            head = stream.read(HEAD_SIZE)
    except OSError:
        return ""
    if not head.startswith(b"#!"):
        name = os.path.basename(program)
        if PYTHON.fullmatch(name):
            return program
        return ""
    shebang = SHEBANG.match(head)
    if shebang:
        path = shebang[1] or shebang[2]
        return os.fsdecode(path)
    env_shebang = ENV_SHEBANG.match(head)
    if not env_shebang:
        return ""
    name = os.fsdecode(env_shebang[1])
    interpreter = shutil.which(name) or ""
    return find_interpreter(interpreter, "")


def is_own_interpreter(python: str) -> bool:
    """Return whether the kernel can import the packages of an interpreter."""
    own_home = find_home(sys.executable)
    other_home = find_home(python)
    if own_home == other_home:
        return True
    is_base = other_home == os.path.realpath(sys.executable)
    return is_base and includes_system_packages()


def find_home(python: str) -> str:
    """Return the folder of an interpreter's virtual environment.

    Return the real path of the interpreter if it has no virtual environment.
    """
    path = os.path.abspath(python)
    folder = os.path.realpath(os.path.dirname(path))
    prefix = os.path.dirname(folder)
    config = os.path.join(prefix, "pyvenv.cfg")
    if os.path.isfile(config):
        return prefix
    return os.path.realpath(python)


def includes_system_packages() -> bool:
    """Return whether the kernel's virtual environment includes the system packages."""
    path = os.path.join(sys.prefix, "pyvenv.cfg")
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read(MAX_CONFIG)
    except OSError:
        return False
    match = SYSTEM_PACKAGES.search(text)
    return match is not None


def is_installed(requirement: str) -> bool:
    """Return whether the distribution of a requirement is installed for the kernel.

    Return True if this is unknown, for example for a URL.
    """
    match = DISTRIBUTION_NAME.match(requirement)
    if not match or "/" in requirement or requirement.startswith("-"):
        return True
    from importlib import metadata

    try:
        metadata.distribution(match[0])
    except metadata.PackageNotFoundError:
        return False
    return True
