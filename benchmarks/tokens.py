"""Count the tokens that an agent reads, with and without stepper.

    python benchmarks/tokens.py [--save FOLDER]

Run it with the Python of an environment that has stepper. It creates an environment for
the kernels in a temporary folder, with the packages of the demo, and plays the demo's
cells (one fails and is then replaced) in four workflows: with the real hook script, and
three times without stepper: edit, `jupyter execute --inplace`, read the notebook. Claude
Code requires that Read: it refuses to edit a file that a command has changed. A failed
run changes nothing and is not read, unless it continues with `--allow-errors`.

Only text that reaches the model is counted. With stepper: the output of `stepper new`,
the Read of the new notebook (the digest), and all texts of the hooks for the model. Without stepper:
the result of the Write that creates the notebook, the output of `jupyter execute`, and
each Read. `render_notebook` and the constants reproduce Claude Code 2.1.330, driven by a
scripted model (`tests/realclient`), exactly. Tokens are characters ÷ 4.

Not counted: text that the agent writes, the results of NotebookEdit (every workflow has the
same fifteen edits), lines for the user, pictures. All workflows must end with the same
sources, text outputs, figure and result file, and the failure must have been read;
otherwise the benchmark fails.
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

# Texts of Claude Code.
CONTEXT = "{} hook additional context: "
CREATED = "File created successfully at: {} (file state is current in your context — no need to Read it back)"
TOO_LARGE = "Outputs are too large to include. Use Bash with: cat <notebook_path> | jq '.cells[{}].outputs'"
LARGE = 10_000  # characters of a cell's outputs, including pictures in base64
SKILL = "Base directory for this skill: {}\n\n{}"
LAUNCHED = "Launching skill: {}"

PACKAGES = ["ipykernel", "nbclient", *demo.PACKAGES]
CLI = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
FAILURE = "NameError: name 'WET_DAY_MM' is not defined"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TITLE = f"# {demo.PROBLEM}"


class BrokenWorkflowError(Exception):
    """A workflow did not do the work that is measured."""


@dataclass
class Workflow:
    """The work on a notebook, with the texts that the agent read."""

    name: str
    folder: Path
    omitted: str
    read: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0  # the agent's tool calls, except edits

    def add_text(self, kind: str, text: str, call: bool = True) -> None:
        """Add a text that the agent reads, by its own tool call or from a hook."""
        self.read.append((kind, text))
        self.calls += call

    @property
    def text(self) -> str:
        """All texts."""
        return "\n".join(text for _, text in self.read)

    @property
    def size(self) -> int:
        """The number of characters of all texts."""
        return sum(len(text) for _, text in self.read)

    @property
    def parts(self) -> str:
        """The number of characters of each origin, as text."""
        kinds = dict.fromkeys(kind for kind, _ in self.read)
        texts = {
            kind: [text for each, text in self.read if each == kind] for kind in kinds
        }
        return ", ".join(
            f"{kind} {sum(map(len, group)):,} ({len(group)} ×)"
            for kind, group in texts.items()
        )

    @property
    def notebook(self) -> Path:
        """The path of the notebook."""
        (path,) = (self.folder / "notebooks").glob("*.ipynb")
        return path

    @property
    def code_cells(self) -> list[dict[str, Any]]:
        """The code cells in the file."""
        return [
            cell
            for cell in json.loads(self.notebook.read_text("utf-8"))["cells"]
            if cell["cell_type"] == "code"
        ]


# --- Notebooks as Claude Code renders them


def join_lines(text: str | list[str]) -> str:
    """Return a text of the notebook format, which may be a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def output_text(output: dict[str, Any]) -> str:
    """Return the text of an output as Read shows it."""
    if output["output_type"] == "stream":
        return join_lines(output["text"])
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}\n" + "\n".join(
            output["traceback"]
        )
    return join_lines(output["data"].get("text/plain", ""))


def find_pictures(output: dict[str, Any]) -> list[str]:
    """Return the pictures of an output that Read would show, in base64."""
    data = output.get("data", {})
    return [
        join_lines(data[kind]) for kind in ("image/png", "image/jpeg") if kind in data
    ][:1]


def measure_outputs(outputs: list[dict[str, Any]]) -> int:
    """Return the characters of a cell's outputs, including pictures in base64."""
    size = 0
    for output in outputs:
        for text in (output_text(output), *find_pictures(output)):
            size += len(text)
    return size


