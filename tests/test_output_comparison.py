"""How outputs are compared: a set of invented pairs, and each rule on its own."""

from __future__ import annotations

import base64
import dataclasses
import io
import time
from typing import Any

import pytest
from PIL import Image

from stepper.kernels.outputs import image_diff, output_images
from stepper.messages.verification import verify_report
from stepper.policy.comparison import (
    ignored_differences,
    output_comparison,
    verify_results,
    widget_outputs,
)
from stepper.policy.comparison.output_comparison import (
    CellOutputs,
    Difference,
    ReplayVerdict,
)
from stepper.policy.comparison.verify_results import (
    CellVerdict,
    PackageChange,
    VerifyResult,
)
from tests.verify.pairs import PAIRS, Outputs, Pair, html, make_result, make_stream, png


def compare(
    recorded: Outputs, fresh: Outputs, *further: Outputs, **options: Any
) -> Difference:
    return output_comparison.compare_outputs(
        CellOutputs(recorded),
        CellOutputs(fresh),
        [*map(CellOutputs, further)],
        image_diff.compare_pixels,
        **options,
    )


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_harmless_differences_reproduce_and_real_ones_do_not(pair: Pair) -> None:
    assert compare(pair.recorded, pair.fresh).verdict.reproduces is not pair.real
    assert compare(pair.fresh, pair.recorded).verdict.reproduces is not pair.real, (
        "in the opposite direction"
    )


