"""Compare the digest of a notebook with Claude Code's own Read.

    python benchmarks/notebook_reads.py [--folder FOLDER] [--all] [--time]

Run it with the Python of an environment that has stepper. Without `--folder`, it
downloads the source distributions of PACKAGES. Of each package it takes the notebook
whose Read is longest, among those that Claude Code can read (256 KB) and that have
recorded outputs in at least half of MIN_CELLS or more code cells; `--all` takes every
such notebook. The demo's notebook and a notebook of 100 cells with figures are run
first.

Raw is the result of Read as Claude Code 2.1.330 renders it (see tokens.py), without
pictures. It leaves out large outputs and names a `jq` command for each of them; raw
with these outputs also counts what the commands return: up to SHELL_LIMIT characters,
and SHELL_PREVIEW of a longer output. The digest is what the installed hook returns, with the line numbers that the
client adds. Both are counted in characters. The benchmark fails unless each source in
the digest is exactly the source in the notebook.

`--time` measures a Read of the 100 cells: the two hook processes, beside a bare Python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokens
from common import Project, create_temporary_project, spawn

from examples import demo
from stepper.install import trust
from tests.test_notebook_digest import read_sources

PACKAGES = (
    "control==0.10.2",
    "emcee==3.1.6",
    "giddy==2.3.8",
    "inequality==1.1.2",
    "ipyparallel==9.2.0",
    "lmfit==1.3.4",
    "mapclassify==2.10.0",
    "nbconvert==7.17.2",
    "pointpats==2.5.5",
    "spaghetti==1.7.6",
    "spreg==1.9.0",
    "tqdm==4.70.1",
)
MIN_CELLS = 10
CLIENT_LIMIT = 256 * 1024  # bytes of a Read
FIGURE_CELLS = 100
# Characters of a shell command's output (Claude Code 2.1.330): longer outputs are
# written to a file, and the model reads a preview.
SHELL_LIMIT = 30_000
SHELL_PREVIEW = 2299


class Comparison(NamedTuple):
    """The characters of one Read; `sources` are those of the cells alone.

    `left_out` are the outputs that Claude Code's own Read leaves out, as the commands
    in it print them. `raw` is 0 if Claude Code can't read the notebook.
    """

    name: str
    cells: int
    sources: int
    raw: int
    left_out: int
    digest: int

    @property
    def share(self) -> float:
        """The digest's share of the raw Read, in percent."""
        return 100 * self.digest / self.raw

    @property
    def share_with_outputs(self) -> float:
        """The digest's share of the raw Read and the outputs that it leaves out."""
        return 100 * self.digest / (self.raw + self.left_out)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="unpacked source distributions")
    parser.add_argument("--all", action="store_true", help="all notebooks")
    parser.add_argument("--time", action="store_true", help="measure the hook")
    options = parser.parse_args()
    with (
        create_temporary_project() as project,
        tempfile.TemporaryDirectory() as folder,
    ):
        notebooks = make_own_notebooks(project)

        if options.time:
            measure_hooks(project, notebooks[-1])
            return
        packages = options.folder or download_packages(Path(folder))
        public = list(select_notebooks(packages, options.all))
        comparisons = []
        for name, path in [*((path.stem, path) for path in notebooks), *public]:
            comparisons.append(compare(project, name, path))
    print_table(comparisons, len(notebooks))


def download_packages(folder: Path) -> Path:
    """Download and unpack the source distributions; return the folder."""
    for package in PACKAGES:
        name = package.partition("==")[0]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--no-binary", name, "-d", str(folder), package]
        subprocess.run(command, check=True)
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return folder


def select_notebooks(folder: Path, takes_all: bool) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each public notebook that is compared."""
    for package in sorted(path for path in folder.iterdir() if path.is_dir()):
        candidates = []
        for path in sorted(package.rglob("*.ipynb")):
            size = measure_candidate(path)
            if size:
                candidates.append((size, path))
        if not takes_all:
            candidates = sorted(candidates, reverse=True)[:1]
        for _, path in candidates:
            distribution = package.name.rpartition("-")[0]
            yield f"{distribution}: {path.stem}", path


def measure_candidate(path: Path) -> int:
    """Return the size of a notebook's Read, or 0 if the notebook is not compared."""
    try:
        notebook = json.loads(path.read_text("utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError):
        return 0
    with_outputs = [cell for cell in cells if cell.get("outputs")]
    if len(cells) < MIN_CELLS or 2 * len(with_outputs) < len(cells):
        return 0
    size = len(render_raw(notebook).encode())
    return size if size <= CLIENT_LIMIT else 0


def render_raw(notebook: dict[str, Any]) -> str:
    """Return the text of Claude Code's own Read."""
    for index, cell in enumerate(notebook["cells"]):
        cell.setdefault("id", f"cell-{index}")
    return "\n".join(block for block in tokens.render_blocks(notebook) if block)


def measure_left_out(notebook: dict[str, Any]) -> int:
    """Return the characters that `jq` shows of outputs that Read leaves out."""
    size = 0
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", [])
        if tokens.measure_outputs(outputs) <= tokens.LARGE:
            continue
        text = json.dumps(outputs, indent=2, ensure_ascii=False)
        size += len(text) if len(text) <= SHELL_LIMIT else SHELL_PREVIEW
    return size


def make_own_notebooks(project: Project) -> list[Path]:
    """Run the demo and a notebook of 100 cells with figures; return their paths."""
    programs = tokens.create_environment(project.root)
    trust.save_record(project.paths, {"python": str(programs / "python")})
    demo.prepare(str(project.root))
    demo.say = lambda text: None
    tokens.play_with_stepper(project)
    (played,) = (project.root / "notebooks").glob("*.ipynb")
    demo_notebook = played.rename(played.with_name("demo.ipynb"))
    figures = project.root / "notebooks" / "100 cells with figures.ipynb"
    write_figure_notebook(figures)
    run_cli(project, "run", str(figures))
    return [demo_notebook, figures]


def write_figure_notebook(path: Path) -> None:
    """Write 100 code cells: tables, printed lines, and a figure in every fourth."""
    sources = [
        "import matplotlib.pyplot as plt\nimport numpy as np\nimport pandas as pd\n"
        "rng = np.random.default_rng(1)"
    ]
    for number in range(1, FIGURE_CELLS):
        sources.append(
            (
                f"frame_{number} = pd.DataFrame(rng.normal(size=(200, 6)),"
                f" columns=list('abcdef'))\nframe_{number}",
                f"for row in frame_{number - 1}.itertuples():\n"
                "    print('row', row.Index, round(row.a, 3), round(row.b, 3))",
                f"fig, ax = plt.subplots()\nax.plot(frame_{number - 2}['a'].cumsum())\n"
                f"ax.set_title('run {number}')\nax.set_xlabel('step')\nplt.show()",
                f"summary_{number} = frame_{number - 3}.describe()\nsummary_{number}",
            )[(number - 1) % 4]
        )
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(sources)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), "utf-8")


