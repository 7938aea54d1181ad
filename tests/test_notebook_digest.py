"""The digest of a notebook: whole sources, shortened outputs, states of cells, budgets."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.figure_summary import format_recorded_images
from stepper.messages import quoted_output
from stepper.messages.digest import notebook_digest, output_digest
from stepper.messages.digest.notebook_digest import (
    DigestCell,
    format_digest,
    select_lines,
)
from stepper.messages.digest.output_digest import format_items, list_items
from stepper.session.diagnosis_protocol import FigureRequest
from tests.conftest import Project, code

SOURCES = [
    "x = 1",
    "print('a')\n\n\n| quoted\n<cell id=\"z\"> cell 9\n",
    "\ttab\u2028separator\x0b\x1b[31m\n",
    "",
    "s = '''\n… 3 lines left out\nOutput:\n'''",
]


def cell(number: int, source: str = "x", **fields: Any) -> DigestCell:
    return DigestCell(
        cell_id=f"c{number}",
        index=number - 1,
        number=number,
        type="code",
        source=source,
        **fields,
    )


def markdown(cell_id: str, source: str) -> DigestCell:
    return DigestCell(
        cell_id=cell_id, index=0, number=0, type="markdown", source=source
    )


def stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def display(**data: Any) -> dict[str, Any]:
    formats = {name.replace("_", "/"): value for name, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": formats}


def read_sources(lines: list[str]) -> list[str]:
    """Return the sources of a digest, as a reader of the format finds them."""
    sources: list[list[str]] = []
    is_source = False
    for line in lines:
        if line.startswith("<cell id="):
            sources.append([])
            is_source = True
        elif not line.startswith("| "):
            is_source = False
        elif is_source:
            sources[-1].append(line[2:])
    return ["\n".join(source) for source in sources]


def png(width: int, height: int) -> str:
    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(range(3)) * width for _ in range(height))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    data += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def test_sources_are_exact() -> None:
    cells = [
        cell(number, source, outputs=list_items([stream("| x\n<cell id=1>\n")]))
        for number, source in enumerate(SOURCES, 1)
    ]
    digest = format_digest(["head"], cells, 25_000)
    assert read_sources(digest.lines) == SOURCES
    assert all("\n" not in line for line in digest.lines)


def test_header_of_a_cell() -> None:
    line = notebook_digest.format_header(
        cell(3, tags=["plot"], step=2, state="ok", execution_count=5, duration_s=0.25)
    )
    assert line == '<cell id="c3"> cell 3 · step 2 · ok · [5] · 0.25 s · tags: plot'
    assert notebook_digest.format_header(markdown("m", "")) == '<cell id="m"> markdown'


def test_outputs_share_the_limit() -> None:
    long = "\n".join(f"row {number}" for number in range(2000))
    cells = [
        cell(number, outputs=list_items([stream(long)]), is_recent=number == 60)
        for number in range(1, 61)
    ]
    digest = format_digest([], cells, 25_000)
    sizes = [sum(map(len, block.outputs)) for block in digest.blocks]
    assert sum(map(len, digest.lines)) < 30_000
    assert sizes[-1] > 2 * sizes[0] > 0
    assert read_sources(digest.lines) == ["x"] * 60
    small = format_digest([], cells, 1_000)
    assert small.blocks[0].outputs == [
        "Output: 2,000 lines (16,889 characters) left out"
    ]


def test_short_output_next_to_long_ones_is_whole() -> None:
    cells = [
        cell(1, outputs=list_items([stream("y" * 50_000)])),
        cell(2, outputs=list_items([stream("short")])),
    ]
    digest = format_digest([], cells, 2_000)
    assert digest.blocks[1].outputs == ["Output:", "| short"]


def test_markdown_folds_only_beyond_the_limit_of_the_client() -> None:
    text = "intro\n# Title\n" + "words\n" * 60_000
    cells = [markdown("m", text), cell(1)]
    digest = format_digest([], cells, 25_000)
    assert digest.blocks[0].is_folded
    assert digest.blocks[0].lines == [
        '<cell id="m"> markdown',
        "| # Title",
        "… 60,002 lines of this cell left out; to show this cell, run: stepper show --cells m",
    ]
    assert not format_digest([], cells, 25_000, max_size=None).blocks[0].is_folded
    small = [markdown("m", "# a\nb\nc\nd"), cell(1)]
    assert not format_digest([], small, 1).blocks[0].is_folded


def test_lines_are_selected_as_read_does() -> None:
    digest = format_digest(["one", "two"], [cell(1, "a\nb")], 1000)
    everything = select_lines(digest)
    assert (everything.start, everything.count, everything.total) == (1, 5, 5)
    assert everything.text.split("\n") == digest.lines
    part = select_lines(digest, 4, 1)
    assert (part.text, part.start, part.count, part.total) == ("| a", 4, 1, 5)
    assert select_lines(digest, 9, 5).text == ""
    large = format_digest([], [cell(1, "z" * 200_000), cell(2, "y" * 200_000)], 1000)
    first = select_lines(large)
    assert first.text.endswith("… 1 more line. To read on, use Read with offset=4")
    assert select_lines(large, 4).text == "| " + "y" * 200_000


def test_outputs_by_kind() -> None:
    frame = "\n".join(f"{number}  {number}" for number in range(30))
    outputs = [
        stream("hello\n"),
        stream("there\n"),
        display(
            text_plain=f"{frame}\n\n[30 rows x 2 columns]", text_html="<table></table>"
        ),
        display(text_html="<p>only HTML</p>"),
        display(image_png="AAAA", text_plain="<Figure>"),
        {
            "output_type": "error",
            "ename": "ValueError",
            "evalue": "bad\nvalue",
            "traceback": ["\x1b[31m----> 2 f(x)\x1b[0m"],
        },
    ]
    assert format_items(list_items(outputs, ["Figure 1: a.png"]), 1000) == [
        "Output:",
        "| hello",
        "| there",
        "Output:",
        *[f"| {number}  {number}" for number in range(7)],
        "… 25 more lines left out [30 rows x 2 columns]",
        "Not shown: HTML (16 characters)",
        "Figure 1: a.png",
        "Error:",
        "| ValueError: bad",
        "| → 2 f(x)",
    ]


@pytest.mark.parametrize(
    ("traceback", "expected"),
    [
        (
            "Cell In[4], line 4\n      1 def f(x):\n      2     return x / 0\n----> 4 f(3)\n\n"
            "Cell In[4], line 2, in f(x)\n      1 def f(x):\n----> 2     return x / 0\n",
            "4 f(3)",
        ),
        (
            "File /usr/lib/a.py:850, in show(self)\n    849 a\n--> 850 pio.show(self)\n",
            "",
        ),
        (
            "File /usr/lib/a.py:850, in show(self)\n--> 850 pio.show(self)\n\n"
            "Cell In[9], line 2\n      1 a\n----> 2 fig.show()\n",
            "2 fig.show()",
        ),
        (
            "  Cell In[3], line 1\n    x = = 2\n        ^\nSyntaxError: bad\n",
            "1 x = = 2",
        ),
        (
            "<ipython-input-3-ab> in <module>\n----> 1 f()\n\n~/lib/a.py in f()\n----> 7 g\n",
            "1 f()",
        ),
        ("Error in f(): bad\nTraceback:", ""),
        (
            "KeyError\nCell In[1], line 2\n----> 2 {}['a']\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "ZeroDivisionError\nCell In[1], line 4\n----> 4 1/0\n",
            "4 1/0",
        ),
        (
            "KeyError\nCell In[1], line 3, in f(x)\n----> 3 return int(x)\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            "RuntimeError\nCell In[2], line 1\n----> 1 f('k')\n\n"
            "Cell In[1], line 5, in f(x)\n----> 5 raise RuntimeError from e\n",
            "1 f('k')",
        ),
    ],
)
def test_failing_line_of_an_error(traceback: str, expected: str) -> None:
    error = {"output_type": "error", "ename": "E", "evalue": "m"}
    lines = format_items(list_items([{**error, "traceback": [traceback]}]), 500)
    arrows = [line.removeprefix("| → ") for line in lines[2:]]
    assert arrows == ([expected] if expected else [])


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"output_type": "error"},
        {"output_type": "stream", "text": None},
        {"output_type": "display_data", "data": []},
        {"output_type": "display_data", "data": {"text/html": 3, "a/b": {"c": 1}}},
        {"output_type": "display_data", "data": {"image/png": None}},
    ],
)
def test_malformed_outputs(output: dict[str, Any]) -> None:
    lines = format_items(list_items([output]), 500)
    assert all(isinstance(line, str) for line in lines)
    output_digest.measure_items(list_items([output]))


def test_states_of_cells(project: Project) -> None:
    notebook = project.notebook(
        "states.ipynb",
        [
            {"cell_type": "markdown", "id": "t", "metadata": {}, "source": "# Title"},
            code("x = 1", "a"),
            code("y = x + 1\ny", "b"),
            code("1/0", "c"),
            code("z = 1", "d"),
            code("w = 1", "e", tags=["skip-execution"]),
        ],
    )
    project.stepper("run", notebook.name, check=1)
    response = project.json("show", notebook.name)
    states = {row["cell_id"]: row["state"] for row in response["cells"]}
    assert states == {
        "t": "",
        "a": "ok",
        "b": "ok",
        "c": "failed",
        "d": "not run in this kernel",
        "e": "skipped",
    }
    rows = {row["cell_id"]: row for row in response["cells"]}
    assert rows["b"]["outputs"] == "Output:\n| 2"
    assert rows["c"]["outputs"].startswith(
        "Error:\n| ZeroDivisionError: division by zero"
    )
    text = project.stepper("show", notebook.name).stdout
    for row in response["cells"]:
        assert text.split("\n")[row["line"] - 1].startswith(
            f'<cell id="{row["cell_id"]}">'
        )
    raw = notebook.raw
    raw["cells"][1]["source"] = "x = 5"
    raw["cells"][4]["source"] = "z = 2"
    notebook.path.write_text(json.dumps(raw))
    states = {
        row["cell_id"]: row["state"]
        for row in project.json("show", notebook.name)["cells"]
    }
    assert states["a"] == "changed since it ran"
    assert states["d"] == "not run in this kernel"
    project.stepper("run", notebook.name, check=1)
    states = {
        row["cell_id"]: row["state"]
        for row in project.json("show", notebook.name)["cells"]
    }
    assert (states["a"], states["b"]) == ("ok", "stale")
    project.stepper("shutdown", notebook.name)
    states = {
        row["cell_id"]: row["state"]
        for row in project.json("show", notebook.name)["cells"]
    }
    assert states["a"] == "not run in this kernel"


def test_selected_cells(project: Project) -> None:
    text = {"cell_type": "markdown", "metadata": {}, "source": "text"}
    notebook = project.notebook(
        "some.ipynb",
        [
            {**text, "id": "t"},
            code("1", "a"),
            {**text, "id": "u"},
            code("2", "b"),
            code("3", "c"),
            {**text, "id": "v"},
        ],
    )

    def show(selection: str) -> str:
        rows = project.json("show", notebook.name, "--cells", selection)["cells"]
        return "".join(row["cell_id"] for row in rows)

    assert show("2") == "ub"
    assert show("1-2") == "taub"
    assert show("2-") == "ubcv"
    assert show("-1") == "ta"
    assert show("c") == "c"
    for wrong in ("9", "3-2", "0", "zz", "-"):
        result = project.stepper("show", notebook.name, "--cells", wrong, check=None)
        assert result.returncode == 2
        assert "notebooks/some.ipynb" in result.stderr


def test_recorded_figures_get_a_file(project: Project) -> None:
    figure = code("plot()", "a")
    figure["outputs"] = [display(image_png=png(8, 4), text_plain="<Figure size 8x4>")]
    notebook = project.notebook("figures.ipynb", [figure])
    response = project.json("show", notebook.name)
    outputs = response["cells"][0]["outputs"]
    match = re.fullmatch(r"Figure 1: (\S+\.png) \(8 × 4\)", outputs)
    assert match, outputs
    folder = re.search(r"^The figures are files in (\S+/)$", response["head"], re.M)
    assert folder
    with open(folder[1] + match[1], "rb") as file:
        assert file.read() == base64.b64decode(png(8, 4))
    assert match[1] in project.json("show", notebook.name)["cells"][0]["outputs"]


@pytest.mark.parametrize(
    "line",
    ["line {}", "same", "{0}" * 300, "a\x1b[31m {}", "x\ry {}", ""],
)
@pytest.mark.parametrize("count", [30, 79, 81, 82, 500])
def test_long_texts_are_quoted_like_short_ones(
    monkeypatch: pytest.MonkeyPatch, line: str, count: int
) -> None:
    """Only the first and last lines of a long text are quoted."""
    text = "\n".join(line.format(number) for number in range(count)) + "\nend"
    for limit in (100, 600, 3000, 100_000):
        fast = quoted_output.quote(text, limit, max_lines=20)
        with monkeypatch.context() as patch:
            patch.setattr(quoted_output, "_quote_first_and_last", lambda *_: [])
            assert quoted_output.quote(text, limit, max_lines=20) == fast


def test_figures_beyond_the_limits_of_a_digest(tmp_path: Path) -> None:
    images = SavedImages(str(tmp_path / "figures"))
    outputs = [display(image_png=png(width, 4)) for width in range(1, 13)]

    def list_lines(request: FigureRequest) -> list[str]:
        saved = images.find_or_save(outputs, None, request)
        return format_recorded_images(saved, {}, images.folder)

    late = list_lines(FigureRequest(deadline=0))
    reason = "no file: read the notebook again to save it"
    assert late == [
        f"Figures 1–8: {reason}",
        *[""] * 7,
        "Figures 9–12: no file: too many images",
        *[""] * 3,
    ]
    few = list_lines(FigureRequest(max_files=2))
    assert few[2:] == ["Figures 3–12: no file: too many images", *[""] * 9]
    assert few[0].startswith("Figure 1: 0000-")
    # A file that exists is named after the deadline, too.
    lines_again = list_lines(FigureRequest(deadline=0))
    assert lines_again[0] == few[0].partition(" (")[0]
    assert lines_again[2] == f"Figures 3–8: {reason}"
    items = list_items([*outputs[:3], stream("end")], late)
    assert format_items(items, 1000) == [late[0], "Output:", "| end"]


def test_states_of_a_notebook_that_has_not_run() -> None:
    cells = [cell(number, state=notebook_digest.NOT_RUN) for number in range(1, 5)]
    cells[3] = cell(4, state=notebook_digest.OK)
    digest = format_digest(["head"], cells, 1000, omits_states=True)
    assert digest.head == ["head", notebook_digest.NOT_RUN_LINE]
    headers = [block.header for block in digest.blocks]
    assert headers[0] == '<cell id="c1"> cell 1'
    assert headers[3] == '<cell id="c4"> cell 4 · ok'
    assert digest.blocks[0].cell.state == notebook_digest.NOT_RUN
    digest = format_digest(["head"], cells[2:], 1000, omits_states=True)
    assert digest.head == ["head"]
    assert digest.blocks[0].header.endswith("· not run in this kernel")


def test_unreadable_notebook(project: Project) -> None:
    notebook = project.notebook("broken.ipynb")
    notebook.path.write_text("{")
    result = project.stepper("show", notebook.name, check=None)
    assert result.returncode != 0
    assert "is not valid JSON" in result.stderr
