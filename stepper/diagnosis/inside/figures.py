"""Facts of matplotlib's figures, taken where they are displayed: when a cell has ended the backend has closed them.

Everything is read from what the draw left behind: no draw call, no formatter, no code of the user's. matplotlib is only
looked at where a figure of its own was shown, hence no import of it.
"""

from __future__ import annotations

import base64
import functools
import math
import sys
import zlib

from stepper.kernel.inside.base import class_names, clock, name_of, shell, short

CUT, AXES, LEGEND, KEPT = 80, 12, 8, 16
ARTISTS, VALUES, SECONDS = 2000, 100_000, 0.03
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")  # in the order in which a report takes one
TEXTUAL = {"FixedFormatter", "FuncFormatter", "StrCategoryFormatter"}  # their ticks say more than numbers
entries = []


def begin():
    formatter = shell.display_formatter
    original = formatter.format

    @functools.wraps(original)
    def format(*args, **kwargs):  # noqa: A001  # as IPython calls it
        result = original(*args, **kwargs)
        quietly(note, args[0] if args else kwargs.get("obj"), result)
        return result

    formatter.format = format


def end():
    """For a helper of another version; a wrapper around ours stays, and calls it."""
    ours = vars(shell.display_formatter).get("format")
    if getattr(ours, "__globals__", None) is globals():
        shell.display_formatter.format = ours.__wrapped__


def reset():
    entries.clear()


def collected():
    return list(entries)


