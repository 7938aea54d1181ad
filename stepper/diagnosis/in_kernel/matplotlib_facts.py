"""Descriptions of matplotlib figures, recorded when the figures are displayed.

The figures cannot be described after the cell, because the backend closes them. Only
the results of the last draw are read: this module does not draw, and does not call
formatters or other code of the user. It does not import matplotlib.
"""

from __future__ import annotations

import base64
import functools
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import (
    clock,
    get_qualname,
    list_class_names,
    shell,
    shorten,
)

MAX_TEXT = 80  # characters
MAX_AXES = 12
MAX_IMAGES = 12  # of the same axes
MAX_LEGEND = 8
MAX_FIGURES = 16
MAX_VALUES = 100_000
MAX_IMAGE_VALUES = 1_000_000
MAX_SECONDS = 0.03
FIGURE_CLASS = "matplotlib.figure.Figure"
# A report shows the first of these types that an output has.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/svg+xml")
# Formatters whose labels say more than the numbers.
TEXT_FORMATTERS = re.compile("Date|FixedFormatter|FuncFormatter|StrCategory")
# A class of matplotlib → the kind of artist. The first class of the MRO counts.
KINDS = {
    "Line2D": "line",
    "PathCollection": "scatter",
    "QuadMesh": "image",
    "_ImageBase": "image",
    "Patch": "patch",
    "Collection": "other collection",
    "Text": "text",
}
# Attributes of axes that contain artists.
ARTIST_LISTS = (
    "lines",
    "collections",
    "patches",
    "images",
    "tables",
    "artists",
    "texts",
)
# Kinds whose points are inspected if nothing else is on the axes.
POINT_KINDS = {"line", "scatter", "bar"}
TITLE_POSITIONS = ("center", "left", "right")
# Texts of axes that are not reported.
DEFAULT_TEXTS = ("", "rectilinear", "linear")
NUMBER = re.compile(r"[-−]?[\d,]*\.?\d*")
# Functions that return the points of an artist, by kind. An artist of these kinds that
# has no points is not counted.
POINTS: dict[str, Callable[[Any], Any]] = {
    "line": lambda line: line.get_xydata(),
    "scatter": lambda scatter: scatter.get_offsets(),
    "other collection": lambda collection: collection.get_paths(),
}
Fact = dict[str, Any]
figures: list[Fact] = []


class Artist(NamedTuple):
    """A visible artist of axes, and its kind (see KINDS), such as "line" or "bar"."""

    kind: str
    artist: Any


class AxesDescription(NamedTuple):
    """Axes of a figure, and the fact that describes them."""

    axes: Any
    fact: Fact


