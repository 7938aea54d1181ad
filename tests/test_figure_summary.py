"""Figure summaries from real kernels, the images saved for the agent, and report lines."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import resource
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stepper.diagnosis import figure_summary, plotly_summary
from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.figure_summary import SavedImage
from stepper.policy.execution_result import Execution
from stepper.policy.model import Outcome
from tests.test_kernel_helper import Lab, environment, old_python, text

OLD = (
    "ipykernel==6.29.5",
    "ipython==8.18.1",
    "matplotlib==3.5.3",
    "matplotlib-inline==0.1.6",
    "numpy<2",
    "pandas>=2.2,<3",
    "pillow",
    "seaborn==0.12.2",
)
NEW = ("ipykernel", "matplotlib", "pandas", "pillow", "seaborn")


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)],
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Kernels with the newest matplotlib and with Python 3.9 and matplotlib 3.5."""
    old = request.param == "Python 3.9"
    python = old_python() if old else sys.executable
    if not python:
        pytest.skip("there is no Python 3.9 on this machine")
    lab = Lab(environment(python, *(OLD if old else NEW)))
    yield lab
    lab.close()


@pytest.fixture
def plots(lab: Lab) -> Lab:
    """The kernel with default settings of the inline backend and no open figure."""
    lab.revive()
    lab.ok(
        "import matplotlib.pyplot as plt, numpy as np, pandas as pd, warnings; warnings.simplefilter('ignore')"
    )
    lab.ok("%config InlineBackend.figure_formats = ['png']\nplt.close('all')")
    return lab


def figures(result: Execution) -> list[dict[str, Any]]:
    assert result.outcome is Outcome.OK, result.fault
    figures: list[dict[str, Any]] = result.diagnosis_data["figures"]
    return figures


def axes(lab: Lab, code: str) -> dict[str, Any]:
    """Return the facts of the only axes of a cell's only figure."""
    (figure,) = figures(lab.ok(code))
    (axes_facts,) = figure["axes"]
    assert isinstance(axes_facts, dict)
    return axes_facts


def report(result: Execution, folder: Path) -> list[str]:
    return figure_summary.format_images(
        SavedImages(str(folder)).save(result.outputs, 7), figures(result)
    )


# --- the helper's data


def test_titles_limits_lines_and_legend(plots: Lab) -> None:
    result = plots.ok(
        "fig, ax = plt.subplots(figsize=(8, 4))\n"
        "ax.plot(range(1, 13), np.linspace(-3.14159, 25.25, 12), label='min')\n"
        "ax.plot(range(1, 13), np.zeros(12), label='max')\n"
        "ax.set(title='Temperature', xlabel='month', ylabel='°C', xlim=(1, 12), ylim=(-3.14159, 25.25))\n"
        "_ = ax.legend(), fig.suptitle('Weather')"
    )
    (figure,) = figures(result)
    assert figure["title"] == "Weather" and figure["left_out"] == 0
    assert figure["axes"] == [
        {
            "title": "Temperature",
            "xlabel": "month",
            "ylabel": "°C",
            "xlim": [1, 12],
            "ylim": [-3.142, 25.25],
            "legend": ["min", "max"],
            "artists": [["line", 2, 24]],
        },
    ]
    bare = axes(plots, "plt.plot([1, 2])\nplt.gca().set_title('x' * 500)")
    assert bare["title"] == "x" * 79 + "…" and not {
        "legend",
        "xlabel",
        "xscale",
        "invisible",
    } & set(bare)


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("plt.scatter(range(50), range(50))", {"artists": [["scatter", 1, 50]]}),
        (
            "plt.bar(['a', 'b', 'c'], [1, 2, 3])",
            {"artists": [["bar", 3, 0]], "xlim": ["a", "c"]},
        ),
        ("plt.hist(np.arange(100), bins=7)", {"artists": [["bar", 7, 0]]}),
        (
            "plt.pie([1, 2, 3], labels=['a', 'b', 'c'])",
            {"artists": [["patch", 3, 0], ["text", 3, 0]]},
        ),
        ("plt.fill_between([1, 2], [1, 2])", {"artists": [["other collection", 1, 1]]}),
        ("plt.contour(np.arange(25).reshape(5, 5))", {"invisible": None}),
        (
            "plt.imshow([[1, 2, 3], [4, 5, 6.5]])",
            {"images": [{"shape": [2, 3], "min": 1, "max": 6.5}]},
        ),
        (
            "plt.imshow([[1, np.nan]])",
            {"images": [{"shape": [1, 2], "min": 1, "max": 1}], "invisible": None},
        ),
        (
            "plt.pcolormesh(np.arange(12).reshape(3, 4))",
            {"images": [{"shape": [3, 4], "min": 0, "max": 11}]},
        ),
        ("plt.semilogy([1, 10])", {"yscale": "log", "xscale": None}),
        ("plt.polar([1, 2], [1, 2])", {"kind": "polar", "artists": [["line", 1, 2]]}),
        (
            "plt.figure().add_subplot(projection='3d').scatter([1], [2], [3])",
            {"kind": "3d", "artists": [["scatter", 1, 1]]},
        ),
        (
            "plt.plot([1, 2]); plt.xticks([0, 1], ['low', 'high'])",
            {"xlim": ["low", "high"]},
        ),
        (
            "plt.plot([1, 2]); plt.xticks([0, 1], ['0.0', '1.0'])",
            {"xlim": [-0.05, 1.05]},
        ),
        ("plt.plot([1, 2]); plt.xlim(1, 0)", {"xlim": [1, 0]}),
        (
            "plt.plot(pd.date_range('2020-01-01', periods=9), range(9)); plt.margins(0)",
            {"xlim": ["2020-01-01", "2020-01-09"]},
        ),
        (
            "plt.plot(pd.date_range('2020-01-01', periods=9, freq='h'), range(9)); plt.margins(0)",
            {"xlim": ["01-01 00", "01-01 08"]},
        ),
        (
            "pd.Series(range(9), pd.date_range('2020-01-01', periods=9)).plot()",
            {"xlim": ["01 Jan 2020", "09"]},
        ),
        (
            "pd.DataFrame({'a': [1, 2], 'b': 3}, ['one', 'two']).plot.bar()",
            {"artists": [["bar", 4, 0]], "xlim": ["one", "two"], "legend": ["a", "b"]},
        ),
        (
            "plt.plot([1, 2], label='l'); plt.legend().set_visible(False)",
            {"legend": None},
        ),
        (
            "plt.plot([1, 2]); plt.plot([1, 2, 3])[0].set_visible(False)",
            {"artists": [["line", 1, 2]]},
        ),
        (
            "plt.bar([1, 2], [1, 2]); plt.gca().patches[0].set_visible(False)",
            {"artists": [["bar", 1, 0]]},
        ),
    ],
)
def test_axes_facts(plots: Lab, code: str, facts: dict[str, Any]) -> None:
    axes_facts = axes(plots, code + "\nNone")
    assert {name: axes_facts.get(name) for name in facts} == facts


