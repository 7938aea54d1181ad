"""Outputs over the limit keep their head and tail and report the truncated amount."""

from __future__ import annotations

import json
import time
from itertools import islice

import nbformat
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepper.kernels import message_decoding
from stepper.kernels.outputs.output_area import OutputArea
from stepper.kernels.outputs.output_limits import measure_output
from stepper.kernels.outputs.stream_text import StreamText
from stepper.kernels.wake_pattern import WakeWatcher
from stepper.policy.model import OmittedOutput
from tests.conftest import Project, text_of
from tests.stream_folding import folded


@pytest.mark.parametrize(
    "pieces", [["a" * 10] * 1000, ["a" * 10_000], ["é"] * 5000, ["x\n"] * 3]
)
def test_text_is_bounded_while_it_arrives(pieces: list[str]) -> None:
    text = StreamText(100)
    for piece in pieces:
        text.add(piece)
        assert text.head_size + text.tail_size <= 100
    full_text = "".join(pieces)
    message = "".join(text.head) + "".join(text.tail)
    assert text.omitted_characters == len(full_text) - len(message)
    assert full_text.startswith("".join(text.head)) and full_text.endswith(
        "".join(text.tail)
    )


@settings(deadline=None)
@given(st.lists(st.text("ab\r\r\b\n", max_size=8), max_size=8), st.integers(2, 40))
def test_carriage_returns_and_backspaces_are_folded_like_jupyterlab(
    pieces: list[str], limit: int
) -> None:
    text, small, full_text = (
        StreamText(10_000),
        StreamText(limit),
        folded("".join(pieces)),
    )
    for piece in pieces:
        text.add(piece)
        small.add(piece)
        assert small.head_size == len("".join(small.head)) and small.tail_size == len(
            "".join(small.tail)
        )
        assert small.head_size + small.tail_size <= limit
    assert text.render() == full_text
    if len(full_text) <= limit and not small.omitted_characters:
        assert small.render() == full_text


@pytest.mark.parametrize(
    ("pieces", "remaining"),
    [
        (["\r 50%|██  | 1/2", "\r100%|████| 2/2", "\n"], "100%|████| 2/2\n"),
        (["a\r\n", "b\r", "\nc\r"], "a\nb\nc"),
        (["10\r", "9"], "90"),  # as in a terminal and JupyterLab
        (["\r\x1b[32m 50%|██\x1b[0m", "\r\x1b[32m 9%\x1b[0m"], "\x1b[32m 9%\x1b[0m"),
        (["\x1b[31mred\x1b[0m\n", "plain"], "\x1b[31mred\x1b[0m\nplain"),
        (
            ["\router 0", *["\n", "\r  inner", "\x1b[A"] * 9, "\router 1", "\n"],
            "outer 1\n  inner",
        ),
        (["x" * 70_000, "\ry"], "y" + "x" * 69_999),
        (["\x1b[9A\x1b[A", "a\n\x1b[500Ab"], "b\n"),
    ],
)
def test_redrawn_progress_bars_are_collapsed(pieces: list[str], remaining: str) -> None:
    text = StreamText(1_000_000)
    for piece in pieces:
        text.add(piece)
    assert text.render() == remaining


def message(name: str, text: str) -> dict:
    return {"msg_type": "stream", "header": {}, "content": {"name": name, "text": text}}


def test_progress_bar_position_and_stream_order_are_kept() -> None:
    area = OutputArea(10_000)
    for name, text in [
        ("stderr", "\r  0%"),
        ("stdout", "0\n"),
        ("stderr", "\r 50%"),
        ("stdout", "1\n"),
        ("stderr", "\r100%"),
        ("stdout", "2\n"),
        ("stderr", "\n"),
        ("stderr", "warned\n"),
        ("stdout", "a"),
        ("stderr", "b\n"),
        ("stdout", "c"),
    ]:
        area.add_message(message(name, text))
    results = [(output["name"], output["text"]) for output in area.get_outputs()]
    assert results[:2] == [("stderr", "100%\n"), ("stdout", "0\n1\n2\n")]
    expected = [
        ("stderr", "warned\n"),
        ("stdout", "a"),
        ("stderr", "b\n"),
        ("stdout", "c"),
    ]
    assert results[2:] == expected, "other text is at the same position as in Jupyter"


