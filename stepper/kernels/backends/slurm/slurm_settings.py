"""The parsed settings of the backend `slurm`.

The module is imported with the configuration, so it must not do I/O or import large
modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepper.policy.configuration import kernel_config
from stepper.policy.configuration.kernel_config import (
    COUNT,
    FLAGS,
    PATH,
    SHELL,
    TEXT,
    BackendConfigError,
    BackendDescription,
    KeyPath,
    Rule,
)

KIND = "slurm"
MEMORY = re.compile(r"[1-9]\d*[KMGTkmgt]?")
# The formats of sbatch --time, except 0. For sbatch, 0 means that there is no limit,
# but a job that stepper no longer knows must end.
WALLTIME = re.compile(
    r"(?=.*[1-9])(?:\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d)"
)
MAX_SECONDS = 86400
# Flags of sbatch that stepper sets itself, for example to find its jobs, to read their
# output, and to prevent that a requeued job starts an empty kernel.
RESERVED_FLAGS = (
    "-J",
    "--job-name",
    "--requeue",
    "--no-requeue",
    "-o",
    "--output",
    "-e",
    "--error",
    "-a",
    "--array",
    "--wrap",
    "--parsable",
    "-W",
    "--wait",
    "--export",
    "--export-file",
    "--test-only",
)
# These keys cannot be combined with `jobid`, because the user's job determines them.
ALLOCATION_KEYS = ("partition", "account", "time", "mem", "cpus", "gres")


@dataclass(frozen=True)
class SlurmSettings:
    """Settings for kernels that are SLURM jobs, or steps in the user's job `jobid`."""

    partition: str = ""
    account: str = ""
    time: str = ""  # walltime in the format of sbatch
    mem: str | int = ""
    cpus: int = 0
    gres: str = ""
    setup: str = ""  # shell lines before the kernel starts
    # The interpreter on the compute node; the project's if empty.
    python: str = ""
    extra: tuple[str, ...] = ()  # flags for sbatch, with `jobid` for srun
    jobid: int = 0
    # Working folder on the shared file system; within the project if empty.
    folder: str = ""
    # Address of the compute node: auto, hostname, or the name of a network interface.
    address: str = "auto"
    # `ssh`: forward the kernel's ports through the login node.
    via: str = ""
    # Seconds that an edit waits for the job to start; the project's setting if None.
    queue_seconds: float | None = None


def _is_memory(value: Any) -> bool:
    """Return whether a value is an amount of memory, such as "32G" or 4000."""
    if isinstance(value, str):
        return MEMORY.fullmatch(value) is not None
    return kernel_config.is_count(value)


def _is_seconds(value: Any) -> bool:
    """Return whether a value is a number of seconds up to MAX_SECONDS."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_SECONDS


RULES = {
    "partition": TEXT,
    "account": TEXT,
    "gres": TEXT,
    "python": TEXT,
    # YAML reads 4:00:00 as a number of seconds, sbatch reads a number as minutes.
    "time": Rule(
        'a walltime in quotes, such as "4:00:00" (without quotes, YAML reads a number)',
        kernel_config.make_pattern_check(WALLTIME),
    ),
    "mem": Rule("an amount of memory such as 32G", _is_memory),
    "cpus": COUNT,
    "setup": SHELL,
    "extra": FLAGS,
    "jobid": COUNT,
    "folder": PATH,
    "address": Rule(
        "`auto`, `hostname` or the name of a network interface",
        kernel_config.make_pattern_check(kernel_config.NAME),
    ),
    "via": Rule("`ssh`", lambda value: value == "ssh"),
    "queue_seconds": Rule("a number of seconds, at most a day", _is_seconds),
}


def parse_settings(values: Any, path: KeyPath) -> SlurmSettings:
    """Return the validated settings of a backend.

    `path` is the sequence of keys that leads to `values`, for error messages. Raise
    BackendConfigError if the settings are not valid.
    """
    arguments = kernel_config.check_keys(values, RULES, path)
    _check_conflicts(values, path)
    return SlurmSettings(**arguments)


def _check_conflicts(values: Mapping[str, Any], path: KeyPath) -> None:
    """Raise BackendConfigError if keys contradict each other or stepper's own flags."""
    for key in ALLOCATION_KEYS:
        if "jobid" in values and key in values:
            raise BackendConfigError(
                (*path, key),
                f"cannot be combined with `jobid`: job {values['jobid']} already has"
                f" its {key}",
            )
    for flag in values.get("extra", ()):
        if _get_flag_name(flag) in RESERVED_FLAGS:
            raise BackendConfigError(
                (*path, "extra"), f"cannot contain `{flag}`: stepper sets this flag"
            )


def _get_flag_name(flag: str) -> str:
    """Return a flag of sbatch without its value, as in `--job-name=X` or `-JX`."""
    if flag.startswith("--"):
        return flag.partition("=")[0]
    return flag[:2]


def describe_settings(settings: SlurmSettings) -> BackendDescription:
    """Return the description of a backend with these settings."""
    if settings.jobid:
        return BackendDescription(f"a step in the SLURM job {settings.jobid}")
    options = {
        "partition": settings.partition,
        "time": settings.time,
        "mem": settings.mem,
        "cpus": settings.cpus,
        "gres": settings.gres,
        "account": settings.account,
    }
    parts = [f"{key} {value}" for key, value in options.items() if value]
    return BackendDescription(", ".join(["a SLURM job", *parts]))