@pytest.mark.nightly_after(6)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("plt.axes()", "blank"),
        ("plt.plot([])", "blank"),
        ("plt.scatter([], [])", "blank"),
        ("plt.plot([1, 2])[0].set_visible(False)", "blank"),
        ("plt.text(0.5, 0.5, 'words')", None),
        ("plt.plot([1])", None),
        ("plt.plot([1, 2], [np.nan, np.nan])", "nan"),
        ("plt.plot([1, 2], [np.nan, np.nan]); plt.axhline(3)", "nan"),
        ("plt.plot([np.nan, 2], [1, np.nan])", "nan"),
        ("plt.plot([1, 2], [np.nan, 1])", None),
        ("plt.scatter([1, 2], [np.nan, np.nan])", "nan"),
        ("plt.scatter([1, 2], [np.nan, 1])", None),
        ("plt.bar([1, 2], [np.nan, np.nan])", "nan"),
        ("plt.bar([1, 2], [np.nan, 1])", None),
        ("plt.imshow(np.full((3, 3), np.nan))", "nan"),
        ("plt.imshow(np.zeros((3, 3)))", None),
        (
            "plt.plot([np.nan] * 200_000)",
            None,
        ),  # too many to inspect: no facts
        ("plt.plot([1, 20], [3, 4]); plt.xlim(10, 15)", None),  # the line crosses
        ("plt.scatter([1, 2], [3, 4]); plt.ylim(3.5, 5)", None),
        (
            "plt.scatter([0.5], [0.5], transform=plt.gca().transAxes); plt.ylim(3.5, 5)",
            None,
        ),
        ("plt.axhline(3); plt.ylim(0, 1)", None),
        ("plt.bar([1, 2], [0, 1])", None),
        ("plt.bar([1, 2], [0, 0]); plt.plot([1, 2], [0, 1])", None),
    ],
)
def test_invisible_data(plots: Lab, code: str, why: str | None) -> None:
    assert axes(plots, code + "\nNone").get("invisible") == why


def test_color_bars_twins_and_empty_subplots_are_not_counted_as_axes(
    plots: Lab,
) -> None:
    (figure,) = figures(
        plots.ok(
            "plt.scatter([1, 2], [1, 2], c=[1, 2]); _ = plt.colorbar(label='how much')"
        )
    )
    assert len(figure["axes"]) == 1 and figure["color_bars"] == ["how much"]
    # its frame alone
    (figure,) = figures(plots.ok("plt.scatter([1, 2], [1, 2])\n_ = plt.twinx()"))
    assert len(figure["axes"]) == 1 and figure["color_bars"] == []
    (figure,) = figures(plots.ok("plt.plot([1, 2]); _ = plt.twinx().plot([3, 4])"))
    assert [axis["artists"] for axis in figure["axes"]] == [[["line", 1, 2]]] * 2
    (figure,) = figures(
        plots.ok(
            "f, a = plt.subplots(1, 4); a[0].plot([1]); a[1].axis('off'); a[2].set_visible(False)"
        )
    )
    assert [axis.get("invisible") for axis in figure["axes"]] == [
        None,
        "blank",
    ] and figure["left_out"] == 0


@pytest.mark.nightly
def test_seaborn_figures(plots: Lab) -> None:
    plots.ok(
        "import seaborn as sns\nd = pd.DataFrame({'x': range(40), 'y': range(40), 'g': list('abcd') * 10})"
    )
    (figure,) = figures(plots.ok("sns.relplot(data=d, x='x', y='y', hue='g', col='g')"))
    assert [axis["title"] for axis in figure["axes"]] == [
        f"g = {name}" for name in "abcd"
    ]
    assert [axis["artists"][0] for axis in figure["axes"]] == [["scatter", 1, 10]] * 4
    assert figure["legend"] == ["a", "b", "c", "d"]
    (figure,) = figures(plots.ok("_ = sns.heatmap(np.arange(42).reshape(6, 7))"))
    assert figure["axes"][0]["images"] == [{"shape": [6, 7], "min": 0, "max": 41}]
    # the diagonal's axes are empty
    (figure,) = figures(plots.ok("sns.pairplot(d[['x', 'y']])"))
    assert not any(axis.get("invisible") for axis in figure["axes"])


