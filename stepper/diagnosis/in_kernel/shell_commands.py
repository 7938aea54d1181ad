"""How the shell lines of a cell ended: `!command`, `x = !command`, `%sx`, `%pip`, `%%bash` – those that raise nothing.

IPython keeps the exit code of the last `!command` alone, and none of `x = !command`. So the functions that start them
are heard, where IPython and ipykernel hold them in modules of their own. `get_ipython().system` stays as it is: it
looks for the names in `{braces}` in the frame that called it. What a shell line prints and returns stays too.
"""

from __future__ import annotations

import asyncio
import builtins
import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

from stepper.diagnosis.in_kernel.install_target import installs
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

# facts of a run; lines of what a command wrote last; characters they are taken from
FACTS, TAIL, KEPT = 20, 6, 4000
MAGIC = re.compile(r"\s*%%(\w+)")
Fact = dict[str, Any]
heard: list[Fact] = []
usual: list[tuple[Any, str, Any]] = []  # what was there before: where, its name, itself
scripts: list[Any] = []  # the processes of `%%bash`, `%%script`
# in such a cell: what stands in for asyncio's own, and that
watching: dict[str, Any] = {}


def begin() -> None:
    from ipykernel import zmqshell
    from IPython.utils import _process_common as common
    from IPython.utils import _process_posix as posix

    stand_in(zmqshell, "system", printing(vars(zmqshell)["system"], vars(posix)))
    stand_in(common, "process_handler", returning(common.process_handler))


def stand_in(module: types.ModuleType, name: str, other: Any) -> None:
    usual.append((module, name, vars(module)[name]))
    vars(module)[name] = other


def end() -> None:
    """For a helper of another version."""
    leave()
    while usual:
        module, name, original = usual.pop()
        vars(module)[name] = original


def before(raw: str) -> None:
    heard.clear()
    scripts.clear()
    magic = MAGIC.match(raw)
    # it runs nothing else here
    if (
        magic
        and magic[1] in shell.magics_manager.registry["ScriptMagics"].magics["cell"]
    ):
        original = asyncio.create_subprocess_exec

        async def create_subprocess_exec(*given: Any, **named: Any) -> Any:
            try:
                scripts.append(await original(*given, **named))
            except OSError:  # IPython says that there is no such program, and goes on
                scripts.append(types.SimpleNamespace(returncode=127))
                raise
            return scripts[-1]

        watching.update(ours=create_subprocess_exec, usual=original)
        vars(asyncio)["create_subprocess_exec"] = create_subprocess_exec


def leave() -> None:
    if watching and asyncio.create_subprocess_exec is watching["ours"]:
        vars(asyncio)["create_subprocess_exec"] = watching["usual"]
    watching.clear()


def after(raw: str, error: Any) -> list[Fact]:
    """What is odd about the shell lines of a run that is over."""
    leave()
    if type(error) is subprocess.CalledProcessError:  # it says so itself
        return []
    lines = raw.split("\n")
    head = next((index for index, line in enumerate(lines, 1) if line.strip()), 1)
    for process in scripts:
        code = process.returncode or 0  # None: it goes on beside the notebook
        note("", code, "", ("", head))
        for number, line in enumerate(lines[head:], head + 1):
            note(line, 0, "", ("", number), done=code == 0)
    scripts.clear()
    return [told(fact, lines) for fact in heard[:FACTS]]


def told(fact: Fact, lines: list[str]) -> Fact:
    """A fact with the line of the cell, 0 for none of this cell's, and with its text where that is known."""
    filename, at = fact["spot"]
    line = (find_running_cell_line(filename, at) or 0) if filename else at
    if not line and filename in get_cell_files():  # in a function of another cell
        cell, at = find_cell_line(filename, at)
        lines = get_source_lines(cell)
    text = "".join(lines[max(0, (line or at) - 1) : line or at]).strip()
    return {
        **fact,
        "line": line,
        "text": shorten(text if line or filename in get_cell_files() else fact["text"]),
    }


def printing(
    original: Callable[[str], int], posix: dict[str, Any]
) -> Callable[[str], int]:
    """Hear each `!command`: IPython prints what it writes, by the name `print` of a module of its own."""

    def system(command: str) -> int:
        __tracebackhide__ = True
        written = [""]

        def tee(*texts: Any, **how: Any) -> None:
            builtins.print(*texts, **how)  # noqa: T201  # IPython's
            written[0] = (
                written[0] + "".join(text for text in texts if type(text) is str)
            )[-KEPT:]

        posix["print"] = tee
        try:
            code = original(command)
        finally:
            posix.pop("print", None)
        call_safely(note, command, code, written[0], spot(sys._getframe(1)))
        return code

    return system


def returning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hear each command whose output is returned."""

    def process_handler(
        command: Any, callback: Callable[[Any], Any], *given: Any, **named: Any
    ) -> Any:
        __tracebackhide__ = True
        ended: list[Any] = []

        def called(process: Any) -> Any:
            __tracebackhide__ = True
            written = callback(process)
            ended[:] = [
                process.returncode or 0,
                written if type(written) is bytes else b"",
            ]
            return written

        result = original(command, called, *given, **named)
        if ended and type(command) is str:
            text = ended[1][-KEPT:].decode("utf-8", "replace")
            call_safely(note, command, ended[0], text, spot(sys._getframe(1)))
        return result

    return process_handler


def note(
    command: str, code: int, written: str, spot: tuple[str, int], done: bool = True
) -> None:
    """Keep what is odd about one command; `done` is whether a command without an exit code of its own went well."""
    tail = [shorten(part.strip()) for part in written.splitlines() if part.strip()][
        -TAIL:
    ]
    lacks_pip = code == 127 or any("No module named pip" in part for part in tail)
    wanted = call_safely(installs, command, done and not code, lacks_pip)
    if code or wanted:
        text = command.strip().split(" ")[0] + " …"
        same = [fact for fact in heard if (fact["spot"], fact["code"]) == (spot, code)]
        count = sum(fact["count"] for fact in same) + 1
        heard[:] = [fact for fact in heard if fact not in same]
        heard.append(
            {
                "spot": spot,
                "text": text,
                "code": code,
                "tail": tail,
                "count": count,
                **(wanted or {}),
            }
        )


def spot(frame: Any) -> tuple[str, int]:
    """Where in a cell a command was called; ('', 0) for nowhere. What it means is known when the cell has ended."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename in get_cell_files() or filename in TIMED_FILENAMES:
            return filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
