"""Floods of output: the outcome is right, the notebook small, and memory is released."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import nbformat
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete

from stepper.kernels.outputs.output_area import MAX_HELD_FACTOR, OutputArea
from tests.conftest import Notebook, Project, text_of
from tests.kernel_traffic import OutputCounter

LIMIT = 1 << 20
GROWTH = 60 << 20
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(autouse=True)
def compare_traffic(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each flood: all sent output is in cells or reported as truncated."""
    if "project" not in request.fixturenames:
        yield
        return
    project = request.getfixturevalue("project")
    with OutputCounter(project) as counter:
        yield
        counter.assert_output_saved()


def run(notebook: Notebook, source: str, status: str = "ok") -> dict:
    """Run a new last cell and return it from the notebook.

    The notebook must be valid, and the cell within the limit.
    """
    before = notebook.path.stat().st_size
    cell_id, response = notebook.insert(source)
    assert status in response.text.split("\n")[0], response.text
    assert len(response.text) < 8000
    assert notebook.path.stat().st_size < before + 1.5 * LIMIT
    document = nbformat.read(notebook.path, 4)
    nbformat.validate(document)
    return notebook.cell(cell_id)


def daemon(project: Project) -> psutil.Process:
    return psutil.Process(project.json("status")["daemon"]["pid"])


def wait_until_memory_drops(process: psutil.Process, before: int) -> None:
    until = time.monotonic() + 120
    while process.memory_info().rss > before + GROWTH:
        assert time.monotonic() < until, (
            f"{(process.memory_info().rss - before) >> 20} MB more than before"
        )
        time.sleep(0.05)


@pytest.mark.nightly
def test_floods_of_text(project: Project) -> None:
    notebook = project.new()
    run(notebook, "line = 'x' * 99 + '\\n'")
    process = daemon(project)
    before = process.memory_info().rss
    text = text_of(
        run(
            notebook,
            "for i in range(1000): print(i, line * 1000, end='')\nprint('the end')",
        )
    )
    assert (
        text.startswith("0 xxx")
        and text.endswith("x\nthe end\n")
        and "characters left out by stepper" in text
    )
    wait_until_memory_drops(process, before)
    run(notebook, "print('7\\n' * 2_000_000)")
    text = text_of(run(notebook, "print('a' + 'é' * 50_000_000 + 'z')"))
    assert text.startswith("aéé") and text.endswith("éz\n")
    omitted = int(text.split("… ")[1].split(" ")[0].replace(",", ""))
    assert omitted == 50_000_003 - (len(text) - len(text.split("\n")[1]) - 2), (
        "what is said to be left out is"
    )
    wait_until_memory_drops(process, before)
    cell = run(
        notebook,
        "import sys\nfor i in range(30_000): print(i, file=[sys.stdout, sys.stderr][i % 2], flush=True)",
    )
    assert cell["outputs"][0]["text"] == ["0\n"] and cell["outputs"][-1]["text"] == [
        "29999\n"
    ]
    wait_until_memory_drops(process, before)


@pytest.mark.nightly
def test_display_updates_are_reduced_to_the_last(project: Project) -> None:
    notebook = project.new()
    cell = run(
        notebook,
        "from IPython.display import display, clear_output\nshown = display('first', display_id=True)\n"
        "for i in range(10_000): shown.update(i)\nprint('after')",
    )
    assert [out["output_type"] for out in cell["outputs"]] == ["display_data", "stream"]
    assert cell["outputs"][0]["data"]["text/plain"] in ("9999", ["9999"])
    cell = run(
        notebook, "for i in range(3000):\n    clear_output(wait=True)\n    print(i)"
    )
    assert text_of(cell) == "2999\n" and len(cell["outputs"]) == 1


@pytest.mark.nightly
def test_flood_of_images(project: Project) -> None:
    notebook = project.new()
    run(
        notebook,
        "import base64\nfrom IPython.display import Image, display\n"
        + f"png = base64.b64decode({PICTURE!r})",
    )
    process = daemon(project)
    before = process.memory_info().rss
    cell_id, response = notebook.insert(
        "for i in range(1000): display(Image(png + bytes(50_000) + str(i).encode(), format='png'))\nprint('done')"
    )
    assert (
        response.text.count("Figure ") == 8
        and "and 992 more images, not saved" in response.text
    )
    cell = notebook.cell(cell_id)
    assert text_of(cell).endswith("done\n") and "outputs (" in text_of(cell)
    assert notebook.path.stat().st_size < 1.5 * LIMIT
    wait_until_memory_drops(process, before)


@pytest.mark.nightly
def test_traceback_of_30_mb(project: Project) -> None:
    notebook = project.new()
    run(notebook, "import os")
    process = daemon(project)
    before = process.memory_info().rss
    cell = run(notebook, "raise ValueError('x' * 30_000_000)", "FAILED")
    (error,) = cell["outputs"]
    assert error["ename"] == "ValueError" and "left out by stepper" in error["evalue"]
    wait_until_memory_drops(process, before)


