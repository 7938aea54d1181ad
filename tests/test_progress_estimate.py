"""Estimates of a cell's remaining time from its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepper.kernels.outputs.output_area import OutputArea
from stepper.policy.progress_estimate import ProgressEstimator, find_shares
from tests import progress_outputs

RIGHT = 0.25  # of the total time


def replay_estimates(
    message: progress_outputs.ProgressOutput,
) -> tuple[float, list[tuple[float, float | None]]]:
    """Return the end of a cell and the estimate of each second before."""
    pieces = [*message]
    area, estimate, messages, end = (
        OutputArea(1 << 20),
        ProgressEstimator(),
        [],
        pieces[-1][0],
    )
    for now in range(int(end)):
        while pieces[0][0] <= now:
            text = pieces.pop(0)[1]
            name = "stderr" if "\r" in text else "stdout"
            area.add_message(
                {
                    "msg_type": "stream",
                    "header": {},
                    "content": {"name": name, "text": text},
                }
            )
        messages.append((float(now), estimate.update(now, area.get_last_lines())))
    return end, messages


def cases(*every: Callable[[], progress_outputs.ProgressOutput]) -> list[Any]:
    """Each third case runs by day."""
    return [
        pytest.param(case, marks=[pytest.mark.nightly] * (index % 3 > 0))
        for index, case in enumerate(every)
    ]


@pytest.mark.parametrize("case", cases(*progress_outputs.END))
def test_remaining_time_estimate_is_accurate(
    case: Callable[[], progress_outputs.ProgressOutput],
) -> None:
    end, estimates = replay_estimates(case())
    late = [(now, remaining) for now, remaining in estimates if now >= 0.2 * end]
    available = [(now, remaining) for now, remaining in late if remaining is not None]
    right = [
        now for now, remaining in available if abs(now + remaining - end) <= RIGHT * end
    ]
    assert len(available) >= 0.7 * len(late)
    assert len(right) >= (
        0.75 if case is progress_outputs.tqdm_slow_start else 0.9
    ) * len(available)


@pytest.mark.parametrize(
    "case", cases(*progress_outputs.NONE, *progress_outputs.RESETS)
)
def test_no_estimate_without_progress(
    case: Callable[[], progress_outputs.ProgressOutput],
) -> None:
    end, estimates = replay_estimates(case())
    begin = 0.5 if case in progress_outputs.RESETS else 0.2
    assert not [
        (now, remaining)
        for now, remaining in estimates
        if now >= begin * end and remaining is not None
    ]


@pytest.mark.parametrize(
    ("line", "results"),
    [
        ("12 %", [0.12]),
        ("\r 12%|█▏ | 12/100 [00:12<01:28, 1.0it/s]", [0.12, 0.12]),
        ("epoch 3/10: loss 0.5", [0.3]),
        ("1,200 of 10,000 rows", [0.12]),
        ("Done  12 out of  80", [0.15]),
        ("━━━ 45.5/91.0 MB 5 MB/s", [0.5]),
        ("\x1b[35m 24%\x1b[0m 0:01:16", [0.24]),
        ("0:02:30 / 0:02:30, 2026/11/23 09:12:11, 7/3, 1/1, 101%, v1/2", []),
        ("x" * 500 + " 5/10", []),
    ],
)
def test_find_progress_shares_in_a_line(line: str, results: list[float]) -> None:
    assert [share for _, share, _ in find_shares(line)] == pytest.approx(results)


def estimate_remaining(*samples: tuple[float, str]) -> float | None:
    estimate = ProgressEstimator()
    return [estimate.update(now, lines.split("\n")) for now, lines in samples][-1]


def test_insufficient_progress_data() -> None:
    assert estimate_remaining((10, "5/10")) is None
    assert estimate_remaining((10, "1/10"), (11, "1/10")) is None  # it does not advance
    # it fell
    assert estimate_remaining((10, "1/10"), (20, "2/10"), (21, "1/10")) is None
    assert estimate_remaining((10, "1/10"), (20, "2/10")) == pytest.approx(80)
    # the bar did not begin in this cell
    assert estimate_remaining((10, "5/10"), (20, "6/10")) is None
    assert estimate_remaining(
        (10, "1/10"), (20, "2/10"), (24, "saved")
    ) == pytest.approx(76)  # the same line as before
    assert estimate_remaining((10, "a 1/10"), (20, "b 2/10")) is None  # two counters
    # no progress
    assert (
        estimate_remaining((10, "1/10"), (20, "2/10"), (30, "3/10"), (500, "3/10"))
        is None
    )
    # the outer bar is at its beginning
    assert (
        estimate_remaining((10, "1/3\n10 %"), (20, "1/3\n20 %"), (30, "1/3\n30 %"))
        is None
    )
