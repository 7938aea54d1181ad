"""The plain words of the person's that are commands, and what is said with them.

A prompt is a command where it begins with the command's words – no more than consent or courtesy before them – and then
ends, or goes on after punctuation or with a word that ties a reason, a hint or an answer to them: "skip cell because we
lack data". It is none where that sentence asks, or where commands are named again: it speaks of them then.

"stop the cell" ends at once what may have run for hours: it is none, too, where its sentence says when, or on what
condition ("if", "until", "after" …), or what of the cell ("from printing so much"). The agent reads that, and does it.
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
# The sentence that stops a cell: neither an ellipsis nor a line after a comma ends it, nor does "But" begin another.
SENTENCE = re.compile(
    r"(?s:.*?)(?:(?<![.…])[.!](?=[\s\"')]|$)(?!\s+(?:but|only|not)\b)|(?<![,;:–—-])\n|\Z)", re.IGNORECASE
)
CONDITION = (
    "if|unless|when|whenever|in case|as long|while|until|till|before|after|(?<!at )once|soon|later|tomorrow|tonight"
)
TIED = re.compile(
    rf"\b(?:{CONDITION}|not (?:now|yet))\b|^\s*(?:from|where|with|without|using)\b"
    r"|(?:^|[^\w\s]|\bbut|\bonly|\band)\s*(?:at(?! once)|by|in|on)\b",
    re.IGNORECASE,
)
DASHES = re.compile(r"^[\s,.;:!…–—-]+")
PLEASE = re.compile(rf"^(?:{THANKS}|now)\b\W*|(?<!\W)\W*\b(?:{THANKS})\W*$", re.IGNORECASE)


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
    return None if sentence and TIED.search(sentence[0]) else ("stop the cell", said.strip())
