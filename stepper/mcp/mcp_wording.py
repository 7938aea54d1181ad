"""Translate the daemon's texts for MCP: replace commands by tools.

Lines that start with `| ` quote data of the notebook and are not translated. Commands
without a corresponding tool, such as `stepper trust`, are kept. An agent can resume a
stopped notebook only with `lift_stop`. If the client can't ask its user, the user types
a command in a terminal: texts with `for_user` keep the commands that resume a notebook.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

QUOTE_PREFIX = "| "
QUOTES = "'\""
# An argument of a command in a sentence without backticks: a notebook, a quoted text,
# an option, a placeholder, a number, the id of a cell.
ARGUMENT = "|".join(
    (
        r"[^\s`'\"();,]+\.ipynb",
        r"'[^'\n]*'",
        r"\"[^\"\n]*\"",
        r"--[a-z-]+",
        r"\[?[A-Z]{2,}\]?",
        r"[0-9]+\b",
        r"[0-9a-f]{6,}\b",
        r"cell-[0-9]+",
    )
)
# The commands that tools replace.
VERBS = (
    "confirm|context|eval|interrupt|kernels wait|list|new|output|plan|report|restart"
    "|restore|run|shutdown|status|undo|use|verify"
)
PROGRAM = r"(?<![\w.-])(?:[^\s`'\"]*/)?stepper "
COMMAND = re.compile(
    rf"`{PROGRAM}(?P<quoted_verb>{VERBS})\b(?P<quoted_words>[^`\n]*)`"
    rf"|(?<!`){PROGRAM}(?P<verb>{VERBS})\b(?P<words>(?: (?:{ARGUMENT}))*)"
)
# The notebook among the words of a command, quoted or not.
NOTEBOOK = re.compile(r"'([^'\n]*\.ipynb)'|(?<=\s)((?!--)[^\s'][^\n'`]*?\.ipynb)")
SUBCOMMAND = re.compile(" [a-z]")
# "run" before the name of a tool, which is replaced by "call".
RUN_TOOL = re.compile(
    r"(?<=, )run(:?) (?=`(?:create_notebook|execute_code|kernel|list_notebooks"
    r"|notebook_status|plan|read_notebook|run_notebook|verify)`)"
)
# The comment of a shell command that was replaced by a tool.
SHELL_COMMENT = re.compile(r"(`[^`]*`(?:(?: with| and|,) `[^`]*`)*)  # ([^\n]*)$")

# The notebook in a slash command.
SLASH_NOTEBOOK = r"(?:\"[^\"\n]*\.ipynb\"|[^\s`'\"(),;]+\.ipynb)"
# A slash command that resumes a notebook.
SLASH = re.compile(
    r"(?<![\w/.`-])`?/(?:stepper:)?(continue|fix|skip)\b(?![/\w.-])"
    rf"(?: ({SLASH_NOTEBOOK}))?(?: (HINT|ANSWER|REASON))?`?"
)
# A line that starts with a shell command that resumes a notebook.
RESUME_COMMAND = re.compile(
    r"^(  )?(?:'[^']*/|\S*/)?stepper'? (continue|fix|skip)"
    r"(?: --notebook ('[^']*'|\S+))? \[([A-Z]+)\](?:\s+(?=\S)|$)"
)
IN_CLAUDE_CODE = re.compile(
    r" \(in Claude Code: [^)]*\)"
    rf"| \(/(?:fix|skip|continue)(?: {SLASH_NOTEBOOK})?\)"
)
# The sentence of `edit_gate.format_resume_commands`.
RESUME_SENTENCE = re.compile(
    rf"(To resume, )?the user types /\w+(?: ({SLASH_NOTEBOOK}))?"
    rf"(?:, /\w+(?: (?:{SLASH_NOTEBOOK}))? or /\w+(?: (?:{SLASH_NOTEBOOK}))?)?"
    r" \(in a terminal: [^)]*\)"
)
FOLDER = r"(?:'[^']*/'|[^\s`'-][^\s`']*/)"


class Phrase(NamedTuple):
    """A pattern, and the text that replaces it."""

    pattern: re.Pattern[str]
    replacement: str


PHRASES = (
    Phrase(
        re.compile("edit_mode replace, cell_id "),
        "`run_cell` with `cell_id` ",
    ),
    Phrase(
        re.compile(rf"(?<!\w)`?ls {FOLDER}(?: {FOLDER})*`?(?=$|[\s.,;)])"),
        "`list_notebooks`",
    ),
    Phrase(re.compile("it was shut down by `stepper shutdown`"), "it was shut down"),
    Phrase(
        re.compile(
            r"it can only be skipped"
            r" \(([^)]*stepper'? skip(?: --notebook [^)]*)?)\)"
        ),
        r"only the user can skip it (`\1`, in a terminal)",
    ),
    # The report of `execute_code`.
    Phrase(re.compile("^stepper: eval (?=FAILED|ran|was|timed)"), "stepper: The code "),
    Phrase(re.compile("without --(scratch|checkpoint)"), r"without `\1`"),
    Phrase(re.compile(r"^(stepper: )?--from(?=: | needs )"), r"\1`from_cell`"),
    Phrase(
        re.compile(r"^(stepper: )?--checkpoint(?=: | needs | can't )"),
        r"\1`checkpoint`",
    ),
    Phrase(re.compile(r" \(`--json` prints them\)"), ""),
    Phrase(
        re.compile(
            r" NotebookEdit requires a Read of the notebook in this session first\."
        ),
        "",
    ),
    Phrase(
        re.compile(r"(?<![\w/.`-])`?/(?:stepper:)?notebook-status\b`?"),
        "`notebook_status`",
    ),
    Phrase(
        re.compile(r"(?<![\w/.`-])`?/(?:stepper:)?new-notebook\b`?"),
        "`create_notebook`",
    ),
)
# The keys with texts of the daemon. Other keys contain the user's data.
TEXT_KEYS = (
    "error",
    "follows",
    "head",
    "jupyter",
    "lost",
    "renamed",
    "text",
    "trouble",
    "unheard",
    "ways",
    "why",
)


class ToolCall(NamedTuple):
    """A call of a tool that replaces a command in a text.

    `arguments` are texts such as `which: all`. `name` is empty if no tool replaces the
    command.
    """

    name: str
    arguments: Sequence[str] = ()


def translate(text: str, for_user: bool = False) -> str:
    """Return a text of the daemon for an agent, or for the user if `for_user` is true.

    Quoted lines are not translated.
    """
    lines = []
    for line in text.split("\n"):
        is_quoted = line.startswith(QUOTE_PREFIX)
        translated_line = line if is_quoted else _translate_line(line, for_user)
        lines.append(translated_line)
    return "\n".join(lines)


def translate_data(value: Any) -> Any:
    """Return a copy of data in which the texts of the daemon are translated.

    These are the values of the keys in TEXT_KEYS, also in nested objects.
    """
    if isinstance(value, Mapping):
        text_keys: Sequence[str] = TEXT_KEYS
        if "text" in value:
            # The `line` of a finished run is its report in one line. Elsewhere, `line`
            # is an output line of the cell.
            text_keys = (*TEXT_KEYS, "line")
        translated_data = {}
        for key, item in value.items():
            is_text = key in text_keys
            translated_data[key] = (
                _translate_texts(item) if is_text else translate_data(item)
            )
        return translated_data
    if isinstance(value, list | tuple):
        return [translate_data(item) for item in value]
    return value


def _translate_texts(value: Any) -> Any:
    """Return a translated text, a list of translated texts, or translated data."""
    if isinstance(value, str):
        return translate(value)
    if isinstance(value, list | tuple):
        return [_translate_texts(item) for item in value]
    return translate_data(value)


def format_question(text: str) -> str:
    """Return the text of a stop for the form that the user sees.

    The commands that resume the notebook are left out.
    """
    return translate(text.partition("\nTo resume:")[0], for_user=True)


def _translate_line(line: str, for_user: bool) -> str:
    """Translate a line of a text: see `translate`.

    The order is significant: each pattern is applied to the result of the previous one.
    """
    line = IN_CLAUDE_CODE.sub("", line)
    if not for_user:
        line = RESUME_COMMAND.sub(_replace_resume_command, line)
    line = RESUME_SENTENCE.sub(_replace_resume_sentence, line)
    for phrase in PHRASES:
        line = phrase.pattern.sub(phrase.replacement, line)
    replace_slash = _replace_with_decision if for_user else _replace_slash_command
    line = SLASH.sub(replace_slash, line)
    line = COMMAND.sub(_replace_command, line)
    line = RUN_TOOL.sub(r"call\1 ", line)
    return SHELL_COMMENT.sub(r"\1 (\2)", line)


def _replace_resume_command(match: re.Match[str]) -> str:
    """Return the `lift_stop` call for a shell command such as `stepper fix [HINT]`."""
    indent, decision, notebook, argument = match.groups()
    tool = _format_lift_stop(notebook)
    text = f"{indent or ''}{tool} ({decision} [{argument}])"
    is_whole_line = match.end() == len(match.string)
    return text if is_whole_line else f"{text}: "


def _replace_with_decision(match: re.Match[str]) -> str:
    """Return the replacement of a slash command: the decision that the form offers."""
    return f"`{match[1]}`"


def _replace_slash_command(match: re.Match[str]) -> str:
    """Return the `lift_stop` call for a slash command such as `/fix HINT`."""
    decision, notebook, argument = match.groups()
    words = f"{decision} {argument}" if argument else decision
    return f"{_format_lift_stop(notebook)} ({words})"


def _replace_resume_sentence(match: re.Match[str]) -> str:
    """Return the replacement of the sentence on how the user resumes a notebook."""
    introduction, notebook = match.groups()
    tool = _format_lift_stop(notebook)
    if introduction:
        return f"Only the user can resume the notebook: {tool} asks them to decide"
    return f"{tool} asks the user to decide"


def _format_lift_stop(notebook: str | None) -> str:
    """Return the `lift_stop` call for a notebook, or for the current one if None."""
    if not notebook:
        return "`lift_stop`"
    return f"`lift_stop` with `notebook: {notebook.strip(QUOTES)}`"


def _replace_command(match: re.Match[str]) -> str:
    """Return the replacement of a shell command: the call of a tool.

    A command that no tool replaces is returned unchanged.
    """
    verb = match["quoted_verb"] or match["verb"]
    if match["verb"] == "plan" and SUBCOMMAND.match(match.string, match.end()):
        return match[0]  # no tool replaces `plan reopen`
    text = match["quoted_words"] or match["words"] or ""
    try:
        words = shlex.split(text)
    except ValueError:  # an unclosed quote
        words = text.split()
    tool_call = _find_tool(verb, words)
    if not tool_call.name:
        return match[0]
    arguments = list(tool_call.arguments)
    notebook = NOTEBOOK.search(text)
    if notebook:
        arguments.append(f"notebook: {notebook[1] or notebook[2]}")
    return _format_tool_call(ToolCall(tool_call.name, arguments))


def _format_tool_call(tool_call: ToolCall) -> str:
    """Return a call such as "`run_notebook` with `which: all` and `notebook: a`"."""
    if not tool_call.arguments:
        return f"`{tool_call.name}`"
    *first_arguments, last_argument = tool_call.arguments
    text = f"`{last_argument}`"
    if first_arguments:
        quoted = [f"`{argument}`" for argument in first_arguments]
        text = f"{', '.join(quoted)} and {text}"
    return f"`{tool_call.name}` with {text}"


def _find_tool(verb: str, words: Sequence[str]) -> ToolCall:
    """Return the tool call that replaces a command, without the notebook.

    `verb` is the command, and `words` are its arguments. The name of the call is empty
    if no tool replaces the command.
    """
    match verb:
        case "run":
            which = [word[2:] for word in words if word in ("--all", "--stale")]
            return ToolCall("run_notebook", [f"which: {name}" for name in which])
        case "restore":
            return ToolCall("run_notebook", ["which: restore"])
        case "output" if "--figure" in words:
            return ToolCall("")  # no tool renders figures
        case "output":
            return ToolCall("read_notebook", ["outputs: full", *_format_cells(words)])
        case "report":
            return ToolCall("read_notebook", ["outputs: full"])
        case "confirm":
            return ToolCall("plan", ["action: confirm", "reason"])
        case "interrupt" | "restart":
            return ToolCall("kernel", [f"action: {verb}"])
        case "undo":
            return ToolCall("kernel", ["action: undo", *_format_cell(words)])
        case "kernels wait":
            return ToolCall("kernel", ["action: start"])
        case "use" if "--kernel" in words:
            return ToolCall("kernel", ["action: start", "place"])
        case "shutdown" if words:
            return ToolCall("kernel", ["action: shutdown"])
        case "plan" if all(word.endswith(".ipynb") for word in words):
            return ToolCall("plan")
        case "context" | "status" | "use":
            return ToolCall("notebook_status")
        case "eval":
            return ToolCall("execute_code")
        case "list":
            arguments = ["all: true"] if "--all" in words else []
            return ToolCall("list_notebooks", arguments)
        case "new":
            return ToolCall("create_notebook")
        case "verify":
            arguments = ["place"] if "--kernel" in words else []
            return ToolCall("verify", arguments)
    return ToolCall("")


def _format_cells(words: Sequence[str]) -> list[str]:
    """Return a list with the argument for the cell of an `output` command.

    The list is empty if the command names no cell.
    """
    cell = _find_cell(words)
    return [f'cells: ["{cell}"]'] if cell else []


def _format_cell(words: Sequence[str]) -> list[str]:
    """Return a list with the argument for the cell of an `undo` command.

    The list is empty if the command names no cell.
    """
    cell = _find_cell(words)
    return [f"cell: {cell}"] if cell else []


def _find_cell(words: Sequence[str]) -> str:
    """Return the cell that a command names, or an empty string."""
    for word in words:
        if word.startswith("-") or word.endswith(".ipynb"):
            continue
        is_placeholder = word.isupper()
        return "" if is_placeholder else word
    return ""
