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


def asks(message: str) -> bool:
    """Whether a message asks the person something: its last paragraph holds a question."""
    last = message.strip().rpartition("\n\n")[2]
    return bool(re.search(r"\?(\s|[\"')*_`\]]|$)", last))


def unexplained(message: str) -> bool:
    """Whether a turn that ends with this message, while work is left, claims to be done or does not say why it ends."""
    return not asks(message) and bool(DONE.search(message) or not WHY.search(message))
