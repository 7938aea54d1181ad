"""Translates the daemon's texts for MCP: tools instead of commands and slash commands.

Lines behind `| ` are data of the notebook and stay as they are, and so do commands that no
tool replaces (`stepper trust`, `stepper doctor`). Only `lift_stop` can resume a stopped
notebook. Where the client can't ask its user, the user types a command in a terminal:
texts `for_user` keep those commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

# A command as it stands in a sentence, without backticks: what may follow it is a path,
# a placeholder, an option, a number or something in quotes.
WORD = r"""[^\s`'"();,]+\.ipynb|'[^'\n]*'|"[^"\n]*"|--[a-z-]+|\[?[A-Z]{2,}\]?|[0-9]+\b|[0-9a-f]{6,}\b|cell-[0-9]+"""
VERBS = (
    "confirm|context|eval|interrupt|kernels wait|list|new|output|plan|report|restart"
    "|restore|run|shutdown|status|use|verify"
)
NOTEBOOK = re.compile(r"'([^'\n]*\.ipynb)'|(?<=\s)((?!--)[^\s'][^\n'`]*?\.ipynb)")
START = r"(?<![\w.-])(?:[^\s`'\"]*/)?stepper "
COMMAND = re.compile(
    rf"`{START}(?P<quoted_verb>{VERBS})\b(?P<quoted_words>[^`\n]*)`"
    rf"|(?<!`){START}(?P<verb>{VERBS})\b(?P<words>(?: (?:{WORD}))*)"
)
SUBCOMMAND = re.compile(" [a-z]")
CALLED = re.compile(
    r"(?<=, )run(:?) (?=`(?:create_notebook|execute_code|kernel|list_notebooks"
    r"|notebook_status|plan|read_notebook|run_notebook|verify)`)"
)
COMMENT = re.compile(r"(`[^`]*`(?:(?: with| and|,) `[^`]*`)*)  # ([^\n]*)$")

# A notebook's name in a slash command.
TYPED = r"(?:\"[^\"\n]*\.ipynb\"|[^\s`'\"(),;]+\.ipynb)"
# A decision on a stop: as a command of Claude Code, and as a line of a stop's ways out.
SLASH = re.compile(
    r"(?<![\w/.`-])`?/(?:stepper:)?(continue|fix|skip)\b(?![/\w.-])"
    rf"(?: ({TYPED}))?(?: (HINT|ANSWER|REASON))?`?"
)
WAY_OUT = re.compile(
    r"^(  )?(?:'[^']*/|\S*/)?stepper'? (continue|fix|skip)(?: --notebook ('[^']*'|\S+))? \[([A-Z]+)\](?:\s+(?=\S)|$)"
)
IN_CLAUDE_CODE = re.compile(
    rf" \(in Claude Code: [^)]*\)| \(/(?:fix|skip|continue)(?: {TYPED})?\)"
)
# How the user resumes, in the format of `edit_gate.format_resume_commands`.
TYPE_ONE = rf"the user types /\w+(?: ({TYPED}))?"
IN_TERMINAL = r" \(in a terminal: [^)]*\)"

RESUME = re.compile(
    rf"(To resume, )?{TYPE_ONE}(?:, /\w+(?: (?:{TYPED}))? or /\w+(?: (?:{TYPED}))?)?{IN_TERMINAL}"
)
QUOTES = "'\""

PHRASES = tuple(
    (re.compile(pattern), here)
    for pattern, here in (
        (r"edit_mode replace, cell_id ", "`run_cell` with `cell_id` "),
        (
            r"(?<!\w)`?ls (?:'[^']*/'|[^\s`'-][^\s`']*/)(?: (?:'[^']*/'|[^\s`'-][^\s`']*/))*`?(?=$|[\s.,;)])",
            "`list_notebooks`",
        ),
        (r"it was shut down by `stepper shutdown`", "it was shut down"),
        (r"until `stepper shutdown`", "until `kernel` with `action: shutdown` ends it"),
        (
            r"it can only be skipped \(([^)]*stepper'? skip(?: --notebook [^)]*)?)\)",
            r"only the user can skip it (`\1`, in a terminal)",
        ),
        # of execute_code
        (r"^stepper: eval (?=FAILED|ran|was|timed)", "stepper: The code "),
        (r"without --scratch", "without `scratch`"),
        (r" NotebookEdit requires a Read of the notebook in this session first\.", ""),
        (r"(?<![\w/.`-])`?/(?:stepper:)?notebook-status\b`?", "`notebook_status`"),
        (r"(?<![\w/.`-])`?/(?:stepper:)?new-notebook\b`?", "`create_notebook`"),
    )
)


def translate(text: str, for_user: bool = False) -> str:
    """Return a text of the daemon as an agent reads it here, or as its user does."""
    return "\n".join(
        line if line.startswith("| ") else _line(line, for_user)
        for line in text.split("\n")
    )