def render_blocks(notebook: dict[str, Any]) -> Iterator[str | None]:
    """Yield the parts of a Read; None stands for a picture."""
    for index, cell in enumerate(notebook["cells"]):
        kind = (
            ""
            if cell["cell_type"] == "code"
            else f"<cell_type>{cell['cell_type']}</cell_type>"
        )
        yield f'<cell id="{cell["id"]}">{kind}{join_lines(cell["source"])}</cell id="{cell["id"]}">'
        outputs = cell.get("outputs", [])
        if measure_outputs(outputs) > LARGE:
            yield "\n" + TOO_LARGE.format(index)
            continue
        for output in outputs:
            if text := output_text(output):
                yield "\n" + text
            yield from [None] * len(find_pictures(output))


def render_notebook(path: Path) -> str:
    """Return the text of a Read.

    Parts are joined by a newline, but not across a picture.
    """
    text, separator = "", ""
    for block in render_blocks(json.loads(path.read_text("utf-8"))):
        text, separator = (
            (text, "") if block is None else (text + separator + block, "\n")
        )
    return text


# --- The workflow with stepper


def number_lines(text: str) -> str:
    """Return a text as Read shows the digest: with line numbers."""
    lines = enumerate(text.split("\n"), 1)
    return "\n".join(f"{number}\t{line}" for number, line in lines)


