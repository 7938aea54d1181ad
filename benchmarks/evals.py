"""Run the cases of `evals/` with a real model through `claude plugin eval`.

    python benchmarks/evals.py [CASE …] [--client CLAUDE] [--model NAME] [--runs N] [--write]

It needs an API key, and the model's usage is charged. Each run has its own home,
project and stepper environment, in a folder that is removed; remaining processes are
killed. No case has a shell: Claude Code confines it, and no daemon is reachable from
there. The plugin's MCP server runs outside the sandbox. `--write` writes the table to
docs/development/evals.md.
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
PLUGIN_FILES = (
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
ALLOWED_TOOLS = ("NotebookEdit", "Write", f"{MCP}create_notebook", f"{MCP}verify")
HEAD = "| case | runs | passed | score | without the plugin |\n| --- | --- | --- | --- | --- |\n"


def copy_plugin(folder: Path) -> Path:
    """Copy the plugin's files without environments and results; return the folder."""
    for name in PLUGIN_FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "results"),
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_case(
    client: str, plugin: Path, case: str, environ: Mapping[str, str], *options: str
) -> tuple[dict[str, Any], str]:
    """Run a case; return the client's document and its output.

    The runs work in `TMPDIR` of `environ`.
    """
    with tempfile.TemporaryDirectory() as out:
        command = [
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
        uses_mcp = MCP in (plugin / "evals" / case / "case.yaml").read_text()
        command += ["--mocks", "off"] if uses_mcp else []  # start the real server
        command += [
            "--json",
            f"{out}/result.json",
            "--output-dir",
            f"{out}/all",
            "--allow-tools",
            *ALLOWED_TOOLS,
            *options,
        ]
        result = subprocess.run(
            command,
            env=environ,
            cwd=plugin,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            return json.loads(
                Path(out, "result.json").read_text()
            ), result.stdout + result.stderr
        except OSError:
            raise SystemExit(
                f"{' '.join(command)}\n{result.stdout}{result.stderr}"
            ) from None
        finally:
            kill_processes(environ["TMPDIR"])


def kill_processes(folder: str) -> None:
    """Kill the daemons and kernels of projects below `folder`."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME", "").startswith(f"{folder}{os.sep}"):
                process.kill()


def format_rows(result: dict[str, Any]) -> dict[str, str]:
    """Return a table row for each case."""
    lines_by_case = {}
    for case in result["cases"]:
        runs, without = case["arms"].get("with", []), case["arms"].get("without", [])
        score = f"{case['aggregates']['score']:.2f}"
        other = (
            f"{sum(run['score'] for run in without) / len(without):.2f}"
            if without
            else "–"
        )
        passed = sum(run["passed"] for run in runs)
        lines_by_case[case["name"]] = (
            f"| {case['name']} | {len(runs)} | {passed} | {score} | {other} |"
        )
    return lines_by_case


def write_rows(lines: Mapping[str, str], summary: str) -> None:
    """Write rows into the page's table; rows of other cases stay."""
    text = PAGE.read_text()
    for name, line in lines.items():
        text = re.sub(rf"(?m)^\| {re.escape(name)} \|.*$", line, text)
    PAGE.write_text(re.sub(r"(?m)^Last run: .*$", f"Last run: {summary}", text))


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
    options = parser.parse_args(arguments)
    if not options.client:
        sys.exit(
            "claude is not on the PATH; use --client CLAUDE, or install it with: npm install -g @anthropic-ai/claude-code"
        )
    case_names = sorted(
        path.parent.name for path in (ROOT / "evals").glob("*/case.yaml")
    )
    if unknown_cases := {*options.cases} - {*case_names}:
        sys.exit(
            f"unknown case: {', '.join(sorted(unknown_cases))}; cases: {', '.join(case_names)}"
        )
    model = ["--model", options.model] if options.model else []
    lines, summary = dict[str, str](), ""
    with tempfile.TemporaryDirectory(prefix="stepper-evals-") as folder:
        plugin = copy_plugin(Path(folder, "plugin"))
        Path(folder, "runs").mkdir()
        for name in options.cases or case_names:
            result, _ = run_case(
                options.client,
                plugin,
                name,
                {**os.environ, "TMPDIR": f"{folder}/runs"},
                "--runs",
                options.runs,
                *model,
            )
            lines |= format_rows(result)
            summary = f"{result['startedAt'][:10]}, Claude Code {result['claudeVersion']}, model {options.model or 'default'}"
            print(lines.get(name, f"| {name} | was not run |"), flush=True)
    print("\n" + HEAD + "\n".join(lines.values()) + f"\n\n{summary}")
    if options.write:
        write_rows(lines, summary)


if __name__ == "__main__":
    main()
