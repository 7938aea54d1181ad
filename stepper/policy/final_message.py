"""What an agent's last words say of the end of its turn: whether it is to be told what is left."""

from __future__ import annotations

import re

# It says of the whole that it is done …
DONE = re.compile(
    r"\b(?:all|everything|notebook|analysis|plan|task|work|steps|cells)\b"
    r"(?:(?!\bnot\b|n't\b|\bno\b)[^.!?\n]){0,80}\b(?:done|completed?|finished|ready|works|working|passed|passes)\b",
    re.IGNORECASE,
)
# … or why it ends before that.
WHY = re.compile(
    r"\b(?:because|since|until|unless|before (?:I|we)|wait(?:ing)?|blocked|can(?:not|'t)|could(?: not|n't)|unable"
    r"|needs? (?:you|your)|let me know|tell me|please|you (?:asked|said|wanted)|your (?:decision|call|answer|choice)"
    r"|interrupted|paused?|missing)\b",
    re.IGNORECASE,
)

# The user limits what is to be done in this turn: the end of the turn may be what they
# asked for.
LIMITED = re.compile(
    r"\b(?:only|just|stop|wait|pause|halt|hold (?:on|off)|hang on|no (?:further|more)|nothing (?:else|more|further)"
    r"|not yet|for now|first (?:step|cell|one|two|three|part)|(?:one|a single|two|three) (?:steps?|cells?)"
    r"|steps? \d+|until|up to|at most|(?:do not|don['’]?t|never|without) (?:go|going|continue|continuing|run|running"
    r"|start|starting|proceed|proceeding|do|doing|carry|move|moving|add|write|touch|change)"
    r"|ask me|let me (?:see|look|check|know|decide|review)|then (?:show|tell|report|ask|end|finish|i|we)"
    r"|before (?:you|we) (?:go|continue|proceed))\b",
    re.IGNORECASE,
)


def limits(prompt: str) -> bool:
    """Whether a prompt of the user's may limit what is to be done in this turn, also in a question."""
    return bool(LIMITED.search(prompt))


def asks(message: str) -> bool:
    """Whether a message asks the person something: its last paragraph holds a question."""
    last = message.strip().rpartition("\n\n")[2]
    return bool(re.search(r"\?(\s|[\"')*_`\]]|$)", last))


def unexplained(message: str) -> bool:
    """Whether a turn that ends with this message, while work is left, claims to be done or does not say why it ends."""
    return not asks(message) and bool(DONE.search(message) or not WHY.search(message))
