"""What the hooks cost where no notebook is under way: whole processes, as ratios to a bare `python -I -S -c pass`.

One command: python benchmarks/quiet.py. Bound: 2 × bare for SessionStart, UserPromptSubmit and Stop.
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


def seconds(command: list[str], state: str) -> float:
    """Time one process, spawn to exit; it must say nothing."""
    began = time.perf_counter()
    done = subprocess.run(
        command,
        input=PAYLOAD,
        capture_output=True,
        env={"PATH": os.defpath, "XDG_STATE_HOME": state},
        check=True,
    )
    took = time.perf_counter() - began
    assert done.stdout == done.stderr == b"", done
    return took


def main() -> None:
    """Measure in turn, print medians and ratios."""
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
        # else the hook script ends without starting Python
        trust.save_record(paths, {"python": sys.executable})
        bare = [str(env / "bin" / "python"), "-I", "-S", "-c", "pass"]
        events = ("SessionStart", "UserPromptSubmit", "Stop", "PostToolBatch")
        rows: dict[str, list[float]] = {name: [] for name in ("bare", *events)}
        for _ in range(ROUNDS):
            rows["bare"].append(seconds(bare, state))
            for event in events:
                rows[event].append(seconds([str(hook), event], state))
        base = statistics.median(rows["bare"])
        for name, times in rows.items():
            median = statistics.median(times)
            print(f"{name:18} {median * 1000:6.1f} ms  {median / base:5.2f} × bare")


if __name__ == "__main__":
    main()
