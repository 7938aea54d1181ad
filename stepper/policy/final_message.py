"""Check whether the agent's last message of a turn explains why steps remain open.

If the message does not explain this, stepper reminds the agent of the open steps.
"""

from __future__ import annotations

import re

# The message claims that the work is done.
DONE = re.compile(
    r"\b(?:all|everything|notebook|analysis|plan|task|work|steps|cells)\b"
    r"(?:(?!\bnot\b|n't\b|\bno\b)[^.!?\n]){0,80}"
    r"\b(?:done|completed?|finished|ready|works|working|passed|passes)\b",
    re.IGNORECASE,
)
# The message gives a reason why the turn is over.
REASON = re.compile(
    r"\b(?:because|since|until|unless|before (?:I|we)|wait(?:ing)?|blocked"
    r"|can(?:not|'t)|could(?: not|n't)|unable"
    r"|needs? (?:you|your)|let me know|tell me|please"
    r"|you (?:asked|said|wanted)|your (?:decision|call|answer|choice)"
    r"|interrupted|paused?|missing)\b",
    re.IGNORECASE,
)

# The user limits the work of this turn, so the turn may end early.
LIMIT = re.compile(
    r"\b(?:only|just|stop|wait|pause|halt|hold (?:on|off)|hang on"
    r"|no (?:further|more)|nothing (?:else|more|further)|not yet|for now"
    r"|first (?:step|cell|one|two|three|part)"
    r"|(?:one|a single|two|three) (?:steps?|cells?)"
    r"|steps? \d+|until|up to|at most"
    r"|(?:do not|don['’]?t|never|without) (?:go|going|continue|continuing|run|running"
    r"|start|starting|proceed|proceeding|do|doing|carry|move|moving|add|write|touch"
    r"|change)"
    r"|ask me|let me (?:see|look|check|know|decide|review)"
    r"|then (?:show|tell|report|ask|end|finish|i|we)"
    r"|before (?:you|we) (?:go|continue|proceed))\b",
    re.IGNORECASE,
)
QUESTION_MARK = re.compile(r"\?(\s|[\"')*_`\]]|$)")


def limits_work(prompt: str) -> bool:
    """Return whether a prompt of the user may limit the work of this turn."""
    return LIMIT.search(prompt) is not None


def asks_question(message: str) -> bool:
    """Return whether the last paragraph of a message contains a question."""
    last_paragraph = message.strip().rpartition("\n\n")[2]
    return QUESTION_MARK.search(last_paragraph) is not None


def lacks_explanation(message: str) -> bool:
    """Return whether a message does not explain why steps remain open.

    A question to the user is an explanation. A claim that all work is done is not.
    """
    if asks_question(message):
        return False
    claims_completion = DONE.search(message) is not None
    return claims_completion or REASON.search(message) is None