# --- when the summary is made


def test_each_image_has_its_own_facts(plots: Lab, tmp_path: Path) -> None:
    lines = report(
        plots.ok(
            "from IPython.display import Image, clear_output, display\n"
            "plt.plot([1]); plt.title('cleared'); plt.show(); clear_output()\n"
            "plt.plot([1]); plt.title('shown'); plt.show()\n"
            "f, a = plt.subplots(); a.set_title('displayed'); display(f); plt.close(f)\n"
            "f, a = plt.subplots(); a.set_title('before'); handle = display(f, display_id=True)\n"
            "a.set_title('updated'); handle.update(f); plt.close(f)\n"
            "import io; b = io.BytesIO(); plt.figure(figsize=(1, 1)).savefig(b); plt.close()\n"
            "display(Image(b.getvalue()))\n"
            "f, a = plt.subplots(); a.set_title('result'); f"
        ),
        tmp_path,
    )
    messages = [line.split('"')[1] if '"' in line else "" for line in lines]
    assert messages == ["shown", "displayed", "updated", "", "result"]
    assert "shown 2 times" in lines[-1]  # as result, and shown by the backend
    assert "a single color" in lines[3] and "a single color" not in lines[0]


@pytest.mark.parametrize("kind", ["svg", "png", "retina", "jpeg"])
def test_inline_backend_formats(plots: Lab, kind: str, tmp_path: Path) -> None:
    plots.ok(f"%config InlineBackend.figure_formats = ['{kind}']")
    result = plots.ok("plt.plot([1, 2]); _ = plt.title('the one')")
    lines, other_lines = (
        report(result, tmp_path),
        figure_summary.format_rich_outputs(result.outputs, figures(result)),
    )
    (line,) = other_lines if kind == "svg" else lines
    assert line.endswith(
        ': "the one"; x -0.05 to 1.05, y 0.95 to 2.05; 1 line (2 points).'
    )
    assert line.startswith("SVG, ") if kind == "svg" else not other_lines


def test_figures_that_were_not_shown_are_not_reported(plots: Lab) -> None:
    assert figures(plots.ok("plt.plot([1, 2])")) and figures(plots.ok("1")) == []
    assert figures(plots.ok("f = plt.figure(); plt.close(f)")) == []
    result = plots.ok("%%capture\nplt.plot([1, 2]); plt.title('captured')")
    # the outputs do not contain this picture
    assert not result.outputs and len(figures(result)) == 1
    failed = plots.run(
        "plt.plot([1]); plt.title('before it failed'); plt.show(); 1 / 0"
    )
    assert failed.diagnosis_data["figures"][0]["axes"][0]["title"] == "before it failed"


@pytest.mark.nightly
def test_summary_size_is_bounded(plots: Lab) -> None:
    (figure,) = figures(plots.ok("_ = plt.subplots(4, 4, dpi=20)"))
    assert (
        len(figure["axes"]) + figure["left_out"] == 16
        and 1 <= len(figure["axes"]) <= 12
    )
    result = plots.ok(
        "for n in range(20): plt.figure(figsize=(1, 1)); plt.plot([n]); plt.title(str(n))"
    )
    assert [item["axes"][0]["title"] for item in figures(result)] == [
        str(n) for n in (*range(8), *range(12, 20))
    ]
    result = plots.ok(
        "f, grid = plt.subplots(3, 4)\nfor a in grid.flat:\n"
        "    a.plot([[1] * 9], label='l' * 99)\n"
        "    a.set(title='t' * 99, xlabel='x' * 99, ylabel='y' * 99); a.legend()\n"
        "get_ipython().display_formatter.format.__globals__['record_figure'](f, ({'image/png': 'eA=='}, {})); plt.close(f)"
    )
    assert len(json.dumps(figures(result), ensure_ascii=False)) < 20_000


@pytest.mark.nightly
@pytest.mark.parametrize(
    "code",
    [
        "plt.plot(np.random.rand(1_000_000))",
        "plt.scatter(*np.random.rand(2, 1_000_000), s=1)",
        "plt.hist(np.random.rand(1_000_000), 1000)",
        "plt.imshow(np.random.rand(1000, 1000))",
        "for _ in range(1000): plt.plot([1, 2], [np.nan] * 2)",
    ],
)
def test_summary_is_fast(plots: Lab, code: str) -> None:
    plots.ok(
        "note = get_ipython().display_formatter.format.__globals__['record_figure']; import time"
    )
    plots.ok("held = get_ipython().display_formatter.format.__wrapped__")
    result = plots.ok(
        f"{code}\nfigure = plt.gcf(); result = held(figure); spent = []\n"
        "for _ in range(5):\n"
        "    began = time.thread_time(); note(figure, result); spent.append(time.thread_time() - began)\n"
        "plt.close(); print(min(spent))"
    )
    assert float(text(result)) < 0.05