@pytest.mark.parametrize("row", ignored_differences.IGNORED, ids=lambda row: row[0])
def test_every_ignored_difference_row_is_needed(
    row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has no row that no pair needs."""
    rules = [
        rule
        for rule, other_row in zip(
            ignored_differences.RULES, ignored_differences.IGNORED, strict=True
        )
        if other_row is not row
    ]
    monkeypatch.setattr(ignored_differences, "RULES", rules)
    wrong = [
        pair
        for pair in PAIRS
        if compare(pair.recorded, pair.fresh).verdict.reproduces is pair.real
    ]
    assert wrong


def test_changed_lines_are_counted_and_shown() -> None:
    difference = compare(make_stream("a\nb\nc\n"), make_stream("a\nX\nY\nc\n"))
    assert (difference.verdict, difference.text) == (ReplayVerdict.CHANGED, "-1 +2")
    assert difference.lines == ("- b", "+ X", "+ Y")


@pytest.mark.parametrize(
    "recorded, fresh, close",
    [
        ("0.30000000000000004", "0.3", True),
        ("1.0000001", "1.0", True),
        ("1.00001", "1.0", False),
        ("1e-300", "2e-300", False),
        ("1000000", "1000001", False),
        ("1000000.0", "1000001.0", True),
        ("18446744073709551616", "18446744073709551617", False),
        ("02134", "2134", False),
        ("1,234,567", "1234567", True),
        ("3", "3.0", False),
        ("3", "3.0000000001", True),
        ("1e6", "1.000001e6", True),
        ("1,000,000.25", "1,000,000.26", True),
        ("v1.26.4", "v1.26.5", False),
        ("1.26.4", "1.26.5", False),
        ("(1+2.0000000001j)", "(1+2j)", True),
        ("−0.5000000001", "−0.5", True),
        ("nan", "1.0", False),
        ("[0.1 0.2]", "[0.1 0.2 0.3]", False),
    ],
)
def test_numbers_within_a_millionth_are_close(
    recorded: str, fresh: str, close: bool
) -> None:
    assert compare(make_result(recorded), make_result(fresh)).verdict is (
        ReplayVerdict.CLOSE if close else ReplayVerdict.CHANGED
    )


def test_line_with_nul_is_compared() -> None:
    assert (
        compare(make_stream("a\0b\n"), make_stream("a\0c\n")).verdict
        is ReplayVerdict.CHANGED
    )


def test_array_with_different_line_breaks_is_close() -> None:
    assert compare(
        make_result("array([1.5, 2.5,\n       0.3])"),
        make_result("array([1.5, 2.5, 0.30000000000000004])"),
    ).verdict is (ReplayVerdict.CLOSE)


def test_two_fresh_runs_detect_nondeterminism() -> None:
    recorded, fresh, second_fresh = (
        make_stream("a 1\nsum 5\n"),
        make_stream("a 2\nsum 5\n"),
        make_stream("a 3\nsum 5\n"),
    )
    assert compare(recorded, fresh, second_fresh).verdict is ReplayVerdict.UNSTABLE
    both = compare(recorded, make_stream("a 2\nsum 6\n"), make_stream("a 3\nsum 6\n"))
    assert (both.verdict, both.text, both.lines) == (
        ReplayVerdict.CHANGED,
        "-1 +1",
        ("- sum 5", "+ sum 6"),
    )
    assert compare(recorded, fresh, fresh).text == "-1 +1"


@pytest.mark.parametrize(
    "recorded, fresh, second_fresh",
    [
        ("a\nb\nc\n", "b\na\nc\n", "a\nc\nb\n"),  # random order
        ("a\n", "a\nb\n", "a\n"),  # a line that is sometimes printed
        ("a\nb\n", "a\n", "a\nb\nb\n"),
        ("x\n" * 3, "x\n" * 5, "x\n" * 7),
        ("{'a', 'b'}\n", "{'b', 'a'}\n", "{'a', 'b'}\n"),
        ("h\n3\n7\n1\n", "h\n4\n3\n6\n", "h\n5\n8\n2\n"),  # lines of a random sample
        # lines of a set; some agree by chance
        (
            "z\nx\nq\ny\nr\n",
            "y\nx\nz\nq\nr\n",
            "y\nq\nz\nx\nr\n",
        ),
    ],
)
def test_intermittent_output_is_nondeterministic(
    recorded: str, fresh: str, second_fresh: str
) -> None:
    assert (
        compare(
            make_stream(recorded), make_stream(fresh), make_stream(second_fresh)
        ).verdict
        is ReplayVerdict.UNSTABLE
    )


def test_third_run_decides_after_chance_agreement() -> None:
    # lines of a random sample
    drawn = (
        make_stream("3\n7\n1\n"),
        make_stream("4\n5\n6\n"),
        make_stream("4\n8\n6\n"),
    )
    difference = compare(*drawn)
    assert difference.verdict is ReplayVerdict.CHANGED and difference.is_doubtful
    assert compare(*drawn, make_stream("0\n5\n2\n")).verdict is ReplayVerdict.UNSTABLE
    # a set of two elements
    pair = (
        make_stream("b\na\n"),
        make_stream("a\nb\n"),
        make_stream("a\nb\n"),
    )  # a loop over a set of two
    assert (
        compare(*pair).is_doubtful
        and compare(*pair, pair[1]).verdict is ReplayVerdict.CHANGED
    )
    assert compare(*pair, pair[0]).verdict is ReplayVerdict.UNSTABLE
    assert not compare(
        make_stream("a 1\n"), make_stream("a 2\n"), make_stream("a 2\n")
    ).is_doubtful, "two equal fresh runs are sufficient"
    assert not compare(make_stream("1\n"), [], []).is_doubtful


def test_change_next_to_a_set_is_detected() -> None:
    difference = compare(
        make_stream("a\nb\ntop 1\n"),
        make_stream("b\na\ntop 2\n"),
        make_stream("a\nb\ntop 2\n"),
    )
    assert (difference.verdict, difference.lines) == (
        ReplayVerdict.CHANGED,
        ("- top 1", "+ top 2"),
    )
    assert (
        compare(
            make_stream("x\ny\n"), make_stream("y\nx\n"), make_stream("y\nx\n")
        ).verdict
        is ReplayVerdict.CHANGED
    )
    member = compare(
        make_stream("h\na\nX\nc\n"),
        make_stream("h\nc\na\nb\n"),
        make_stream("h\nb\nc\na\n"),
    )
    assert member.verdict is ReplayVerdict.CHANGED, (
        "two fresh runs have the same members"
    )


def make_widgets(**models: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the metadata of a notebook with widget models."""
    state = {
        name: {"model_name": model, "state": values}
        for name, (model, values) in models.items()
    }
    return {"widgets": {widget_outputs.STATE_TYPE: {"state": state}}}


def test_outputs_inside_widgets_are_compared() -> None:
    view = make_result("VBox()", **{widget_outputs.VIEW_TYPE: {"model_id": "box"}})
    printed = [{"output_type": "stream", "name": "stdout", "text": "rain 41\n"}]
    bar = "\u20075/5\u2007[00:01&lt;00:00,\u2007 4.1it/s,\u2007loss=0.5]"
    models = widget_outputs.get_models(
        make_widgets(
            box=(
                "VBoxModel",
                {"children": ["IPY_MODEL_out", "IPY_MODEL_bar", "IPY_MODEL_box"]},
            ),
            out=("OutputModel", {"outputs": printed}),
            bar=("HTMLModel", {"value": bar}),
        )
    )
    shown = widget_outputs.add_widget_outputs(CellOutputs(view), models)
    assert shown.outputs[:2] == [*view, *printed]
    faster = [*shown.outputs[:2], *make_result(" 5/5 [00:09<00:00, 9.1s/it, loss=0.5]")]
    assert compare(list(shown.outputs), faster).verdict is ReplayVerdict.SAME
    worse = [*shown.outputs[:2], *make_result(" 5/5 [00:01<00:00, 4.1it/s, loss=0.7]")]
    assert compare(list(shown.outputs), worse).verdict is ReplayVerdict.CHANGED
    assert widget_outputs.has_models(view, models)
    assert not widget_outputs.has_models(view, {}), "the state was not saved"
    invalid: dict[str, Any] = {"widgets": {widget_outputs.STATE_TYPE: []}}
    assert widget_outputs.get_models(invalid) == {}


def test_stderr_difference_is_reported() -> None:
    warned = "/env/lib/a.py:3: ConvergenceWarning: lbfgs failed\n  warnings.warn(\n"
    new = compare(
        make_stream("a: UserWarning: x\n", "stderr"), make_stream(warned, "stderr")
    )
    assert new.verdict is ReplayVerdict.SAME
    assert new.text == "new on stderr: ConvergenceWarning: lbfgs failed"
    assert new.warnings == ("ConvergenceWarning: lbfgs failed",)
    difference = compare(make_stream("1\n", "stderr"), make_stream("1\n2\n", "stderr"))
    assert (difference.verdict, difference.text) == (
        ReplayVerdict.SAME,
        "stderr differs (1 line recorded, 2 now); this does not affect the verdict",
    )


def test_line_missing_in_both_fresh_runs_is_changed() -> None:
    assert (
        compare(
            make_stream("a\nr 1\n"), make_stream("r 2\n"), make_stream("r 3\n")
        ).verdict
        is ReplayVerdict.CHANGED
    )
    assert compare(make_stream("a\nb\n"), [], []).text == "-2"


def test_images_are_compared_by_bytes_pixels_and_facts() -> None:
    assert compare(png(level=1), png(level=9)).verdict is ReplayVerdict.SAME
    assert (
        compare(png(edge="#fefffd"), png(edge="#fffffe")).verdict is ReplayVerdict.SAME
    ), "another machine's rounding"
    recorded, fresh = png("Rain"), png("Snow")
    assert "% of its pixels differ" in compare(recorded, fresh).text
    facts = [
        {
            output_comparison.hash_picture(
                "".join(item[0]["data"]["image/png"].split())
            ): name
        }
        for item, name in ((recorded, 'title "Rain"'), (fresh, 'title "Snow"'))
    ]
    difference = output_comparison.compare_outputs(
        CellOutputs(recorded, facts[0]),
        CellOutputs(fresh, facts[1]),
        (),
        image_diff.compare_pixels,
    )
    assert difference.text == '-1 +1; figure 1: title "Rain" then, title "Snow" now'
    same = [dict.fromkeys(fact, "a plot") for fact in facts]
    for is_redrawn, verdict in (
        (False, ReplayVerdict.CHANGED),
        (True, ReplayVerdict.CLOSE),
    ):
        arguments = (
            CellOutputs(recorded, same[0]),
            CellOutputs(fresh, same[1]),
            (),
            image_diff.compare_pixels,
        )
        difference = output_comparison.compare_outputs(
            *arguments, is_redrawn=is_redrawn
        )
        assert difference.verdict is verdict
    without_summary = output_comparison.compare_outputs(
        CellOutputs(recorded, same[0]),
        CellOutputs(fresh),
        (),
        image_diff.compare_pixels,
        is_redrawn=True,
    )
    assert without_summary.verdict is ReplayVerdict.CHANGED
    assert compare(recorded, fresh, png("Hail")).verdict is ReplayVerdict.UNSTABLE
    assert (
        compare(recorded, fresh, png("Snow", level=1)).verdict is ReplayVerdict.CHANGED
    )


def test_image_hash_matches_the_kernel_key() -> None:
    text = png()[0]["data"]["image/png"]
    assert output_comparison.hash_picture("".join(text.split())) == str(
        output_images.get_image_key(text)
    )


def test_same_format_of_an_image_is_compared() -> None:
    def shot(colour: tuple[int, int, int], *forms: str) -> Outputs:
        images = {f"image__{form}": picture(form, colour) for form in forms}
        return make_result("<PIL.Image.Image image mode=RGB size=40x40>", **images)

    recorded = shot((10, 20, 30), "png", "jpeg")
    assert (
        compare(recorded, shot((10, 20, 30), "jpeg", "png")).verdict
        is ReplayVerdict.SAME
    )
    assert (
        compare(recorded, shot((10, 20, 31), "jpeg", "png")).verdict
        is ReplayVerdict.CHANGED
    )
    assert (
        compare(shot((10, 20, 30), "jpeg"), shot((10, 20, 30), "jpeg", "png")).verdict
        is ReplayVerdict.SAME
    )


def test_all_frames_of_an_animation_are_compared() -> None:
    recorded, fresh = (
        make_result("<Image>", image__gif=picture("gif", (200, 0, 0), (0, 0, blue)))
        for blue in (200, 90)
    )
    assert compare(recorded, recorded).verdict is ReplayVerdict.SAME
    assert compare(recorded, fresh).verdict is ReplayVerdict.CHANGED


def picture(form: str, *colours: tuple[int, int, int]) -> str:
    buffer = io.BytesIO()
    first, *further_frames = [Image.new("RGB", (40, 40), colour) for colour in colours]
    first.save(
        buffer,
        form,
        **(
            {"save_all": True, "append_images": further_frames}
            if further_frames
            else {}
        ),
    )
    return base64.b64encode(buffer.getvalue()).decode()


def test_undecodable_images_are_compared_by_bytes() -> None:
    def broken(text: str) -> Outputs:
        return make_result("<Figure>", image__png=text)

    assert compare(broken("AAAA"), broken("AAAA")).verdict is ReplayVerdict.SAME
    assert compare(broken("AAAA"), broken("BBBB")).verdict is ReplayVerdict.CHANGED
    assert compare(broken("%%%"), broken("BBBB")).verdict is ReplayVerdict.CHANGED


def test_random_ids_are_ignored_but_visible_text_is_not() -> None:
    page = html
    drawn = '<style>#T{0} {{color: {1}}}</style><b id="T{0}">5</b><script>draw("#T{0}")</script>'
    assert (
        compare(
            page(drawn.format("a1", "red")), page(drawn.format("f7", "red"))
        ).verdict
        is ReplayVerdict.SAME
    )
    assert (
        compare(
            page(drawn.format("a1", "red")), page(drawn.format("f7", "blue"))
        ).verdict
        is ReplayVerdict.CHANGED
    )
    for item, other in (("5", "6"), ("rain", "snow")):
        recorded, fresh = (
            page(f'<h2 id="{entry}">{entry}</h2>') for entry in (item, other)
        )
        assert compare(recorded, fresh).verdict is ReplayVerdict.CHANGED


def test_repr_without_content_is_ignored() -> None:
    charts = [
        make_result(
            "alt.Chart(...)",
            text__html=f'<div id="v{n}"></div><script>v("{n}")</script>',
        )
        for n in "aab"
    ]
    assert compare(*charts[:2]).verdict is ReplayVerdict.SAME
    assert compare(*charts[1:]).verdict is ReplayVerdict.CHANGED


def test_json_numbers_are_compared_as_a_browser_saves_them() -> None:
    recorded, fresh = (
        make_result("Figure()", **{"application/vnd.plotly.v1+json": {"y": y}})
        for y in ([1, 2.5], [1.0, 2.5])
    )
    assert compare(recorded, fresh).verdict is ReplayVerdict.SAME


def test_informative_formats_of_a_display_are_compared() -> None:
    chart = {"application/vnd.vegalite.v5+json": {"mark": "bar", "width": 3.0000000001}}
    same_chart = {"application/vnd.vegalite.v5+json": {"width": 3.0, "mark": "bar"}}
    other_chart = {"application/vnd.vegalite.v5+json": {"width": 3.0, "mark": "line"}}
    assert (
        compare(
            make_result("alt.Chart(...)", **chart),
            make_result("alt.Chart(...)", **same_chart),
        ).verdict
        is ReplayVerdict.CLOSE
    )
    assert (
        compare(
            make_result("alt.Chart(...)", **same_chart),
            make_result("alt.Chart(...)", **other_chart),
        ).verdict
        is ReplayVerdict.CHANGED
    )
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}}
    other_widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "b"}}
    assert (
        compare(
            make_result("IntSlider(value=7)", **widget),
            make_result("IntSlider(value=7)", **other_widget),
        ).verdict
        is ReplayVerdict.SAME
    )
    svg = '<svg><metadata><dc:date>{}</dc:date></metadata><path id="p{}" d="M 0"/><use href="#p{}"/></svg>'
    drawn = [
        make_result("<Figure>", image__svg_xml=svg.format(n, n, n)) for n in (1, 2)
    ]
    for item in drawn:
        item[0]["data"]["image/svg+xml"] = item[0]["data"].pop("image/svg_xml")
    assert compare(*drawn).verdict is ReplayVerdict.SAME
    assert compare(html("<b>1</b>"), html("<b>2</b>")).verdict is ReplayVerdict.CHANGED


