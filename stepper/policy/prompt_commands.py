"""The plain words of the person's that are commands, and what is said with them.

A prompt is a command where it begins with the command's words – no more than consent or courtesy before them – and then
ends, or goes on after punctuation or with a word that ties a reason, a hint or an answer to them: "skip cell because we
lack data". It is none where that sentence asks, or where commands are named again: it speaks of them then.

"stop the cell" ends at once what may have run for hours: it is none, too, where its sentence says when, or on what
condition ("if", "until", "after" …), or what of the cell ("from printing so much"). The agent reads that, and does it.

`understood` reads further plain sentences ("skip that one", "go on", "yes, use it"), only while a stop is in force or a
cell runs, and only where the whole prompt has no other reading: a condition, a time, a negation or a question is none.
"""

from __future__ import annotations

import re

STOP = r"stop\s+(?:the|this|that)\s+(?:running\s+)?cell|/notebook-status\s+stop"
WORDS = rf"continue\s+notebook|fix\s+and\s+retry|skip\s+cell|show\s+status|{STOP}"
THANKS = "please|pls|thanks|thank you"
COURTESY = f"{THANKS}|ok|okay|yes|yep|sure|great|good|fine|right|alright|well|now|then"
TIES = f"because|due to|since|as|for|and|but|so|then|now|with|without|using|by|from|where|after|until|{THANKS}"
COMMAND = re.compile(
    rf"(?:(?:{COURTESY})\b[\s,.!:;–—-]*)*(?P<words>{WORDS})(?: of (?:the|this) notebook)?"
    rf"(?P<rest>\s*$|\s*[,.;:!(…–—\n]|\s+-|\s+(?:{TIES})\b)",
    re.IGNORECASE,
)
NAMED = re.compile(rf"\b(?:{WORDS})\b", re.IGNORECASE)
END = re.compile(r"(?<![.!?…])[.!?…]+(?=[\s\"')]|$)|\n")  # of a sentence
# The sentence that stops a cell: neither an ellipsis nor a line after a comma ends it,
# nor does "But" begin another.
SENTENCE = re.compile(
    r"(?s:.*?)(?:(?<![.…])[.!](?=[\s\"')]|$)(?!\s+(?:but|only|not)\b)|(?<![,;:–—-])\n|\Z)",
    re.IGNORECASE,
)
CONDITION = "if|unless|when|whenever|in case|as long|while|until|till|before|after|(?<!at )once|soon|later|tomorrow|tonight"
TIED = re.compile(
    rf"\b(?:{CONDITION}|not (?:now|yet))\b|^\s*(?:from|where|with|without|using)\b"
    r"|(?:^|[^\w\s]|\bbut|\bonly|\band)\s*(?:at(?! once)|by|in|on)\b",
    re.IGNORECASE,
)
DASHES = re.compile(r"^[\s,.;:!…–—-]+")
PLEASE = re.compile(
    rf"^(?:{THANKS}|now)\b\W*|(?<!\W)\W*\b(?:{THANKS})\W*$", re.IGNORECASE
)


def addressed(message: str) -> tuple[str, str]:
    """Return the notebook that a message of the user's begins with, '' for none, and the rest of the message.

    `notebooks/a.ipynb the dates are in UTC`; a name with spaces is in quotes.
    """
    found = ADDRESS.match(message)
    if found is None:
        return "", message
    return found["quoted"] or found["plain"], message[found.end() :].strip()


def command(prompt: str) -> tuple[str, str] | None:
    """Return the command's words, in lower case, and what is said with them; None where a prompt is no command."""
    prompt = prompt.strip()
    found = COMMAND.match(prompt)
    if found is None:
        return None
    end = END.search(prompt, found.end("words"))
    if (end and "?" in end[0]) or NAMED.search(prompt, found.end("words")):
        return None
    said = PLEASE.sub("", DASHES.sub("", prompt[found.start("rest") :]))
    words = " ".join(found["words"].lower().split())
    if "stop" not in words:
        return words, said.strip()
    sentence = SENTENCE.match(prompt, found.end("words"))
    return (
        None
        if sentence and TIED.search(sentence[0])
        else ("stop the cell", said.strip())
    )


