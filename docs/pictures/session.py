"""Draws screens of the real client in a project with stepper: `session.svg` for README,
`statusline.svg` for docs/attach.md.

    python docs/pictures/session.py [session|statusline [FILE]]

The model's words come from a script. The edits, the kernel, the lines below the edits and the
report are real.
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
from typing import Any, NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from stepper.common.paths import Paths  # noqa: E402 - this repository's, wherever it is called
from stepper.install import install_options, installer  # noqa: E402
from tests.conftest import make_env  # noqa: E402
from tests.realclient.client import InteractiveClaude  # noqa: E402
from tests.realclient.model import Message, ScriptedModel, text, tool  # noqa: E402

WIDE, HIGH = 100, 70  # high enough that nothing scrolls
PRICES = "city,price\nBergen,41\nOslo,52\nBergen,39\nTromsø,33\nOslo,58\nTromsø,37\n"
LOAD = "import csv\nfile = open('../prices.csv')\nprices = list(csv.DictReader(file))"
MEAN = "oslo = [float(row['prize']) for row in prices if row['city'] == 'Oslo']\nsum(oslo) / len(oslo)"
FIT = "import time\nfor epoch in range(60):\n    time.sleep(0.2)"
NEW = {"edit_mode": "insert", "cell_type": "code"}
PROMPT = "Continue with the notebook."
Turn = Callable[[list[Message]], list[dict[str, Any]]]


class Scene(NamedTuple):
    """A scene: the plan, the model's words and edits (without NEW, a replaced cell), its end."""

    steps: tuple[str, ...]
    edits: tuple[tuple[str, str, dict[str, str]], ...]
    last: str
    until: str
    height: int = HIGH
    options: tuple[str, ...] = ()


SCENES = {
    "session": Scene(
        steps=("Load the prices :: len(prices) == 6", "Mean price in Oslo"),
        edits=(
            ("Step 1: load the prices.", LOAD, NEW),
            ("Six rows, as planned. Step 2: the mean in Oslo.", MEAN, NEW),
            (
                "The report names the key that exists, `price`: I fix this cell.",
                MEAN.replace("prize", "price"),
                {},
            ),
        ),
        last="The mean price in Oslo is 55.",
        until="mean price in Oslo is 55",
    ),
    "statusline": Scene(
        steps=("Load the prices", "Fit a model"),
        edits=(
            ("Step 1: load the prices.", LOAD, NEW),
            ("Step 2: fit a model.", FIT, NEW),
        ),
        last="Fitted.",
        until="3 s of 30",
        height=28,
        options=("--statusline",),
    ),
}


def script(scene: Scene, notebook: Path) -> list[Any]:
    """Return the model's turns: read the notebook, edit it, say the last words."""

    def edit(message: str, source: str, how: dict[str, str]) -> Turn:
        tool_input = {"notebook_path": str(notebook), "new_source": source, **how}
        return lambda _: [
            text(message),
            tool(
                "NotebookEdit",
                {
                    **tool_input,
                    "cell_id": json.loads(notebook.read_text())["cells"][-1]["id"],
                },
            ),
        ]

    return [
        [tool("Read", {"file_path": str(notebook)})],
        *(edit(*each) for each in scene.edits),
        [text(scene.last)],
    ]


def play(scene: Scene) -> str:
    """Play a scene; return the last screen with its colors."""
    with tempfile.TemporaryDirectory(prefix="stepper-picture-") as folder:
        project, home = Path(folder).resolve() / "prices", Path(folder) / "home"
        project.mkdir()
        home.mkdir()
        (project / "prices.csv").write_text(PRICES)
        make_env(Paths(str(project)).env)
        installer.apply(
            install_options.parse_arguments(
                [str(project), "--python", sys.executable, *scene.options]
            )
        )
        stepper = project / ".stepper/env/bin/stepper"
        command = [
            stepper,
            "new",
            "Prices",
            "--json",
            *(f"--step={step}" for step in scene.steps),
        ]
        notebook = (
            project
            / json.loads(subprocess.check_output(command, cwd=project))["notebook"]
        )
        try:
            with (
                ScriptedModel(*script(scene, notebook)) as model,
                InteractiveClaude(
                    project, home, model, size=(WIDE, scene.height)
                ) as client,
            ):
                client.send(PROMPT)
                client.wait_for(scene.until, 60)
                return client.screen("-e")
        finally:
            subprocess.run(
                [stepper, "shutdown"], cwd=project, check=True, capture_output=True
            )


def drawn(screen: str, until: str) -> str:
    """Return the picture: the screen from the prompt on, without fonts from other servers."""
    lines = screen.splitlines()
    first = next(number for number, line in enumerate(lines) if PROMPT in line)
    last = max(number for number, line in enumerate(lines) if until in line)
    console = Console(
        record=True,
        width=WIDE,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    # replace characters that few fonts have
    console.print(
        Text.from_ansi(
            "\n".join(lines[first : last + 1]).replace("⎿", "└").replace("⏵", "▶")
        ),
        soft_wrap=True,
    )
    picture = console.export_svg(
        title="Claude Code with stepper", theme=MONOKAI, unique_id="session"
    )
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    return picture.replace(
        "Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
    )


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "session"
    target = (
        Path(sys.argv[2])
        if len(sys.argv) > 2
        else ROOT / "docs" / "pictures" / f"{name}.svg"
    )
    target.write_text(drawn(play(SCENES[name]), SCENES[name].until))
