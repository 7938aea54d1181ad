"""The progress of a long cell that the user sees in the client, above the prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import InteractiveFactory
from .model import ScriptedModel, tool
from .repository import repository, stepper

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]
CELL = """# stepper: timeout=60 wait=none
import sys, time
for i in range(101):
    sys.stderr.write(f"\\r{i:3}%|{'█' * (i // 5):20}| {i}/100"); sys.stderr.flush()
    time.sleep(0.2)"""
PROGRESS_LINE = re.compile(
    r'running step 1 of 1 "Train" for (\d+) s of at most 60 s(?:, ≈ \d+ \w+ left)?:\s+(\d+)%\|'
)


@pytest.fixture
def project(claude_binary: Path, tmp_path: Path) -> Iterator[Path]:
    with repository(tmp_path / "a répo") as folder:
        yield folder


def test_user_sees_progress_of_a_long_cell(
    project: Path,
    scripted_model: Callable[..., ScriptedModel],
    interactive_claude: InteractiveFactory,
) -> None:
    stepper(project, "new", "train", "--step", "Train")
    (notebook,) = (project / "notebooks").glob("*.ipynb")
    arguments = {
        "notebook_path": str(notebook),
        "cell_id": "cell-0",
        "new_source": CELL,
        "cell_type": "code",
    }
    model = scripted_model(
        [tool("Read", {"file_path": str(notebook)})],
        [tool("NotebookEdit", {**arguments, "edit_mode": "insert"})],
    )
    client = interactive_claude(model)
    time.sleep(8)  # the client shows its start notices first
    client.send("Go.")
    observed, until = list[tuple[float, int, int]](), time.monotonic() + 60
    while (
        "Brewed" not in (screen := client.screen())
        and model.requests[2:] == []
        and time.monotonic() < until
    ):
        if (match := PROGRESS_LINE.search(screen)) and (
            not observed or observed[-1][1] != int(match[1])
        ):
            observed.append((time.monotonic(), int(match[1]), int(match[2])))
        time.sleep(0.1)
    assert len(observed) >= 3, screen
    assert observed[0][1] <= 5, "seen within five seconds"
    assert all(later[1] - sooner[1] <= 8 for sooner, later in pairwise(observed)), (
        observed
    )
    assert observed[-1][2] > observed[0][2] > 0, "the bar moves"
