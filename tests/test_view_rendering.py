"""The data of the view page: bounded, as text and rows, never as markup."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import struct
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.policy import journal_events
from stepper.policy.model import Fault, Outcome, Verdict
from stepper.web.access_control import encode_json
from stepper.web.html_tables import parse_tables
from stepper.web.journal_reader import RunHistory
from stepper.web.output_rendering import (
    HEAD_CHARACTERS,
    TAIL_CHARACTERS,
    get_full_output,
    get_widget_models,
    render_outputs,
)
from stepper.web.plotly_svg import PLOTLY, render_svg
from stepper.web.project_notebook_list import NotebookList

EVIL = "<img src=x onerror=alert(1)>"
FRAME = """<div>
<style scoped>
    .dataframe tbody tr th { vertical-align: top; }
</style>
<table border="1" class="dataframe">
  <thead><tr style="text-align: right;"><th></th><th>day</th><th>mm &amp; more</th></tr></thead>
  <tbody><tr><th>0</th><td>Mon</td><td>1.5</td></tr><tr><th>1</th><td>&lt;b&gt;Tue</td><td>NaN</td></tr></tbody>
</table>
<p>2 rows × 2 columns</p>
</div>"""


def render_one(
    output: dict[str, Any], widgets: dict[str, Any] | None = None
) -> dict[str, Any]:
    (rendered,) = render_outputs([output], widgets or {})
    return rendered


def make_rich_output(**data: Any) -> dict[str, Any]:
    return {
        "output_type": "display_data",
        "data": {name.replace("__", "/"): value for name, value in data.items()},
    }


def test_data_frame_is_parsed_as_rows() -> None:
    (table,) = parse_tables(FRAME)
    assert [
        [cell["text"] for cell in row] for row in table["head"] + table["body"]
    ] == [
        ["", "day", "mm & more"],
        ["0", "Mon", "1.5"],
        ["1", "<b>Tue", "NaN"],
    ]
    assert table["foot"].strip() == "2 rows × 2 columns"
    assert (
        render_one(make_rich_output(text__html=FRAME, text__plain="…"))["kind"]
        == "table"
    )


@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><td><script>alert(1)</script></td></tr></table>",
        f"<table><tr><td>{EVIL}</td></tr></table>",
        "<table onclick='x()'><tr><td>1</td></tr></table>",
        "<table><tr><td><a href='javascript:x()'>1</a></td></tr></table>",
        "<style>#T_1 td { background-color: red }</style><table><tr><td>1</td></tr></table>",  # with colors
        "<table><tr><td><table><tr><td>1</td></tr></table></td></tr></table>",
        "a text <table><tr><td>1</td></tr></table>",
        "<p>no table</p>",
        "<table><tr><td>1</td></tr></table><![unknown[",
        "",
    ],
)
def test_other_html_is_shown_in_an_iframe(html: str) -> None:
    assert parse_tables(html) == []
    if html:
        rendered = render_one(make_rich_output(text__html=html))
        assert rendered["kind"] == "html" and html not in json.dumps(rendered)


def test_first_rows_of_a_large_table_are_parsed() -> None:
    (table,) = parse_tables(
        "<table><thead><tr><th>a</th></tr></thead>"
        + "<tr><td>1</td><td>2</td></tr>" * 3000
        + "</table>"
    )
    assert len(table["body"]) + table["left"] == 3000 and len(table["body"]) == 1000


def test_table_spans_and_line_breaks() -> None:
    (table,) = parse_tables(
        "<table><tr><th colspan=2>a<br>b</th></tr><tr><td rowspan='3'>1</td>"
        f"<td colspan=x rowspan={'9' * 5000}>2</td></tr></table>"
    )
    assert table["body"] == [
        [{"text": "a\nb", "head": True, "colspan": 2}],
        [{"text": "1", "rowspan": 3}, {"text": "2"}],
    ]


def test_long_text_is_truncated_and_available_by_url() -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    rendered = render_one({"output_type": "stream", "name": "stdout", "text": text})
    assert (
        len(rendered["text"]) + len(rendered["tail"])
        <= HEAD_CHARACTERS + TAIL_CHARACTERS
    )
    assert rendered["left"] == len(text) - len(rendered["text"]) - len(rendered["tail"])
    assert text.startswith(rendered["text"]) and text.endswith(rendered["tail"])
    assert (
        get_full_output(
            [{"output_type": "stream", "name": "stdout", "text": text}], 0
        ).data.decode()
        == text
    )


def test_total_size_of_cell_outputs_is_bounded() -> None:
    outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * 15_000}] * 1000
    assert len(json.dumps(render_outputs(outputs, {}))) < 700_000
    assert "more outputs" in render_outputs(outputs, {})[-1]["text"]


def test_progress_bar_shows_its_last_state() -> None:
    assert (
        render_one(
            {"output_type": "stream", "name": "stderr", "text": " 10%\r 50%\r100%\nend"}
        )["text"]
        == "100%\nend"
    )


def test_images_are_urls() -> None:
    png = (
        b"\x89PNG\r\n\x1a\n"
        + b"\0\0\0\rIHDR"
        + struct.pack(">II", 640, 480)
        + b"\0" * 9
    )
    output = make_rich_output(
        image__png=base64.b64encode(png).decode(),
        text__plain="<Figure>",
        text__html=EVIL,
    )
    rendered = render_one(output)
    assert (
        rendered["kind"],
        rendered["width"],
        rendered["height"],
        rendered["n"],
        rendered["alt"],
    ) == (
        "picture",
        640,
        480,
        0,
        "<Figure>",
    )
    assert get_full_output([output], 0) == ("image/png", png)
    svg = make_rich_output(image__svg__xml="x") | {
        "data": {"image/svg+xml": f"<svg>{EVIL}</svg>"}
    }
    assert render_one(svg)["kind"] == "picture" and EVIL not in json.dumps(
        render_one(svg)
    )
    # … and only as <img> or in a sandboxed document
    assert get_full_output([svg], 0).mime == "image/svg+xml"


@pytest.mark.parametrize("index", [-1, 1, 10**9])
def test_url_of_a_missing_output(index: int) -> None:
    assert get_full_output([{"output_type": "stream", "text": "a"}], index) is None


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"output_type": 1},
        {"output_type": "display_data", "data": None},
        {"output_type": "stream", "text": None},
        {"output_type": "error", "traceback": 1},
        make_rich_output(image__png=7),
        make_rich_output(image__png="%%%"),
        make_rich_output(text__html=["a", 1]),
        {
            "data": {
                PLOTLY: {"data": [{"x": {"bdata": "%", "dtype": "f8"}, "y": [[1], {}]}]}
            }
        },
        {"data": {"application/vnd.jupyter.widget-view+json": {"model_id": ["x"]}}},
    ],
)
def test_invalid_outputs_are_rendered(output: dict[str, Any]) -> None:
    assert json.dumps(render_outputs([output, "no output"], {}))
    get_full_output([output], 0)


# --- static widgets and Plotly figures ------------------------------------------------


def test_widgets_are_rendered_statically() -> None:
    models = {
        "box": {
            "model_name": "HBoxModel",
            "state": {
                "children": [
                    f"IPY_MODEL_{name}" for name in ("bar", "pick", "box", "html")
                ]
            },
        },
        "html": {
            "model_name": "HTMLModel",
            "state": {"value": " <b>3</b>/4 [00:01&lt;00:02]"},
        },
        "bar": {
            "model_name": "FloatProgressModel",
            "state": {"value": 30.0, "min": 10, "max": 50, "description": "Load"},
        },
        "pick": {
            "model_name": "DropdownModel",
            "state": {
                "index": 1,
                "_options_labels": ["a", EVIL],
                "description": "Which",
            },
        },
    }
    view = make_rich_output() | {
        "data": {
            "application/vnd.jupyter.widget-view+json": {"model_id": "box"},
            "text/plain": "HBox(…)",
        }
    }
    rendered = render_one(
        view,
        get_widget_models(
            {
                "widgets": {
                    "application/vnd.jupyter.widget-state+json": {"state": models}
                }
            }
        ),
    )
    assert rendered["rows"] == [
        {"label": "Load", "part": 0.5, "text": "30 of 50"},
        {"label": "Which", "text": EVIL},
        {"label": "", "text": " 3/4 [00:01<00:02]"},
    ]
    assert render_one(view)["text"] == "HBox(…)"  # its state is missing


def figure(*traces: dict[str, Any], **layout: Any) -> dict[str, Any]:
    return {"data": [*traces], "layout": layout}


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        (
            [{"type": "scatter", "x": [1, 2, 3], "y": [3, 1, 2]}],
            ["<polyline", "<circle"],
        ),
        (
            [
                {
                    "y": {
                        "dtype": "f8",
                        "bdata": base64.b64encode(struct.pack("<3d", 1, 2, 5)).decode(),
                    },
                    "mode": "lines",
                }
            ],
            ["<polyline"],
        ),
        (
            [
                {"type": "bar", "x": ["Jan", "Feb"], "y": [5, -7]},
                {"type": "bar", "x": ["Jan"], "y": [1], "name": EVIL},
            ],
            [">Jan<", "&lt;img"],
        ),
        ([{"type": "histogram", "x": [1, 1, 2, 3, 5, 8]}], ["<rect"]),
        ([{"x": ["2026-01-01", "2026-03-01"], "y": [1, 2]}], [">2026-0"]),
        ([{"x": [1], "y": [1]}], ["<circle"]),
    ],
)
def test_plotly_is_rendered_as_static_svg(
    traces: list[dict[str, Any]], expected: list[str]
) -> None:
    svg = render_svg(
        figure(
            *traces,
            title={"text": f"{EVIL}\x1b"},
            xaxis={"title": {"text": "day"}},
            yaxis={"title": "mm"},
        )
    )
    xml.dom.minidom.parseString(svg)
    assert all(part in svg for part in (*expected, ">day<", ">mm<", "&lt;img src=x"))
    assert EVIL not in svg and "script" not in svg


def test_long_markdown_is_truncated_and_available_by_url() -> None:
    text = "a line\n" * 5000
    output = make_rich_output(text__markdown=text, text__plain="<Markdown object>")
    rendered = render_one(output)
    assert rendered["kind"] == "text" and rendered["left"] > 0
    assert get_full_output([output], 0).data.decode() == text
    short_output = make_rich_output(text__markdown="a line")
    assert render_one(short_output) == {"kind": "markdown", "text": "a line"}


def test_plotly_labels_of_the_x_axis_are_few_and_distinct() -> None:
    names = [f"name {number}" for number in range(19)]
    svg = render_svg(figure({"type": "bar", "x": names, "y": [*range(19)]}))
    assert svg.count(">name ") == 10
    svg = render_svg(
        figure({"x": ["2026-01-31 08:00", "2026-01-31 20:00"], "y": [1, 2]})
    )
    labels = re.findall(">(01-31 [^<]+)<", svg)
    assert len(labels) > 2 and len(set(labels)) == len(labels)
    svg = render_svg(
        figure({"x": ["2026-01-31 08:00:00", "2026-01-31 08:00:09"], "y": [1, 2]})
    )
    assert ">08:00:08<" in svg


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"type": "surface", "z": [[1]]}],
        [{"type": "bar", "orientation": "h", "y": [1]}],
        [{"y": []}],
        [{"x": ["2026-01-01", 1e300], "y": [1, 2]}],
        [{"x": ["2026-01-01", 1e18], "y": [1, 2]}],
        [{"x": {"dtype": "unknown", "bdata": "AAAA"}, "y": [1, 2]}],
    ],
)
def test_unsupported_plotly_traces_are_named(data: Any) -> None:
    assert render_svg({"data": data}) == ""
    assert (
        "Plotly figure"
        in render_one(
            {"output_type": "display_data", "data": {PLOTLY: {"data": data}}}
        )["text"]
    )


# --- a growing journal ----------------------------------------------------------------

AT = "2026-11-22T10:00:00.000Z"


def encode_events(number: int, fine: bool = True) -> bytes:
    cell: dict[str, Any] = {"run": number, "cell_id": "a", "key": 1}
    fault = None if fine else Fault("KeyError", "'x'")
    outcome, verdict = (
        (Outcome.OK, Verdict.FINE) if fine else (Outcome.ERROR, Verdict.RECOVERABLE)
    )
    events = [
        journal_events.RunStarted(**cell, at=AT, source=f"x = {number}"),
        journal_events.RunEnded(
            **cell,
            index=0,
            step=1,
            source_hash="h",
            started_at=AT,
            duration_s=0.5,
            outcome=outcome,
            verdict=verdict,
            fault=fault,
        ),
        journal_events.RunReported(
            run=number,
            text=f"stepper: run {number}\nWarning: all values are NaN\n| Warning: printed",
        ),
    ]
    return b"".join(json.dumps(event.to_json()).encode() + b"\n" for event in events)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def test_journal_is_read_incrementally(journal: Path) -> None:
    past = RunHistory(str(journal))
    assert not past.refresh() and past.runs == []
    journal.write_bytes(encode_events(1, fine=False))
    assert past.refresh() and not past.refresh()
    new_events = encode_events(2)
    with journal.open("ab") as stream:
        stream.write(new_events[:-10])
        stream.flush()
        past.refresh()
        assert [run.run for run in past.runs] == [
            1,
            2,
        ] and 2 not in past.warnings  # the report's line is still incomplete
        stream.write(new_events[-10:])
    assert past.refresh()
    assert [(run.run, run.fine, run.why) for run in past.runs] == [
        (1, False, "KeyError: 'x'"),
        (2, True, ""),
    ]
    assert past.warnings[2] == ["all values are NaN"]
    assert past.read_run(2) == {
        "source": "x = 2",
        "report": "stepper: run 2\nWarning: all values are NaN\n| Warning: printed",
    }
    assert past.read_run(3) == {"source": None, "report": None}


def test_replaced_journal_is_reread(journal: Path) -> None:
    past = RunHistory(str(journal))
    journal.write_bytes(encode_events(1) + encode_events(2))
    past.refresh()
    new = journal.with_suffix(".new")
    new.write_bytes(encode_events(7))
    os.replace(new, journal)
    assert past.refresh() and [run.run for run in past.runs] == [7]
    journal.write_bytes(b"")
    past.refresh()
    assert past.runs == []
    journal.unlink()
    assert past.refresh() and not past.refresh()


def test_invalid_journal_lines_are_skipped(journal: Path) -> None:
    past = RunHistory(str(journal))
    journal.write_bytes(
        b'{"event": "run"}\n[1]\n\xff\xfe\n{"event": "report", "run": "x", "text": 7}\nno json\n'
        + encode_events(3)
    )
    past.refresh()
    assert [run.run for run in past.runs] == [3]
    # the file is not moved aside
    assert not [name for name in os.listdir(journal.parent) if name != journal.name]


def test_thousand_runs_are_read_once(journal: Path) -> None:
    """Each line of the journal is read only once, checked by counts."""
    journal.write_bytes(b"".join(map(encode_events, range(1, 1001))))
    past = RunHistory(str(journal))
    past.refresh()
    assert (
        len(past.runs) == 1000
        and past.changes == 3000
        and len(past.state.reports) <= 60
    )
    assert past.read_run(500)["source"] == "x = 500"


def test_view_modules_are_imported_lazily() -> None:
    def list_imported_modules(module: str) -> set[str]:
        script = f"import sys, {module}; print(*sys.modules)"
        result = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        return set(result.stdout.split())

    for item in (
        "stepper.cli.main",
        "stepper.daemon.server",
        "stepper.hook.daemon_client",
    ):
        modules = list_imported_modules(item)
        assert not [
            name
            for name in modules
            if name.startswith(("stepper.web", "stepper.session.view_snapshot"))
        ], item
        # jupyter_client brings tornado
        assert item == "stepper.daemon.server" or not {"tornado", "rich"} & modules


def test_histogram_counts_all_values() -> None:
    few = render_svg({"data": [{"type": "histogram", "x": [*range(10_000)]}]})
    svg = render_svg({"data": [{"type": "histogram", "x": [*range(30_000)]}]})
    assert few != svg


def test_json_for_the_page_has_no_nan() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5], "c": "NaN"}
    assert encode_json(value) == b'{"a":null,"b":[null,1.5],"c":"NaN"}'


def test_long_json_and_latex_are_complete_on_request() -> None:
    values = [*range(20_000)]
    for data, text in (
        ({"application/json": values}, json.dumps(values, indent=1)),
        ({"text/latex": "$x$\n" * 10_000}, "$x$\n" * 10_000),
        ({"text/plain": "x\n" * 10_000, "text/latex": "$y$"}, "x\n" * 10_000),
    ):
        output = {"output_type": "display_data", "data": data}
        assert render_one(output)["left"] > 0
        full_output = get_full_output([output], 0)
        assert full_output is not None
        assert full_output.data.decode() == text


def test_plotly_points_without_x_value_are_not_drawn() -> None:
    trace = {"type": "scatter", "x": [1, None, 3], "y": [1, 2, 3]}
    svg = render_svg({"data": [trace]})
    assert svg.count("<circle") == 2
    assert "nan" not in svg


def test_ticks_of_tiny_values_differ() -> None:
    trace = {"type": "scatter", "x": [0, 1], "y": [0, 5e-15]}
    svg = render_svg({"data": [trace]})
    assert ">2e-15</text>" in svg and ">4e-15</text>" in svg


def test_ticks_of_large_values_differ() -> None:
    trace = {"type": "scatter", "x": [0, 1], "y": [1e12, 1e12 + 1]}
    svg = render_svg({"data": [trace]})
    heights = re.findall(r'<path d="M\d+ ([0-9.]+)H\d+" stroke="#e3e6ee"', svg)
    assert len(heights) == len(set(heights)) == 3


def test_blank_html_is_no_full_output() -> None:
    data = {"text/html": "\n", "text/plain": "x\n" * 10_000}
    output = {"output_type": "display_data", "data": data}
    assert render_one(output)["left"] > 0
    full_output = get_full_output([output], 0)
    assert full_output is not None
    assert full_output.mime.startswith("text/plain")
    assert full_output.data.decode() == "x\n" * 10_000


def test_plotly_figure_with_too_many_categories_is_not_drawn() -> None:
    names = [f"n{index}" for index in range(201)]
    numbers = [*range(201)]
    trace = {"type": "bar", "x": names, "y": numbers}
    assert render_svg({"data": [trace]}) == ""
    trace = {"type": "bar", "x": names[:200], "y": numbers[:200]}
    assert render_svg({"data": [trace]})


def test_plotly_figure_with_equal_large_values_is_drawn() -> None:
    trace = {"type": "scatter", "x": [0, 1], "y": [1e20, 1e20]}
    assert render_svg({"data": [trace]}).count("<circle") == 2


def test_equal_plotly_bar_traces_are_side_by_side() -> None:
    trace = {"type": "bar", "x": ["a"], "y": [1]}
    svg = render_svg({"data": [trace, dict(trace)]})
    lefts = re.findall(r'<rect x="([0-9.]+)" y="[0-9.]+" width="[0-9.]+"', svg)
    assert len(set(lefts[:2])) == 2


def test_page_data_is_built_again_for_a_snapshot_at_the_same_address(
    tmp_path: Path,
) -> None:
    # The requests of several pages can replace the snapshot more than once before
    # `page_data` is built.
    path = tmp_path / "notebooks" / "a.ipynb"
    path.parent.mkdir()
    path.write_text('{"cells": [], "nbformat": 4}')
    view = NotebookList(Paths(str(tmp_path))).get_view("notebooks/a.ipynb")
    assert view is not None
    for _ in range(5):
        page_data = view.refresh("")
        address = id(view.snapshot)
        kept = []  # so that their addresses are not reused
        for _ in range(200):
            view._request_snapshot()
            if id(view.snapshot) == address:
                break
            kept.append(view.snapshot)
        assert view.refresh("") is not page_data


def test_notebook_without_cells_shows_no_cells_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "notebooks" / "a.ipynb"
    path.parent.mkdir()
    notebooks = NotebookList(Paths(str(tmp_path)))
    journal = Path(notebooks._get_journal(str(path)))
    journal.parent.mkdir(parents=True)
    journal.write_bytes(encode_events(1))
    view = notebooks.get_view("notebooks/a.ipynb")
    assert view is not None
    assert len(view.refresh("")["cells"]) == 1  # there is no notebook file yet
    path.write_text('{"cells": [], "nbformat": 4}')
    assert view.refresh("")["cells"] == []
