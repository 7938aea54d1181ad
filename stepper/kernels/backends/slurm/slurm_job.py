"""A SLURM job as squeue lists it, and descriptions of its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from stepper.common.text import format_count

# Id, name, state, reason, node, remaining walltime, expected start, partition.
JOB_FORMAT = "%A|%j|%T|%r|%N|%L|%S|%P"
WAITING_STATES = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "SUSPENDED",
    "RESIZING",
    "STOPPED",
)
RUNNING_STATES = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING")
UNKNOWN_JOB = "UNKNOWN"  # SLURM does not know the job, or has forgotten it
STEP_ENDED = "ENDED"  # the job runs, but the step does not


class EndState(NamedTuple):
    """A description of a job's final state, and the cause of the kernel's death.

    `cause` is an empty string if it is unknown.
    """

    description: str
    cause: str


# Name of the state → its description.
END_STATES = {
    "TIMEOUT": EndState("it exceeded its walltime (TIMEOUT)", "WalltimeOver"),
    "OUT_OF_MEMORY": EndState(
        "the kernel used more memory than the job has (OUT_OF_MEMORY)",
        "OutOfMemory",
    ),
    "NODE_FAIL": EndState("its node failed (NODE_FAIL)", "EndedOutside"),
    "CANCELLED": EndState("the job was cancelled (CANCELLED)", "EndedOutside"),
    "PREEMPTED": EndState("the job was preempted (PREEMPTED)", "EndedOutside"),
    "DEADLINE": EndState("its deadline has passed (DEADLINE)", "WalltimeOver"),
    "BOOT_FAIL": EndState("its node did not boot (BOOT_FAIL)", "EndedOutside"),
    "FAILED": EndState("the job failed (FAILED)", ""),
    "COMPLETED": EndState("the job ended (COMPLETED)", ""),
    "COMPLETING": EndState("the job is ending (COMPLETING)", ""),
    STEP_ENDED: EndState("the kernel's step ended, but the job is still running", ""),
    UNKNOWN_JOB: EndState("the job ended, and SLURM has no record of the reason", ""),
}


@dataclass(frozen=True)
class Job:
    """A job as squeue lists it."""

    id: int
    name: str
    state: str
    reason: str = ""
    node: str = ""
    remaining_time: str = ""  # of the walltime
    expected_start: str = ""  # if SLURM knows the start
    partition: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the job has not started yet or is suspended."""
        return self.state in WAITING_STATES

    @property
    def is_running(self) -> bool:
        """Whether the job is running."""
        return self.state in RUNNING_STATES

    @property
    def left_seconds(self) -> float | None:
        """The remaining walltime in seconds, or None if it is unlimited or unknown."""
        return parse_seconds(self.remaining_time)

    def format_waiting(self, ahead: int, now: datetime) -> str:
        """Return a text with the state, the queue position and the expected start.

        `ahead` is the number of jobs that are ahead of this job in the queue.
        """
        parts = [
            f"{self.state} ({self.reason})",
            f"{format_count(ahead, 'job')} ahead",
            f"partition {self.partition}",
        ]
        day, _, clock = self.expected_start.partition("T")
        if clock:
            start = clock[:5]
            if day != now.date().isoformat():
                start = f"{day} {start}"
            parts.append(f"estimated start {start}")
        return ", ".join(parts)


def parse_seconds(text: str) -> float | None:
    """Return the seconds in a duration such as "1-02:00:00" (days, hours and so on).

    Return None for any other text, such as "UNLIMITED".
    """
    days, _, clock = text.rpartition("-")
    clock_fields = ["0", "0", *clock.split(":")][-3:]
    fields = [days or "0", *clock_fields]
    if not all(field.isdecimal() for field in fields):
        return None
    units = (86400, 3600, 60, 1)
    return sum(int(field) * unit for field, unit in zip(fields, units, strict=True))


def parse_jobs(output: str) -> list[Job]:
    """Return the jobs in the output of squeue in JOB_FORMAT."""
    jobs = []
    for row in output.splitlines():
        job_id, *fields = row.split("|")
        if len(fields) < 7 or not job_id.isdecimal():
            continue
        # The name may contain the separator.
        name = "|".join(fields[:-6])
        jobs.append(Job(int(job_id), name, *fields[-6:]))
    return jobs