def test_text_after_a_figure_stays_below_it() -> None:
    area = OutputArea(10_000)
    for text in ("\nAccuracy of the figure above: 0.9\n", "\x1b[1mbold\x1b[0m"):
        area.add_message(message("stdout", "\r2/2"))
        area.add_message(
            {
                "msg_type": "display_data",
                "header": {},
                "content": {"data": {"text/plain": "figure"}, "metadata": {}},
            }
        )
        area.add_message(message("stdout", text))
    kinds = [output["output_type"] for output in area.get_outputs()]
    assert kinds == ["stream", "display_data", "stream", "display_data", "stream"]


@pytest.mark.parametrize(
    "text",
    [
        "x\b" * 5_000_000,
        "x" + "\b" * 9_000_000,
        "\x1b[1A" * 2_000_000,
        "x\r" * 5_000_000,
    ],
)
def test_repeated_backspaces_are_processed_in_bounded_time(text: str) -> None:
    began = time.thread_time()
    StreamText(10_000).add(text)
    assert time.thread_time() - began < 5


def capped(outputs: list[dict], limit: int) -> list[dict]:
    """Return outputs truncated to a limit."""
    return OutputArea.from_notebook(outputs, {}, OmittedOutput(), limit).get_outputs()


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "\\",
                "\n",
                '"',
                "é",
                "日",
                "😀",
                "\x01",
                "\\u0041",
                "\ud83d",
                "\\ud83d",
            ]
        ),
        max_size=60,
    ),
    st.integers(32, 50),
    st.booleans(),
)
# `print(json.dumps("😀"))` prints an escape sequence: its backslash is escaped once more
# in the message.
@example(["a", *6 * ["\\ud83d\\ude00"]], 34, True)
def test_long_text_is_rendered_in_pieces(
    pieces: list[str], piece: int, ascii_only: bool
) -> None:
    text = "".join(pieces)
    content = json.dumps(
        {"name": "stdout", "text": text}, ensure_ascii=ascii_only
    ).encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_decoding, "PIECE", piece)
        message = [*message_decoding.split_stream_text(content)]
    assert (
        "".join(message) == json.loads(content)["text"]
        and len(message) >= len(text) / piece
    )
    assert list(
        message_decoding.split_stream_text(b'{"text": "x", "name": "stdout"}')
    ) == ["x"]


def test_invalid_text_is_read_to_its_end() -> None:
    """A cell can send any bytes, for example continuation bytes without a character."""
    content = b'{"name": "stdout", "text": "' + b"\x80" * 100 + b'"}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_decoding, "PIECE", 32)
        pieces = list(islice(message_decoding.split_stream_text(content), 10))
    assert "".join(pieces) == "\ufffd" * 100


def test_replaced_updates_do_not_end_a_progress_bar() -> None:
    area = OutputArea(1000)
    area.add_message(message("stderr", "\r  0%"))
    content = {
        "data": {"text/plain": "x" * 100},
        "metadata": {},
        "transient": {"display_id": "d"},
    }
    area.add_message({"msg_type": "display_data", "header": {}, "content": content})
    update = {"msg_type": "update_display_data", "header": {}, "content": content}
    for _ in range(50):
        area.add_message(update)
    area.add_message(message("stderr", "\r100%"))
    kinds = [output["output_type"] for output in area.get_outputs()]
    assert kinds == ["stream", "display_data"]
    assert area.get_outputs()[0]["text"] == "100%"


def test_backspace_after_the_end_of_an_upper_line() -> None:
    text = StreamText(1000)
    text.add("ab\nabcd\x1b[1Ax\by")
    assert text.render() == "ab  y\nabcd"


def test_size_of_an_omitted_display_is_in_bytes() -> None:
    area = OutputArea(1000)
    content = {"data": {"text/plain": "é" * 2000}, "metadata": {}}
    area.add_message({"msg_type": "display_data", "header": {}, "content": content})
    (note,) = area.get_outputs()
    assert "text/plain of 4,000 bytes" in note["text"]


def test_long_name_of_an_error_is_shortened() -> None:
    area = OutputArea(10_000)
    content = {"ename": "E" * 100_000, "evalue": "x", "traceback": ["x"]}
    area.add_message({"msg_type": "error", "header": {}, "content": content})
    rendered = area.render()
    assert len(json.dumps(rendered.outputs)) < 10_000
    assert rendered.omitted.characters == 100_000 - 200


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("error", {}),
        ("error", {"ename": 1, "evalue": None, "traceback": "line 1\nline 2"}),
        ("error", {"ename": "E", "evalue": "", "traceback": [1, "x"]}),
        ("execute_result", {"execution_count": "1", "data": {"text/plain": 5}}),
    ],
)
def test_fields_of_any_type_are_valid_in_nbformat(kind: str, content: dict) -> None:
    area = OutputArea(10_000)
    area.add_message({"msg_type": kind, "header": {}, "content": content})
    assert area.execution_count is None
    cell = nbformat.v4.new_code_cell(outputs=area.get_outputs())
    nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


