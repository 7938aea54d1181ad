"""Fold a stream like JupyterLab (`processText` in packages/outputarea).

This is an independent implementation, used to check the folding in the package.
"""

from __future__ import annotations


def folded(text: str) -> str:
    """Apply `\\r`, `\\b` and `\\n` to a text, character by character."""
    outputs: list[str] = []
    line_start = position = 0  # the start of the last line; the next position
    for character in text:
        if character == "\r":
            position = line_start
        elif character == "\b":
            position = max(line_start, position - 1)
        elif character == "\n":
            outputs.append("\n")
            line_start = position = len(outputs)
        else:
            outputs[position : position + 1] = character
            position += 1
    return "".join(outputs)
