"""Where the time of a long run that failed went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from stepper.messages.statement_times import format_times, parse_times
from stepper.policy.model import Outcome
from tests.test_kernel_helper import Lab


def test_note_names_the_statements_that_took_long() -> None:
    times = parse_times([[1, 3, 290.0], [5, 5, 4.0], [6, 6, 40.2]])
    assert format_times(times, 335, 6) == [
        "of 335 s, lines 1-3 took about 290 s and line 6 took about 40 s. In a cell"
        " above this one, lines 1-3 would not have to run again"
    ]
    assert format_times(times[2:], 41, 6) == ["of 41 s, line 6 took about 40 s"]
    assert format_times(times, 335, 0) == [
        "of 335 s, lines 1-3 took about 290 s and line 6 took about 40 s"
    ]
    assert format_times(parse_times([[2, 2, 8.04]]), 11, 0) == [
        "of 11 s, line 2 took about 8 s"
    ]
    assert format_times([], 335, 6) == []


def test_invalid_times_are_ignored() -> None:
    assert parse_times(None) == []
    assert parse_times([[1, 2], ["1", 2, 3.0], 4, [1, 1, None]]) == []


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab(sys.executable)
    yield lab
    lab.close()


LONG = """
import time

def wait():
    time.sleep(8)
wait()
for i in range(4):
    time.sleep(1)
1 / 0"""


@pytest.mark.nightly
def test_times_of_a_long_run_that_failed(lab: Lab) -> None:
    result = lab.run(LONG)
    assert result.outcome is Outcome.ERROR
    (first, second) = result.diagnosis_data["times"]
    assert first[:2] == [6, 6]
    assert first[2] == pytest.approx(8, abs=1.2)
    assert second[:2] == [7, 8]
    assert second[2] == pytest.approx(4, abs=0.7)
    timed_out = lab.run("import time\ntime.sleep(3)\ntime.sleep(20)", timeout=12)
    assert timed_out.outcome is Outcome.TIMEOUT
    assert [time[:2] for time in timed_out.diagnosis_data["times"]] == [[2, 2], [3, 3]]


@pytest.mark.nightly
def test_short_runs_are_not_sampled(lab: Lab) -> None:
    """The output thread looks at a run once, and stops when no cell runs."""
    lab.ok("import sys, threading")
    lab.ok(
        "real = sys._current_frames\ncalls = []\n"
        "def count():\n    calls.append(threading.current_thread().name)\n"
        "    return real()\n"
        "sys._current_frames = count"
    )
    for _ in range(20):
        lab.ok("pass")
    time.sleep(2.5)
    lab.ok("assert not calls, calls")
    lab.ok("import time; time.sleep(1.6)")
    lab.ok("assert 2 < len(calls) < 9, calls; sys._current_frames = real")


@pytest.mark.nightly
def test_times_of_another_cells_callback_are_not_counted(lab: Lab) -> None:
    lab.ok(
        "import time\ndef wait(info):\n    time.sleep(11)\n"
        "get_ipython().events.register('pre_run_cell', wait)"
    )
    result = lab.run("first = 1\nsecond = 2\n1 / 0")
    lab.run("get_ipython().events.unregister('pre_run_cell', wait)")
    assert result.outcome is Outcome.ERROR
    assert "times" not in result.diagnosis_data
