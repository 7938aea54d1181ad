"""The kernel backends that the contract tests run with, and what each lacks.

`contract(…)` marks a contract test and names the capabilities that it needs. LACKS
lists the capabilities that a backend lacks, with the reason. A test never checks by
itself which backend it runs with.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stepper.kernels import backend_registry
from stepper.policy.configuration import kernel_config
from tests import apt_packages
from tests.npm_packages import Unavailable, unavailable
from tests.services import service


@dataclass(frozen=True)
class Cells:
    """The cells of the contract tests in one language.

    Cells with a path read or write a file of this machine.
    """

    assign: str  # binds x to 20
    say: str  # prints x
    value: str  # prints `said` and has the value of x + 1
    shows: str  # the text of that value
    # prints `before` and fails on its second line; a number makes the source unique
    fails: Callable[[int], str]
    error: tuple[str, str]  # the error's name and a part of its message
    both: str  # writes `out` to one stream, `err` to the other, `out` again
    many_lines: str  # prints `line 1` to `line 2000`
    endless: str  # prints `begun` first
    slow: str  # prints `begun`, takes most of a second, prints `over`
    slow_fails: str
    epochs: str  # prints `loss 3` to `loss 1` and `loss nan`, a third of a second between them
    dies: str  # prints `last` and kills its kernel
    marks: Callable[[str], str]  # adds a line to a file
    # prints `begun`, waits until a file is there, prints `over`
    waits: Callable[[str], str]
    process: str  # prints the kernel's process


PYTHON = Cells(
    assign="x = 20",
    say="print(x)",
    value="print('said')\nx + 1",
    shows="21",
    fails=lambda number: f"print('before')\n{number} / 0",
    error=("ZeroDivisionError", "division by zero"),
    both="import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\nprint('out')",
    many_lines="for n in range(1, 2001): print('line', n)",
    endless="import time\nprint('begun')\nwhile True: time.sleep(0.01)",
    slow="import time\nprint('begun')\ntime.sleep(0.8)\nprint('over')",
    slow_fails="import time\nprint('begun')\ntime.sleep(0.8)\n1 / 0",
    epochs="import time\nfor n in (3, 2, 1, 'nan'):\n    print('loss', n)\n    time.sleep(0.8)",
    dies="import os, signal, time\nprint('last', flush=True)\ntime.sleep(1.5)\nos.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
    process="import os\nprint(os.getpid())",
    marks=lambda path: f"open({path!r}, 'a').write('ran\\n');\n",
    waits=lambda path: (
        f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({path!r}): time.sleep(0.02)\nprint('over')\n"
    ),
)
R = Cells(
    assign="x <- 20",
    say="cat(x, '\\n', sep='')",
    value="cat('said\\n')\nx + 1",
    shows="[1] 21",
    fails=lambda number: f"cat('before\\n')\nstop('no such thing {number}')",
    error=("ERROR", "no such thing"),
    both="cat('out\\n'); flush.console()\nmessage('err')\ncat('out\\n')",
    many_lines="for (n in 1:2000) cat('line', n, '\\n', sep=c(' ', '', ''))",
    endless="cat('begun\\n'); flush.console()\nwhile (TRUE) Sys.sleep(0.05)",
    slow="cat('begun\\n'); flush.console()\nSys.sleep(0.8)\ncat('over\\n')",
    slow_fails="cat('begun\\n'); flush.console()\nSys.sleep(0.8)\nstop('no such thing')",
    epochs="for (n in c('3', '2', '1', 'nan')) {\n  cat('loss ', n, '\\n', sep='')\n  flush.console()\n  Sys.sleep(0.8)\n}",
    dies="cat('last\\n'); flush.console()\nSys.sleep(1.5)\ntools::pskill(Sys.getpid(), 9)\nSys.sleep(60)",
    process="cat(Sys.getpid(), '\\n')",
    marks=lambda path: f"cat('ran\\n', file={path!r}, append=TRUE)\n",
    waits=lambda path: (
        f"cat('begun\\n'); flush.console()\nwhile (!file.exists({path!r})) Sys.sleep(0.02)\ncat('over\\n')\n"
    ),
)
BASH = Cells(
    assign="x=20",
    say="echo $x",
    value="echo said",
    shows="",
    fails=lambda number: f"echo before\nfalse {number}",
    error=("Error", "1"),
    both="",
    many_lines="for n in $(seq 2000); do echo line $n; done",
    endless="echo begun; while true; do sleep 0.1; done",
    slow="echo begun; sleep 0.8; echo over",
    slow_fails="echo begun; sleep 0.8; false",
    epochs="for n in 3 2 1 nan; do echo loss $n; sleep 0.3; done",
    dies="echo last; sleep 0.5; kill -9 $PPID; sleep 60",
    process="echo $PPID",
    marks=lambda path: f"echo ran >> {path}\n",
    waits=lambda path: (
        f"echo begun; while [ ! -e {path} ]; do sleep 0.02; done; echo over\n"
    ),
)

HELPER = "stepper's helper is Python and IPython's: another language's kernel runs without it"
WATCHED = "the kernel is not a process of this machine: its memory is not measured here"
# What a backend cannot do → why. Tests that need it do not run there.
BY_SERVER = "its server carries its messages"
LACKS: dict[str, dict[str, str]] = {
    "local": {},
    "fake": {
        "bounds": "nothing of a fake kernel's is bounded",
        "widgets": "a fake kernel has none",
        "processes": "a fake kernel is a thread of this process",
        "connection file": "a fake kernel has no channels",
    },
    "slurm": {"watched": WATCHED},
    "ssh": {"watched": WATCHED},
    "jupyter": {"watched": WATCHED, "connection file": BY_SERVER},
    "gateway": {"watched": WATCHED, "connection file": BY_SERVER},
    "r": {"helper": HELPER, "widgets": HELPER},
    "bash": {
        "helper": HELPER,
        "widgets": HELPER,
        "values": "a shell's command has no value",
        "two streams": "bash_kernel writes both to one",
        "uncounted looks": "bash_kernel counts what is asked without history, too",
    },
}


def contract(
    *needs: str,
    lacks: str = "",
    by_day: tuple[str, ...] = (),
    always: tuple[str, ...] = ("local", "fake"),
) -> pytest.MarkDecorator:
    """Run a test with each backend that has all of `needs` and lacks `lacks`.

    The backends in `always` and `by_day` also run by day.
    """
    assert {*needs} <= {need for lack in LACKS.values() for need in lack}
    backends = [
        name
        for name, lack in LACKS.items()
        if not {*needs} & {*lack} and (not lacks or lacks in lack)
    ]
    values = [
        name
        if name in (*always, *by_day)
        else pytest.param(name, marks=pytest.mark.nightly)
        for name in backends
    ]
    return pytest.mark.parametrize("backend", values, indirect=True, scope="module")


@dataclass(frozen=True)
class Backend:
    """A backend that can be used. `definition` is None for the project's own Python."""

    name: str
    cells: Cells = PYTHON
    definition: Mapping[str, Any] | None = None
    # of the caller that requests a kernel
    environ: Mapping[str, str] = field(default_factory=dict)
    died: str = "SIGKILL"  # in the message about a kernel that was killed

    @property
    def at(self) -> kernel_config.BackendConfig | None:
        """The parsed definition of the backend."""
        return (
            backend_registry.parse_backends({"there": self.definition})["there"]
            if self.definition
            else None
        )

    @property
    def lacks(self) -> dict[str, str]:
        """The capabilities that the backend lacks, and why."""
        return LACKS[self.name]


