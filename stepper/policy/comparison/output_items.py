"""Turn the outputs of a cell into lines and pictures that can be compared.

The texts of a stream are joined. A display is represented by its most informative MIME
type. The visible text of its HTML, LaTeX or Markdown is added if the plain text
contains few of its words.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.comparison import ignored_differences

RASTER_TYPE = re.compile(r"image/(?!svg)")
# JSON of plotly, Vega and Bokeh.
CHART_TYPE = re.compile(r"application/vnd\.(?!jupyter\.widget-view).*json")
# A text that says only what kind of object is displayed.
PLACEHOLDER = re.compile(r"<[^\n]*>|[\w.]+\(\.\.\.\)")
TEXT_TYPES = (
    "text/html",
    "image/svg+xml",
    "text/markdown",
    "text/latex",
    "application/json",
    "application/javascript",
)
MARKUP_TYPES = ("text/html", "image/svg+xml")
# Types whose visible text is compared if the plain text contains few of its words.
VISIBLE_TYPES = ("text/html", "text/latex", "text/markdown")
# If the plain text contains at least this share of the visible words, the visible text
# is not compared.
REPRESENTATIVE_SHARE = 0.5
# Parts of the HTML of libraries whose HTML depends on the version (scikit-learn,
# xarray). Their plain text is sufficient.
VERSION_DEPENDENT_HTML = ("sk-container-id", "xr-wrap")
INVISIBLE = re.compile(
    r"<script\b.*?</script>|<style\b.*?</style>|<!--.*?-->|<[^>]*>",
    re.DOTALL | re.IGNORECASE,
)
LATEX_COMMAND = re.compile(r"\\(?:begin|end)\{\w+\*?\}|\\[A-Za-z]+|\\.")
WORD = re.compile(r"\w+(?:\.\d+)?")
# A result after the rate of a progress bar, such as `loss=0.5`.
POSTFIX = re.compile(r"\w[\w ]*=")


@dataclass(frozen=True)
class CellOutputs:
    """The outputs of a cell, and the figure summaries by `hash_picture`."""

    outputs: Sequence[Mapping[str, Any]]
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A picture (base64) among the items that are compared."""

    data: str


# A line or a picture.
Item = str | Picture


