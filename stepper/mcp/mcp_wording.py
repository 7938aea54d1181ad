"""Texts of the daemon in the terms of MCP: its tools instead of Claude Code's fields and commands.

Lines behind `| ` are data of the notebook and stay as they are. Command lines that lift a stop in a terminal
(`stepper fix "HINT"`) stay too: the user types them where a client can't ask.
"""

from __future__ import annotations

import re

NAME = r"(?: (?!--)[^\s`;,()]+)?"  # of a notebook
TERMS = (
    (
        r"the person goes on with /continue, /fix or /skip \(or `stepper continue`, `stepper fix`, `stepper skip`\)",
        "only the user can resume it, and `lift_stop` asks them",
    ),
    (r"edit_mode replace, cell_id ", "`run_cell` with `cell_id` "),
    (rf"`stepper run --stale{NAME}`", "`run_notebook` with `which: stale`"),
    (rf"stepper run --stale{NAME}", "`run_notebook` with `which: stale`"),
    (rf"`stepper restore{NAME}`", "`run_notebook` with `which: restore`"),
    (rf"`stepper run --all{NAME}`", "`run_notebook` with `which: all`"),
    (rf"`stepper run{NAME}`", "`run_notebook`"),
    (
        r"(?<![`\w])stepper run(?: (?:'[^']*'|[^\s`;,()]+\.ipynb))?(?=$|[\s.;,)])",
        "`run_notebook`",
    ),
    (rf"`stepper verify{NAME}`", "`verify`"),
    (rf"`stepper status{NAME}`", "`notebook_status`"),
    (r"`stepper output [^`]*`", "`read_notebook` with `outputs: full`"),
    (r"stepper output(?: [\w./-]+)+", "`read_notebook` with `outputs: full`"),
    (r"`?stepper new(?: \"PROBLEM\"| [^`\n]*(?=`))?`?", "`create_notebook`"),
    (
        r'`stepper confirm "(?:WORDS|REASON)"`',
        "`plan` with `action: confirm` and `reason`",
    ),
    (r"`?ls notebooks/`?", "`list_notebooks`"),
    (r" \(in Claude Code: /continue\)", ""),
    (r" \(/(?:fix|skip|continue)\)", ""),
    (
        r"(?<![\w/.`-])`?/(continue|fix|skip)\b(?![/\w.-])(?: (?:HINT|ANSWER|REASON))?`?",
        r"`\1`",
    ),
    (r"(?<![\w/.`-])`?/notebook-status\b`?", "`notebook_status`"),
    (r"(?<![\w/.`-])`?/new-notebook\b`?", "`create_notebook`"),
)
PATTERNS = [(re.compile(pattern), here) for pattern, here in TERMS]


def translate(text: str) -> str:
    """Return a text of the daemon as an agent reads it here."""
    return "\n".join(
        line if line.startswith("| ") else _line(line) for line in text.split("\n")
    )


def _line(line: str) -> str:
    for pattern, here in PATTERNS:
        line = pattern.sub(here, line)
    return line
