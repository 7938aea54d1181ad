"""Draws `docs/pictures/session.svg`: the real client at work in a project with stepper, as it stands on the screen.

    python docs/pictures/session.py [FILE]

What the model says is a script's; the edits, the kernel, the lines below the edits and the report are real.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from stepper.ground.paths import Paths  # noqa: E402 - the repository's own, wherever this is called
from stepper.setup import install, refuse  # noqa: E402
from tests.conftest import make_env  # noqa: E402
from tests.realclient.client import InteractiveClaude  # noqa: E402
from tests.realclient.model import Message, ScriptedModel, text, tool  # noqa: E402

WIDE, HIGH = 100, 70  # high enough that nothing scrolls away
STEPS = ("Load the prices :: len(prices) == 6", "Mean price in Oslo")
PRICES = "city,price\nBergen,41\nOslo,52\nBergen,39\nTromsø,33\nOslo,58\nTromsø,37\n"
LOAD = "import csv\nfile = open('../prices.csv')\nprices = list(csv.DictReader(file))"
MEAN = "oslo = [float(row['prize']) for row in prices if row['city'] == 'Oslo']\nsum(oslo) / len(oslo)"
Turn = Callable[[list[Message]], list[dict[str, Any]]]


def script(notebook: Path) -> list[Any]:
    """Return the model's turns: two steps, one of which fails and is mended."""

    def cells() -> list[str]:
        return [cell["id"] for cell in json.loads(notebook.read_text())["cells"]]

    def edit(said: str, source: str, **more: str) -> Turn:
        given = {"notebook_path": str(notebook), "new_source": source, **more}
        return lambda _: [text(said), tool("NotebookEdit", {**given, "cell_id": cells()[-1]})]

    new = {"edit_mode": "insert", "cell_type": "code"}
    return [
        [tool("Read", {"file_path": str(notebook)})],
        edit("Step 1: load the prices.", LOAD, **new),
        edit("Six rows, as the plan wants it. Step 2: the mean in Oslo.", MEAN, **new),
        edit("The report names the key that is there, `price`: I mend this cell.", MEAN.replace("prize", "price")),
        [text("The mean price in Oslo is 55.")],
    ]


def played() -> str:
    """Play the session; return the screen at its end, with its colours."""
    with tempfile.TemporaryDirectory(prefix="stepper-picture-") as folder:
        project, home = Path(folder).resolve() / "prices", Path(folder) / "home"
        project.mkdir()
        home.mkdir()
        (project / "prices.csv").write_text(PRICES)
        make_env(Paths(str(project)).env)
        install.apply(refuse.parse([str(project), "--python", sys.executable]))
        stepper = project / ".stepper/env/bin/stepper"
        made = [stepper, "new", "Prices", "--json", *(f"--step={step}" for step in STEPS)]
        notebook = project / json.loads(subprocess.check_output(made, cwd=project))["notebook"]
        try:
            with (
                ScriptedModel(*script(notebook)) as model,
                InteractiveClaude(project, home, model, size=(WIDE, HIGH)) as client,
            ):
                client.send("Go on with the notebook.")
                client.wait_for("mean price in Oslo is 55", 60)
                return client.screen("-e")
        finally:
            subprocess.run([stepper, "shutdown"], cwd=project, check=True, capture_output=True)


def drawn(screen: str) -> str:
    """Return the picture: what the person reads, from the prompt on, with no font of somewhere else."""
    lines = screen.splitlines()
    first = next(number for number, line in enumerate(lines) if "Go on with the notebook" in line)
    last = next(number for number, line in enumerate(lines) if "mean price in Oslo is 55" in line)
    console = Console(record=True, width=WIDE, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    # a sign that few fonts have stands as one that all have
    console.print(Text.from_ansi("\n".join(lines[first : last + 1]).replace("⎿", "└")), soft_wrap=True)
    picture = console.export_svg(title="Claude Code with stepper", theme=MONOKAI, unique_id="session")
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    return picture.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures" / "session.svg"
    target.write_text(drawn(played()))