def run_cli(project: Project, *arguments: str) -> str:
    """Run a stepper command in the project; return its output."""
    command = [str(project.python), "-I", "-c", tokens.CLI, *arguments]
    return spawn(command, cwd=project.root).output.decode()


def send_read(project: Project, event: str, path: Path) -> tuple[float, bytes]:
    """Run a hook of Read; return its milliseconds and its output."""
    names = {"BeforeRead": "PreToolUse", "AfterRead": "PostToolUse"}
    payload = {
        "session_id": "benchmark",
        "cwd": str(project.root),
        "hook_event_name": names[event],
        "tool_name": "Read",
        "tool_input": {"file_path": str(path)},
    }
    data = json.dumps(payload).encode()
    result = spawn(project.build_hook_command(event), data, project.root)
    return result.ms, result.output


def read_digest(project: Project, path: Path) -> str:
    """Return the digest that the hooks of a Read return."""
    for _ in range(20):  # on a busy machine, the hook may give up after 2 s
        send_read(project, "BeforeRead", path)
        _, output = send_read(project, "AfterRead", path)
        if output:
            break
    else:
        raise ValueError(f"{path.name}: the hook returned no digest")
    answer = json.loads(output)["hookSpecificOutput"]["updatedToolOutput"]
    return str(answer["file"]["content"])


def compare(project: Project, name: str, path: Path) -> Comparison:
    """Read a notebook in both ways."""
    notebook = json.loads(path.read_text("utf-8"))
    target = project.root / "notebooks" / path.name
    if target != path:
        target.write_bytes(path.read_bytes())
    digest = read_digest(project, target)
    lines = digest.split("\n")
    sources = [tokens.join_lines(cell["source"]) for cell in notebook["cells"]]
    if read_sources(lines) != sources:
        raise ValueError(f"{name}: the digest has other sources than the notebook")
    raw = render_raw(notebook)
    fails = len(raw.encode()) > CLIENT_LIMIT
    numbers = sum(len(str(number)) + 1 for number in range(1, len(lines) + 1))
    return Comparison(
        name=name,
        cells=len(sources),
        sources=sum(map(len, sources)),
        raw=0 if fails else len(raw),
        left_out=measure_left_out(notebook),
        digest=len(digest) + numbers,
    )


def print_table(comparisons: Sequence[Comparison], own_count: int) -> None:
    """Print the comparisons, and the median of the public notebooks."""
    print(
        "| notebook | cells | sources | raw Read | outputs left out | digest"
        " | of raw | of raw with outputs |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in comparisons:
        raw = f"{row.raw / 4:,.0f}" if row.raw else "fails (over 256 KB)"
        share = f"{row.share:.0f} %" if row.raw else "–"
        share_with_outputs = f"{row.share_with_outputs:.0f} %" if row.raw else "–"
        print(
            f"| {row.name} | {row.cells} | {row.sources / 4:,.0f} | {raw}"
            f" | {row.left_out / 4:,.0f} | {row.digest / 4:,.0f} | {share}"
            f" | {share_with_outputs} |"
        )
    public = comparisons[own_count:]
    if public:
        median = statistics.median(row.share for row in public)
        with_outputs = statistics.median(row.share_with_outputs for row in public)
        print(
            f"\n{len(public)} public notebooks: median {median:.0f} % of raw,"
            f" {with_outputs:.0f} % with the outputs that it leaves out."
        )


def measure_hooks(project: Project, path: Path) -> None:
    """Print the medians of 30 paired runs: the hooks of a Read and a bare Python."""
    read_digest(project, path)
    before, after, bare = [], [], []
    for _ in range(30):
        bare.append(spawn(project.bare).ms)
        before.append(send_read(project, "BeforeRead", path)[0])
        milliseconds, output = send_read(project, "AfterRead", path)
        if not output:
            raise ValueError("the hook returned no digest")
        after.append(milliseconds)
    for name, samples in (("before", before), ("after", after), ("bare", bare)):
        low, middle, high = statistics.quantiles(samples, n=4)
        print(f"{name}: {middle:.1f} ms ({low:.1f}–{high:.1f})")
    both = [first + second for first, second in zip(before, after, strict=True)]
    print(f"both hooks: {statistics.median(both):.1f} ms")


if __name__ == "__main__":
    main()