class Agent(demo.Player):
    """The demo's player; it records the hooks' texts for the model."""

    def __init__(self, workflow: Workflow) -> None:
        super().__init__(
            str(workflow.folder), str(workflow.notebook.relative_to(workflow.folder))
        )
        self.workflow = workflow

    def hook(self, event: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Run the installed hook.

        Record the parts of its response that the model reads.
        """
        answer = super().hook(event, fields)
        specific = answer.get("hookSpecificOutput", {})
        if report := specific.get("additionalContext"):
            name = f"{event}:{fields['tool_name']}" if "tool_name" in fields else event
            self.workflow.add_text(
                "reports" if event == "PostToolUse" else event,
                CONTEXT.format(name) + report,
                call=False,
            )
        for report in (
            specific.get("permissionDecisionReason"),
            answer.get("reason"),
            answer.get("stopReason"),
        ):
            if report:
                self.workflow.add_text("reasons", report, call=False)
        return answer


def play_with_stepper(project: Project) -> Workflow:
    """Play the work as the demo does, from the first prompt to the end of the turn."""
    workflow = Workflow(
        "**stepper**", project.root, "the figure (its path is in the report)"
    )
    steps = [marker for step in demo.STEPS for marker in ("--step", step.title)]
    result = spawn(
        [str(project.python), "-I", "-c", CLI, "new", demo.PROBLEM, *steps],
        cwd=project.root,
    )
    workflow.add_text("`stepper new`", result.output.decode().strip())
    show = [str(project.python), "-I", "-c", CLI, "show", str(workflow.notebook)]
    digest = spawn(show, cwd=project.root).output.decode()
    workflow.add_text("Read", number_lines(digest.rstrip("\n")))
    player = Agent(workflow)
    for number, step in enumerate(demo.STEPS, 1):
        player.play("markdown", markdown(number, step))
        if step.forgotten:
            player.play(
                "code", step.code.removeprefix(step.forgotten), expected="NameError: "
            )
        player.play("code", step.code, replace=bool(step.forgotten))
    player.hook("Stop", {"stop_hook_active": False, "last_assistant_message": "Done."})
    return workflow


def add_skills(workflow: Workflow, status: str) -> Workflow:
    """Return stepper's workflow, with the skills and their list."""
    way_with_skills = Workflow(
        "stepper, with the texts of its skills",
        workflow.folder,
        workflow.omitted,
        list(workflow.read),
        workflow.calls,
    )
    skill_list = []
    for name, files in skill_states.load_shipped_skills().items():
        _, head, body = files["SKILL.md"].decode().split("---\n", 2)
        fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        if fields.get("disable-model-invocation") != "true":
            skill_list.append(f"- {name}: {fields['description']}")
        if name in ("new-notebook", "stepping-notebooks"):
            body = body.replace("$ARGUMENTS", "").replace("!`stepper status`", status)
            way_with_skills.add_text(
                "skills",
                SKILL.format(workflow.folder / ".claude" / "skills" / name, body),
                call=False,
            )
    way_with_skills.add_text("list of skills", "\n".join(skill_list), call=False)
    way_with_skills.add_text("Skill", LAUNCHED.format("stepping-notebooks"))
    if sum(kind == "skills" for kind, _ in way_with_skills.read) != 2:
        raise BrokenWorkflowError("the required skills are missing")
    return way_with_skills


# --- The workflow without stepper


@dataclass
class Plain(Workflow):
    """A notebook that is edited, executed by nbclient and read again."""

    bin: Path = Path()
    flags: tuple[str, ...] = ()
    failed_run: str = ""  # the outputs that the failed run wrote to the file

    def create_notebook(self) -> None:
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
        self.add_text("Write", CREATED.format(path))

    def edit(self, kind: str, source: str, instead: str | None = None) -> None:
        """Insert a cell at the end, or replace the one with the source `instead`."""
        content = json.loads(self.notebook.read_text("utf-8"))
        if instead is None:
            content["cells"].append(
                {"cell_type": kind, "id": secrets.token_hex(4), "metadata": {}}
            )
            cell = content["cells"][-1]
        else:
            (cell,) = (
                cell
                for cell in content["cells"]
                if join_lines(cell["source"]) == instead
            )
        cell |= {
            "source": source,
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
        }
        self.notebook.write_text(
            json.dumps(content, indent=1, ensure_ascii=False), "utf-8"
        )

    def run(self, fails: bool = False) -> None:
        """Execute the notebook, and read it if it changed."""
        before = self.notebook.read_bytes()
        result = subprocess.run(
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
        text = result.stdout.decode().strip()
        if bool(result.returncode) != (fails and not self.flags):
            raise BrokenWorkflowError(
                f"{self.name}: `jupyter execute` exited with code {result.returncode}: {text}"
            )
        self.add_text(
            "`jupyter execute`",
            f"Exit code {result.returncode}\n{text}" if result.returncode else text,
        )
        if self.notebook.read_bytes() != before:
            self.add_text("Read", render_notebook(self.notebook))
        if fails:
            kinds = [
                {output["output_type"] for output in cell["outputs"]}
                for cell in self.code_cells
            ]
            self.failed_run = (
                f"outputs in {sum(map(bool, kinds))} of {len(kinds)} code cells, "
            )
            self.failed_run += (
                f"{sum('error' in types for types in kinds)} of them an error"
            )


def play_step_by_step(workflow: Plain) -> Plain:
    """Execute and read after each code cell, as with stepper."""
    workflow.create_notebook()
    for number, step in enumerate(demo.STEPS, 1):
        workflow.edit("markdown", markdown(number, step))
        first = step.code.removeprefix(step.forgotten)
        workflow.edit("code", first)
        workflow.run(fails=bool(step.forgotten))
        if step.forgotten:
            workflow.edit("code", step.code, instead=first)
            workflow.run()
    return workflow


def play_in_one_run(workflow: Plain) -> Plain:
    """Write all cells, execute, fix, execute again."""
    workflow.create_notebook()
    for number, step in enumerate(demo.STEPS, 1):
        workflow.edit("markdown", markdown(number, step))
        workflow.edit("code", step.code.removeprefix(step.forgotten))
    workflow.run(fails=True)
    (step,) = (step for step in demo.STEPS if step.forgotten)
    workflow.edit("code", step.code, instead=step.code.removeprefix(step.forgotten))
    workflow.run()
    return workflow


# --- All workflows


def markdown(number: int, step: demo.Step) -> str:
    """Return the Markdown text of a step, as the demo writes it."""
    return f"## {number}. {step.title}\n\n{step.markdown}"


def lines(cell: dict[str, Any]) -> list[str]:
    """Return the lines of a cell's outputs, without figures."""
    texts = (
        output_text(output) for output in cell["outputs"] if not find_pictures(output)
    )
    return [
        line.rstrip() for text in texts for line in text.splitlines() if line.strip()
    ]


def count_unread_lines(workflow: Workflow) -> int:
    """Return the number of output lines that the agent did not read."""
    read = {line.removeprefix("| ").rstrip() for line in workflow.text.splitlines()}
    return sum(line not in read for cell in workflow.code_cells for line in lines(cell))


def check(workflows: list[Workflow]) -> None:
    """Raise BrokenWorkflowError unless all workflows did the same work and read the failure."""
    expected = [step.code for step in demo.STEPS]
    results = workflows[0].notebook.with_name(demo.RESULT).read_bytes()
    printed = [lines(cell) for cell in workflows[0].code_cells]
    if sum(map(len, printed)) < 50:
        raise BrokenWorkflowError(f"the notebook has too few outputs: {printed}")
    for workflow in workflows:
        cells = workflow.code_cells
        if [join_lines(cell["source"]) for cell in cells] != expected:
            raise BrokenWorkflowError(
                f"{workflow.name}: the sources are not the demo's"
            )
        if [lines(cell) for cell in cells] != printed:
            raise BrokenWorkflowError(
                f"{workflow.name}: the outputs differ: {[lines(cell) for cell in cells]}"
            )
        if [
            len(find_pictures(output)) for cell in cells for output in cell["outputs"]
        ].count(1) != 1:
            raise BrokenWorkflowError(
                f"{workflow.name}: the number of figures is not 1"
            )
        if workflow.notebook.with_name(demo.RESULT).read_bytes() != results:
            raise BrokenWorkflowError(f"{workflow.name}: the result file differs")
        if FAILURE not in ANSI.sub("", workflow.text):
            raise BrokenWorkflowError(f"{workflow.name}: the failure was not read")
        if printed[-1][-1] not in workflow.text:
            raise BrokenWorkflowError(f"{workflow.name}: the last output was not read")
        if isinstance(workflow, Plain) and count_unread_lines(workflow):
            raise BrokenWorkflowError(
                f"{workflow.name}: the notebook was not read completely"
            )


def create_environment(folder: Path) -> Path:
    """Create an environment for the kernels and `jupyter execute`.

    Return its `bin` folder.
    """
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    # otherwise each kernel compiles pandas again
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


def play(folder: Path) -> tuple[list[Workflow], str]:
    """Play all workflows; return them, and a line with the versions."""
    project = Project(folder / "stepper")
    try:
        programs = create_environment(project.root)
        python = str(programs / "python")
        trust.save_record(project.paths, {"python": python})
        demo.prepare(str(project.root))
        demo.say = lambda text: None
        status = (
            spawn([str(project.python), "-I", "-c", CLI, "status"], cwd=project.root)
            .output.decode()
            .strip()
        )
        stepped = play_with_stepper(project)
    finally:
        project.shutdown()
    picture = "the figure (too large for Read, which names a `jq` command instead)"
    all_at_once = "plain, all cells, then one run"
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(
                play_workflow,
                Plain(name, folder / slug, picture, bin=programs, flags=flags),
            )
            for play_workflow, name, slug, flags in (
                (play_step_by_step, "**plain**, a run after each cell", "each", ()),
                (play_in_one_run, all_at_once, "once", ()),
                (
                    play_in_one_run,
                    f"{all_at_once} with `--allow-errors`",
                    "errs",
                    ("--allow-errors",),
                ),
            )
        ]
        workflows = [stepped, *(task.result() for task in tasks)]
    check(workflows)
    names = ["ipykernel", "nbclient", "ipython", "pandas", "matplotlib"]
    version_code = f"from importlib.metadata import version\nprint(*(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    kernel = demo.output(python, "-c", version_code, cwd=str(folder)).strip()
    summary = f"{date.today()}, notebook-stepper {__version__}, CPython {sys.version.split()[0]}, {kernel}"
    return [stepped, add_skills(stepped, status), *workflows[1:]], summary


def format_table(workflows: list[Workflow]) -> Iterator[str]:
    """Yield the lines of the report."""
    stepper_size, skills_size = workflows[0].size, workflows[1].size
    yield "| workflow | characters | tokens (÷ 4) | to stepper | to stepper with skills | calls except edits | not read |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for workflow in workflows:
        ratios = f"{workflow.size / stepper_size:.2f} × | {workflow.size / skills_size:.2f} ×"
        yield f"| {workflow.name} | {workflow.size:,} | {workflow.size / 4:,.0f} | {ratios} | {workflow.calls} | {workflow.omitted} |"
    yield ""
    total = sum(len(lines(cell)) for cell in workflows[0].code_cells)
    reports = [text for kind, text in workflows[0].read if kind == "reports"]
    largest = max(reports, key=len)
    match = re.search("[Cc]ell [0-9]+", largest)
    yield f"- The largest single report: {len(largest):,} characters ({match[0].lower() if match else 'unknown cell'})."
    yield f"- Of the {total} output lines, stepper's reports omit {count_unread_lines(workflows[0])}, a Read omits none."
    for workflow in workflows:
        yield f"- {workflow.name.replace('*', '')}: {workflow.parts}."
    for workflow in workflows:
        if isinstance(workflow, Plain):
            yield f"- {workflow.name.replace('*', '')}: the failed run wrote {workflow.failed_run}."


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description="Count the characters that the agent reads for the Seattle notebook."
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FOLDER",
        help="save all texts there, a file for each workflow",
    )
    save = parser.parse_args().save
    with tempfile.TemporaryDirectory(prefix="tokens-") as folder:
        workflows, summary = play(Path(folder).resolve())
        report = list(format_table(workflows))
    print(f"{summary}\n\n" + "\n".join(report))
    if save:
        save.mkdir(parents=True, exist_ok=True)
        for number, workflow in enumerate(workflows):
            (save / f"{number}.txt").write_text(
                f"{workflow.name}\n\n{workflow.text}\n", "utf-8"
            )


if __name__ == "__main__":
    main()
