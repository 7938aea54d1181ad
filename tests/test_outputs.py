"""Outputs within their limit: head and tail stay, a line says how much was left out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepper.kernel import messages
from stepper.kernel.outputs import OutputArea, Text, size
from stepper.policy.model import LeftOut
from tests.conftest import Project, text_of


@pytest.mark.parametrize("pieces", [["a" * 10] * 1000, ["a" * 10_000], ["é"] * 5000, ["x\n"] * 3])
def test_text_is_bounded_while_it_arrives(pieces: list[str]) -> None:
    text = Text(100)
    for piece in pieces:
        text.add(piece)
        assert text.head_size + text.tail_size <= 100
    whole = "".join(pieces)
    kept = "".join(text.head) + "".join(text.tail)
    assert text.left_out == len(whole) - len(kept)
    assert whole.startswith("".join(text.head)) and whole.endswith("".join(text.tail))


def capped(outputs: list[dict], limit: int) -> list[dict]:
    """What is left of outputs within a limit."""
    return OutputArea.of(outputs, {}, LeftOut(), limit).outputs()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "\\", "\n", '"', "é", "日", "😀", "\x01", "\\u0041", "\ud83d"]), max_size=60), st.integers(32, 50),
       st.booleans())  # fmt: skip
def test_a_long_text_is_read_in_pieces(said: list[str], piece: int, ascii_only: bool) -> None:
    text = "".join(said)
    content = json.dumps({"name": "stdout", "text": text}, ensure_ascii=ascii_only).encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PIECE", piece)
        found = [*messages.pieces(content)]
    assert "".join(found) == json.loads(content)["text"] and len(found) >= len(text) / piece
    assert list(messages.pieces(b'{"text": "x", "name": "stdout"}')) == ["x"]


def stream(text: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": text}


def picture(size: int) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * size, "text/plain": "<Figure>"}}


@pytest.mark.parametrize(
    "outputs",
    [
        [stream("x" * 500)] * 10,
        [picture(400)] * 20,
        [picture(5000)],
        [stream("a"), picture(3000), stream("b" * 3000), stream("c")],
        [{"output_type": "error", "ename": "E", "evalue": "", "traceback": ["x" * 50] * 100}],
        [stream("日本" * 4000)],
    ],
)
def test_outputs_over_the_limit_keep_head_and_tail(outputs: list[dict]) -> None:
    kept = capped(outputs, 2000)
    said = "".join(str(out.get("text", out.get("traceback", ""))) for out in kept)
    assert "left out by stepper" in said
    assert sum(map(size, kept)) <= 2000 + 300
    if len(outputs) > 2:
        assert kept[0] == outputs[0] and kept[-1] == outputs[-1]


def test_outputs_within_the_limit_are_untouched() -> None:
    outputs = [stream("x" * 900), picture(800)]
    assert capped(outputs, 2000) == outputs


def test_a_cell_that_prints_more_than_its_share(project: Project) -> None:
    project.config("max_output_bytes: 10000")
    notebook = project.new()
    cell_id, answer = notebook.insert("for i in range(20000): print('line', i)")
    text = text_of(notebook.cell(cell_id))
    assert len(text) < 10200 and text.startswith("line 0\n") and text.endswith("line 19999\n")
    assert "left out by stepper (max_output_bytes)" in text
    assert len(answer.text) < 6000
    cell_id, _ = notebook.insert(
        "from IPython.display import display, Image\nimport os\n"
        "for i in range(6): display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(3000), format='png'))"
    )
    outputs = notebook.cell(cell_id)["outputs"]
    assert 2 <= len(outputs) <= 4
    assert "outputs (" in text_of(notebook.cell(cell_id))
