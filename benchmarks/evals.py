"""The cases of `evals/` with a real model, by the client's own `claude plugin eval`: `make evals`, for who has a key.

    python benchmarks/evals.py [CASE …] [--client CLAUDE] [--model NAME] [--runs N] [--write]

Each run has a home, a project and an environment of stepper's of its own, in a folder that is removed; what a run
leaves running is ended. No case is granted a shell: the client confines it, and from there no daemon is reached; the
plugin's MCP server runs outside of that. `--write` puts the table into docs/development/evals.md. It costs what the model costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "development" / "evals.md"
PARTS = (
    *(
        ".claude-plugin",
        ".mcp.json",
        "README.md",
        "LICENSE",
        "bin",
        "evals",
        "examples",
        "hooks",
        "skills",
    ),
    *("install.sh", "stepper", "pyproject.toml"),
)
MCP = "mcp__plugin_stepper_stepper__"
GRANTED = ("NotebookEdit", "Write", f"{MCP}create_notebook", f"{MCP}verify")
HEAD = "| case | runs | passed | score | without the plugin |\n| --- | --- | --- | --- | --- |\n"


def copied(folder: Path) -> Path:
    """Copy what the plugin is made of, without environments and results; return where it lies."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "results"),
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def evaluated(
    client: str, plugin: Path, case: str, environ: Mapping[str, str], *options: str
) -> tuple[dict[str, Any], str]:
    """Run cases; return the client's document and what it said. `TMPDIR` of `environ` is where the runs work."""
    with tempfile.TemporaryDirectory() as out:
        words = [
            client,
            "plugin",
            "eval",
            str(plugin),
            "--trust-plugin",
            "--scaffold",
            "--no-publish",
            "--case",
            case,
        ]
        asks = MCP in (plugin / "evals" / case / "case.yaml").read_text()
        words += ["--mocks", "off"] if asks else []  # the server itself
        words += [
            "--json",
            f"{out}/result.json",
            "--output-dir",
            f"{out}/all",
            "--allow-tools",
            *GRANTED,
            *options,
        ]
        done = subprocess.run(
            words, env=environ, cwd=plugin, capture_output=True, text=True, check=False
        )
        try:
            return json.loads(
                Path(out, "result.json").read_text()
            ), done.stdout + done.stderr
        except OSError:
            raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}") from None
        finally:
            ended(environ["TMPDIR"])


def ended(folder: str) -> None:
    """End the daemons and kernels of projects below `folder`: a run is over before they are."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME", "").startswith(f"{folder}{os.sep}"):
                process.kill()


def rows(result: dict[str, Any]) -> dict[str, str]:
    """Return a line of the table for each case."""
    found = {}
    for case in result["cases"]:
        runs, without = case["arms"].get("with", []), case["arms"].get("without", [])
        score = f"{case['aggregates']['score']:.2f}"
        other = (
            f"{sum(run['score'] for run in without) / len(without):.2f}"
            if without
            else "–"
        )
        passed = sum(run["passed"] for run in runs)
        found[case["name"]] = (
            f"| {case['name']} | {len(runs)} | {passed} | {score} | {other} |"
        )
    return found


def put(lines: Mapping[str, str], about: str) -> None:
    """Put lines into the table of the page; cases that were not run keep theirs."""
    text = PAGE.read_text()
    for name, line in lines.items():
        text = re.sub(rf"(?m)^\| {re.escape(name)} \|.*$", line, text)
    PAGE.write_text(re.sub(r"(?m)^Last run: .*$", f"Last run: {about}", text))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=[])
    parser.add_argument("--client", default=shutil.which("claude"))
    parser.add_argument("--model")
    parser.add_argument("--runs", default="3")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    if not given.client:
        sys.exit(
            "the client is not on the PATH: --client CLAUDE, or npm install -g @anthropic-ai/claude-code"
        )
    known = sorted(path.parent.name for path in (ROOT / "evals").glob("*/case.yaml"))
    if wrong := {*given.cases} - {*known}:
        sys.exit(f"no case {', '.join(sorted(wrong))}; there are {', '.join(known)}")
    model = ["--model", given.model] if given.model else []
    lines, said = dict[str, str](), ""
    with tempfile.TemporaryDirectory(prefix="stepper-evals-") as folder:
        plugin = copied(Path(folder, "plugin"))
        Path(folder, "runs").mkdir()
        for name in given.cases or known:
            result, _ = evaluated(
                given.client,
                plugin,
                name,
                {**os.environ, "TMPDIR": f"{folder}/runs"},
                "--runs",
                given.runs,
                *model,
            )
            lines |= rows(result)
            said = f"{result['startedAt'][:10]}, Claude Code {result['claudeVersion']}, model {given.model or 'its own'}"
            print(lines.get(name, f"| {name} | was not run |"), flush=True)
    print("\n" + HEAD + "\n".join(lines.values()) + f"\n\n{said}")
    if given.write:
        put(lines, said)


if __name__ == "__main__":
    main()
