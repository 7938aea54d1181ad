"""What the agent reads for the Seattle notebook with one fix: by stepper, and the plain way. Tokens are characters ÷ 4.

    python benchmarks/tokens.py [--save FOLDER]

Run it with the Python of an environment that holds stepper. It makes an environment for the kernels in a temporary
folder, with the packages that the demo takes, and plays the demo's cells (one fails and is then replaced) in four ways:
through the real hook script, and three times without stepper: edit, `jupyter execute --inplace`, read the notebook.
After each cell the client itself asks for that Read: it refuses the next edit of a file that a command has changed.
A run that fails changes nothing and is not read, unless it goes on with `--allow-errors`.

Counted is text that reaches the model: for stepper what `stepper new` prints, the Read of the new notebook and all
that the hooks say to the model; for the plain way the result of the Write that makes the notebook, all that
`jupyter execute` prints, and each Read. `shown` and the constants below say it as the client does; they were taken from
Claude Code 2.1.330, driven by a scripted model (`tests/realclient`), and differ from it by no character.

Counted nowhere: what the agent writes itself, the results of NotebookEdit (every way has the same fifteen edits), the
person's lines, pictures. All ways must end with the same sources, the same text outputs, the figure and the same file
of results, and the failure must have been read: else this ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from common import Project, spawn

from examples import demo
from stepper import __version__
from stepper.install import skill_states, trust

# What Claude Code puts around a text, or says itself.
CONTEXT = "{} hook additional context: "
CREATED = "File created successfully at: {} (file state is current in your context — no need to Read it back)"
TOO_LARGE = "Outputs are too large to include. Use Bash with: cat <notebook_path> | jq '.cells[{}].outputs'"
LARGE = 10_000  # characters of a cell's outputs, pictures in base64 included
SKILL = "Base directory for this skill: {}\n\n{}"
LAUNCHED = "Launching skill: {}"

PACKAGES = ["ipykernel", "nbclient", *demo.PACKAGES]
CLI = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
FAILURE = "NameError: name 'WET_DAY_MM' is not defined"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TITLE = f"# {demo.PROBLEM}"


class BrokenWayError(Exception):
    """A way did not do the work that it is measured for."""


@dataclass
class Way:
    """One way through the notebook: what the agent read, in order, each with the kind of its origin."""

    name: str
    folder: Path
    missing: str
    read: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0  # the agent's tool calls beyond the edits

    def take(self, kind: str, text: str, call: bool = True) -> None:
        """Let the agent read a text, by a tool call of its own or because a hook said it."""
        self.read.append((kind, text))
        self.calls += call

    @property
    def text(self) -> str:
        """All that was read."""
        return "\n".join(text for _, text in self.read)

    @property
    def size(self) -> int:
        """All characters that were read."""
        return sum(len(text) for _, text in self.read)

    @property
    def parts(self) -> str:
        """Return how many characters came from where."""
        kinds = dict.fromkeys(kind for kind, _ in self.read)
        texts = {
            kind: [text for found, text in self.read if found == kind] for kind in kinds
        }
        return ", ".join(
            f"{kind} {sum(map(len, found)):,} ({len(found)} ×)"
            for kind, found in texts.items()
        )

    @property
    def notebook(self) -> Path:
        """The notebook of this way."""
        (path,) = (self.folder / "notebooks").glob("*.ipynb")
        return path

    @property
    def code_cells(self) -> list[dict[str, Any]]:
        """The code cells as they stand in the file."""
        return [
            cell
            for cell in json.loads(self.notebook.read_text("utf-8"))["cells"]
            if cell["cell_type"] == "code"
        ]


# --- as the client shows a notebook
# -------------------------------------------------------------------------


def joined(text: str | list[str]) -> str:
    """Return a text of the notebook format, which may stand there as lines."""
    return text if isinstance(text, str) else "".join(text)


def output_text(output: dict[str, Any]) -> str:
    """Return the text of an output as Read shows it: of a result that in plain text, of an error all."""
    if output["output_type"] == "stream":
        return joined(output["text"])
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}\n" + "\n".join(
            output["traceback"]
        )
    return joined(output["data"].get("text/plain", ""))


def pictures(output: dict[str, Any]) -> list[str]:
    """Return the pictures of an output that Read would show, in base64."""
    data = output.get("data", {})
    return [joined(data[kind]) for kind in ("image/png", "image/jpeg") if kind in data][
        :1
    ]


def blocks(notebook: dict[str, Any]) -> Iterator[str | None]:
    """Yield what Read shows, piece by piece; None stands for a picture."""
    for index, cell in enumerate(notebook["cells"]):
        kind = (
            ""
            if cell["cell_type"] == "code"
            else f"<cell_type>{cell['cell_type']}</cell_type>"
        )
        yield f'<cell id="{cell["id"]}">{kind}{joined(cell["source"])}</cell id="{cell["id"]}">'
        outputs = cell.get("outputs", [])
        if (
            sum(
                len(text)
                for output in outputs
                for text in (output_text(output), *pictures(output))
            )
            > LARGE
        ):
            yield "\n" + TOO_LARGE.format(index)
            continue
        for output in outputs:
            if text := output_text(output):
                yield "\n" + text
            yield from [None] * len(pictures(output))


def shown(path: Path) -> str:
    """Return the text of the client's Read: pieces are joined by a newline, but not across a picture."""
    said, gap = "", ""
    for block in blocks(json.loads(path.read_text("utf-8"))):
        said, gap = (said, "") if block is None else (said + gap + block, "\n")
    return said


