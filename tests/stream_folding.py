"""Fold a stream like JupyterLab (`processText` in packages/outputarea).

This is an independent implementation, used to check the folding in the package.
"""

from __future__ import annotations


def folded(text: str) -> str:
    """A text after `\\r`, `\\b` and `\\n` did their work, character by character."""
    outputs: list[str] = []
    begin = at = 0  # of the last line; the position of the next character
    for character in text:
        if character == "\r":
            at = begin
        elif character == "\b":
            at = max(begin, at - 1)
        elif character == "\n":
            outputs.append("\n")
            begin = at = len(outputs)
        else:
            outputs[at : at + 1] = character
            at += 1
    return "".join(outputs)