@contextlib.contextmanager
def start_backend(name: str, folder: Path) -> Iterator[Backend]:
    """Yield a backend with its service running and its environment variables set.

    Cells run in `folder` if the backend allows it.
    """
    backend = MAKERS[name](name, folder)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in backend.environ.items():
            patch.setenv(variable, value)
        yield backend


def _plain(name: str, folder: Path) -> Backend:
    return Backend(name)


def _slurm(name: str, folder: Path) -> Backend:
    facts = service("slurm")
    definition = {
        "partition": "batch",
        "time": "10",
        "mem": "400M",
        "python": sys.executable,
    }
    return Backend(
        name,
        PYTHON,
        {"slurm": definition},
        {"SLURM_CONF": facts["conf"]},
        "FAILED|CANCELLED",
    )


def _ssh(name: str, folder: Path) -> Backend:
    definition = {
        "host": "box",
        "python": sys.executable,
        "folder": str(folder),
        "extra": ["-F", service("ssh")["config"]],
    }
    return Backend(name, PYTHON, {"ssh": definition}, {}, "has exited")


def _jupyter(name: str, folder: Path) -> Backend:
    facts = service(name)
    return Backend(name, PYTHON, facts["definition"], facts["environ"], "process died")


def _bash(name: str, folder: Path) -> Backend:
    spec = folder / "jupyter" / "kernels" / "bash"
    spec.mkdir(parents=True, exist_ok=True)
    home = {"HOME": str(folder)}  # no ~/.bashrc is read
    (spec / "kernel.json").write_text(
        json.dumps({**BASH_KERNEL, "env": {**BASH_KERNEL["env"], **home}})
    )
    return Backend(
        name, BASH, {"kernelspec": "bash"}, {"JUPYTER_PATH": str(folder / "jupyter")}
    )


def _r(name: str, folder: Path) -> Backend:
    try:
        apt_packages.find_or_unpack_program(
            "R",
            "r-base-core",
            "r-cran-irkernel",
            file="/usr/share/jupyter/kernels/ir/kernel.json",
        )
    except Unavailable as reason:
        unavailable(reason)
    return Backend(name, R, {"kernelspec": "ir"})


BASH_KERNEL: dict[str, Any] = {
    "argv": [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"],
    "display_name": "Bash",
    "language": "bash",
    "env": {"PS1": "$", "GREETING": "hello ${HOME}"},
}
MAKERS: dict[str, Callable[[str, Path], Backend]] = {
    "local": _plain,
    "fake": _plain,
    "slurm": _slurm,
    "ssh": _ssh,
    "jupyter": _jupyter,
    "gateway": _jupyter,
    "r": _r,
    "bash": _bash,
}
assert {*MAKERS} == {*LACKS}
