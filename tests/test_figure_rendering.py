"""Plotly figures rendered on request by the project's kaleido, in a separate process."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from stepper.install import trust
from tests.conftest import Project, code, reuse_project
from tests.environments import environment

FIGURE = """import plotly.graph_objects as go
go.Figure(go.Scatter(x=[1, 2, 3], y=[4, 9, 1]), layout={"title": {"text": "Sales"}, "width": 640, "height": 360})"""
MIME = "application/vnd.plotly.v1+json"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


def use_python(project: Project, python: str) -> None:
    project.config(f"python: {python}\n")
    trust.accept(project.paths, trust.examine(project.paths))


def test_only_figures_of_locally_run_cells_are_rendered(project: Project) -> None:
    """A committed figure could load remote resources, so no browser renders it."""
    figure = {"output_type": "display_data", "metadata": {}, "data": {MIME: {}}}
    committed = {**code("show()", "a"), "outputs": [figure]}
    project.notebook("given.ipynb", [committed, code("1", "b")])
    failed = project.stepper("output", "1", "--figure", "--notebook", "given", check=2)
    assert (
        "cell 1" in failed.stderr
        and "has not run here with its current source" in failed.stderr
    )
    notebook = project.new()
    notebook.insert("print(1)")
    failed = project.stepper("output", "1", "--figure", check=2)
    assert "contains no Plotly figure" in failed.stderr


@pytest.mark.nightly
def test_render_command_without_kaleido_explains_the_requirement(
    project: Project,
) -> None:
    use_python(project, environment(sys.executable, "plotly"))
    notebook = project.new()
    report = notebook.insert(FIGURE)[1].text
    assert "plotly figure" in report and '"Sales"' in report
    assert "--figure" not in report
    failed = project.stepper("output", "1", "--figure", check=1).stderr
    assert "kaleido rendered 0 of 1 figure" in failed and "kaleido" in failed.lower()


@pytest.mark.nightly
def test_report_with_kaleido_names_the_render_command(
    project: Project,
) -> None:
    """Running the cell starts no browser, and the command leaves none running."""
    use_python(
        project,
        environment(sys.executable, "ipykernel", "plotly<6", "kaleido==0.2.1"),
    )
    notebook = project.new()
    answer = notebook.insert(FIGURE)[1]
    assert "plotly figure" in answer.text and '"Sales"' in answer.text
    hint = "To render the plotly figure as PNG (needs kaleido, takes seconds), run: stepper output"
    assert answer.text.count(hint) == 1 and "1 --figure" in answer.text
    kernel = psutil.Process(project.json("status")["kernel"]["pid"])
    assert kernel.children() == []

    output = project.stepper("output", "1", "--figure").stdout
    path = project.folder / output.split(": ", 1)[1].strip()
    assert path.parent == Path(project.paths.figures, notebook.path.stem)
    with Image.open(path) as image:
        assert (image.format, image.size) == ("PNG", (640, 360))
        assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 10
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert project.json("output", "1", "--figure")["figures"] == [str(path)]
    assert kernel.children() == []
    daemon = psutil.Process(project.json("status")["daemon"]["pid"])
    names = [child.name() for child in daemon.children(recursive=True)]
    assert not [name for name in names if "kaleido" in name], names
    assert os.listdir(path.parent) == [path.name]