@pytest.mark.parametrize(
    "odd",
    [
        [{"output_type": "stream"}],
        [{"output_type": "stream", "text": 3}],
        [{"data": None}],
        [{"data": {"text/plain": 3}}],
        [{"output_type": "error"}],
        [{}],
        [{"data": {"image/png": ["a", "b"]}}],
        [{"data": {"x/y": {"a": [1]}}}],
    ],
)
def test_invalid_outputs_are_tolerated(odd: Outputs) -> None:
    assert compare(odd, odd).verdict is ReplayVerdict.SAME
    compare(odd, make_stream("a\n"), odd)
    compare(make_stream("a\n"), odd)


@pytest.mark.nightly
def test_large_texts_are_compared_in_bounded_time() -> None:
    lines = [f"line {number} {number * 0.7}" for number in range(20_000)]
    changed_lines = [
        line if number % 2 else f"{line}!" for number, line in enumerate(lines)
    ]
    began = time.monotonic()
    difference = compare(
        make_stream("\n".join(lines)),
        make_stream("\n".join(changed_lines)),
        make_stream("\n".join(lines[1:])),
    )
    assert (
        difference.verdict is ReplayVerdict.CHANGED
        or difference.verdict is ReplayVerdict.UNSTABLE
    )
    assert (
        compare(
            make_stream("\n".join(lines)), make_stream("\n".join(changed_lines))
        ).text
        == "-10000 +10000"
    )
    assert (
        compare(make_stream("x" * 3_000_000), make_stream("x" * 3_000_001)).verdict
        is ReplayVerdict.CHANGED
    )
    assert time.monotonic() - began < 60, "the comparison is too slow"