def test_summary_leaves_the_kernel_unchanged(plots: Lab) -> None:
    fresh = plots.value
    plots.ok(
        "import gc, weakref\nf = plt.figure(); a = f.add_subplot(); a.plot([1, 2])\nplt.show()"
    )
    plots.ok(
        "seen = weakref.ref(f); drawn = f.stale, a.stale; del f, a; plt.close('all'); _ = __ = ___ = 0"
    )
    plots.ok("_n = [Out.clear(), gc.collect()]")
    assert fresh("seen() is None") is True
    plots.ok("f = plt.figure(); a = f.add_subplot(); a.plot([1, 2]); plt.close(f)")
    plots.ok(
        "held = get_ipython().display_formatter.format.__wrapped__(f); state = f.stale, a.stale, len(a.get_children())"
    )
    plots.ok(
        "get_ipython().display_formatter.format.__globals__['record_figure'](f, held)"
    )
    assert fresh("state == (f.stale, a.stale, len(a.get_children()))") is True
    plots.ok(
        "from IPython.core.formatters import format_display_data; data = format_display_data(1)"
    )
    assert fresh("data") == [{"text/plain": "1"}, {}]
    assert fresh("get_ipython().display_formatter.format.__name__") == "format"


def test_summary_hook_is_removed_when_another_version_takes_over(plots: Lab) -> None:
    plots.ok(
        "f = get_ipython().display_formatter; ours = f.format; ours.__globals__['uninstall']()"
    )
    assert plots.value("f.format == type(f).format.__get__(f)") is True
    assert figures(plots.ok("plt.plot([1]); plt.show()")) == []
    plots.ok(
        "f.format = theirs = lambda *a, **k: ours(*a, **k)\nours.__globals__['uninstall']()"
    )
    assert plots.value("f.format is theirs") is True
    plots.ok("f.format = ours")
    assert len(figures(plots.ok("plt.plot([1]); plt.show()"))) == 1


def test_summary_does_not_import_matplotlib(lab: Lab) -> None:
    fresh = Lab(lab.kernel.describe().python)
    try:
        result = fresh.ok(
            "from IPython.display import SVG, display\ndisplay(SVG('<svg/>')); import sys\n'matplotlib' in sys.modules"
        )
        assert (
            result.outputs[-1]["data"]["text/plain"] == "False"
            and figures(result) == []
        )
    finally:
        fresh.close()


@pytest.mark.parametrize(
    "body",
    [
        "axes = property(lambda self: 1 / 0)",
        "axes = property(lambda self: [None, 5])",
        "get_size_inches = lambda self: exit()",
        "legends = property(lambda self: (_ for _ in ()).throw(SystemExit))",
    ],
)
def test_figures_that_raise_while_inspected(plots: Lab, body: str) -> None:
    """The figure is shown as before, and the cell does not fail."""
    result = plots.ok(
        "from matplotlib.figure import Figure\nfrom IPython.display import display\n"
        f"class Odd(Figure):\n    {body}\n    __repr__, _repr_html_ = object.__repr__, None\n"
        "get_ipython().display_formatter.formatters['image/png'].for_type(Odd, lambda figure: 'iVBORw0KGgo=')\n"
        "display(Odd.__new__(Odd))"
    )
    assert [out["data"]["image/png"] for out in result.outputs] == ["iVBORw0KGgo="]


def test_interrupt_during_inspection_reaches_the_cell(plots: Lab) -> None:
    """Esc during the inspection of figures ends the cell."""
    result = plots.run(
        "scope = get_ipython().display_formatter.format.__globals__; held = scope['describe_figure']\n"
        "def esc(figure): raise KeyboardInterrupt\n"
        "scope['describe_figure'] = esc\ntry: plt.plot([1]); plt.show(); print('went on')\nfinally: scope['describe_figure'] = held"
    )
    assert (
        result.fault
        and result.fault.ename == "KeyboardInterrupt"
        and "went on" not in text(result)
    )


# --- saved images


def picture(
    width: int = 20,
    height: int = 10,
    kind: str = "PNG",
    mode: str = "RGB",
    noise: int = 1,
) -> bytes:
    """Return a picture with several colors; each `noise` makes another one."""
    image = Image.new("RGB" if mode == "P" else mode, (width, height))
    spot = random.Random(noise)
    for _ in range(5):
        at = (spot.randrange(width), spot.randrange(height))
        value = tuple(spot.randrange(1, 255) for _ in image.getbands())
        image.putpixel(at, value if len(value) > 1 else value[0])
    image = image.quantize() if mode == "P" else image
    image.save(file := io.BytesIO(), kind)
    return file.getvalue()


def make_display(
    content: bytes | str | list[str], mime: str = "image/png"
) -> dict[str, Any]:
    encoded = (
        base64.b64encode(content).decode() if isinstance(content, bytes) else content
    )
    return {
        "output_type": "display_data",
        "data": {mime: encoded, "text/plain": "<x>"},
        "metadata": {},
    }


def test_small_png_is_saved_unchanged_and_private(tmp_path: Path) -> None:
    content, folder = picture(), tmp_path / "a" / "figures"
    (saved,) = SavedImages(str(folder)).save(
        [{"output_type": "stream", "text": "x"}, make_display(content)], 3
    )
    assert saved == SavedImage(str(folder / "0003-1.png"), 20, 10, False, "", saved.key)
    assert Path(saved.path).read_bytes() == content
    assert (
        folder.stat().st_mode & 0o777 == 0o700
        and Path(saved.path).stat().st_mode & 0o777 == 0o600
    )
    assert os.listdir(folder) == ["0003-1.png"]


