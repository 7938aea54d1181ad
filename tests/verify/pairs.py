"""Invented pairs of recorded and fresh outputs, with harmless and real differences.

The pairs were written before the rules. `HELD_OUT` pairs were held out until the rules
were finished; docs/development/verify.md has the results of the first run.
`second_fresh` is the output of a second new kernel, if it differs from the first one.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

Outputs = list[dict[str, Any]]


@dataclass(frozen=True)
class Pair:
    """The recorded outputs of a cell and the outputs of a fresh run."""

    name: str
    real: bool
    recorded: Outputs
    fresh: Outputs
    second_fresh: Outputs | None = None


def make_stream(text: str, name: str = "stdout") -> Outputs:
    return [{"output_type": "stream", "name": name, "text": text}]


def make_result(text: str, count: int = 1, **data: Any) -> Outputs:
    bundle = {
        "text/plain": text,
        **{name.replace("__", "/"): value for name, value in data.items()},
    }
    return [
        {
            "output_type": "execute_result",
            "execution_count": count,
            "data": bundle,
            "metadata": {},
        }
    ]


def html(markup: str, text: str = "<IPython.core.display.HTML object>") -> Outputs:
    return make_result(text, text__html=markup)


def error(name: str, value: str, traceback: str = "") -> Outputs:
    return [
        {
            "output_type": "error",
            "ename": name,
            "evalue": value,
            "traceback": traceback.split("\n"),
        }
    ]


def png(
    title: str = "Rain",
    bars: tuple[int, ...] = (30, 60, 45),
    level: int = 6,
    software: str = "",
    colour: str = "navy",
    edge: str = "white",
) -> Outputs:
    """A figure: a title above bars."""
    image = Image.new("RGB", (160, 120), "white")
    draw = ImageDraw.Draw(image)
    draw.text((50, 5), title, fill="black")
    for index, height in enumerate(bars):
        draw.rectangle(
            (20 + 40 * index, 110 - height, 45 + 40 * index, 110), fill=colour
        )
    draw.line((0, 119, 159, 119), fill=edge)
    info, file = PngInfo(), io.BytesIO()
    if software:
        info.add_text("Software", software)
    image.save(file, "PNG", compress_level=level, pnginfo=info)
    data = {
        "image/png": base64.encodebytes(file.getvalue()).decode(),
        "text/plain": "<Figure size 640x480 with 1 Axes>",
    }
    return [{"output_type": "display_data", "data": data, "metadata": {}}]


FRAME = "    city  rain\n0  Paris   {}\n1  Seoul   2.5"
TABLE = '<div><table border="1" class="dataframe"><tr><td>{}</td></tr></table></div>'


def _harmless() -> Iterator[tuple[Any, ...]]:
    yield "execution count", make_result("42", 3), make_result("42", 17)
    yield (
        "address of a function",
        make_result("<function f at 0x7f1c2a3b4c5d>"),
        make_result("<function f at 0x7fa0b1c2d3e4>"),
    )
    yield (
        "address in a list",
        make_stream("[<__main__.A object at 0x10a2b3c4d>]\n"),
        make_stream("[<__main__.A object at 0x10ffe0aa0>]\n"),
    )
    yield (
        "a bare pointer",
        make_stream("buffer <cdata 'char *' 0x7ffd2a3b4c50>\n"),
        make_stream("buffer <cdata 'char *' 0x7ffc99887760>\n"),
    )
    yield (
        "uuid",
        make_stream("run 1b4e28ba-2fa1-11d2-883f-0016d3cca427 done\n"),
        make_stream("run 6fa459ea-ee8a-4ca4-894e-db77e160355e done\n"),
    )
    yield (
        "temporary file",
        make_stream("wrote /tmp/tmpab12cd34/x.csv\n"),
        make_stream("wrote /tmp/tmpz9y8x7w6/x.csv\n"),
    )
    yield (
        "temporary file, macOS",
        make_stream("/var/folders/zz/zyx_0000/T/tmpq1w2e3r4\n"),
        make_stream("/var/folders/ab/cd_1111/T/tmpm5n6b7v8\n"),
    )
    yield (
        "warning with a kernel's path",
        make_stream("/tmp/ipykernel_812/99.py:3: FutureWarning: old\n", "stderr"),
        make_stream("/tmp/ipykernel_99/12.py:3: FutureWarning: old\n", "stderr"),
    )
    yield (
        "a warning gone",
        make_stream("DeprecationWarning: soon\n", "stderr") + make_result("1"),
        make_result("1"),
    )
    yield (
        "%time",
        make_stream(
            "CPU times: user 4 ms, sys: 0 ns, total: 4 ms\nWall time: 4.1 ms\n"
        ),
        make_stream(
            "CPU times: user 1.2 s, sys: 12 µs, total: 1.2 s\nWall time: 1.3 s\n"
        ),
    )
    yield (
        "%timeit",
        make_stream(
            "1.2 µs ± 12 ns per loop (mean ± std. dev. of 7 runs, 1,000,000 loops each)\n"
        ),
        make_stream(
            "873 ns ± 3.4 ns per loop (mean ± std. dev. of 7 runs, 1,000,000 loops each)\n"
        ),
    )
    yield (
        "%timeit of old",
        make_stream("100000 loops, best of 3: 2.45 µs per loop\n"),
        make_stream("10000 loops, best of 3: 19 us per loop\n"),
    )
    yield (
        "the cache that %timeit suspects",
        make_stream(
            "The slowest run took 4.35 times longer than the fastest. This could mean that an intermediate result is "
            "being cached.\n1000 loops, best of 3: 1 ms per loop\n"
        ),
        make_stream("1000 loops, best of 3: 2 ms per loop\n"),
    )
    yield (
        "tqdm on stdout",
        make_stream(
            "\r  0%|          | 0/50 [00:00<?, ?it/s]\r100%|██████████| 50/50 [00:01<00:00, 43.1it/s]\nok\n"
        ),
        make_stream("100%|██████████| 50/50 [00:00<00:00, 99.8it/s]\nok\n"),
    )
    yield (
        "colours",
        make_stream("\x1b[31mwet\x1b[0m and dry\n"),
        make_stream("wet and dry\n"),
    )
    yield "carriage returns", make_stream("1 of 2\r2 of 2\n"), make_stream("2 of 2\n")
    yield (
        "streams in pieces",
        make_stream("a\n") + make_stream("b\n"),
        make_stream("a\nb\n"),
    )
    yield (
        "streams in turns",
        make_stream("a\n") + make_stream("w\n", "stderr") + make_stream("b\n"),
        make_stream("a\nb\n") + make_stream("w\n", "stderr"),
    )
    yield (
        "the last digits of a float",
        make_result("0.30000000000000004"),
        make_result("0.3"),
    )
    yield (
        "the last digits of an array",
        make_result("array([1.23456789, 2.00000001])"),
        make_result("array([1.23456788, 2.00000002])"),
    )
    yield (
        "a column's width follows its digits",
        make_result(FRAME.format("0.1")),
        make_result(
            "    city                 rain\n0  Paris  0.10000000000000001\n1  Seoul                  2.5"
        ),
    )
    yield (
        "a frame's HTML by another pandas",
        make_result(FRAME.format("1.0"), text__html=TABLE.format("1.0")),
        make_result(
            FRAME.format("1.0"),
            text__html="<style scoped>td {}</style>" + TABLE.format("1.0"),
        ),
    )
    yield (
        "a styled frame's ids",
        html(
            '<style>#T_ab12f_row0_col0 {color: red}</style><td id="T_ab12f_row0_col0">1</td>',
            "<pandas.io.formats.style.Styler at 0x7f0011223344>",
        ),
        html(
            '<style>#T_99c0e_row0_col0 {color: red}</style><td id="T_99c0e_row0_col0">1</td>',
            "<pandas.io.formats.style.Styler at 0x7f9911223344>",
        ),
    )
    yield "a picture packed otherwise", png(level=1), png(level=9)
    yield (
        "a picture by another version",
        png(software="Matplotlib version3.8.0"),
        png(software="Matplotlib version3.9.2"),
    )
    yield (
        "the traceback of the same error",
        error("KeyError", "'rain'", "\x1b[31mCell In[3], line 1\n/a/b.py"),
        error("KeyError", "'rain'", "Cell In[9], line 1\n/c/d.py in get(self)"),
    )
    yield (
        "the name of a cell in a text",
        make_stream('File "/tmp/ipykernel_33/1928.py", line 1, in f\n'),
        make_stream('File "/tmp/ipykernel_4411/77.py", line 1, in f\n'),
    )
    yield (
        "a text in lines",
        [{"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}],
        make_stream("a\nb\n"),
    )


def _real() -> Iterator[tuple[Any, ...]]:
    yield "a word", make_stream("model A wins\n"), make_stream("model B wins\n")
    yield "a count", make_stream("1461 rows\n"), make_stream("1460 rows\n")
    yield (
        "one row of a million",
        make_stream("1000000 rows\n"),
        make_stream("1000001 rows\n"),
    )
    yield (
        "a score",
        make_stream("accuracy: 0.9312\n"),
        make_stream("accuracy: 0.9187\n"),
    )
    yield "the fifth digit", make_result("0.123456"), make_result("0.123466")
    yield "a sign", make_result("-0.25"), make_result("0.25")
    yield "nothing is shown any more", make_result("42"), []
    yield "something is shown that was not", [], make_stream("dropped 3 rows\n")
    yield "a line more", make_stream("a\nb\n"), make_stream("a\nb\nc\n")
    yield "the order of lines", make_stream("a\nb\n"), make_stream("b\na\n")
    yield (
        "a value that is missing",
        make_result(FRAME.format("1.0")),
        make_result(FRAME.format("NaN")),
    )
    yield (
        "a column's type",
        make_result("rain    float64\ndtype: object"),
        make_result("rain    object\ndtype: object"),
    )
    yield "a shape", make_result("(1461, 6)"), make_result("(1461, 7)")
    yield "a title", png("Rain"), png("Snow")
    yield "a bar", png(bars=(30, 60, 45)), png(bars=(30, 61, 45))
    yield "a colour", png(colour="navy"), png(colour="green")
    yield "a picture gone", png(), []
    yield "one picture of two", png() + png("Snow"), png()
    yield "an error", make_result("1"), error("KeyError", "'rain'")
    yield "another error", error("KeyError", "'rain'"), error("KeyError", "'snow'")
    yield "an error healed", error("KeyError", "'rain'"), make_result("1")
    yield (
        "a colour in HTML",
        html('<b style="color: red">3</b>'),
        html('<b style="color: green">3</b>'),
    )
    yield (
        "a digest",
        make_stream("d41d8cd98f00b204e9800998ecf8427e\n"),
        make_stream("9e107d9d372bb6826bd81d3542a419d6\n"),
    )
    yield "a date", make_stream("2024-01-31\n"), make_stream("2024-02-01\n")
    yield "a version", make_stream("numpy 1.26.4\n"), make_stream("numpy 2.1.0\n")
    yield (
        "a file below /tmp",
        make_stream("wrote /tmp/january.csv\n"),
        make_stream("wrote /tmp/february.csv\n"),
    )
    yield "a hexadecimal number", make_result("'0xff'"), make_result("'0xfe'")
    yield (
        "what a progress bar goes over",
        make_stream("100%|██████████| 50/50 [00:01<00:00, 43.1it/s]\n"),
        make_stream("100%|██████████| 60/60 [00:01<00:00, 43.1it/s]\n"),
    )


def _pairs() -> list[Pair]:
    return [
        *(Pair(name, False, *rest) for name, *rest in _harmless()),
        *(Pair(name, True, *rest) for name, *rest in _real()),
    ]


FIRST = _pairs()
DEVELOPMENT, HELD_OUT = FIRST[::2], FIRST[1::2]
# Written after the rules, for rows that no pair above needs.
LATER = [
    Pair(
        "temporary folder with a name",
        False,
        make_stream("in /tmp/work-a1b2c3d4/x\n"),
        make_stream("in /tmp/work-k9j8h7g6/x\n"),
    ),
    Pair(
        "%timeit where stdout is ASCII",
        False,
        make_stream(
            "1.4 us +- 0 ns per loop (mean +- std. dev. of 1 run, 1 loop each)\n"
        ),
        make_stream(
            "711 ns +- 1.2 ns per loop (mean +- std. dev. of 1 run, 1 loop each)\n"
        ),
    ),
    Pair(
        "uuid4().hex",
        False,
        html('<img src="_img9f1b6c0de4b24f0c8a7d5e3f2b1a0c9d">'),
        html('<img src="_img0a2b3c4d5e6f4a7b9c8d1e2f3a4b5c6d">'),
    ),
    Pair(
        "a table as an editor keeps it",
        False,
        make_result(
            FRAME.format("1.0"),
            text__html=TABLE.format(1),
            **{
                "application/vnd.microsoft.datawrangler.viewer.v0+json": {
                    "rows": [["0", "Paris", "1.0"]],
                    "rowCount": 2,
                }
            },
        ),
        make_result(FRAME.format("1.0"), text__html=TABLE.format(1)),
    ),
    Pair(
        "a heatmap, a little warmer", True, png(colour="#000080"), png(colour="#020082")
    ),
    Pair(
        "floats a millionth apart",
        False,
        make_result("1000000.0"),
        make_result("1000001.0"),
    ),
    Pair(
        "a traceback on stdout",
        False,
        make_stream("Cell In[3], line 1\n"),
        make_stream("Cell In[12], line 1\n"),
    ),
    Pair(
        "tqdm below each other",
        False,
        make_stream(" 40%|████      | 2/5 [00:01<00:02, 1.9it/s]\nok\n"),
        make_stream("ok\n"),
    ),
    Pair(
        "tqdm below each other, cleared",
        False,
        make_stream(
            "\r  0%|          | 0/2 [00:00<?, ?it/s]\n\r        \x1b[A\n\r        \x1b[A\rok\n"
        ),
        make_stream("\r  0%|          | 0/2 [00:00<?, ?it/s]\n\r        \x1b[A\rok\n"),
    ),
    Pair(
        "a traceback of an old kernel",
        False,
        make_stream('  File "<ipython-input-12-9a8b7c6d5e4f>", line 2, in <module>\n'),
        make_stream('  File "/tmp/ipykernel_81/123.py", line 2, in <module>\n'),
    ),
    Pair(
        "%%writefile of what was there",
        False,
        make_stream("Writing helpers.py\n"),
        make_stream("Overwriting helpers.py\n"),
    ),
    Pair(
        "%%writefile of another file",
        True,
        make_stream("Writing helpers.py\n"),
        make_stream("Overwriting helper.py\n"),
    ),
    Pair(
        "the cell's file in a syntax error",
        False,
        error("SyntaxError", "invalid syntax (3311942670.py, line 1)"),
        error("SyntaxError", "invalid syntax (17.py, line 1)"),
    ),
    Pair(
        "the cell's file in a syntax error of an old kernel",
        False,
        error("SyntaxError", "invalid syntax (<ipython-input-3-0a1b2c>, line 1)"),
        error("SyntaxError", "invalid syntax (17.py, line 1)"),
    ),
    Pair(
        "the line of a syntax error",
        True,
        error("SyntaxError", "invalid syntax (3311942670.py, line 1)"),
        error("SyntaxError", "invalid syntax (17.py, line 2)"),
    ),
    Pair(
        "the depth of a recursion",
        False,
        error("RecursionError", "maximum recursion depth exceeded in comparison"),
        error("RecursionError", "maximum recursion depth exceeded"),
    ),
    Pair(
        "hex() of 48 bits",
        True,
        make_result("'0x7fabcdef0123'"),
        make_result("'0x7fabcdef0124'"),
    ),
    Pair(
        "a printed hex() of 48 bits",
        True,
        make_stream("key 0x7fabcdef0123\n"),
        make_stream("key 0x7fabcdef0124\n"),
    ),
    Pair(
        "uuid5",
        True,
        make_result("UUID('886313e1-3b8a-5372-9b90-0c9aee199e5d')"),
        make_result("UUID('886313e1-3b8a-5372-9b90-0c9aee199e5e')"),
    ),
    Pair(
        "the loss in a progress bar",
        True,
        make_stream("100%|███| 5/5 [00:01<00:00,  4.1it/s, loss=0.5]\n", "stderr"),
        make_stream("100%|███| 5/5 [00:02<00:00,  3.2it/s, loss=0.7]\n", "stderr"),
    ),
    Pair(
        "the loss in a progress bar of stdout",
        True,
        make_stream("epoch 1: 100%|███| 5/5 [00:01<00:00, 4.1it/s, loss=0.5]\n"),
        make_stream("epoch 1: 100%|███| 5/5 [00:01<00:00, 4.1it/s, loss=0.7]\n"),
    ),
    Pair(
        "the loss in a progress bar without an end",
        True,
        make_stream("120it [00:03, 41.2it/s, loss=0.5]\n"),
        make_stream("120it [00:01, 98.0it/s, loss=0.7]\n"),
    ),
    Pair(
        "the width of a progress bar",
        False,
        make_stream("100%|██████████| 5/5 [00:01<00:00,  4.1it/s]\n"),
        make_stream("100%|█████| 5/5 [00:11<00:00,  2.31s/it]\n"),
    ),
    Pair(
        "the rate of a progress bar with a loss",
        False,
        make_stream("100%|███| 5/5 [00:01<00:00,  4.1it/s, loss=0.5]\n", "stderr"),
        make_stream("100%|███| 5/5 [00:09<00:00,  1.31s/it, loss=0.5]\n", "stderr"),
    ),
    Pair(
        "a progress bar on stderr that was not recorded",
        False,
        [],
        make_stream("100%|███| 5/5 [00:01<00:00,  4.1it/s]\n", "stderr"),
    ),
    Pair(
        "print and display change places",
        True,
        make_stream("a\n") + html("<b>1</b>"),
        html("<b>1</b>") + make_stream("a\n"),
    ),
    Pair(
        "a stream in pieces",
        False,
        make_stream("a\n") + make_stream("w\n", "stderr") + make_stream("b\n"),
        make_stream("w\n", "stderr") + make_stream("a\nb\n"),
    ),
    Pair(
        "HTML beside a constant repr",
        True,
        html("<p>Rows: <b>120</b>, status ok</p>", "Report()"),
        html("<p>Rows: <b>121</b>, status ok</p>", "Report()"),
    ),
    Pair(
        "the style of HTML beside a constant repr",
        False,
        html("<style>p {color: red}</style><p class=a>Rows: 120</p>", "Report()"),
        html("<style>p {color: blue}</style><p>Rows: <b>120</b></p>", "Report()"),
    ),
    Pair(
        "LaTeX beside a constant repr",
        True,
        make_result("Formula", text__latex=r"$\displaystyle \alpha x^{2} + 12$"),
        make_result("Formula", text__latex=r"$\displaystyle \alpha x^{3} + 12$"),
    ),
    Pair(
        "LaTeX of another version beside a complete repr",
        False,
        make_result("sqrt(3)*x/2", text__latex=r"$\frac{\sqrt{3} x}{2}$"),
        make_result("sqrt(3)*x/2", text__latex=r"$\displaystyle \frac{x \sqrt{3}}{2}$"),
    ),
    Pair(
        "rounding errors of an identity matrix",
        False,
        make_result(
            "array([[ 1.00000000e+00,  1.11022302e-17],\n       [-2.2e-17,  1.00000000e+00]])"
        ),
        make_result(
            "array([[ 1.00000000e+00, -2.22044605e-17],\n       [ 0.,  1.00000000e+00]])"
        ),
    ),
    Pair(
        "zeros instead of rounding errors",
        False,
        make_result(
            "array([[1.00000000e+00, 1.11022302e-17],\n       [0.00000000e+00, 1.00000000e+00]])"
        ),
        make_result("array([[1., 0.],\n       [-0., 1.]])"),
    ),
    Pair(
        "the rounding error of a mean in a table",
        False,
        make_stream(
            "              x\ncount  1000.000\nmean  1.110e-17\nstd       1.000\n"
        ),
        make_stream(
            "              x\ncount  1000.000\nmean -3.310e-17\nstd       1.000\n"
        ),
    ),
    Pair(
        "a small number alone",
        True,
        make_result("1.602176634e-19"),
        make_result("3.204353268e-19"),
    ),
    Pair(
        "small numbers in an array of small numbers",
        True,
        make_result("array([1.5e-19, 2.5e-19])"),
        make_result("array([1.5e-19, 3.5e-19])"),
    ),
    Pair(
        "a small number that grew",
        True,
        make_result("array([1.00000000e+00, 1.11022302e-17])"),
        make_result("array([1.00000000e+00, 1.11022302e-07])"),
    ),
    Pair(
        "p-values in lines of their own",
        True,
        make_stream("statistic: 912.44\np: 1.2e-13\n"),
        make_stream("statistic: 912.44\np: 8.2e-13\n"),
    ),
    Pair(
        "tqdm without an end",
        False,
        make_stream("120it [00:03, 41.2it/s]\n"),
        make_stream("120it [00:01, 98.0it/s]\n"),
    ),
]
PAIRS = [*FIRST, *LATER]