def make_verify_result(
    *cells: tuple[int, ReplayVerdict, str], **options: Any
) -> VerifyResult:
    verdicts = [
        CellVerdict(f"id{number}", number, verdict, cell)
        for number, verdict, cell in cells
    ]
    well = all(cell.verdict.reproduces for cell in verdicts)
    return VerifyResult(
        **{
            "notebook": "made_up.ipynb",
            "reproduces": well,
            "cells": verdicts,
            "files": [],
            "duration_s": 2.2,
            "kernels": 2,
            **options,
        }
    )


def test_verify_report_text() -> None:
    same = [(number, ReplayVerdict.SAME, "") for number in (1, 3, 4)]
    failed = "NameError: name 'df' is not defined (`df` was defined in cell 3, which was deleted)"
    result = make_verify_result(
        *same,
        (
            2,
            ReplayVerdict.UNSTABLE,
            "two fresh runs differ as well: it reads the clock",
        ),
        (5, ReplayVerdict.CHANGED, "-4 +6"),
        (6, ReplayVerdict.FAILED, failed),
        files=[verify_report.create_file_change("by_month.csv", "same", 3, 3)],
        packages=[PackageChange("pandas", "3.1.0", "3.1.1")],
    )
    assert verify_report.format_verify(result).splitlines() == [
        "made_up.ipynb: DOES NOT REPRODUCE · 3 of 6 cells as recorded · 2.2 s in 2 fresh kernels;"
        " the live kernel was not touched",
        "  ~ cell 2 (id id2) unstable: two fresh runs differ as well: it reads the clock",
        "  ✗ cell 5 (id id5) changed: -4 +6",
        f"  ✗ cell 6 (id id6) failed: {failed}",
        "  · file by_month.csv: rewritten with the same content",
        "  · package pandas: 3.1.0 then, 3.1.1 now",
    ]
    well = verify_report.format_verify(
        make_verify_result(
            (1, ReplayVerdict.SAME, ""),
            (2, ReplayVerdict.CLOSE, "numbers within 1e-6"),
            kernels=1,
        )
    )
    assert well.startswith(
        "made_up.ipynb: REPRODUCES · 2 of 2 cells as recorded · 2.2 s in 1 fresh kernel; "
    )
    assert well.endswith(
        "\n  ≈ cell 2: close to the recorded outputs (numbers within 1e-6)"
    )


