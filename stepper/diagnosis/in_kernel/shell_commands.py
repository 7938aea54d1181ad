"""Exit codes of the shell commands of a cell that raise no exception.

Such commands are `!command`, `x = !command`, `%sx`, `%pip` and `%%bash`. IPython stores
only the exit code of the last `!command`, and no exit code of `x = !command`. Therefore
this module replaces the functions that start commands, which IPython and ipykernel look
up in their own modules. `get_ipython().system` is not replaced, because it looks up the
names in `{braces}` in the frame of its caller. The output and the return value of a
command do not change.
"""

from __future__ import annotations

import asyncio
import builtins
import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from stepper.diagnosis.in_kernel.install_target import find_install_target
from stepper.kernels.in_kernel.cell_sources import (
    TIMED_FILENAMES,
    find_cell_line,
    find_running_cell_line,
    get_source_lines,
)
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    get_cell_files,
    shell,
    shorten,
)

MAX_FACTS = 20  # of a run
MAX_OUTPUT_LINES = 6  # the last lines of a command's output
MAX_OUTPUT = 4000  # characters from which these lines are taken
COMMAND_NOT_FOUND = 127
CELL_MAGIC = re.compile(r"\s*%%(\w+)")
# The JSON object of `shell_warnings.Command`; "spot" is the position of the command.
Fact = dict[str, Any]


class Position(NamedTuple):
    """The line of code that started a command.

    If `filename` is empty, the line is a line of the current cell as written.
    """

    filename: str
    line: int


class Replacement(NamedTuple):
    """A name in a module that has been replaced, with its original value."""

    module: Any
    name: str
    original: Any


facts: list[Fact] = []
replacements: list[Replacement] = []
# The processes of `%%bash` and other script magics.
script_processes: list[Any] = []
# During a script magic: "replacement" and "original" of
# `asyncio.create_subprocess_exec`.
asyncio_functions: dict[str, Any] = {}


def install() -> None:
    """Replace the functions that start commands."""
    from ipykernel import zmqshell
    from IPython.utils import _process_common, _process_posix

    system = wrap_system(vars(zmqshell)["system"], vars(_process_posix))
    replace(zmqshell, "system", system)
    process_handler = wrap_process_handler(_process_common.process_handler)
    replace(_process_common, "process_handler", process_handler)


def replace(module: types.ModuleType, name: str, value: Any) -> None:
    """Replace a name in a module."""
    original = vars(module)[name]
    replacements.append(Replacement(module, name, original))
    vars(module)[name] = value


def uninstall() -> None:
    """Restore the original functions before another helper is installed."""
    restore_asyncio()
    while replacements:
        module, name, original = replacements.pop()
        vars(module)[name] = original


def start_run(raw: str) -> None:
    """Reset the facts for a new run.

    For a script magic, replace `asyncio.create_subprocess_exec` to record the started
    processes.
    """
    facts.clear()
    script_processes.clear()
    magic = CELL_MAGIC.match(raw)
    # A script magic runs no Python code, so nothing else calls the replacement.
    if not magic or magic[1] not in list_script_magics():
        return
    original = asyncio.create_subprocess_exec

    async def create_subprocess_exec(*arguments: Any, **options: Any) -> Any:
        """Start a process as asyncio does, and record it."""
        try:
            process = await original(*arguments, **options)
        except FileNotFoundError:  # IPython prints that the program does not exist
            not_found = types.SimpleNamespace(returncode=COMMAND_NOT_FOUND)
            script_processes.append(not_found)
            raise
        script_processes.append(process)
        return process

    asyncio_functions["replacement"] = create_subprocess_exec
    asyncio_functions["original"] = original
    vars(asyncio)["create_subprocess_exec"] = create_subprocess_exec


def list_script_magics() -> Any:
    """Return the cell magics that run a script in another program."""
    return shell.magics_manager.registry["ScriptMagics"].magics["cell"]


def restore_asyncio() -> None:
    """Restore `asyncio.create_subprocess_exec` unless the user has replaced it."""
    replacement = asyncio_functions.get("replacement")
    if replacement and asyncio.create_subprocess_exec is replacement:
        vars(asyncio)["create_subprocess_exec"] = asyncio_functions["original"]
    asyncio_functions.clear()


def finish_run(raw: str, error: Any) -> list[Fact]:
    """Return the recorded facts on the commands of a run.

    Return an empty list if the cell failed because of a command.
    """
    restore_asyncio()
    if type(error) is subprocess.CalledProcessError:  # the error describes the command
        return []
    lines = raw.split("\n")
    record_scripts(lines)
    return [locate_fact(fact, lines) for fact in facts[:MAX_FACTS]]