@pytest.mark.nightly
def test_binary_output(project: Project) -> None:
    notebook = project.new()
    text = text_of(
        run(
            notebook,
            "print('a\\x00\\x1b[31m', bytes(range(256)).decode('latin-1'), 'z')",
        )
    )
    assert text.startswith("a\x00\x1b[31m") and text.endswith("ÿ z\n")
    assert "surrogates not allowed" in text_of(run(notebook, "print(chr(0xD800))")), (
        "ipykernel's own words"
    )
    run(
        notebook,
        "import os\nfor i in range(100): os.write(1, bytes(range(256)) * 100)\nprint('end')",
    )
    cell = run(
        notebook,
        "from IPython.display import display\ndisplay({'text/plain': 5, 'application/json': {'a': [1]}}, raw=True)",
    )
    assert cell["outputs"][0]["data"]["application/json"] == {"a": [1]}
    json.loads(notebook.path.read_bytes().decode("utf-8"))


# Messages of the kernel, for `OutputArea` and for nbclient.
MESSAGES = st.one_of(
    st.tuples(
        st.just("stream"),
        st.sampled_from(["stdout", "stderr"]),
        st.text("ab\n", max_size=9),
    ),
    st.tuples(
        st.just("display_data"), st.sampled_from(["", "d1", "d2"]), st.integers(0, 99)
    ),
    st.tuples(
        st.just("update_display_data"),
        st.sampled_from(["d1", "d2", "d3"]),
        st.integers(0, 99),
    ),
    st.tuples(
        st.just("execute_result"), st.sampled_from(["", "d1"]), st.integers(0, 99)
    ),
    st.tuples(st.just("clear_output"), st.booleans(), st.none()),
    st.tuples(st.just("error"), st.just(""), st.just(0)),
    st.tuples(st.just("status"), st.just("busy"), st.none()),
)


def message(kind: str, first: object, second: object) -> dict:
    contents = {
        "stream": {"name": first, "text": second},
        "clear_output": {"wait": first},
        "error": {"ename": "E", "evalue": "v", "traceback": ["a", "b"]},
        "status": {"execution_state": first},
    }
    content = {"data": {"text/plain": str(second)}, "metadata": {}}
    content |= {"transient": {"display_id": first}} if first else {}
    content |= {"execution_count": 7} if kind == "execute_result" else {}
    message = Session(key=b"k").msg(kind, contents.get(kind, content))
    return {**message, "parent_header": {"msg_id": "m"}}


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=30))
def test_outputs_match_nbclient(messages: list[tuple]) -> None:
    cell = nbformat.v4.new_code_cell(metadata={"execution": {}})
    client = NotebookClient(nbformat.v4.new_notebook(cells=[cell]))
    client.clear_before_next_output = False
    area = OutputArea(LIMIT)
    for line in messages:
        area.add_message(message(*line))
        client.process_message(message(*line), client.nb.cells[0], 0)
    joined: list[dict] = []
    for out in client.nb.cells[0].outputs:  # nbclient does not merge streams
        if (
            joined
            and out["output_type"] == "stream" == joined[-1]["output_type"]
            and out["name"] == joined[-1]["name"]
        ):
            joined[-1] = {**joined[-1], "text": joined[-1]["text"] + out["text"]}
        else:
            joined.append(dict(out))
    assert area.get_outputs() == joined


def test_idle_is_detected_like_nbclient() -> None:
    client = NotebookClient(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(metadata={"execution": {}})]
        )
    )
    idle = message("status", "idle", None)
    assert OutputArea(LIMIT).add_message(idle)
    with pytest.raises(CellExecutionComplete):
        client.process_message(idle, client.nb.cells[0], 0)


@pytest.mark.nightly
@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(MESSAGES, st.integers(1, 300)), max_size=40))
def test_buffered_output_is_bounded(messages: list[tuple]) -> None:
    area = OutputArea(1000)
    for (kind, first, second), times in messages:
        longer = second * times if isinstance(second, str) else second
        for _ in range(times):
            area.add_message(message(kind, first, longer))
        assert area.held_bytes <= max(MAX_HELD_FACTOR * 1000, area.max_held_bytes)
    assert len(json.dumps(area.get_outputs())) <= 6000


def test_unsaved_images_take_no_memory() -> None:
    area = OutputArea(1000)
    for number in range(500):
        content = {"data": {"image/png": f"{number:04d}" * 1000}, "metadata": {}}
        area.add_message({**message("display_data", "", 0), "content": content})
    assert len(area.list_images()) == 500
    assert (
        sum(len(image["data"]["image/png"]) for image in area.list_images()) < 20 * 4000
    )
    assert [item["data"]["image/png"][:4] for item in area.list_images()[:8]] == [
        f"{n:04d}" for n in range(8)
    ]


@pytest.mark.nightly
def test_interrupt_between_idle_and_reply_keeps_the_kernel(
    project: Project,
) -> None:
    """In this case ipykernel sends `idle` but no reply."""
    notebook = project.new()
    run(
        notebook,
        "import os, time\nkernel, pid = get_ipython().kernel, os.getpid()\nfinish = kernel.finish_metadata",
    )
    responses = []
    slow = "def late(*given):\n    open('late', 'w')\n    time.sleep(60)\n\nkernel.finish_metadata = late\nprint('ran')"
    cell = threading.Thread(target=lambda: responses.append(notebook.insert(slow)))
    cell.start()
    until = time.monotonic() + 30
    while not (notebook.path.parent / "late").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    project.stepper("interrupt")
    cell.join(120)
    cell_id, response = responses[0]
    assert "interrupted" in response.text.lower() and "ran\n" in text_of(
        notebook.cell(cell_id)
    ), response.text
    assert "stepper: " in response.text and "died" not in response.text.lower()
    cell = run(notebook, "kernel.finish_metadata = finish\nprint(pid == os.getpid())")
    assert text_of(cell) == "True\n"