def test_headline_counts_recorded_failures_and_open_steps() -> None:
    same = (1, ReplayVerdict.SAME, "")
    head = verify_report.format_verdict(
        make_verify_result(same, failing=1, open_steps=2)
    )
    assert head.startswith(
        "made_up.ipynb: REPRODUCES; the only cell fails as recorded; 2 steps open · 1 of 1 cells as recorded"
    )
    same_cells = [(number, ReplayVerdict.SAME, "") for number in range(1, 104)]
    head = verify_report.format_verdict(make_verify_result(*same_cells, failing=102))
    assert "REPRODUCES; 102 of 103 cells fail as recorded · 103 of 103 " in head
    head = verify_report.format_verdict(make_verify_result(*same_cells, failing=103))
    assert "REPRODUCES; all 103 cells fail as recorded · " in head
    changed = (104, ReplayVerdict.CHANGED, "-1 +1")
    head = verify_report.format_verdict(
        make_verify_result(*same_cells, changed, failing=1)
    )
    assert "DOES NOT REPRODUCE; 1 of 104 cells fails as recorded · 103 of " in head


def make_changed_cells(count: int) -> VerifyResult:
    """A result in which all cells changed, each with six differing lines."""
    lines = ("- 1", "- 2", "- 3", "+ 4", "+ 5", "+ 6")
    cells = [
        CellVerdict(f"c{number}", number, ReplayVerdict.CHANGED, "-3 +3" * 99, lines)
        for number in range(1, count + 1)
    ]
    return dataclasses.replace(make_verify_result(), cells=cells, reproduces=False)