def quietly(make, *given):
    """Unlike `guarded` it lets an interrupt through: this runs in the midst of a cell."""
    try:
        return make(*given)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def note(shown, result):
    if "matplotlib.figure" in sys.modules and "matplotlib.figure.Figure" in class_names(type(shown)):
        key = quietly(print_of, result[0])
        if key is not None:
            entries.append({"key": key, **look(shown)})
            if len(entries) > KEPT:  # an animation: its last pictures are those that stay
                del entries[KEPT // 2]


def print_of(data):
    """What a picture is found again by in the outputs, which %%capture, clear_output and updates make others of."""
    for kind in PICTURES:
        held = data.get(kind)
        if held:
            text = held if type(held) is str else base64.b64encode(held).decode()
            return zlib.crc32("".join(text.split()).encode("utf-8", "replace"))
    return None


def look(figure):
    until = clock() + SECONDS
    axes = [one for one in figure.axes if one.get_visible()]
    bars = [one for one in axes if is_colour_bar(one)]
    axes = [one for one in axes if not any(one is bar for bar in bars)]
    told = {"inches": [number(side) for side in figure.get_size_inches()]}
    if bars:
        told["colour_bars"] = [cut(bar.get_ylabel() or bar.get_xlabel()) for bar in bars[:AXES]]
    title = getattr(figure, "_suptitle", None)
    if title is not None:
        told["title"] = cut(title.get_text())
    for legend in figure.legends[:1]:
        told["legend"] = names_in_legend(legend)
    facts = [(one, quietly(look_at, one, until) or {}) for one in axes[:AXES] if clock() < until]
    told["axes"] = [fact for one, fact in facts if not fact.get("off") and not covered(one, fact, axes)]
    told["left_out"] = len(axes) - len(facts)
    return told


def covered(one, fact, axes):
    """Whether it is but the frame of others in its very place: twins, seaborn's diagonals."""
    place = one.get_position().bounds
    return fact.get("invisible") == "blank" and any(
        other is not one and other.get_position().bounds == place and other.has_data() for other in axes
    )


def is_colour_bar(axes):
    return getattr(axes, "_colorbar", None) is not None or axes.get_label() == "<colorbar>"


def look_at(axes, until):
    fact = {}
    titles = [axes.get_title(loc=where) for where in ("center", "left", "right")]
    texts = {"title": next(filter(None, titles), ""), "xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel()}
    fact.update((name, cut(text)) for name, text in texts.items() if text)
    if axes.name != "rectilinear":
        fact["kind"] = cut(axes.name)
    fact["xlim"] = quietly(limits, axes.xaxis, *axes.get_xlim())
    fact["ylim"] = quietly(limits, axes.yaxis, *axes.get_ylim())
    scales = {"xscale": axes.get_xscale(), "yscale": axes.get_yscale()}
    fact.update((name, cut(scale)) for name, scale in scales.items() if scale != "linear")
    legend = axes.get_legend()
    if legend is not None and legend.get_visible():
        fact["legend"] = names_in_legend(legend)
    fact.update(data(axes, until))
    return fact


def data(axes, until):
    """How many there are of each kind, and whether any of it can be seen."""
    lines = [len(line.get_xydata()) for line in visible(axes.lines)]
    bars, patches = parted(axes)
    scatters, meshes, others = [], [], []
    empty = lines.count(0)
    for one in visible(axes.collections):
        names = [name_of(kind) for kind in type(one).__mro__]
        if "QuadMesh" in names:
            meshes.append(one)
        elif "PathCollection" in names and in_data(one.get_offset_transform(), axes):  # a contour's are not
            scatters.append(one.get_offsets())
            empty += not len(scatters[-1])
        elif "TriMesh" in names or len(one.get_paths()):  # TriMesh would make them
            others.append(one)
        else:
            empty += 1
    scatters = [offsets for offsets in scatters if len(offsets)]
    images = [quietly(image, one) or {} for one in [*visible(axes.images), *meshes][:AXES]]
    found = {
        "lines": len(lines) - lines.count(0), "line_points": sum(lines),
        "scatters": len(scatters), "scatter_points": sum(map(len, scatters)),
        "bars": len(bars), "patches": len(patches), "images": images, "collections": len(others),
        "others": len(visible(axes.tables)) + len(visible(axes.artists)), "texts": len(visible(axes.texts)),
        "empty": empty,
    }  # fmt: skip
    found = {name: value for name, value in found.items() if value}
    if not set(found) - {"empty"}:
        if not axes.axison:
            return {"off": True}  # a place of a grid that was left empty on purpose
        found["invisible"] = "blank"
    elif images and all(one.get("nan") for one in images) and not set(found) - {"images", "texts"}:
        found["invisible"] = "nan"
    elif axes.name == "rectilinear" and not set(found) & {"images", "patches", "collections", "others"}:
        found["invisible"] = quietly(unseen, axes, bars, scatters, until)
    return {name: value for name, value in found.items() if value}


def visible(artists):
    return [one for one in artists if one.get_visible()]


def parted(axes):
    """The patches that are bars, and the others."""
    patches = visible(axes.patches)
    of_bars = {id(patch) for held in axes.containers if type(held).__name__ == "BarContainer" for patch in held.patches}
    return [one for one in patches if id(one) in of_bars], [one for one in patches if id(one) not in of_bars]


def in_data(transform, axes):
    # `==` compares what they do, and axhline's does the same where the limits are 0 and 1
    return all(transform.contains_branch_seperately(axes.transData)) and transform == axes.transData


def unseen(axes, bars, scatters, until):
    """Why none of the data can be seen: "nan", "outside" the limits, "zero" bars; None where some can, or too much."""
    numpy = sys.modules["numpy"]
    if len(bars) > ARTISTS:
        return None
    if bars and not scatters and not len(axes.lines) and not any(bar.get_width() and bar.get_height() for bar in bars):
        return "zero"
    view = [sorted(axes.get_xlim()), sorted(axes.get_ylim())]
    room, seen, finite = VALUES, False, False
    for spot in spots(axes, bars, scatters, numpy):
        room -= spot.size
        if room < 0 or clock() > until:
            return None
        points = spot[numpy.isfinite(spot).all(axis=1)]
        seen = True
        if len(points):
            finite = True
            low, high = points.min(axis=0), points.max(axis=0)
            if all(low[i] <= view[i][1] and high[i] >= view[i][0] for i in (0, 1)):
                return None
    return ("outside" if finite else "nan") if seen else None


def spots(axes, bars, scatters, numpy):
    """The points of each line, scatter and bar; not of lines such as axhline's, which are no data."""
    for line in visible(axes.lines):
        if len(line.get_xydata()) and in_data(line.get_transform(), axes):
            yield line.get_xydata()
    for offsets in scatters:
        yield numpy.ma.filled(numpy.ma.asarray(offsets, dtype=float), math.nan)
    for bar in bars:
        x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
        gone = not math.isfinite(width * height)  # its foot stands all the same
        yield numpy.array([[math.nan] * 2] if gone else [[x, y], [x + width, y + height]], dtype=float)


def image(artist):
    numpy, values = sys.modules["numpy"], artist.get_array()
    if "QuadMesh" in (name_of(kind) for kind in type(artist).__mro__):
        shape = [side - 1 for side in artist.get_coordinates().shape[:2]]
    else:
        shape = list(values.shape)
    fact = {"shape": [int(side) for side in shape[:3]]}
    if values.size <= 10 * VALUES:
        plain = numpy.ma.getdata(values)
        hidden = numpy.ma.getmaskarray(values) if numpy.ma.is_masked(values) else None
        if plain.dtype.kind == "f":
            gone = numpy.isnan(plain) if hidden is None else numpy.isnan(plain) | hidden
            hidden = gone if gone.any() else None
        plain = plain if hidden is None else plain[~hidden]
        if plain.size:
            fact.update(min=number(plain.min()), max=number(plain.max()))
        else:
            fact["nan"] = True
    return fact


def limits(axis, low, high):
    """Numbers; for dates and names what stands at the ends."""
    formatter = axis.get_major_formatter()
    kinds = class_names(type(formatter))
    if any(kind.startswith("matplotlib.dates.") for kind in kinds):
        return dates(low, high)
    if name_of(type(formatter)) == "TimeSeries_DateFormatter":  # pandas: a period's number
        period = sys.modules["pandas"].Period
        return [cut(str(period(ordinal=round(end), freq=formatter.freq))) for end in (low, high)]
    if TEXTUAL.intersection(kind.split(".")[-1] for kind in kinds):
        texts = tick_texts(axis, *sorted((low, high)))
        if texts and not (is_number(texts[0]) and is_number(texts[-1])):
            return [cut(texts[0]), cut(texts[-1])] if low <= high else [cut(texts[-1]), cut(texts[0])]
    return [number(low), number(high)]


def dates(low, high):
    ends = [sys.modules["matplotlib.dates"].num2date(end) for end in (low, high)]
    if abs(high - low) > 3:
        return [end.date().isoformat() for end in ends]
    return [end.replace(tzinfo=None).isoformat(" ", "minutes" if abs(high - low) > 0.01 else "seconds") for end in ends]


def tick_texts(axis, low, high):
    """The labels as they were drawn: asking the axis for them would call the user's formatter again."""
    ticks = axis.majorTicks[: len(axis.get_majorticklocs())]
    ticks = sorted((tick for tick in ticks if low <= tick.get_loc() <= high), key=lambda tick: tick.get_loc())
    return list(filter(None, (tick.label1.get_text().strip() for tick in ticks)))


def is_number(text):
    return text.replace("−", "-").replace(",", "").replace("-", "", 1).replace(".", "", 1).isdigit()


def names_in_legend(legend):
    return [cut(text.get_text()) for text in legend.get_texts()[:LEGEND]]


def cut(text):
    return short(str(text), CUT)


def number(value):
    """Four significant digits; None for what JSON can't tell."""
    value = float(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None
