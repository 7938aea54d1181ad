"""Two minutes of the soak: cells in many notebooks, faults at random, everything compared after each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_two_minutes_of_faults_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = soak.soak(cells=2000, seconds=120, seed=7, books=8, folder=tmp_path, say=print)
    assert found["cells"] > 50
    assert found["done"].keys() & soak.FIRST_HALF.keys()  # daemons were killed
    assert found["done"].keys() & {"kernel_killed", "kernel_ended"}
