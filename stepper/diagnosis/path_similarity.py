"""Similarity of file names, and the distance between folders."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

from stepper.common.project_walk import SECONDS

MAX_PATH = 4096  # characters, a limit of the operating system
MIN_RATIO = 0.6  # of difflib
# Scores above every ratio.
SAME_NAME = 4.0
OTHER_CASE = 3.0
OTHER_EXTENSION = 2.0


def score_similar_names(wanted: str, names: Iterable[str]) -> dict[str, float]:
    """Return the names that are similar to a wanted name, with their scores.

    A name is similar if it is equal, if it differs only in case or extension, or if its
    `difflib` ratio is at least MIN_RATIO. A higher score means more similar. The
    comparison stops after SECONDS.
    """
    folded_wanted = _fold(wanted)
    stem = _remove_extension(folded_wanted)
    scores: dict[str, float] = {}
    remaining_names = []
    for name in names:
        folded = _fold(name)
        if name == wanted:
            scores[name] = SAME_NAME
        elif folded == folded_wanted:
            scores[name] = OTHER_CASE
        elif (
            _remove_extension(folded) == stem
            or folded.startswith(folded_wanted + ".")
            or folded_wanted.startswith(folded + ".")
        ):
            scores[name] = OTHER_EXTENSION
        else:
            # Compare without the extension: equal extensions do not make names similar.
            remaining_names.append((_remove_extension(folded), name))
    matcher = SequenceMatcher(b=stem, autojunk=False)
    deadline = time.monotonic() + SECONDS
    for other_stem, name in remaining_names:
        matcher.set_seq1(other_stem)
        # The quick ratios are upper bounds of the ratio, which is slow to compute.
        if (
            matcher.real_quick_ratio() >= MIN_RATIO
            and matcher.quick_ratio() >= MIN_RATIO
            and matcher.ratio() >= MIN_RATIO
        ):
            scores[name] = matcher.ratio()
        if time.monotonic() > deadline:
            break
    return scores


def _remove_extension(name: str) -> str:
    """Return a file name without its extension, such as `.gz` of `a.csv.gz`."""
    stem, _, _ = name.rpartition(".")
    return stem or name


def _fold(name: str) -> str:
    """Return a name in lower case, with accents in one Unicode form."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", name).casefold()


def measure_folder_distance(first: str, second: str) -> int:
    """Return the number of steps from one folder to another in the folder tree.

    Equal last parts of the paths are ignored, because such a folder was probably moved.
    """
    first_parts = list(Path(first).parts)
    second_parts = list(Path(second).parts)
    while first_parts and second_parts and first_parts[-1] == second_parts[-1]:
        first_parts.pop()
        second_parts.pop()
    shared_count = 0
    for first_part, second_part in zip(first_parts, second_parts, strict=False):
        if first_part != second_part:
            break
        shared_count += 1
    steps_up = len(first_parts) - shared_count
    steps_down = len(second_parts) - shared_count
    return steps_up + steps_down
