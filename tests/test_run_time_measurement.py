"""How long a cell ran, and how the remaining time is reported."""

from __future__ import annotations

import pytest

from stepper.policy.run_time_measurement import measure_busy_seconds, note_waiting_time

BUSY, IDLE = "iopub.status.busy", "iopub.status.idle"


def make_timestamp(seconds: str) -> str:
    return f"2026-11-24T18:00:{seconds}Z"


@pytest.mark.parametrize(
    ("busy", "idle", "elapsed", "expected"),
    [
        ("10.250000", "16.250000", 35.0, 6.0),
        ("10.250000", "16.250000", 6.02, 6.0),
        ("10.250000", "10.250000", 0.02, 0.0),
        # clocks that were set, and a kernel that stamps whole seconds
        ("16.250000", "10.250000", 35.0, 35.0),
        ("10.250000", "50.250000", 35.0, 35.0),
        ("10", "16", 35.0, 35.0),
        ("no", "16.250000", 35.0, 35.0),
    ],
)
def test_duration_is_measured_by_kernel_timestamps(
    busy: str, idle: str, elapsed: float, expected: float
) -> None:
    timings = {BUSY: make_timestamp(busy), IDLE: make_timestamp(idle)}
    assert measure_busy_seconds(timings, elapsed) == pytest.approx(expected)


def test_duration_without_kernel_timestamps_is_elapsed_time() -> None:
    assert measure_busy_seconds({}, 3.5) == 3.5
    assert measure_busy_seconds({IDLE: make_timestamp("10.250000")}, 3.5) == 3.5


def test_waiting_time_is_reported_if_significant() -> None:
    assert note_waiting_time(6.0, 7.9, has_reconnected=False) == []
    (note,) = note_waiting_time(6.0, 35.0, has_reconnected=False)
    assert note.endswith("does not include 29.0 s before and after the execution")
    (note,) = note_waiting_time(6.0, 35.0, has_reconnected=True)
    assert note.endswith("29.0 s while the connection to the kernel was down")