def install() -> None:
    """Wrap IPython's display formatter to record the displayed figures."""
    formatter = shell.display_formatter
    original = formatter.format

    @functools.wraps(original)
    def format(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # IPython's name
        """Format a value as IPython does, and record a figure."""
        result = original(*args, **kwargs)
        value = args[0] if args else kwargs.get("obj")
        call_or_interrupt(record_figure, value, result)
        return result

    formatter.format = format


def uninstall() -> None:
    """Remove the wrapper before a helper of another version is installed.

    If the user's code has wrapped the wrapper, do nothing.
    """
    formatter = shell.display_formatter
    wrapper = vars(formatter).get("format")
    wrapper_globals = getattr(wrapper, "__globals__", None)
    if wrapper_globals is globals():
        formatter.format = vars(wrapper)["__wrapped__"]


def reset() -> None:
    """Remove the descriptions of the previous run's figures."""
    figures.clear()


def list_figures() -> list[Fact]:
    """Return the descriptions of this run's figures."""
    return list(figures)


def call_or_interrupt(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or None if the function fails.

    KeyboardInterrupt is raised, because it must interrupt the cell that displays the
    figure. `call_safely` would suppress it.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the user's figures may even raise SystemExit
        return None


def record_figure(value: Any, result: Any) -> None:
    """Record the description of a displayed value if it is a matplotlib figure.

    `result` is the result of IPython's display formatter.
    """
    if "matplotlib.figure" not in sys.modules:
        return
    if FIGURE_CLASS not in list_class_names(type(value)):
        return
    key = call_or_interrupt(compute_image_key, result[0])
    if key is None:
        return
    fact = {"key": key, **describe_figure(value)}
    figures.append(fact)
    if len(figures) > MAX_FIGURES:
        # The first and the last images stay: the last image of an animation is visible.
        del figures[MAX_FIGURES // 2]


def compute_image_key(data: dict[str, Any]) -> int | None:
    """Return the hash that identifies an image in the outputs.

    Return None if the data contains no image. A position cannot identify an image,
    because %%capture, clear_output and updates change the outputs.
    """
    contents = [data[mime] for mime in IMAGE_TYPES if data.get(mime)]
    if not contents:
        return None
    content = contents[0]
    if type(content) is not str:
        content = base64.b64encode(content).decode()
    text = "".join(content.split())
    encoded = text.encode("utf-8", "replace")
    return zlib.crc32(encoded)


def describe_figure(figure: Any) -> Fact:
    """Return the title, color bars, legend and axes of a figure.

    `left_out` is the number of axes that are not described: more than MAX_AXES, or
    reached after MAX_SECONDS.
    """
    deadline = clock() + MAX_SECONDS
    color_bars: list[Any] = []
    plots: list[Any] = []
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        if is_color_bar(axes):
            color_bars.append(axes)
        else:
            plots.append(axes)
    descriptions: list[AxesDescription] = []
    for axes in plots[:MAX_AXES]:
        if clock() < deadline:
            fact = call_or_interrupt(describe_axes, axes, deadline)
            description = AxesDescription(axes, fact or {})
            descriptions.append(description)
    title = getattr(figure, "_suptitle", None)
    title_text = ""
    if title is not None:
        title_text = cut(title.get_text())
    legend: list[str] = []
    if figure.legends:
        legend = list_legend(figure.legends[0])
    return {
        "title": title_text,
        "color_bars": [get_color_bar_label(bar) for bar in color_bars[:MAX_AXES]],
        "legend": legend,
        "axes": list(select_axes(descriptions)),
        "left_out": len(plots) - len(descriptions),
    }


def is_color_bar(axes: Any) -> bool:
    """Return whether axes show a color bar."""
    if getattr(axes, "_colorbar", None):
        return True
    label = axes.get_label()
    return bool(label == "<colorbar>")


def get_color_bar_label(axes: Any) -> str:
    """Return the label of a color bar."""
    label = axes.get_ylabel()
    if not label:
        label = axes.get_xlabel()
    return cut(label)


def select_axes(descriptions: list[AxesDescription]) -> Iterator[Fact]:
    """Yield the descriptions of axes, except of axes that are empty on purpose.

    Axes are empty on purpose if they are switched off, or if other axes with data have
    the same position, as with twin axes.
    """
    positions = []
    for axes, fact in descriptions:
        if not is_blank(fact):
            position = axes.get_position()
            positions.append(position.bounds)
    for axes, fact in descriptions:
        position = axes.get_position()
        is_covered = position.bounds in positions
        is_intended = is_covered or not axes.axison
        if not is_intended or not is_blank(fact):
            yield fact


def is_blank(fact: Fact) -> bool:
    """Return whether axes with this description contain no data."""
    return fact.get("invisible") == "blank"


def describe_axes(axes: Any, deadline: float) -> Fact:
    """Return the texts, limits, legend and artists of axes."""
    titles = [axes.get_title(loc=position) for position in TITLE_POSITIONS]
    texts = {
        "title": next(filter(None, titles), ""),
        "xlabel": axes.get_xlabel(),
        "ylabel": axes.get_ylabel(),
        "kind": axes.name,
        "xscale": axes.get_xscale(),
        "yscale": axes.get_yscale(),
    }
    fact: Fact = {}
    for name, text in texts.items():
        if text not in DEFAULT_TEXTS:
            fact[name] = cut(text)
    x_limits = axes.get_xlim()
    y_limits = axes.get_ylim()
    fact["xlim"] = call_or_interrupt(describe_limits, axes.xaxis, *x_limits)
    fact["ylim"] = call_or_interrupt(describe_limits, axes.yaxis, *y_limits)
    legend = axes.get_legend()
    if legend is not None and legend.get_visible():
        fact["legend"] = list_legend(legend)
    artist_fact = describe_artists(axes, deadline)
    fact.update(artist_fact)
    return {name: value for name, value in fact.items() if value}


def describe_artists(axes: Any, deadline: float) -> Fact:
    """Return a dict that describes the artists of axes.

    The keys are "artists" (the numbers of artists and points of each kind), "images",
    and "invisible" (the result of `explain_invisible`).
    """
    artist_counts: dict[str, int] = {}
    point_counts: dict[str, int] = {}
    images: list[Fact] = []
    artists = []
    for artist in list_artists(axes):
        kind = artist.kind
        if kind == "image":
            if len(images) < MAX_IMAGES:
                image = call_or_interrupt(describe_image, artist.artist)
                images.append(image or {})
            continue
        point_count = 0
        if kind in POINTS:
            points = POINTS[kind](artist.artist)
            point_count = len(points)
            if point_count == 0:
                continue
        artists.append(artist)
        artist_counts[kind] = artist_counts.get(kind, 0) + 1
        point_counts[kind] = point_counts.get(kind, 0) + point_count
    # The order of the values is that of `figure_summary.ArtistGroup`.
    groups = []
    for kind, artist_count in artist_counts.items():
        group = [kind, artist_count, point_counts[kind]]
        groups.append(group)
    return {
        "artists": groups,
        "images": images,
        "invisible": explain_invisible(axes, artists, images, deadline),
    }


def explain_invisible(
    axes: Any,
    artists: list[Artist],
    images: list[Fact],
    deadline: float,
) -> str:
    """Return the reason why nothing is visible on axes, or an empty string.

    The reason is "blank" if there are no artists, and "nan" if all values are NaN.
    `artists` excludes images and artists without points.
    """
    if not artists and not images:
        return "blank"
    kinds = {artist.kind for artist in artists}
    kinds.discard("text")
    if images:
        has_visible = bool(kinds) or any(map(has_values, images))
        return "" if has_visible else "nan"
    if axes.name != "rectilinear":
        return ""
    if not kinds <= POINT_KINDS:
        return ""
    is_nan = call_or_interrupt(are_all_nan, axes, artists, deadline)
    return "nan" if is_nan else ""


def list_artists(axes: Any) -> list[Artist]:
    """Return the visible artists of axes."""
    bars: set[int] = set()
    for container in axes.containers:
        if type(container).__name__ == "BarContainer":
            bars.update(map(id, container.patches))
    artists = []
    for name in ARTIST_LISTS:
        for artist in getattr(axes, name):
            if not artist.get_visible():
                continue
            kind = "bar"
            if id(artist) not in bars:
                kind = classify_artist(artist, axes)
            artists.append(Artist(kind, artist))
    return artists


def has_values(image: Fact) -> bool:
    """Return whether an image has values. Return True if this is unknown."""
    return "shape" not in image or "max" in image


def classify_artist(artist: Any, axes: Any) -> str:
    """Return the kind of an artist."""
    for base in type(artist).__mro__:
        kind = KINDS.get(get_qualname(base))
        if kind is None:
            continue
        if kind == "scatter":
            transform = artist.get_offset_transform()
            if not is_in_data(transform, axes):
                return "other collection"  # a contour
        return kind
    return "other artist"


def is_in_data(transform: Any, axes: Any) -> bool:
    """Return whether a transform converts data coordinates of the axes."""
    # `==` compares the effects, and the transform of axhline has the same effect if the
    # limits are 0 and 1.
    contains_data = transform.contains_branch_seperately(axes.transData)
    if not all(contains_data):
        return False
    return bool(transform == axes.transData)


def are_all_nan(axes: Any, artists: list[Artist], deadline: float) -> bool:
    """Return whether no point of the lines, scatters and bars can be drawn.

    Lines that are not in data coordinates, such as lines of `axhline`, do not count.
    Return False if there are no points or too many points, or if the deadline passes.
    """
    numpy = sys.modules["numpy"]
    remaining_count = MAX_VALUES
    has_points = False
    for artist in artists:
        points = list_points(artist, axes)
        data = numpy.ma.asarray(points, dtype=float)
        filled = numpy.ma.filled(data, math.nan)
        values = filled.reshape(-1, 2)
        remaining_count -= values.size
        if remaining_count < 0 or clock() > deadline:
            return False
        is_drawn = numpy.isfinite(values).all(axis=1)
        if is_drawn.any():
            return False
        if len(values) > 0:
            has_points = True
    return has_points


def list_points(artist_with_kind: Artist, axes: Any) -> Any:
    """Return the points of a line or scatter, or the width and height of a bar.

    Return an empty list for other artists, and for lines that are not in data
    coordinates.
    """
    kind, artist = artist_with_kind
    if kind == "bar":
        size = [artist.get_width(), artist.get_height()]
        return [size]
    if kind == "scatter":
        return POINTS[kind](artist)
    if kind == "line":
        transform = artist.get_transform()
        if is_in_data(transform, axes):
            return POINTS[kind](artist)
    return []


def describe_image(artist: Any) -> Fact:
    """Return the shape of an image and the range of its values.

    The range ("min" and "max") is missing if all values are NaN or masked. If the image
    is too large to inspect, "max" is None.
    """
    numpy = sys.modules["numpy"]
    values = artist.get_array()
    shape = values.shape[:3]
    base_names = map(get_qualname, type(artist).__mro__)
    if "QuadMesh" in base_names:
        corners = artist.get_coordinates()
        shape = [side - 1 for side in corners.shape[:2]]
    fact: Fact = {"shape": list(map(int, shape))}
    if values.size > MAX_IMAGE_VALUES:
        fact["max"] = None
        return fact
    data = numpy.ma.getdata(values)
    is_hidden = numpy.ma.getmaskarray(values)
    if data.dtype.kind == "f":
        is_hidden = is_hidden | numpy.isnan(data)
    if is_hidden.any():
        data = data[~is_hidden]
    if data.size:
        fact["min"] = round_number(data.min())
        fact["max"] = round_number(data.max())
    return fact


def describe_limits(axis: Any, low: float, high: float) -> list[Any]:
    """Return the limits of an axis.

    These are the first and the last tick label if the labels are texts, for example
    dates, else the two numbers. A number that is not finite is replaced by None.
    """
    formatter = axis.get_major_formatter()
    formatter_name = get_qualname(type(formatter))
    texts = []
    if TEXT_FORMATTERS.search(formatter_name):
        limits = sorted((low, high))
        texts = list_tick_labels(axis, *limits)
    if texts:
        ends = [texts[0], texts[-1]]
        are_numbers = all(map(NUMBER.fullmatch, ends))
        if not are_numbers:
            if low > high:
                ends.reverse()
            return list(map(cut, ends))
    return [round_number(low), round_number(high)]


def list_tick_labels(axis: Any, low: float, high: float) -> list[str]:
    """Return the drawn tick labels between two positions.

    The labels are read from the ticks, because the axis would call the user's formatter
    again.
    """
    count = len(axis.get_majorticklocs())
    ticks = []
    for tick in axis.majorTicks[:count]:
        if low <= tick.get_loc() <= high:
            ticks.append(tick)
    ticks.sort(key=lambda tick: float(tick.get_loc()))
    labels = []
    for tick in ticks:
        words = tick.label1.get_text().split()
        if words:
            labels.append(" ".join(words))
    return labels


def list_legend(legend: Any) -> list[str]:
    """Return the first texts of a legend."""
    texts = legend.get_texts()
    return [cut(text.get_text()) for text in texts[:MAX_LEGEND]]


def cut(text: Any) -> str:
    """Return the first MAX_TEXT characters of a text."""
    return shorten(str(text), MAX_TEXT)


def round_number(value: Any) -> float | None:
    """Return a number with four significant digits, or None if it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return float(f"{number:.4g}")
