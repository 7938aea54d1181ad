"""Two minutes of the soak test: many notebooks, random faults, everything compared.

Also a background run that prints a megabyte per second for 25 minutes, compressed
into two and a half minutes.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import soak
from tests.conftest import Project, text_of
from tests.test_long_cells import SOON, Edit

# A busy machine's daemon cannot read more than about 20 MB/s: at 32 MB/s, 100 MB would
# be waiting for it, unlike in a run of an hour.
PRINTING_CELL = """# stepper: timeout=none wake="loss.*nan"
import time
line = "epoch {} step {} loss=0.1234 acc=0.9876 lr=1.0e-04 data=0.001 s forward=0.012 s backward=0.034 s"
for second in range(1500):
    for fifth in range(5):  # as often as a kernel sends what was printed
        print("\\n".join(line.format(second, step) for step in range(2000)), flush=True)
        time.sleep(0.014)
    print(f"{second + 1}/1500", flush=True)
    time.sleep(0.02)"""
MB = 1 << 20


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_two_minutes_of_faults_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = soak.soak(
        cells=2000,
        seconds=120,
        seed=7,
        books=8,
        folder=tmp_path,
        report_progress=print,
    )
    assert result["cells"] > 50
    assert result["done"].keys() & soak.FIRST_HALF.keys()  # daemons were killed
    assert result["done"].keys() & {"kill_kernel", "exit_kernel"}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_hours_of_output_do_not_grow_memory(project: Project) -> None:
    """Send 1.5 GB in messages of a kernel; a second of it takes about 110 ms.

    The measured growth was 6.4 MB.
    """
    notebook = project.new("Train")
    notebook.insert("print('warm')")
    project.config(SOON)
    daemon = psutil.Process(project.json("status")["daemon"]["pid"])
    time.sleep(2)
    start_bytes, growth, sizes = daemon.memory_info().rss, [0], [0]
    edit = Edit(notebook, PRINTING_CELL)
    assert "still running" in edit.answer.text
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.1):
            growth.append(daemon.memory_info().rss - start_bytes)
            sizes.append(notebook.path.stat().st_size)

    sampler = threading.Thread(target=sample)
    sampler.start()
    began = time.monotonic()
    try:
        estimates = []
        while edit.waker.poll() is None and time.monotonic() < began + 400:
            estimates.append(
                (project.json("status")["running"] or {}).get("left_seconds")
            )
            time.sleep(5)
    finally:
        stop.set()
        sampler.join()
    seconds = time.monotonic() - began
    notification = edit.woken
    text = text_of(notebook.cell(edit.cell_id))
    assert (
        "ran ok" in notification
        and "left out of the notebook: " in notification
        and text.rstrip().endswith("1500/1500")
    )
    assert max(sizes) < 2 * MB, f"the file had {max(sizes) / MB:.2f} MB"
    assert max(growth) < 10 * MB, (
        f"{seconds:.0f} s: + {max(growth) / MB:.1f} MB at most, + {growth[-1] / MB:.1f} in the end"
    )
    assert any(estimates), "the remaining time was estimated"