# a notebook's name at the beginning of a message
ADDRESS = re.compile(
    r"""\s*(?:(?P<mark>["'])(?P<quoted>[^\n]*?\.ipynb)(?P=mark)|(?P<plain>[^\s"']\S*\.ipynb))(?=\s|$)"""
)
# Sentences that are commands only while the notebook is stopped, or while a cell runs.
# The whole prompt must read so.
POLITE = (
    rf"(?:(?:{COURTESY})\b[\s,.!:;–—-]*)*(?:(?:just|let['’]?s|you can|you may)\s+)?"
)
IT = r"(?:it|that|this|that one|this one|(?:the|that|this) (?:failed |failing )?(?:step|cell))"
TAIL = rf"(?:\s+(?:{THANKS}|now))*"
SKIP_IT = re.compile(
    rf"{POLITE}skip {IT}{TAIL}(?P<rest>\s*[.!]*\s*$|\s*[,;:–—]\s*.+|\s+because\b.+)",
    re.IGNORECASE,
)
FIX_IT = re.compile(
    rf"{POLITE}(?:fix|retry) {IT}{TAIL}(?P<rest>\s*[.!]*\s*$|\s*[,;:–—]\s*.+)",
    re.IGNORECASE,
)
GO_ON = re.compile(
    rf"{POLITE}(?:go on|go ahead|continue|carry on|proceed|resume){TAIL}(?P<rest>\s*[.!]*\s*$|\s*[,;:–—]\s*.+)",
    re.IGNORECASE,
)
STOP_IT = re.compile(
    rf"{POLITE}(?:stop|interrupt|cancel) {IT}{TAIL}(?P<rest>\s*[.!]*\s*$)",
    re.IGNORECASE,
)
ANSWER = re.compile(
    r"(?:(?:yes|yep|yeah|sure|ok|okay)\b"
    r"(?:\s*[.!]*\s*$|\s*[,;:.–—-]\s*(?:please )?(?:do|use|take|keep|drop|it|that|the)\b.*)"
    r"|(?:(?:yes|no)\s*[,;:]?\s+)?(?:please )?(?:use|take|keep|drop|prefer) \S.*)",
    re.IGNORECASE,
)
UNCLEAR = re.compile(
    rf"\?|\n|\b(?:{CONDITION}|not|never|do(?:es)?n['’]?t|wo(?:ul)?dn['’]?t|would|should|could|might|wait|first|only"
    r"|but|instead of|later|until|try|tell me|show me|explain|then)\b|n['’]t\b",
    re.IGNORECASE,
)
# a reason to skip
UNNEEDED = re.compile(
    r"\b(?:I|we) don['’]?t (?:need|want) (?:it|that|this)\b", re.IGNORECASE
)
LONGEST = 200  # characters: a longer prompt says more than one thing


def understood(
    prompt: str, stopped: bool, asked: bool, running: bool
) -> tuple[str, str] | None:
    """Return the command that a plain sentence gives in a notebook's present status, with its message, or None.

    `stopped`: a stop is in force; `asked`: it asks the user a question; `running`: a cell runs.
    """
    prompt = prompt.strip()
    if len(prompt) > LONGEST or UNCLEAR.search(UNNEEDED.sub("", prompt)):
        return None
    if running and STOP_IT.fullmatch(prompt):
        return "stop the cell", ""
    if not stopped:
        return None
    for pattern, words in (
        (SKIP_IT, "skip cell"),
        (FIX_IT, "fix and retry"),
        (GO_ON, "continue notebook"),
    ):
        if found := pattern.fullmatch(prompt):
            return words, DASHES.sub("", found["rest"]).strip()
    return ("continue notebook", prompt) if asked and ANSWER.fullmatch(prompt) else None