def list_types(outputs: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the MIME types of outputs."""
    types = set[str]()
    for output in outputs:
        data = output.get("data")
        if isinstance(data, Mapping):
            types.update(data)
    return types


def list_items(
    outputs: Sequence[Mapping[str, Any]], shared_types: set[str]
) -> list[Item]:
    """Return the lines and pictures of outputs, in their order.

    The only lines of stderr are progress bars with results; they are at the end.
    `shared_types` are the MIME types that both the recorded and the fresh outputs have.
    """
    items: list[Item] = []
    printed: list[str] = []
    for output in outputs:
        if is_stream(output, "stdout"):
            printed.append(join_text(output.get("text", "")))
        elif not is_stream(output, "stderr"):
            items += ignored_differences.normalize_lines("".join(printed))
            printed = []
            items += _list_output_items(output, shared_types)
    items += ignored_differences.normalize_lines("".join(printed))
    return [*items, *_list_progress_results(outputs)]


def _list_output_items(output: Mapping[str, Any], shared_types: set[str]) -> list[Item]:
    """Return the lines and pictures of an error or a display."""
    data = output.get("data")
    if output.get("output_type") == "error":
        return [*ignored_differences.normalize_lines(_format_error(output))]
    if isinstance(data, Mapping):
        return _list_display_items(data, shared_types)
    return []


def _list_progress_results(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the finished progress bars on stderr that show results after the rate."""
    text = join_stream(outputs, "stderr")
    if "%|" not in text and "/s" not in text:
        return []
    lines = ignored_differences.normalize_lines(text)
    mark = ignored_differences.PROGRESS_MARK
    return [line for line in lines if POSTFIX.search(line.partition(mark)[2])]


def _format_error(output: Mapping[str, Any]) -> str:
    """Return the class and the message of an error.

    The message of a RecursionError depends on the depth of the stack.
    """
    ename = output.get("ename")
    if ename == "RecursionError":
        return "RecursionError"
    return f"{ename}: {output.get('evalue')}"


def _list_display_items(data: Mapping[str, Any], shared_types: set[str]) -> list[Item]:
    """Return the picture of a display or, without a picture, the lines of its text."""
    rasters = [
        mime_type
        for mime_type, content in data.items()
        if RASTER_TYPE.match(mime_type) and content
    ]
    if rasters:
        # Prefer a type that both sides have, and among these PNG, which is lossless.
        raster = min(
            rasters,
            key=lambda mime_type: (
                mime_type not in shared_types,
                mime_type != "image/png",
                mime_type,
            ),
        )
        words = join_text(data[raster]).split()
        return [Picture("".join(words))]
    text = _select_text(data, shared_types)
    visible_text = _select_visible_text(data, text, shared_types)
    return [
        *ignored_differences.normalize_lines(text),
        *ignored_differences.normalize_lines(visible_text),
    ]


def _select_text(data: Mapping[str, Any], shared_types: set[str]) -> str:
    """Return the most informative text of a display."""
    for mime_type in data:
        if mime_type in shared_types and CHART_TYPE.match(mime_type):
            return ignored_differences.format_json(data[mime_type])
    plain_text = join_text(data.get("text/plain", ""))
    stripped_text = plain_text.strip()
    if stripped_text and not PLACEHOLDER.fullmatch(stripped_text):
        return plain_text
    known_types = (mime_type for mime_type in TEXT_TYPES if data.get(mime_type))
    selected_type = next(known_types, "") or next(iter(data), "")
    if selected_type.endswith("json"):
        return ignored_differences.format_json(data[selected_type])
    text = join_text(data.get(selected_type, ""))
    if selected_type in MARKUP_TYPES:
        return ignored_differences.normalize_markup(text)
    return text


def _select_visible_text(
    data: Mapping[str, Any], text: str, shared_types: set[str]
) -> str:
    """Return the visible text of a display's HTML, LaTeX or Markdown, a word per line.

    `text` is the text of the display that is compared anyway. Return an empty string if
    this text is not the plain text or contains at least half of the visible words, or
    if the HTML depends on the version of its library.
    """
    if text != join_text(data.get("text/plain", "")):
        return ""
    candidates = [name for name in VISIBLE_TYPES if name in shared_types & data.keys()]
    mime_type = next(filter(data.get, candidates), "")
    if not mime_type:
        return ""
    source = join_text(data[mime_type])
    if any(name in source for name in VERSION_DEPENDENT_HTML):
        return ""
    words = _list_visible_words(source, mime_type)
    missing_words = Counter(words) - Counter(WORD.findall(text))
    if missing_words.total() <= len(words) * (1 - REPRESENTATIVE_SHARE):
        return ""
    return "\n".join(words)


def _list_visible_words(source: str, mime_type: str) -> list[str]:
    """Return the words of HTML, LaTeX or Markdown without the markup."""
    if mime_type == "text/html":
        return WORD.findall(html.unescape(INVISIBLE.sub(" ", source)))
    if mime_type == "text/latex":
        return WORD.findall(LATEX_COMMAND.sub(" ", source))
    return WORD.findall(source)


def is_stream(output: Mapping[str, Any], name: str) -> bool:
    """Return whether an output is text of the stream `stdout` or `stderr`."""
    is_text = output.get("output_type") == "stream"
    return is_text and output.get("name", "stdout") == name


def join_stream(outputs: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the text that outputs wrote to the stream `stdout` or `stderr`."""
    return "".join(
        join_text(output.get("text", ""))
        for output in outputs
        if is_stream(output, name)
    )


def join_text(content: Any) -> str:
    """Return the text of an output; a list of lines is joined, as in nbformat.

    Other content is formatted as JSON.
    """
    if isinstance(content, list):
        return "".join(map(str, content))
    if isinstance(content, str):
        return content
    return ignored_differences.format_json(content)
