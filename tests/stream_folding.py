"""What JupyterLab shows of a stream (its `processText`, packages/outputarea), and so does the file: an own telling."""

from __future__ import annotations


def folded(text: str) -> str:
    """A text after `\\r`, `\\b` and `\\n` did their work, character by character."""
    outputs: list[str] = []
    begin = at = 0  # of the last line; where the next character goes
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