def record_scripts(lines: list[str]) -> None:
    """Record the exit codes of script magics that failed.

    Lines of a script that install packages for another interpreter are recorded, too.
    """
    magic_line = 1  # the line of `%%bash`
    for number, line in enumerate(lines, 1):
        if line.strip():
            magic_line = number
            break
    for process in script_processes:
        code = process.returncode or 0  # None if the process is still running
        record_command("", code, "", Position("", magic_line))
        is_successful = code == 0
        # A line of the script is recorded only if it installs packages for
        # another interpreter.
        for number, line in enumerate(lines[magic_line:], magic_line + 1):
            position = Position("", number)
            record_command(line, 0, "", position, is_successful=is_successful)
    script_processes.clear()


def locate_fact(fact: Fact, lines: list[str]) -> Fact:
    """Return a copy of a fact with the number and the text of its line.

    `lines` are the lines of the current cell. The number is 0 if the line is not part
    of the current cell.
    """
    position = Position(*fact["spot"])
    line = position.line
    if position.filename:
        line = find_running_cell_line(*position) or 0
    source_lines = lines
    source_line = line
    if not line and position.filename in get_cell_files():
        # A function of another cell started the command.
        cell, source_line = find_cell_line(*position)
        source_lines = get_source_lines(cell)
    text = fact["text"]
    if source_line > 0:
        text = "".join(source_lines[source_line - 1 : source_line]).strip()
    return {**fact, "line": line, "text": shorten(text)}


def wrap_system(
    original: Callable[[str], int],
    posix_globals: dict[str, Any],
) -> Callable[[str], int]:
    """Return a function that runs and records a `!command`.

    IPython prints the output with the global `print` of the module that has
    `posix_globals`, so this `print` is replaced while the command runs.
    """

    def system(command: str) -> int:
        """Run and record a command; return its exit code."""
        __tracebackhide__ = True  # IPython leaves this frame out of tracebacks
        output = ""

        def print_and_store(*texts: Any, **options: Any) -> None:
            """Print texts, and add them to `output`."""
            nonlocal output
            builtins.print(*texts, **options)  # noqa: T201  # IPython's own output
            for text in texts:
                if type(text) is str:
                    output += text
            output = output[-MAX_OUTPUT:]

        posix_globals["print"] = print_and_store
        try:
            code = original(command)
        finally:
            posix_globals.pop("print", None)
        position = find_position(sys._getframe(1))
        call_safely(record_command, command, code, output, position)
        return code

    return system


def wrap_process_handler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a command, records it and returns its output."""

    def process_handler(
        command: Any, callback: Callable[[Any], Any], *arguments: Any, **options: Any
    ) -> Any:
        """Run and record a command; return the result of `callback`.

        `callback` reads the output of the process.
        """
        __tracebackhide__ = True  # IPython leaves this frame out of tracebacks
        code = None
        output = b""

        def call_and_record(process: Any) -> Any:
            """Call `callback`, and store the exit code and the output."""
            nonlocal code, output
            __tracebackhide__ = True
            returned = callback(process)
            code = process.returncode or 0
            output = returned if type(returned) is bytes else b""
            return returned

        result = original(command, call_and_record, *arguments, **options)
        if code is not None and type(command) is str:
            text = output[-MAX_OUTPUT:].decode("utf-8", "replace")
            position = find_position(sys._getframe(1))
            call_safely(record_command, command, code, text, position)
        return result

    return process_handler


def record_command(
    command: str,
    code: int,
    output: str,
    position: Position,
    *,
    is_successful: bool = True,
) -> None:
    """Record a command that failed, or that installed packages for another interpreter.

    A line of a script has no separate exit code: `is_successful` is whether the whole
    script succeeded.
    """
    stripped_lines = [line.strip() for line in output.splitlines()]
    short_lines = [shorten(line) for line in stripped_lines if line]
    output_lines = short_lines[-MAX_OUTPUT_LINES:]
    lacks_pip = code == COMMAND_NOT_FOUND
    if any("No module named pip" in line for line in output_lines):
        lacks_pip = True
    has_succeeded = is_successful and not code
    installation = call_safely(find_install_target, command, has_succeeded, lacks_pip)
    if not code and not installation:
        return
    count = 1
    for fact in list(facts):
        # The same command, for example in a loop.
        if fact["spot"] == position and fact["code"] == code:
            count += fact["count"]
            facts.remove(fact)
    program, _, _ = command.strip().partition(" ")
    fact = {
        "spot": tuple(position),
        "text": f"{program} …",
        "code": code,
        "tail": output_lines,
        "count": count,
        **(installation or {}),
    }
    facts.append(fact)


def find_position(frame: Any) -> Position:
    """Return the line of a cell that started a command.

    The frame and its callers are searched. Return an empty file name and line 0 if no
    frame is in a cell. The line in the cell as written is known only after the run.
    """
    cell_files = get_cell_files()
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename in cell_files or filename in TIMED_FILENAMES:
            return Position(filename, frame.f_lineno)
        frame = frame.f_back
    return Position("", 0)
