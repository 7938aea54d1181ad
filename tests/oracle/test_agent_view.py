"""Reports and files of widgets, pagers, debuggers and duplicate ids.

Two identical runs write the same bytes.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from typing import Any

import nbformat
import pytest

from stepper.install import trust
from stepper.notebooks.widget_state import STATE
from tests.conftest import Notebook, Project, code, mark_nightly, text_of
from tests.oracle.test_oracle import PACKAGES
from tests.test_kernel_helper import environment

ALLOWED = {"tags": ["raises-exception"]}


@pytest.fixture
def widget_notebook(project: Project) -> Notebook:
    """A notebook whose kernel has ipywidgets."""
    trust.save_record(project.paths, {"python": environment(sys.executable, *PACKAGES)})
    return project.new()


def models(notebook: Notebook) -> dict[str, Any]:
    return notebook.raw["metadata"]["widgets"][STATE]["state"]


@pytest.mark.nightly
def test_output_widget_captures_its_outputs(widget_notebook: Notebook) -> None:
    widget_notebook.insert("import ipywidgets as w\nout = w.Output()\nout")
    cell, response = widget_notebook.insert(
        "with out:\n    print('inside')\n    1 / 0\nprint('outside')"
    )
    assert (
        text_of(widget_notebook.cell(cell)) == "outside\n"
        and len(widget_notebook.cell(cell)["outputs"]) == 1
    )
    assert "ran ok" in response.text
    assert (
        "In an Output widget:\n| inside\n| ZeroDivisionError: division by zero"
        in response.text
    )
    (outputs_of_stepper,) = [
        state["state"]["outputs"]
        for state in models(widget_notebook).values()
        if state["model_name"] == "OutputModel"
    ]
    assert [output["output_type"] for output in outputs_of_stepper] == [
        "stream",
        "error",
    ]
    widget_notebook.project.kill_daemon()
    widget_notebook.insert("slider = w.IntSlider(value=4)\nslider")
    assert {"OutputModel", "IntSliderModel"} <= {
        state["model_name"] for state in models(widget_notebook).values()
    }
    widget_notebook.insert("slider.value = 7")
    (slider,) = [
        state
        for state in models(widget_notebook).values()
        if state["model_name"] == "IntSliderModel"
    ]
    assert slider["state"]["value"] == 7
    widget_notebook.project.stepper("restart")
    widget_notebook.insert("import ipywidgets as w\nw.Text()")
    assert {"OutputModel", "TextModel"} <= {
        state["model_name"] for state in models(widget_notebook).values()
    }, "still shown"
    nbformat.validate(nbformat.read(widget_notebook.path, 4))


@pytest.mark.nightly
def test_widget_state_is_bounded_and_omissions_are_reported(
    widget_notebook: Notebook,
) -> None:
    widget_notebook.project.config("max_widget_state_bytes: 20000\n")
    _, response = widget_notebook.insert(
        "import ipywidgets as w\ndisplay(w.IntText(5), w.Textarea('x' * 50_000))"
    )
    assert re.search(
        r"left out of the notebook: the state of 1 widget, 5\d,\d{3} bytes \(max_widget_state_bytes 20,000\)",
        response.text,
    )
    assert "IntTextModel" in {
        state["model_name"] for state in models(widget_notebook).values()
    }
    assert len(json.dumps(models(widget_notebook))) < 20000


def test_pager_text_and_unsupported_payloads_are_reported(
    project: Project,
) -> None:
    notebook = project.new()
    cell, response = notebook.insert("def f(a):\n    'What it does.'\nf?")
    assert "| Docstring: What it does." in response.text
    assert [out["output_type"] for out in notebook.cell(cell)["outputs"]] == [
        "display_data"
    ]
    _, response = notebook.insert("get_ipython().set_next_input('x = 1\\ny = 2')")
    assert (
        "Jupyter would insert a cell below with this source; stepper does not:\n| x = 1\n| y = 2"
        in response.text
    )
    _, response = notebook.insert("get_ipython().run_cell('1 / 0')\nprint('on')")
    assert (
        "ran ok" in response.text
        and "| ZeroDivisionError: division by zero\n| on" in response.text
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "source",
    mark_nightly(["import pdb; pdb.set_trace()", "%pdb on\n1 / 0"], "%pdb on\n1 / 0"),
)
def test_debugger_call_is_reported_and_does_not_hang(
    project: Project, source: str
) -> None:
    _, response = project.new().insert(source)
    assert (
        "StdinNotImplementedError" in response.stop
        and "debugger (%debug, %pdb)" in response.stop
    )


@pytest.mark.nightly
def test_debugger_that_prints_its_own_error_leaves_the_cell_ok(
    project: Project,
) -> None:
    _, response = project.new().insert("%%debug\nx = 1")
    assert (
        "ran ok" in response.text
        and "| StdinNotImplementedError: raw_input was called" in response.text
    )


def test_duplicate_cell_ids_are_replaced_before_cells_run(
    project: Project,
) -> None:
    cells = [
        code("print('one')", "same"),
        code("print('two')", "same"),
        code("print('three')", "other"),
    ]
    notebook = project.notebook(
        "a.ipynb", cells, kernelspec={"name": "python3", "display_name": "P"}
    )
    response = notebook.replace("other", "print('three!')")
    first, second, third = (cell["id"] for cell in notebook.raw["cells"])
    assert (first, third) == ("same", "other") and re.fullmatch("[0-9a-f]{8}", second)
    assert (
        f"two cells had the id 'same': the lower cell (cell 2) now has the id {second}"
        in response.text
    )
    project.stepper("run", "notebooks/a.ipynb")
    assert [text_of(cell) for cell in notebook.raw["cells"]] == [
        "one\n",
        "two\n",
        "three!\n",
    ]
    assert "had the id" not in notebook.replace("other", "print('three')").text
    nbformat.validate(nbformat.read(notebook.path, 4))


@pytest.mark.nightly
@pytest.mark.parametrize("timing", mark_nightly([True, False], True))
def test_rerun_changes_only_timings(project: Project, timing: bool) -> None:
    project.config(f"record_timing: {str(timing).lower()}\n")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# é"),
            nbformat.v4.new_code_cell("print('a\\nb')\n{'b': 1}"),
            nbformat.v4.new_code_cell("1 / 0", metadata=ALLOWED),
            nbformat.v4.new_code_cell(
                "display({'application/json': [1e-5]}, raw=True)"
            ),
        ]
    )
    path = project.folder / "notebooks" / "n.ipynb"
    nbformat.write(notebook, path)
    project.stepper("run", "--all", "notebooks/n.ipynb")
    before = path.read_text()
    assert nbformat.writes(nbformat.read(path, nbformat.NO_CONVERT)) + "\n" == before
    assert ('"execution": {' in before) == timing
    project.stepper("run", "--all", "notebooks/n.ipynb")
    changed = [
        line
        for line in difflib.ndiff(before.splitlines(), path.read_text().splitlines())
        if line[0] in "+-"
    ]
    assert bool(changed) == timing
    assert all(
        re.search(r'"(iopub|shell)\.[\w.]+": ', line) or "ipykernel_" in line
        for line in changed
    ), changed
