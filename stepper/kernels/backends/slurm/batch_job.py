"""What is submitted: a job's flags and script, a step's command, and the files by which it and the daemon meet."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import zmq

from stepper.common import private_files
from stepper.common.errors import KernelError
from stepper.policy.kernel_config import SlurmSettings

MINUTES = 480  # no job is to outlive everybody that knows of it

# ipykernel's launcher, taken from the interpreter's own places and not from the folder
# in which cells run.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
# `module` is a function of login shells, which a job has where it was exported.
MODULES = """\
if ! type module >/dev/null 2>&1; then
  for file in /etc/profile.d/*lmod*.sh /etc/profile.d/*modules*.sh; do [ -r "$file" ] && . "$file"; done
fi
"""
# srun in a session of its own, which nobody waits for: it, and the step with it,
# outlives the daemon.
DETACHED = 'out=$1; shift; { "$@"; [ -e "$out" ] && : >"$out.ended"; } >"$out" 2>&1 </dev/null &'


def folder(where: SlurmSettings, record: str) -> str:
    """Return where a job's files are: the user's alone, which the folder that is named need not be."""
    shared = (
        os.path.realpath(os.path.expanduser(where.folder))
        if where.folder
        else os.path.dirname(record)
    )
    return os.path.join(shared, "stepper-jobs")


def prepare(file: Path, script: str) -> None:
    """Write what the job reads: its keys, the program that becomes the kernel, its script; raise KernelError."""
    public, secret = zmq.curve_keypair()
    keys = {
        "key": secrets.token_hex(32),
        "curve_publickey": public.decode(),
        "curve_secretkey": secret.decode(),
    }
    node = (
        files("stepper.kernels.backends.slurm")
        .joinpath("node_launcher.py")
        .read_text("utf-8")
    )
    try:
        private_files.make_folder(str(file.parent))
        for ending, text in (
            (".key", json.dumps(keys)),
            (".py", node),
            (".sh", script),
        ):
            private_files.replace(f"{file}{ending}", text.encode())
        # whoever opens them later leaves them the user's alone
        for ending in (".out", ".stack"):
            os.close(
                private_files.open_private(
                    str(file.with_suffix(ending)), os.O_WRONLY | os.O_CREAT
                )
            )
    except OSError as error:
        why = f"the kernel's files can't be written: {error.strerror}: {file.parent}"
        raise KernelError(
            why, "`folder:` names one on the shared file system"
        ) from error


def remove(file: Path) -> None:
    """Remove a job's files."""
    for path in file.parent.glob(f"{file.stem}*"):
        path.unlink(missing_ok=True)


def script(where: SlurmSettings, python: str, file: Path, cwd: str) -> str:
    """Return what runs on the node: the last of it becomes the kernel."""
    address = "loopback" if where.via else where.address
    kernel = [
        python,
        "-c",
        START,
        "--HistoryManager.hist_file=:memory:",
        "-f",
        str(file),
    ]
    command = shlex.join([python, f"{file}.py", str(file), address, *kernel])
    modules = MODULES if "module" in where.setup else ""
    return f"#!/bin/bash\n{modules}{where.setup}\ncd {shlex.quote(cwd)} || exit\nexec {command}\n"


def flags(
    where: SlurmSettings, name: str, file: Path, longest: float | None
) -> list[str]:
    """Return sbatch's flags; `longest` is for how many seconds the partition takes a job."""
    usual = MINUTES if longest is None else min(MINUTES, int(longest // 60))
    asked = {
        "partition": where.partition,
        "account": where.account,
        "mem": where.mem,
        "gres": where.gres,
        "cpus-per-task": where.cpus,
        "time": where.time or usual,
    }
    return [
        f"--job-name={name}",
        f"--output={file.with_suffix('.out')}",
        "--no-requeue",
        "--export=ALL",
        "--ntasks=1",
        "--nodes=1",
        *(f"--{key}={value}" for key, value in asked.items() if value),
        *where.extra,
    ]


def step(where: SlurmSettings, name: str, file: Path) -> Sequence[str]:
    """Return what starts a step in the allocation that the person holds, and does not wait for it."""
    srun = [
        "srun",
        f"--jobid={where.jobid}",
        "--overlap",
        f"--job-name={name}",
        "--ntasks=1",
        "--nodes=1",
        "--mpi=none",
        "--cpu-bind=none",
        *where.extra,
        "bash",
        f"{file}.sh",
    ]
    return ["setsid", "sh", "-c", DETACHED, "sh", str(file.with_suffix(".out")), *srun]


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what tells srun of another job, in which stepper itself may run."""
    theirs = ("SLURM_", "SLURMD_")
    return {
        name: told
        for name, told in environ.items()
        if name == "SLURM_CONF" or not name.startswith(theirs)
    }


def there(file: Path) -> bool:
    """Whether a file is there: the folder is listed first, which NFS looks at anew."""
    with contextlib.suppress(OSError):
        return file.name in os.listdir(file.parent)
    return False


def words(file: Path, most: int) -> str:
    """Return the end of what the job wrote."""
    try:
        with open(file.with_suffix(".out"), "rb") as stream:
            stream.seek(-min(most, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
