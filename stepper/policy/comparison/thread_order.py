"""Recognize printed lines that only have another order, because threads print them.

Two fresh runs may have the same order of threads by chance. So their agreement does not
show that the notebook has changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepper.policy.comparison.output_items import (
    CellOutputs,
    is_stream,
    join_stream,
    list_items,
    list_types,
)

# Code that starts threads or processes itself, so that they may print.
START = re.compile(
    r"\bThread\(|\bThreadPool\w*\(|\bProcess\(|\bProcessPool\w*\(|\bPool\("
    r"|\brun_in_executor\(|\bto_thread\("
)
COMMENT = re.compile(r"#.*$", re.MULTILINE)
# Longer outputs are not compared.
MAX_LINES = 1000


def differ_in_thread_order(
    source: str, recorded: CellOutputs, fresh: CellOutputs
) -> bool:
    """Return whether a cell starts threads, and only the order of its lines differs.

    `print` writes a text and its line break one after the other. So another thread may
    print between them, and two texts are on one line.
    """
    if not START.search(COMMENT.sub("", source)):
        return False
    types = list_types(recorded.outputs) & list_types(fresh.outputs)
    old_displays = list_items(_select_displays(recorded), types)
    new_displays = list_items(_select_displays(fresh), types)
    if old_displays != new_displays:
        return False
    old_lines = _list_lines(recorded)
    new_lines = _list_lines(fresh)
    if old_lines == new_lines or len(old_lines) + len(new_lines) > MAX_LINES:
        return False
    return _consists_of(new_lines, old_lines) or _consists_of(old_lines, new_lines)


def _select_displays(outputs: CellOutputs) -> list[Mapping[str, Any]]:
    """Return the outputs except those that were printed to stdout."""
    return [output for output in outputs.outputs if not is_stream(output, "stdout")]


def _list_lines(outputs: CellOutputs) -> list[str]:
    """Return the printed lines of a cell, without white space and empty lines."""
    lines = join_stream(outputs.outputs, "stdout").splitlines()
    return [text for line in lines if (text := "".join(line.split()))]


def _consists_of(lines: Sequence[str], texts: Sequence[str]) -> bool:
    """Return whether lines consist of texts, each used once, in any order."""
    rest = "\n".join(lines)
    # A long text may contain a short one.
    for text in sorted(texts, key=len, reverse=True):
        if text not in rest:
            return False
        rest = rest.replace(text, "\n", 1)
    return not rest.strip()
