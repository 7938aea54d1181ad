"""The files and command lines of a SLURM job.

The job and the daemon exchange files in a folder on the shared file system.
"""

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

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.kernels.backends.slurm.slurm_settings import SlurmSettings

# The default walltime. A job must end even if no daemon remembers it.
DEFAULT_MINUTES = 480

# ipykernel's launcher, imported from the interpreter's own folders and not from the
# folder in which cells run.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)
# `module` is a function of login shells. A job has the function only if the shell has
# exported it.
DEFINE_MODULE = """\
if ! type module >/dev/null 2>&1; then
  for file in /etc/profile.d/*lmod*.sh /etc/profile.d/*modules*.sh; do
    [ -r "$file" ] && . "$file"
  done
fi
"""
# Runs srun in the background, so that srun and the step keep running when the daemon
# exits. When srun exits, an empty file `.ended` is created next to the output, unless
# the output was removed.
DETACHED_COMMAND = (
    'out=$1; shift; { "$@"; [ -e "$out" ] && : >"$out.ended"; }'
    ' >"$out" 2>&1 </dev/null &'
)
# Variables with these prefixes describe the job in which stepper itself may run.
JOB_PREFIXES = ("SLURM_", "SLURMD_")


def get_folder(settings: SlurmSettings, record: str) -> str:
    """Return the path of the folder for the files of jobs.

    Its parent is the folder in the settings, or else the folder of the kernel's record.
    """
    parent = os.path.dirname(record)
    if settings.folder:
        parent = os.path.realpath(os.path.expanduser(settings.folder))
    return os.path.join(parent, "stepper-jobs")


def write_files(file: Path, script: str) -> None:
    """Write the files that a job reads: keys, launcher and batch script.

    Also create empty files for the job's output and for stack samples. `file` is the
    path of the future connection file. If a file cannot be written, remove the others
    and raise KernelError.
    """
    public_key, secret_key = zmq.curve_keypair()
    keys = {
        "key": secrets.token_hex(32),
        "curve_publickey": public_key.decode(),
        "curve_secretkey": secret_key.decode(),
    }
    package = files("stepper.kernels.backends.slurm")
    launcher = package.joinpath("node_launcher.py").read_text("utf-8")
    contents = {".key": json.dumps(keys), ".py": launcher, ".sh": script}
    try:
        secure_files.create_folder(str(file.parent))
        for suffix, text in contents.items():
            secure_files.replace(f"{file}{suffix}", text.encode())
        # SLURM and the kernel keep the permissions of existing files.
        for suffix in (".out", ".stack"):
            path = str(file.with_suffix(suffix))
            os.close(secure_files.open_private(path, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        remove_files(file)
        raise KernelError(
            f"the job's files could not be written to {file.parent}: {error.strerror}",
            "set `folder:` to a folder on the shared file system",
        ) from error


def remove_files(file: Path) -> None:
    """Remove the files of a job. `file` is the path of its connection file."""
    for path in file.parent.glob(f"{file.stem}*"):
        path.unlink(missing_ok=True)


def build_script(settings: SlurmSettings, python: str, file: Path, cwd: str) -> str:
    """Return the batch script, whose last command replaces the shell with the kernel.

    `file` is the path of the future connection file, `cwd` the kernel's working folder.
    """
    address = "loopback" if settings.via else settings.address
    kernel_command = [
        python,
        "-c",
        START,
        "--HistoryManager.hist_file=:memory:",
        "-f",
        str(file),
    ]
    command = shlex.join([python, f"{file}.py", str(file), address, *kernel_command])
    define_module = DEFINE_MODULE if "module" in settings.setup else ""
    return (
        f"#!/bin/bash\n{define_module}{settings.setup}\n"
        f"cd {shlex.quote(cwd)} || exit\nexec {command}\n"
    )


def build_options(
    settings: SlurmSettings, name: str, file: Path, max_seconds: float | None
) -> list[str]:
    """Return the options for sbatch.

    `name` is the name of the job, and `file` the path of the future connection file.
    `max_seconds` is the time limit of the partition, or None if there is no limit, or
    if the limit is unknown or not needed.
    """
    minutes = DEFAULT_MINUTES
    if max_seconds is not None:
        minutes = min(minutes, int(max_seconds // 60))
    requested_options = {
        "partition": settings.partition,
        "account": settings.account,
        "mem": settings.mem,
        "gres": settings.gres,
        "cpus-per-task": settings.cpus,
        "time": settings.time or minutes,
    }
    return [
        f"--job-name={name}",
        f"--output={file.with_suffix('.out')}",
        "--no-requeue",
        "--export=ALL",
        "--ntasks=1",
        "--nodes=1",
        *(
            f"--{option}={value}"
            for option, value in requested_options.items()
            if value
        ),
        *settings.extra,
    ]


def build_step_command(settings: SlurmSettings, name: str, file: Path) -> Sequence[str]:
    """Return a command that starts a step in the user's job in the background.

    `name` is the name of the step, and `file` the path of the future connection file.
    """
    srun = [
        "srun",
        f"--jobid={settings.jobid}",
        "--overlap",
        f"--job-name={name}",
        "--ntasks=1",
        "--nodes=1",
        "--mpi=none",
        "--cpu-bind=none",
        *settings.extra,
        "bash",
        f"{file}.sh",
    ]
    output = str(file.with_suffix(".out"))
    return ["setsid", "sh", "-c", DETACHED_COMMAND, "sh", output, *srun]


def remove_job_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for srun, without the variables of another job."""
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not name.startswith(JOB_PREFIXES)
    }


def is_written(file: Path) -> bool:
    """Return whether a file exists, possibly on a network file system.

    The folder is listed, because NFS may have cached that the file did not exist.
    """
    with contextlib.suppress(OSError):
        return file.name in os.listdir(file.parent)
    return False


def read_output(file: Path, size: int) -> str:
    """Return the last `size` bytes of the job's output as text.

    Return an empty string if the output file cannot be read.
    """
    try:
        with open(file.with_suffix(".out"), "rb") as stream:
            length = os.fstat(stream.fileno()).st_size
            stream.seek(-min(size, length), os.SEEK_END)
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