# The keys of the daemon's own texts in data; others contain the user's data.
TEXTS = (
    *("error", "follows", "jupyter", "lost", "renamed", "text", "trouble", "unheard"),
    *("ways", "why"),
)


def translate_data(value: Any) -> Any:
    """Return data with the daemon's texts in them translated."""
    if isinstance(value, Mapping):
        # of a run that ended: its report in one line, not the last line that it printed
        texts = (*TEXTS, "line") if "text" in value else TEXTS
        return {
            name: _translate_texts(each) if name in texts else translate_data(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [translate_data(each) for each in value]
    return value


def _translate_texts(value: Any) -> Any:
    if isinstance(value, str):
        return translate(value)
    if isinstance(value, list | tuple):
        return [_translate_texts(each) for each in value]
    return translate_data(value)


def format_question(text: str) -> str:
    """Return the text of a stop for the form that asks the user."""
    return translate(text.partition("\nTo resume:")[0], for_user=True)


def _line(line: str, for_user: bool) -> str:
    line = IN_CLAUDE_CODE.sub("", line)
    if not for_user:
        line = WAY_OUT.sub(_way_out, line)
    line = RESUME.sub(_ask, line)
    for pattern, here in PHRASES:
        line = pattern.sub(here, line)
    line = SLASH.sub(_decision if for_user else _lift_stop, line)
    line = COMMAND.sub(_tool, line)
    line = CALLED.sub(r"call\1 ", line)
    return COMMENT.sub(r"\1 (\2)", line)


def _way_out(match: re.Match[str]) -> str:
    named = _with_notebook(match[3])
    way = f"{match[1] or ''}`lift_stop`{named} ({match[2]} [{match[4]}])"
    return way if match.end() == len(match.string) else f"{way}: "


def _decision(match: re.Match[str]) -> str:
    return f"`{match[1]}`"


def _lift_stop(match: re.Match[str]) -> str:
    argument = f" {match[3]}" if match[3] else ""
    return f"`lift_stop`{_with_notebook(match[2])} ({match[1]}{argument})"


def _ask(match: re.Match[str]) -> str:
    """Return that the user is asked: by the tool, for that notebook."""
    tool = f"`lift_stop`{_with_notebook(match[2])}"
    if match[1]:
        return f"Only the user can resume the notebook: {tool} asks them"
    return f"{tool} asks the user"


def _with_notebook(name: str | None) -> str:
    """Return the tool's argument for a notebook's name, '' for none."""
    return f" with `notebook: {name.strip(QUOTES)}`" if name else ""


def _tool(match: re.Match[str]) -> str:
    verb = match["quoted_verb"] or match["verb"]
    if match["verb"] == "plan" and SUBCOMMAND.match(match.string, match.end()):
        return match[0]
    text = match["quoted_words"] or match["words"] or ""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = text.split()
    name, arguments = _call(verb, words)
    if not name:
        return match[0]
    if notebook := NOTEBOOK.search(text):
        arguments = [*arguments, f"notebook: {notebook[1] or notebook[2]}"]
    if not arguments:
        return f"`{name}`"
    *first, last = [f"`{argument}`" for argument in arguments]
    given = f"{', '.join(first)} and {last}" if first else last
    return f"`{name}` with {given}"


def _call(verb: str, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the tool that replaces a command, and its arguments; '' for none."""
    match verb:
        case "run":
            which = [word[2:] for word in words if word in ("--all", "--stale")]
            return "run_notebook", [f"which: {each}" for each in which]
        case "restore":
            return "run_notebook", ["which: restore"]
        case "output" if "--figure" in words:
            return "", []  # no tool renders figures
        case "output":
            named = [word for word in words if not word.startswith("-")]
            named = [word for word in named if not word.endswith(".ipynb")][:1]
            cells = [f'cells: ["{word}"]' for word in named if not word.isupper()]
            return "read_notebook", ["outputs: full", *cells]
        case "report":
            return "read_notebook", ["outputs: full"]
        case "confirm":
            return "plan", ["action: confirm", "reason"]
        case "interrupt" | "restart":
            return "kernel", [f"action: {verb}"]
        case "kernels wait":
            return "kernel", ["action: start"]
        case "use" if "--kernel" in words:
            return "kernel", ["action: start", "place"]
        case "use":
            return "notebook_status", []
        case "shutdown" if words:
            return "kernel", ["action: shutdown"]
        case "plan" if all(word.endswith(".ipynb") for word in words):
            return "plan", []
        case "context" | "status":
            return "notebook_status", []
        case "eval":
            return "execute_code", []
        case "list":
            return "list_notebooks", ["all: true"] * ("--all" in words)
        case "new":
            return "create_notebook", []
        case "verify":
            return "verify", ["place"] * ("--kernel" in words)
    return "", []