# --- stepper's way
# ------------------------------------------------------------------------------------------


class Agent(demo.Player):
    """The demo's player, keeping what the hooks say to the model."""

    def __init__(self, way: Way) -> None:
        super().__init__(str(way.folder), str(way.notebook.relative_to(way.folder)))
        self.way = way

    def hook(self, event: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Run the installed hook; keep what of its answer the model reads."""
        answer = super().hook(event, fields)
        specific = answer.get("hookSpecificOutput", {})
        if told := specific.get("additionalContext"):
            name = f"{event}:{fields['tool_name']}" if "tool_name" in fields else event
            self.way.take(
                "reports" if event == "PostToolUse" else event,
                CONTEXT.format(name) + told,
                call=False,
            )
        for told in (
            specific.get("permissionDecisionReason"),
            answer.get("reason"),
            answer.get("stopReason"),
        ):
            if told:
                self.way.take("reasons", told, call=False)
        return answer


def by_stepper(project: Project) -> Way:
    """Play the job as the demo does, from the first prompt to the end of the turn."""
    way = Way(
        "**stepper**", project.root, "a look at the figure: its path is in the report"
    )
    steps = [word for step in demo.STEPS for word in ("--step", step.title)]
    made = spawn(
        [str(project.python), "-I", "-c", CLI, "new", demo.PROBLEM, *steps],
        cwd=project.root,
    )
    way.take("`stepper new`", made.out.decode().strip())
    way.take("Read", shown(way.notebook))
    agent = Agent(way)
    for number, step in enumerate(demo.STEPS, 1):
        agent.play("markdown", markdown(number, step))
        if step.forgotten:
            agent.play(
                "code", step.code.removeprefix(step.forgotten), expected="NameError: "
            )
        agent.play("code", step.code, replace=bool(step.forgotten))
    agent.hook("Stop", {"stop_hook_active": False, "last_assistant_message": "Done."})
    return way


def with_skills(way: Way, status: str) -> Way:
    """Return stepper's way with what the model reads once a session: the skills that the job takes, and the list."""
    full = Way(
        "stepper, and its skills' texts",
        way.folder,
        way.missing,
        list(way.read),
        way.calls,
    )
    listed = []
    for name, files in skill_states.load_shipped_skills().items():
        _, head, body = files["SKILL.md"].decode().split("---\n", 2)
        fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        if fields.get("disable-model-invocation") != "true":
            listed.append(f"- {name}: {fields['description']}")
        if name in ("new-notebook", "stepping-notebooks"):
            body = body.replace("$ARGUMENTS", "").replace("!`stepper status`", status)
            full.take(
                "skills",
                SKILL.format(way.folder / ".claude" / "skills" / name, body),
                call=False,
            )
    full.take("list of skills", "\n".join(listed), call=False)
    full.take("Skill", LAUNCHED.format("stepping-notebooks"))
    if sum(kind == "skills" for kind, _ in full.read) != 2:
        raise BrokenWayError("the skills that the job takes are not there")
    return full


# --- the plain way
# ------------------------------------------------------------------------------------------


@dataclass
class Plain(Way):
    """A notebook that is edited as NotebookEdit does, executed by nbclient's command and read again."""

    bin: Path = Path()
    flags: tuple[str, ...] = ()
    left: str = ""  # what the run that failed left in the file

    def begin(self) -> None:
        """Write the notebook with its title, in a folder with the data."""
        path = self.folder / "notebooks" / "seattle.ipynb"
        path.parent.mkdir(parents=True)
        shutil.copy(self.bin.parent.parent / demo.DATA, self.folder)
        cell = {
            "cell_type": "markdown",
            "id": secrets.token_hex(4),
            "metadata": {},
            "source": TITLE,
        }
        path.write_text(
            json.dumps(
                {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            ),
            "utf-8",
        )
        self.take("Write", CREATED.format(path))

    def edit(self, kind: str, source: str, instead: str | None = None) -> None:
        """Insert a cell below the last one, or replace the one whose source is `instead`."""
        content = json.loads(self.notebook.read_text("utf-8"))
        if instead is None:
            content["cells"].append(
                {"cell_type": kind, "id": secrets.token_hex(4), "metadata": {}}
            )
            cell = content["cells"][-1]
        else:
            (cell,) = (
                cell for cell in content["cells"] if joined(cell["source"]) == instead
            )
        cell |= {
            "source": source,
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
        }
        self.notebook.write_text(
            json.dumps(content, indent=1, ensure_ascii=False), "utf-8"
        )

    def run(self, fails: bool = False) -> None:
        """Execute the notebook, and read it where that changed it: a run that is stopped saves nothing."""
        before = self.notebook.read_bytes()
        done = subprocess.run(
            [
                "jupyter",
                "execute",
                "--inplace",
                *self.flags,
                f"notebooks/{self.notebook.name}",
            ],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        said = done.stdout.decode().strip()
        if bool(done.returncode) != (fails and not self.flags):
            raise BrokenWayError(
                f"{self.name}: `jupyter execute` ended with {done.returncode}: {said}"
            )
        self.take(
            "`jupyter execute`",
            f"Exit code {done.returncode}\n{said}" if done.returncode else said,
        )
        if self.notebook.read_bytes() != before:
            self.take("Read", shown(self.notebook))
        if fails:
            kinds = [
                {output["output_type"] for output in cell["outputs"]}
                for cell in self.code_cells
            ]
            self.left = (
                f"outputs in {sum(map(bool, kinds))} of {len(kinds)} code cells, "
            )
            self.left += f"{sum('error' in found for found in kinds)} of them an error"


def carefully(way: Plain) -> Plain:
    """Execute and read after each code cell, as with stepper."""
    way.begin()
    for number, step in enumerate(demo.STEPS, 1):
        way.edit("markdown", markdown(number, step))
        first = step.code.removeprefix(step.forgotten)
        way.edit("code", first)
        way.run(fails=bool(step.forgotten))
        if step.forgotten:
            way.edit("code", step.code, instead=first)
            way.run()
    return way


def hastily(way: Plain) -> Plain:
    """Write all cells, execute, fix, execute again."""
    way.begin()
    for number, step in enumerate(demo.STEPS, 1):
        way.edit("markdown", markdown(number, step))
        way.edit("code", step.code.removeprefix(step.forgotten))
    way.run(fails=True)
    (step,) = (step for step in demo.STEPS if step.forgotten)
    way.edit("code", step.code, instead=step.code.removeprefix(step.forgotten))
    way.run()
    return way


# --- all of them
# --------------------------------------------------------------------------------------------


def markdown(number: int, step: demo.Step) -> str:
    """Return the text above a step's code, as the demo writes it."""
    return f"## {number}. {step.title}\n\n{step.markdown}"


def lines(cell: dict[str, Any]) -> list[str]:
    """Return the lines of a cell's outputs, without what stands for a figure."""
    texts = (output_text(output) for output in cell["outputs"] if not pictures(output))
    return [
        line.rstrip() for text in texts for line in text.splitlines() if line.strip()
    ]


def unread(way: Way) -> int:
    """Return how many lines of the outputs the agent did not read."""
    read = {line.removeprefix("| ").rstrip() for line in way.text.splitlines()}
    return sum(line not in read for cell in way.code_cells for line in lines(cell))


def check(ways: list[Way]) -> None:
    """Raise BrokenWayError unless all ways did the same work and told of the failure."""
    wanted = [step.code for step in demo.STEPS]
    results = ways[0].notebook.with_name(demo.RESULT).read_bytes()
    printed = [lines(cell) for cell in ways[0].code_cells]
    if sum(map(len, printed)) < 50:
        raise BrokenWayError(f"the notebook's outputs are too few: {printed}")
    for way in ways:
        cells = way.code_cells
        if [joined(cell["source"]) for cell in cells] != wanted:
            raise BrokenWayError(f"{way.name}: the sources are not the demo's")
        if [lines(cell) for cell in cells] != printed:
            raise BrokenWayError(
                f"{way.name}: the outputs are others: {[lines(cell) for cell in cells]}"
            )
        if [
            len(pictures(output)) for cell in cells for output in cell["outputs"]
        ].count(1) != 1:
            raise BrokenWayError(f"{way.name}: there is not one figure")
        if way.notebook.with_name(demo.RESULT).read_bytes() != results:
            raise BrokenWayError(f"{way.name}: the file of results is another one")
        if FAILURE not in ANSI.sub("", way.text):
            raise BrokenWayError(f"{way.name}: the failure was not told")
        if printed[-1][-1] not in way.text:
            raise BrokenWayError(f"{way.name}: the last output was not told")
        if isinstance(way, Plain) and unread(way):
            raise BrokenWayError(f"{way.name}: the notebook was not read whole")


def environment(folder: Path) -> Path:
    """Make an environment with what the kernels and `jupyter execute` need; return its folder of programs."""
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    # else each kernel compiles pandas again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    uv, env = shutil.which("uv"), str(folder / ".venv")
    python = str(folder / ".venv" / "bin" / "python")
    make = (
        [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, env]
        if uv
        else []
    )
    subprocess.run(make or [sys.executable, "-m", "venv", env], check=True)
    install = (
        [uv, "pip", "install", "--quiet", "--python", python]
        if uv
        else [python, "-m", "pip", "install", "-q"]
    )
    subprocess.run([*install, *PACKAGES], check=True)
    return folder / ".venv" / "bin"


def play(folder: Path) -> tuple[list[Way], str]:
    """Play all ways; return them, and the line that says with what."""
    project = Project(folder / "stepper")
    try:
        programs = environment(project.root)
        python = str(programs / "python")
        trust.save_record(project.paths, {"python": python})
        demo.prepare(str(project.root))
        demo.say = lambda text: None
        status = (
            spawn([str(project.python), "-I", "-c", CLI, "status"], cwd=project.root)
            .out.decode()
            .strip()
        )
        stepped = by_stepper(project)
    finally:
        project.shutdown()
    picture = "the figure: too large for the client's Read, which names a `jq` command instead"
    all_at_once = "plain, all cells, then one run"
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(
                how, Plain(name, folder / slug, picture, bin=programs, flags=flags)
            )
            for how, name, slug, flags in (
                (carefully, "**plain**, a run after each cell", "each", ()),
                (hastily, all_at_once, "once", ()),
                (
                    hastily,
                    f"{all_at_once} with `--allow-errors`",
                    "errs",
                    ("--allow-errors",),
                ),
            )
        ]
        ways = [stepped, *(task.result() for task in tasks)]
    check(ways)
    names = ["ipykernel", "nbclient", "ipython", "pandas", "matplotlib"]
    asked = f"from importlib.metadata import version\nprint(*(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    kernel = demo.output(python, "-c", asked, cwd=str(folder)).strip()
    about = f"{date.today()}, notebook-stepper {__version__}, CPython {sys.version.split()[0]}, {kernel}"
    return [stepped, with_skills(stepped, status), *ways[1:]], about


def table(ways: list[Way]) -> Iterator[str]:
    """Yield the lines of the report."""
    least, full = ways[0].size, ways[1].size
    yield "| way | characters | tokens (÷ 4) | to stepper | to the second row | calls beyond the edits | not in it |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for way in ways:
        ratios = f"{way.size / least:.2f} × | {way.size / full:.2f} ×"
        yield f"| {way.name} | {way.size:,} | {way.size / 4:,.0f} | {ratios} | {way.calls} | {way.missing} |"
    yield ""
    total = sum(len(lines(cell)) for cell in ways[0].code_cells)
    told = [text for kind, text in ways[0].read if kind == "reports"]
    largest = max(told, key=len)
    found = re.search("[Cc]ell [0-9]+", largest)
    yield f"- The largest single report: {len(largest):,} characters ({found[0].lower() if found else 'which cell?'})."
    yield f"- Of the {total} lines that the cells put out, stepper's reports left out {unread(ways[0])}, a Read none."
    for way in ways:
        yield f"- {way.name.replace('*', '')}: {way.parts}."
    for way in ways:
        if isinstance(way, Plain):
            yield f"- {way.name.replace('*', '')}: the run that failed left {way.left}."


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description="What the agent reads for the Seattle notebook, in characters."
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FOLDER",
        help="put all that was read there, a file for each way",
    )
    save = parser.parse_args().save
    with tempfile.TemporaryDirectory(prefix="tokens-") as folder:
        ways, about = play(Path(folder).resolve())
        report = list(table(ways))
    print(f"{about}\n\n" + "\n".join(report))
    if save:
        save.mkdir(parents=True, exist_ok=True)
        for number, way in enumerate(ways):
            (save / f"{number}.txt").write_text(f"{way.name}\n\n{way.text}\n", "utf-8")


if __name__ == "__main__":
    main()
