"""Recognize commands in the user's prompts, such as "skip cell because …".

`parse_command` recognizes the documented commands. A prompt is a command if it starts
with the words of a command, possibly after words such as "yes" or "please", and then
ends or continues with punctuation or a conjunction. A prompt is not a command if the
first sentence is a question, or if another command is mentioned, because the user is
then talking about commands.

"stop the cell" can discard hours of work. These words are not a command if the sentence
has a condition ("if", "until", "after" …) or concerns only a part of the cell ("from
printing so much").

`parse_sentence` recognizes other phrases ("skip that one", "go on", "yes, use it").
They are commands only while the notebook is stopped or a cell runs, and only if the
prompt contains no condition, time, negation or question.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SKIP = "skip cell"
FIX = "fix and retry"
CONTINUE = "continue notebook"
STOP = "stop the cell"
STATUS = "show status"


class PromptCommand(NamedTuple):
    """A command of the user, such as "fix and retry: the dates are in UTC"."""

    words: str  # SKIP, FIX, CONTINUE, STOP or STATUS
    message: str  # the rest of the prompt, for the agent


class NotebookMessage(NamedTuple):
    """A message of the user, and the notebook that precedes it."""

    notebook: str  # empty if the message has none
    text: str


STOP_WORDS = r"stop\s+(?:the|this|that)\s+(?:running\s+)?cell|/notebook-status\s+stop"
WORDS = (
    r"continue\s+notebook|fix\s+and\s+retry|skip\s+cell|show\s+status"
    rf"|{STOP_WORDS}"
)
THANKS = "please|pls|thanks|thank you"
COURTESY = f"{THANKS}|ok|okay|yes|yep|sure|great|good|fine|right|alright|well|now|then"
CONJUNCTIONS = (
    "because|due to|since|as|for|and|but|so|then|now|with|without|using|by|from|where"
    f"|after|until|{THANKS}"
)
COMMAND = re.compile(
    rf"(?:(?:{COURTESY})\b[\s,.!:;–—-]*)*(?P<words>{WORDS})"
    r"(?: of (?:the|this) notebook)?"
    rf"(?P<rest>\s*$|\s*[,.;:!(…–—\n]|\s+-|\s+(?:{CONJUNCTIONS})\b)",
    re.IGNORECASE,
)
MENTION = re.compile(rf"\b(?:{WORDS})\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]+(?=[\s\"')]|$)|\n")
# The rest of a sentence after "stop the cell". The sentence continues after an
# ellipsis, after a line that ends with a comma, and before "But".
STOP_SENTENCE = re.compile(
    r"(?s:.*?)(?:(?<![.…])[.!](?=[\s\"')]|$)(?!\s+(?:but|only|not)\b)"
    r"|(?<![,;:–—-])\n|\Z)",
    re.IGNORECASE,
)
CONDITION = (
    "if|unless|when|whenever|in case|as long|while|until|till|before|after"
    "|(?<!at )once|soon|later|tomorrow|tonight"
)
STOP_CONDITION = re.compile(
    rf"\b(?:{CONDITION}|not (?:now|yet))\b|^\s*(?:from|where|with|without|using)\b"
    r"|(?:^|[^\w\s]|\bbut|\bonly|\band)\s*(?:at(?! once)|by|in|on)\b",
    re.IGNORECASE,
)
LEADING_PUNCTUATION = re.compile(r"^[\s,.;:!…–—-]+")
COURTESY_AROUND = re.compile(
    rf"^(?:{THANKS}|now)\b\W*|(?<!\W)\W*\b(?:{THANKS})\W*$", re.IGNORECASE
)
# The name of a notebook at the beginning of a message.
NOTEBOOK = re.compile(
    r"""\s*(?:(?P<quote>["'])(?P<quoted>[^\n]*?\.ipynb)(?P=quote)"""
    r"""|(?P<plain>[^\s"']\S*\.ipynb))(?=\s|$)"""
)

# The following patterns must match the whole prompt. They are commands only while the
# notebook is stopped or a cell runs.
POLITE = (
    rf"(?:(?:{COURTESY})\b[\s,.!:;–—-]*)*(?:(?:just|let['’]?s|you can|you may)\s+)?"
)
CELL_PRONOUN = (
    r"(?:it|that|this|that one|this one"
    r"|(?:the|that|this) (?:failed |failing )?(?:step|cell))"
)
TAIL = rf"(?:\s+(?:{THANKS}|now))*"
END_OR_MESSAGE = r"(?P<rest>\s*[.!]*\s*$|\s*[,;:–—]\s*.+)"
SKIP_SENTENCE = re.compile(
    rf"{POLITE}skip {CELL_PRONOUN}{TAIL}"
    r"(?P<rest>\s*[.!]*\s*$|\s*[,;:–—]\s*.+|\s+because\b.+)",
    re.IGNORECASE,
)
FIX_SENTENCE = re.compile(
    rf"{POLITE}(?:fix|retry) {CELL_PRONOUN}{TAIL}{END_OR_MESSAGE}",
    re.IGNORECASE,
)
CONTINUE_SENTENCE = re.compile(
    rf"{POLITE}(?:go on|go ahead|continue|carry on|proceed|resume){TAIL}"
    rf"{END_OR_MESSAGE}",
    re.IGNORECASE,
)
INTERRUPT_SENTENCE = re.compile(
    rf"{POLITE}(?:stop|interrupt|cancel) {CELL_PRONOUN}{TAIL}(?P<rest>\s*[.!]*\s*$)",
    re.IGNORECASE,
)
ANSWER = re.compile(
    r"(?:(?:yes|yep|yeah|sure|ok|okay)\b"
    r"(?:\s*[.!]*\s*$"
    r"|\s*[,;:.–—-]\s*(?:please )?(?:do|use|take|keep|drop|it|that|the)\b.*)"
    r"|(?:(?:yes|no)\s*[,;:]?\s+)?(?:please )?(?:use|take|keep|drop|prefer) \S.*)",
    re.IGNORECASE,
)
UNCLEAR = re.compile(
    rf"\?|\n|\b(?:{CONDITION}|not|never|do(?:es)?n['’]?t|wo(?:ul)?dn['’]?t|would"
    r"|should|could|might|wait|first|only"
    r"|but|instead of|later|until|try|tell me|show me|explain|then)\b|n['’]t\b",
    re.IGNORECASE,
)
# A negation that does not make a prompt unclear: the reason to skip a step.
NOT_NEEDED = re.compile(
    r"\b(?:I|we) don['’]?t (?:need|want) (?:it|that|this)\b", re.IGNORECASE
)
# Longer prompts (in characters) probably contain more than a command.
MAX_SENTENCE_LENGTH = 200


def split_notebook(message: str) -> NotebookMessage:
    """Split a message such as `notebooks/a.ipynb the dates are in UTC`.

    The name of the notebook must be in quotes if it contains spaces.
    """
    match = NOTEBOOK.match(message)
    if match is None:
        return NotebookMessage("", message)
    notebook = match["quoted"] or match["plain"]
    text = message[match.end() :].strip()
    return NotebookMessage(notebook, text)


def parse_command(prompt: str) -> PromptCommand | None:
    """Return the documented command that a prompt starts with, or None.

    The message of the command is the rest of the prompt, without polite words.
    """
    prompt = prompt.strip()
    match = COMMAND.match(prompt)
    if match is None:
        return None
    words_end = match.end("words")
    sentence_end = SENTENCE_END.search(prompt, words_end)
    is_question = sentence_end is not None and "?" in sentence_end[0]
    if is_question or MENTION.search(prompt, words_end):
        return None
    words = " ".join(match["words"].lower().split())
    if "stop" in words:
        sentence = STOP_SENTENCE.match(prompt, words_end)
        if sentence is not None and STOP_CONDITION.search(sentence[0]):
            return None
        words = STOP
    rest = LEADING_PUNCTUATION.sub("", prompt[match.start("rest") :])
    message = COURTESY_AROUND.sub("", rest).strip()
    return PromptCommand(words, message)


def parse_sentence(
    prompt: str, *, is_stopped: bool, has_question: bool, is_running: bool
) -> PromptCommand | None:
    """Return the command that a phrase such as "skip that one" expresses, or None.

    The phrase is the whole prompt. `parse_command` recognizes the documented commands.

    `is_running` says that a cell is running, `is_stopped` that the notebook is stopped,
    and `has_question` that the failed cell asked the user a question.
    """
    prompt = prompt.strip()
    if len(prompt) > MAX_SENTENCE_LENGTH:
        return None
    if UNCLEAR.search(NOT_NEEDED.sub("", prompt)):
        return None
    if is_running and INTERRUPT_SENTENCE.fullmatch(prompt):
        return PromptCommand(STOP, "")
    if not is_stopped:
        return None
    for pattern, words in (
        (SKIP_SENTENCE, SKIP),
        (FIX_SENTENCE, FIX),
        (CONTINUE_SENTENCE, CONTINUE),
    ):
        match = pattern.fullmatch(prompt)
        if match is not None:
            message = LEADING_PUNCTUATION.sub("", match["rest"]).strip()
            return PromptCommand(words, message)
    if has_question and ANSWER.fullmatch(prompt):
        return PromptCommand(CONTINUE, prompt)
    return None