def stream(text: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": text}


def picture(size: int) -> dict:
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "A" * size, "text/plain": "<Figure>"},
    }


@pytest.mark.parametrize(
    "outputs",
    [
        [stream("x" * 500)] * 10,
        [picture(400)] * 20,
        [picture(5000)],
        [stream("a"), picture(3000), stream("b" * 3000), stream("c")],
        [
            {
                "output_type": "error",
                "ename": "E",
                "evalue": "",
                "traceback": ["x" * 50] * 100,
            }
        ],
        [stream("日本" * 4000)],
        # A type that only an Output widget of a newer version might have.
        [{"output_type": "unknown", "text": "x" * 5000}],
    ],
)
def test_outputs_over_the_limit_keep_head_and_tail(outputs: list[dict]) -> None:
    capped_outputs = capped(outputs, 2000)
    text = "".join(
        str(out.get("text", out.get("traceback", ""))) for out in capped_outputs
    )
    assert "left out by stepper" in text
    assert sum(map(measure_output, capped_outputs)) <= 2000 + 300
    if len(outputs) > 2:
        assert capped_outputs[0] == outputs[0] and capped_outputs[-1] == outputs[-1]


def test_outputs_within_the_limit_are_untouched() -> None:
    outputs = [stream("x" * 900), picture(800)]
    assert capped(outputs, 2000) == outputs


def test_cell_that_prints_more_than_the_limit(project: Project) -> None:
    project.config("max_output_bytes: 10000")
    notebook = project.new()
    cell_id, response = notebook.insert("for i in range(20000): print('line', i)")
    text = text_of(notebook.cell(cell_id))
    assert (
        len(text) < 10200
        and text.startswith("line 0\n")
        and text.endswith("line 19999\n")
    )
    assert "left out by stepper (max_output_bytes)" in text
    assert len(response.text) < 6000
    cell_id, _ = notebook.insert(
        "from IPython.display import display, Image\nimport os\n"
        "for i in range(6): display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(3000), format='png'))"
    )
    outputs = notebook.cell(cell_id)["outputs"]
    assert 2 <= len(outputs) <= 4
    assert "outputs (" in text_of(notebook.cell(cell_id))


BAR = """\
import sys, time
for i in range(40):
    sys.stderr.write(f"\\r{i * 100 // 39:3}%|{'█' * i:39}| {i}/39"); sys.stderr.flush()
    print(i, flush=True)
sys.stderr.write("\\n")
raise ValueError("at the end")"""


@pytest.mark.nightly
def test_progress_bar_leaves_one_line_and_traceback_keeps_colors(
    project: Project,
) -> None:
    notebook = project.new()
    cell_id, response = notebook.insert(BAR)
    bar, printed, error = notebook.cell(cell_id)["outputs"]
    assert (
        "".join(bar["text"]) == f"100%|{'█' * 39}| 39/39\n" and bar["name"] == "stderr"
    )
    assert "".join(printed["text"]) == "".join(f"{i}\n" for i in range(40))
    assert "\x1b[31m" in "".join(error["traceback"]), "Jupyter shows its colours"
    assert "\x1b" not in response.text and "100%|" in response.text
    page = project.stepper("output", "1").stdout
    assert "\x1b" not in page and "100%|" in page and "ValueError" in page


def test_matching_line_is_found_after_any_amount_of_output() -> None:
    """Only lines with all required characters of the pattern use the search time."""
    watch = WakeWatcher("loss.*nan")
    watch.search_seconds, watch.started_at = 0.4, watch.started_at - 0.1
    for _ in range(30):
        watch.search("stdout", "epoch 1 loss=0.123 acc=0.9\n" * 100_000)
    watch.search("stdout", "epoch 2 loss=nan\n")
    assert watch.matched_line == "epoch 2 loss=nan" and not watch.skipped_characters


def test_lines_that_take_too_long_to_match_are_skipped_and_counted() -> None:
    watch = WakeWatcher(r"loss=\d\.\d+e")
    watch.search_seconds = 10.0
    watch.search("stdout", "loss=0.5 here\n" * 1000)
    assert watch.matched_line == "" and watch.skipped_characters == 14_000
