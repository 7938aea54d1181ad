"""Compare outputs by type and key in their order, after random parts are normalized."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.oracle.cell_corpus import CorpusCell
from tests.stream_folding import folded

RANDOM_PARTS = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (
        re.compile(
            r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b"
        ),
        "ID",
    ),
    (re.compile(r"ipykernel_\d+/\d+"), "ipykernel/cell"),
    (re.compile(r"Thread-\d+"), "N"),
    # The line that Python reports when it collects an unreferenced file is random.
    (
        re.compile(
            r"/\S+\.py:\d+: (RuntimeWarning: coroutine '\w+' was never awaited\n)(?:  .*\n)?"
        ),
        r"\1",
    ),
    (
        re.compile(r"The slowest run took .* is being cached\.\n"),
        "",
    ),  # a warning of %timeit on a busy machine
)
DIGITS = re.compile(
    r"[\d.,]+(?:e[+-]\d+)?(?: ?(?:ns|µs|μs|us|ms|s|it/s|s/it)\b)?|[█▏▎▍▌▋▊▉ ]+\|"
)
Outputs = list[dict[str, Any]]


def normalize(value: Any, flags: frozenset[str], folder: str) -> Any:
    """Return a value without its random parts."""
    if isinstance(value, dict):
        return {
            name: "…"
            if name == "image/svg+xml" and "svg" in flags
            else normalize(part, flags, folder)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [normalize(part, flags, folder) for part in value]
    if isinstance(value, str):
        value = value.replace(folder, "FOLDER")
        for pattern, replacement in RANDOM_PARTS:
            value = pattern.sub(replacement, value)
        return (
            "…"
            if "connection" in flags
            else DIGITS.sub("#", value)
            if "digits" in flags
            else value
        )
    return value


def join_streams(outputs: Sequence[Any]) -> Outputs:
    """Merge adjacent outputs of a stream like JupyterLab; nbclient keeps them apart."""
    results: Outputs = []
    for output in map(dict, outputs):
        if (
            results
            and output["output_type"] == "stream" == results[-1]["output_type"]
            and output["name"] == results[-1]["name"]
        ):
            results[-1]["text"] += output["text"]
        else:
            results.append(output)
    return results


def render_as_jupyterlab(outputs: Outputs) -> Outputs:
    """Return nbclient's outputs as JupyterLab saves them.

    Carriage returns and backspaces are applied.
    """
    return [
        {**out, "text": folded(out["text"])} if out["output_type"] == "stream" else out
        for out in outputs
    ]


def contains_all(actual: Outputs, expected: Outputs) -> bool:
    """Return whether `actual` contains all of `expected`, in any order.

    nbclient loses the last output of a child process whose end comes first.
    """

    def text(outputs: Outputs, name: str) -> Counter[str]:
        return Counter(
            "".join(out["text"] for out in outputs if out.get("name") == name)
        )

    def list_displays(outputs: Outputs) -> Outputs:
        return [out for out in outputs if out["output_type"] != "stream"]

    missing = [
        text(expected, name) - text(actual, name) for name in ("stdout", "stderr")
    ]
    return not any(missing) and list_displays(actual) == list_displays(expected)


def describe_difference(
    outputs_of_stepper: Sequence[Any],
    outputs_of_nbclient: Sequence[Sequence[Any]],
    cell: CorpusCell,
    folders: Sequence[str],
) -> str:
    """Return the difference from all of nbclient's runs, or '' if one run is equal."""
    normalized = normalize(join_streams(outputs_of_stepper), cell.flags, folders[0])
    differences = []
    for outputs, folder in zip(outputs_of_nbclient, folders[1:], strict=True):
        expected = normalize(
            render_as_jupyterlab(join_streams(outputs)), cell.flags, folder
        )
        actual = [*normalized]
        if (
            "pager" in cell.flags
            and actual
            and actual[-1]["output_type"] == "display_data"
        ):
            actual.pop()
        if "late" in cell.flags:
            actual = actual[: len(expected)]
        if actual == expected or (
            "race" in cell.flags and contains_all(actual, expected)
        ):
            return ""
        differences.append(f"ours:   {actual}\ntheirs: {expected}")
    return differences[0]