@pytest.mark.parametrize("width", [1568, 1569, 3000])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "LA", "1", "I;16"])
def test_large_image_is_scaled_down(tmp_path: Path, width: int, mode: str) -> None:
    (saved,) = SavedImages(str(tmp_path)).save(
        [make_display(picture(width, 40, mode=mode))], 1
    )
    with Image.open(saved.path) as image:
        assert (
            image.size == ((1568, 40) if width < 1600 else (1568, 21))
            and image.format == "PNG"
        )
    assert (saved.width, saved.height, saved.reason, saved.single_color) == (
        width,
        40,
        "",
        False,
    )


def test_sixteen_bit_image_is_scaled_not_clipped(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("I;16", (2000, 10), 32768).save(file, "PNG")
    (saved,) = SavedImages(str(tmp_path)).save([make_display(file.getvalue())], 1)
    with Image.open(saved.path) as image:
        assert image.getpixel((5, 5)) == 128


@pytest.mark.parametrize(
    ("kind", "mime"),
    [("JPEG", "image/jpeg"), ("GIF", "image/gif"), ("WEBP", "image/webp")],
)
def test_other_formats_are_converted_to_png(
    tmp_path: Path, kind: str, mime: str
) -> None:
    mode = "L" if kind == "GIF" else "RGB"
    (saved,) = SavedImages(str(tmp_path)).save(
        [make_display(picture(kind=kind, mode=mode), mime)], 1
    )
    with Image.open(saved.path) as image:
        assert image.format == "PNG" and image.size == (20, 10)
    file = io.BytesIO()
    Image.new("CMYK", (3, 3)).save(file, "JPEG")
    (saved,) = SavedImages(str(tmp_path)).save(
        [make_display(file.getvalue(), "image/jpeg")], 2
    )
    assert saved.path and saved.single_color


def test_base64_as_list_or_wrapped(tmp_path: Path) -> None:
    content = picture()
    plain = base64.b64encode(content).decode()
    wrapped = base64.encodebytes(content).decode()
    (figure, *other_figures) = SavedImages(str(tmp_path)).save(
        [
            make_display(plain),
            make_display(wrapped),
            make_display(wrapped.splitlines(True)),
        ],
        1,
    )
    assert Path(figure.path).read_bytes() == content and other_figures == [
        figure,
        figure,
    ]


def single(mode: str, colour: Any, spot: Any = None) -> bytes:
    image = Image.new(mode, (9, 9), colour)
    if spot is not None:
        image.putpixel((4, 4), spot)
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (single("RGB", (255, 255, 255)), True),
        (single("RGB", (255, 255, 255), (255, 255, 254)), False),
        (single("RGBA", (0, 0, 0, 0), (9, 9, 9, 0)), True),  # fully transparent
        (single("RGBA", (0, 0, 0, 0), (0, 0, 0, 9)), False),
        (single("P", 1), True),
        (single("L", 7, 8), False),
        (single("1", 1), True),
    ],
)
def test_single_color_image(tmp_path: Path, content: bytes, expected: bool) -> None:
    (saved,) = SavedImages(str(tmp_path)).save([make_display(content)], 1)
    assert saved.single_color is expected and saved.path


