"""Measure hooks while no notebook is in use, relative to a bare Python.

    python benchmarks/idle_hooks.py

The limit for SessionStart, UserPromptSubmit and Stop is 2 × bare.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepper.common.paths import Paths
from stepper.install import installer, trust

ROUNDS = 40
ROOT = Path(__file__).resolve().parent.parent
PAYLOAD = b'{"session_id":"x","cwd":"/","prompt":"hello there","last_assistant_message":"Hello."}'


def measure_process(command: list[str], state: str) -> float:
    """Return the seconds of a process, from spawn to exit; it must print nothing."""
    started_at = time.perf_counter()
    result = subprocess.run(
        command,
        input=PAYLOAD,
        capture_output=True,
        env={"PATH": os.defpath, "XDG_STATE_HOME": state},
        check=True,
    )
    duration = time.perf_counter() - started_at
    assert result.stdout == result.stderr == b"", result
    return duration


def main() -> None:
    """Measure the events in turn; print medians and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = state = os.path.join(folder, "state")
        paths = Paths(folder)
        hook, env = Path(folder, ".claude", "hooks", "stepper"), Path(paths.env)
        hook.parent.mkdir(parents=True)
        (env / "bin").mkdir(parents=True)
        shutil.copy(ROOT / "hooks" / "stepper", hook)
        (env / "bin" / "python").symlink_to(sys.executable)
        (env / "packages").symlink_to(ROOT)
        installer.link(Path(paths.env_link), env)
        # otherwise the hook script exits without starting Python
        trust.save_record(paths, {"python": sys.executable})
        bare = [str(env / "bin" / "python"), "-I", "-S", "-c", "pass"]
        events = ("SessionStart", "UserPromptSubmit", "Stop", "PostToolBatch")
        rows: dict[str, list[float]] = {name: [] for name in ("bare", *events)}
        for _ in range(ROUNDS):
            rows["bare"].append(measure_process(bare, state))
            for event in events:
                rows[event].append(measure_process([str(hook), event], state))
        base = statistics.median(rows["bare"])
        for name, times in rows.items():
            median = statistics.median(times)
            print(f"{name:18} {median * 1000:6.1f} ms  {median / base:5.2f} × bare")


if __name__ == "__main__":
    main()