def test_every_changed_cell_has_a_line() -> None:
    lines = verify_report.format_verify(make_changed_cells(60)).splitlines()
    rows = [line for line in lines if line.startswith("  ✗ cell ")]
    assert [int(row.split()[2]) for row in rows] == [*range(1, 61)]
    assert max(map(len, lines)) < 250
    assert len(lines) == 1 + 60 + 18 + 1
    assert lines[-1] == (
        "  · the differing lines of 57 cells are not shown (`--json` prints them)"
    )
    thousand = verify_report.format_verify(make_changed_cells(1000)).splitlines()
    assert len(thousand) == 1 + 100 + 18 + 2
    assert "  ✗ cells 101–1000 changed" in thousand


def test_report_names_cells_in_their_order() -> None:
    """As after the death of the kernel in cell 5."""
    cells = [
        (1, ReplayVerdict.NOT_RECORDED, ""),
        (2, ReplayVerdict.CLOSE, "numbers within 1e-6"),
        (3, ReplayVerdict.CHANGED, "-1 +1"),
        (4, ReplayVerdict.SAME, "fails, as recorded: KeyError: 1"),
        (5, ReplayVerdict.FAILED, "the kernel died"),
        *[(number, ReplayVerdict.NOT_RUN, "") for number in range(6, 40)],
        (40, ReplayVerdict.SAME, "fails, as recorded: KeyError: 1"),
    ]
    lines = verify_report.format_verify(make_verify_result(*cells)).splitlines()
    starts = ["✗ cell 1:", "≈ cell 2:", "✗ cell 3 ", "· cells 4, 40: fails, as"]
    starts += ["✗ cell 5 (id id5) failed: the kernel died", "· cells 6–39: not run, "]
    for line, start in zip(lines[1:], starts, strict=True):
        assert line.startswith(f"  {start}"), line


def test_report_lines_contain_no_control_characters() -> None:
    lines = ("- \x1b[31mred", "+ x\x07")
    result = make_verify_result()
    forged = VerifyResult(
        **{
            **vars(result),
            "cells": [
                CellVerdict("a\nb", 1, ReplayVerdict.CHANGED, "-1\n✗ cell 9", lines)
            ],
        }
    )
    text = verify_report.format_verify(forged).splitlines()
    assert text[1:] == ["  ✗ cell 1 (id a) changed: -1", "      | - red", "      | + x"]


def test_changed_packages() -> None:
    recorded_packages, fresh_packages = (
        {"pandas": "3.1.0", "gone": "1"},
        {"pandas": "3.1.1", "new": "2"},
    )
    assert verify_results.find_changed_packages(recorded_packages, fresh_packages) == [
        PackageChange("pandas", "3.1.0", "3.1.1")
    ]