def bomb(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("this is no base64 é", "the output is not valid base64"),
        ("AAA", "the output is not valid base64"),
        (b"no picture", "the image cannot be decoded (UnidentifiedImageError)"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "the image cannot be decoded (UnidentifiedImageError)",
        ),
        (picture(200, 200)[:-60], "the image cannot be decoded"),
        (bomb(60_000, 60_000), "the image is too large"),
        (bomb(9_000, 11_000), "the image is too large"),  # Pillow would only warn
        (bomb(2_000, 20), "the image cannot be decoded"),
        (bomb(0, 5), "the image cannot be decoded"),
    ],
)
def test_image_save_failure_is_reported(tmp_path: Path, content: Any, why: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    broken, fine = SavedImages(str(tmp_path)).save(
        [make_display(content), make_display(picture())], 1
    )
    assert broken.path == "" and broken.reason.startswith(why)
    assert fine.path.endswith("0001-2.png") and os.listdir(tmp_path) == ["0001-2.png"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert figure_summary.format_images([broken], [])[0].startswith(
        f"Figure 1: not saved: {why}"
    )


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in its place")
    for folder in ("file", "file/below"):
        (saved,) = SavedImages(str(tmp_path / folder)).save(
            [make_display(picture())], 1
        )
        assert (
            saved.path == ""
            and saved.reason.startswith("cannot write the file: ")
            and saved.width == 20
        )


def test_full_disk_leaves_no_partial_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str, **folders: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    (saved,) = SavedImages(str(tmp_path)).save([make_display(picture())], 1)
    assert (
        saved.reason == "cannot write the file: No space left on device"
        and os.listdir(tmp_path) == []
    )


def test_at_most_eight_images_per_run_are_saved(tmp_path: Path) -> None:
    saved = SavedImages(str(tmp_path)).save(
        [make_display(picture(noise=n)) for n in range(30)], 12
    )
    assert sorted(os.listdir(tmp_path)) == [f"0012-{n}.png" for n in range(1, 9)]
    assert [bool(item.path) for item in saved] == [True] * 8 + [False] * 22
    lines = figure_summary.format_images(saved, [])
    assert len(lines) == 9 and lines[-1] == "… and 22 more images, not saved"
    assert len(figure_summary.format_images(saved[:8], [])) == 8


def test_newest_two_hundred_images_are_kept(tmp_path: Path) -> None:
    figures_of = SavedImages(str(tmp_path))
    for n in range(230):
        (tmp_path / f"{n:04d}-1.png").write_bytes(b"")
        os.utime(tmp_path / f"{n:04d}-1.png", (1000 + n, 1000 + n))
    (tmp_path / "mine.png").write_bytes(b"the user's own")
    figures_of.save([make_display(picture())], 9999)
    files = sorted(os.listdir(tmp_path))
    assert (
        len(files) == 201
        and files[0] == "0031-1.png"
        and files[-2:] == ["9999-1.png", "mine.png"]
    )


def test_run_without_images_creates_no_folder_and_imports_no_pillow(
    tmp_path: Path,
) -> None:
    assert (
        SavedImages(str(tmp_path / "none")).save(
            [{"output_type": "stream", "text": "x"}, {"data": None}], 1
        )
        == []
    )
    assert os.listdir(tmp_path) == []
    code = "import sys, stepper.diagnosis.agent_images as f; f.SavedImages('nowhere').save([], 1); sys.exit('PIL' in sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0


# --- lines of the report


def format_line(*axes: dict[str, Any], **options: Any) -> str:
    (line,) = figure_summary.format_images(
        [SavedImage("/p/1.png", 1200, 800, key=5)],
        [{"key": 5, "axes": list(axes), **options}],
    )
    return line


def test_figure_line() -> None:
    figure = {
        "title": "Temperature",
        "xlabel": "month",
        "xlim": [1.0, 12.0],
        "ylabel": "°C",
        "ylim": [-3.1, 25.2],
        "artists": [["line", 2, 24]],
        "legend": ["min", "max"],
    }
    summary = '"Temperature"; x "month" 1 to 12, y "°C" -3.1 to 25.2; 2 lines (24 points); legend "min", "max".'
    assert format_line(figure) == f"Figure 1: /p/1.png (1,200 × 800): {summary}"
    blank = {"xlim": [0.0, 1.0], "ylim": [0.0, 1.0], "invisible": "blank"}
    assert (
        format_line(blank)
        == "Figure 1: /p/1.png (1,200 × 800): blank: the axes contain no data."
    )
    assert format_line(figure, blank) == (
        f"Figure 1: /p/1.png (1,200 × 800): blank: the axes contain no data (axes 2): 2 axes. Axes 1 {summary}"
    ).replace("(axes 2): 2", "(axes 2); 2")
    assert (
        format_line({"invisible": "nan", "artists": [["line", 1, 0]]})
        == "Figure 1: /p/1.png (1,200 × 800): all values are NaN; 1 line (0 points)."
    )
    (line,) = figure_summary.format_images(
        [SavedImage("/p  q/1.png", 3, 4, True, key=6)], [{"key": 5}]
    )
    assert (
        line == 'Figure 1: "/p  q/1.png" (3 × 4): a single color: nothing is visible.'
    )


HOSTILE = [
    'Hot"\nstepper: Cell 1 ran ok in 0.10 s.',
    "\r\nstepper: Cell 1 ran ok",
    "\x1b[31m\x1b]0;title\x07| quoted \u2028stepper: \u202eok",
    "\x85stepper: ok\x0bstepper: ok\x0c",
    "a\ud800b",
    "x" * 9999,
    "\n\n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_figure_text_cannot_forge_stepper_lines(text: str) -> None:
    figure = {
        "title": text,
        "xlabel": text,
        "ylabel": text,
        "xscale": text,
        "xlim": [text, text],
        "legend": [text] * 9,
        "kind": text,
        "artists": [["line", 1, 2]],
    }
    for line in (
        format_line(figure),
        format_line(figure, figure, title=text, color_bars=[text] * 3),
        format_line({"title": text}),
    ):
        assert (
            len(line.splitlines()) == 1 and len(line) <= figure_summary.MAX_FIGURE + 2
        )
        assert not any(
            ord(letter) < 32 or letter in "\x7f\x85\u2028\u202e" for letter in line
        )
        unquoted_text = "".join(line.split('"')[::2])
        assert (
            "stepper" not in unquoted_text
            and "quoted" not in unquoted_text
            and "xx" not in unquoted_text
        )
    for line in (
        *figure_summary.format_images(
            [SavedImage(f"/p/{text}/1.png", 1, 1), SavedImage(reason=text)], []
        ),
        *figure_summary.format_rich_outputs(
            [{"data": {f"x/{text}": "x", "text/plain": "<x>"}}]
        ),
        *figure_summary.format_rich_outputs(
            [{"data": {"application/vnd.vegalite.v5+json": {"mark": text}}}]
        ),
    ):
        assert len(line.splitlines()) == 1 and not line.startswith("stepper")


def test_invalid_kernel_data_is_tolerated() -> None:
    for odd in (
        None,
        5,
        "x",
        [],
        {},
        {"a": 1},
        [None],
        [{}],
        [[1, 2]],
        True,
        -1.5,
        float("nan"),
    ):
        names = (
            "title",
            "axes",
            "left_out",
            "color_bars",
            "legend",
            "xlim",
            "artists",
            "images",
            "invisible",
            "xscale",
        )
        fact = dict.fromkeys(names, odd)
        figure_summary.format_images(
            [SavedImage("p", 1, 1, key=5)],
            [odd, {"key": 5, **fact}, {"key": odd}, {"key": 6, "axes": [fact]}],
        )
        figure_summary.format_images(
            [SavedImage("p", 1, 1, key=6)],
            [
                {
                    "key": 6,
                    "axes": [fact, {"images": [fact, {"shape": odd, "min": odd}]}],
                }
            ],
        )
        figure_summary.format_rich_outputs(
            [
                {"data": odd},
                {},
                {"data": {"image/svg+xml": odd, "x": odd}},
                {"data": {"text/plain": odd}},
            ]
        )
        SavedImages("/dev/null/nowhere").save(
            [{"data": odd}, {"data": {"image/png": odd}}], 1
        )


def test_figure_lines_are_bounded() -> None:
    figure = {
        "title": "t" * 80,
        "xlabel": "x" * 80,
        "ylabel": "y" * 80,
        "legend": ["l" * 80] * 8,
        "invisible": "nan",
    }
    for length in (10, 100, 300, 3000):
        saved = [
            SavedImage(f"/{'p' * length}/{n}.png", 640, 480, key=n) for n in range(8)
        ] + [SavedImage(reason=figure_summary.NOT_SAVED)] * 9
        lines = figure_summary.format_images(
            saved, [{"key": n, "axes": [figure] * 12} for n in range(8)]
        )
        assert (
            len("\n".join(lines)) <= figure_summary.MAX_SUMMARY
            and lines[-1] == "… and 9 more images, not saved"
        )
        if length < 100:
            assert len(lines) == 9 and all(
                "all values are NaN" in line for line in lines[:8]
            )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {
                "image/svg+xml": "<svg>" + "x" * 12_283,
                "text/plain": "<Figure size 1x1>",
            },
            ["SVG, 12 kB"],
        ),
        ({"image/svg+xml": ["<svg>", "</svg>"]}, ["SVG, 11 bytes"]),
        ({"image/svg+xml": "<svg/>", "image/png": "x"}, []),
        (
            {
                "application/vnd.plotly.v1+json": {"data": [{}, {}, {}]},
                "text/html": "<div>",
            },
            ["plotly figure, 22 bytes: 3 scatter traces."],
        ),
        ({"application/vnd.plotly.v1+json": "{}"}, ["plotly figure, 2 bytes"]),
        (
            {
                "application/vnd.vegalite.v5+json": {"mark": {"type": "bar"}},
                "text/plain": "alt.Chart(...)",
            },
            ["Altair/Vega-Lite chart, 25 bytes"],
        ),
        (
            {"application/vnd.vegalite.v5+json": {"mark": "line"}},
            ["Altair/Vega-Lite chart, 16 bytes"],
        ),
        (
            {"application/vnd.vegalite.v5+json": {"layer": []}},
            ["Altair/Vega-Lite chart, 13 bytes"],
        ),
        (
            {
                "application/vnd.jupyter.widget-view+json": {"model_id": "a"},
                "text/plain": "IntSlider(value=0)",
            },
            ["widget, 17 bytes"],
        ),
        (
            {"text/html": "<b>", "text/plain": "<IPython.core.display.HTML object>"},
            ["HTML, 3 bytes"],
        ),
        ({"text/html": "<b>"}, ["HTML, 3 bytes"]),
        ({"text/html": "<table>", "text/plain": "   a  b\n0  1  2"}, []),
        ({"text/html": "<b>", "text/plain": "LinearRegression()"}, []),
        (
            {"text/latex": "$x$", "text/plain": "<IPython.core.display.Latex object>"},
            ["LaTeX, 3 bytes"],
        ),
        ({"text/latex": "$x$", "text/plain": "x"}, []),
        ({"application/pdf": "x" * (3 << 20)}, ["PDF, 3.0 MB"]),
        ({"video/mp4": "x"}, ["video, 1 byte"]),
        (
            {"application/x-own": "abc", "text/plain": "words"},
            ["application/x-own, 3 bytes"],
        ),
        ({"text/plain": "<x>"}, []),
        ({}, []),
    ],
)
def test_rich_outputs_are_listed(data: dict[str, Any], message: list[str]) -> None:
    assert (
        figure_summary.format_rich_outputs(
            [{"output_type": "display_data", "data": data}]
        )
        == message
    )


def make_plotly_array(code: str, *values: float) -> dict[str, str]:
    """Return an array in the format of plotly 6."""
    kinds = {"f8": "d", "i1": "b", "i2": "h"}
    return {
        "dtype": code,
        "bdata": base64.b64encode(
            struct.pack(f"<{len(values)}{kinds[code]}", *values)
        ).decode(),
    }


@pytest.mark.parametrize(
    ("traces", "layout", "message"),
    [
        (
            [
                {
                    "type": "scatter",
                    "name": "a",
                    "x": make_plotly_array("i1", 1, 2, 3),
                    "y": make_plotly_array("f8", 0.5, -2, float("nan")),
                },
                {"type": "scatter", "name": "b", "x": [4, 5], "y": [None, 7.25]},
            ],
            {
                "title": {"text": "Sales"},
                "xaxis": {"title": {"text": "day"}},
                "yaxis": {"title": "EUR"},
            },
            'title "Sales"; 2 scatter traces (5 points); named "a", "b"; x "day" 1 to 5; y "EUR" -2 to 7.25.',
        ),
        (
            [
                {
                    "type": "bar",
                    "x": ["p", "q", "p"],
                    "y": make_plotly_array("i2", 300, 2, 1),
                },
                {"type": "histogram", "x": []},
            ],
            {},
            "1 bar trace (3 points), 1 histogram trace (0 points); x 2 categories; y 1 to 300.",
        ),
        (
            [{"x": ["2024-01-01", "2023-05-01T00:00:00"], "y": [1, 1]}],
            {"yaxis": {"type": "log", "range": [0, 3]}},
            '1 scatter trace (2 points); x "2023-05-01T00:00:00" to "2024-01-01"; y 1 to 1000 (log).',
        ),
        (
            [{"type": "pie", "labels": ["a"], "values": [1]}],
            {},
            "1 pie trace (1 point).",
        ),
        (
            [{"y": [None, None]}],
            {},
            "1 scatter trace (2 points); y has no finite values.",
        ),
        (
            [{"y": [1], "xaxis": "x2", "yaxis": "y2"}],
            {"yaxis2": {"title": {"text": "z"}}},
            '1 scatter trace (1 point); y2 "z" 1 to 1.',
        ),
        (
            [
                {"type": "heatmap", "z": [[1, 2, 3], [4, 5, 6]]},
                {"type": "sankey", "node": {}},
            ],
            {},
            "1 heatmap trace (6 points), 1 sankey trace.",
        ),
        (
            [{"x": ["a"], "y": [1]}, {"x": [2], "y": [1]}],
            {},
            "2 scatter traces (2 points); y 1 to 1.",
        ),
        # Categories of two levels, and values that are no numbers or texts.
        (
            [{"x": [["a", "a"], ["b", "c"]], "y": [True, False]}],
            {},
            "1 scatter trace (4 points).",
        ),
        (
            [{"y": [None, None]}],
            {},
            "1 scatter trace (2 points); y has no finite values.",
        ),
        ([], {}, "no traces."),
    ],
)
def test_plotly_figure_is_summarized(
    traces: list[Any], layout: dict[str, Any], message: str
) -> None:
    content = {
        "data": traces,
        "layout": layout,
        "config": {"plotlyServerURL": "https://plot.ly"},
    }
    (line,) = figure_summary.format_rich_outputs(
        [{"data": {plotly_summary.MIME: content, "text/html": "<div>"}}]
    )
    assert line.partition(": ")[2] == message


def test_image_without_known_shape_is_summarized() -> None:
    figure = {"key": 1, "axes": [{"images": [{}]}]}
    assert figure_summary.describe_figures([figure]) == {"1": "image"}


def test_invalid_plotly_figure_is_tolerated() -> None:
    odds: list[Any] = [
        None,
        5,
        "x",
        [],
        {},
        [None],
        [{}],
        True,
        -1.5,
        float("nan"),
        10**400,
        {"dtype": "f8", "bdata": "%"},
        {"dtype": "f8", "bdata": "AAA="},
    ]
    for odd in odds:
        trace = dict.fromkeys(("type", "name", "x", "y", "z", "xaxis", "values"), odd)
        layout = {
            "title": odd,
            "xaxis": odd,
            "yaxis": {"range": [odd, odd], "title": {"text": odd}, "type": "log"},
        }
        for content in (
            odd,
            {"data": odd},
            {
                "data": [trace, odd, {"x": [odd], "y": odd}],
                "layout": odd,
                "frames": odd,
            },
            {"data": [{"y": [odd]}], "layout": layout},
        ):
            (line,) = figure_summary.format_rich_outputs(
                [{"data": {plotly_summary.MIME: content}}]
            ) or [""]
            assert len(line) <= figure_summary.MAX_FIGURE + 2
    for hostile in HOSTILE:
        trace = {
            "type": hostile,
            "name": hostile,
            "x": [hostile],
            "y": [1],
            "xaxis": hostile,
        }
        layout = {
            "title": {"text": hostile},
            "yaxis": {"title": hostile, "range": [hostile, hostile]},
        }
        (line,) = figure_summary.format_rich_outputs(
            [{"data": {plotly_summary.MIME: {"data": [trace] * 9, "layout": layout}}}]
        )
        assert (
            len(line.splitlines()) == 1 and len(line) <= figure_summary.MAX_FIGURE + 2
        )
        assert "stepper" not in "".join(line.split('"')[::2])


def test_large_plotly_figure_is_summarized_in_bounded_time() -> None:
    content = {
        "data": [
            {
                "x": make_plotly_array("f8", *range(200_000)),
                "y": make_plotly_array("f8", *range(200_000)),
            }
        ]
        * 10
    }
    began = time.process_time()
    (line,) = figure_summary.format_rich_outputs(
        [{"data": {plotly_summary.MIME: content}}]
    )
    assert (
        time.process_time() - began < 3
        and "1 scatter trace" not in line
        and "2,000,000 points" in line
    )


def test_at_most_eight_rich_outputs_are_listed() -> None:
    outputs = [{"data": {"video/mp4": "xy"}}] * 20
    assert figure_summary.format_rich_outputs(outputs) == ["video, 2 bytes"] * 8 + [
        "… and 12 more"
    ]
    assert figure_summary.format_rich_outputs(outputs[:8]) == ["video, 2 bytes"] * 8
    began = time.process_time()
    figure_summary.format_rich_outputs(
        [{"data": {"text/html": "x" * 10**7, "text/plain": "<" * 10**6}}]
    )
    assert time.process_time() - began < 1
