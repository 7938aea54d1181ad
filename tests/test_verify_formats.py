"""The formats of `stepper verify` for CI systems."""

from __future__ import annotations

import json
import random
from typing import Any
from xml.etree import ElementTree

import pytest

from stepper.messages.verification import github_annotations, junit_report
from stepper.messages.verification.notebook_outcome import (
    NotebookOutcome,
    format_summary,
)
from stepper.notebooks.source_lines import find_source_lines
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import CellVerdict, VerifyResult
from tests.conftest import code
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = UNCLOSED

HOSTILE = "a\x00b\x1b[31m\x08\ud800\ufffe <&>\"' ]]> ::error::x\n::error::y\n##[add-mask]z\r%0A"


def make_outcome(
    *verdicts: ReplayVerdict, notebook: str = "a.ipynb", text: str = "-1 +1"
) -> NotebookOutcome:
    cells = [
        CellVerdict(f"c{number}", number, verdict, text, (f"- {text}", "+ 1"), 0.25)
        for number, verdict in enumerate(verdicts, 1)
    ]
    reproduces = all(verdict.reproduces for verdict in verdicts)
    report = f"{notebook}: report\n  :: {text}"
    result = VerifyResult(notebook, reproduces, cells, (), 1.5, 1, text=report)
    lines = {cell.number: 10 * cell.number for cell in cells}
    return NotebookOutcome(notebook, result, source_lines=lines)


FAILED = NotebookOutcome("b.ipynb", None, "no kernel", "pip install ipykernel", 1)


def test_junit_has_a_suite_for_each_notebook_and_a_case_for_each_cell() -> None:
    verdicts = [*ReplayVerdict]
    text = junit_report.format_junit([make_outcome(*verdicts), FAILED])
    root = ElementTree.fromstring(text)
    first, second = root
    counts = {name: first.get(name) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": str(len(verdicts)), "failures": "5", "errors": "0"}
    assert first.get("skipped") == "2" and first.get("time") == "1.500"
    cases = first.findall("testcase")
    children = [[child.tag for child in case] for case in cases]
    by_verdict = dict(zip(verdicts, children, strict=True))
    assert by_verdict[ReplayVerdict.SAME] == by_verdict[ReplayVerdict.CLOSE] == []
    assert by_verdict[ReplayVerdict.NOT_RUN] == ["skipped"]
    assert by_verdict[ReplayVerdict.UNSTABLE] == ["failure"]
    assert cases[3].attrib == {
        "classname": "a.ipynb",
        "name": "cell 4",
        "file": "a.ipynb",
        "line": "40",
        "time": "0.250",
    }
    failure = cases[3][0]
    assert failure.attrib == {"type": "changed", "message": "changed: -1 +1"}
    assert failure.text == "- -1 +1\n+ 1"
    (error,) = second.findall("testcase/error")
    assert error.get("message") == "no kernel"
    assert error.text == "To fix this, run: pip install ipykernel"


def test_junit_is_well_formed_whatever_a_notebook_contains() -> None:
    generator = random.Random(1)
    texts = [HOSTILE]
    for _ in range(200):
        points = [
            generator.choice((0, 8, 34, 38, 60, 93, 62, 133, 0xD83D)) for _ in "12345"
        ]
        points += [generator.randrange(0x110000) for _ in range(20)]
        texts.append("".join(map(chr, points)))
    outcomes = [
        make_outcome(ReplayVerdict.CHANGED, notebook=text, text=text) for text in texts
    ]
    text = junit_report.format_junit(
        [*outcomes, NotebookOutcome(HOSTILE, None, HOSTILE)]
    )
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert len(root) == len(texts) + 1
    assert "<&>\"' ]]>" in str(root[0].get("name"))
    assert "\n::error::y\n" in str(root[0].get("name")), "attributes keep line breaks"


def test_github_annotations_name_file_line_and_difference() -> None:
    outcome = make_outcome(
        ReplayVerdict.SAME,
        ReplayVerdict.CHANGED,
        ReplayVerdict.NOT_RECORDED,
        ReplayVerdict.NOT_RUN,
        ReplayVerdict.NOT_RECORDED,
        notebook="a,b: 50%.ipynb",
    )
    lines = github_annotations.format_annotations([outcome, FAILED]).splitlines()
    assert lines == [
        "::error file=a%2Cb%3A 50%25.ipynb,line=20,title=cell 2 does not reproduce::"
        "changed: -1 +1%0A- -1 +1%0A+ 1",
        "::error file=b.ipynb,title=b.ipynb was not verified::no kernel%0A"
        "To fix this, run: pip install ipykernel",
        "::error file=a%2Cb%3A 50%25.ipynb,line=30,title=cell 3 does not reproduce::"
        "the notebook contains no outputs of the current source%0A- -1 +1%0A+ 1",
    ]
    outcomes = [make_outcome(*[ReplayVerdict.CHANGED] * 20) for _ in range(3)]
    assert len(github_annotations.format_annotations(outcomes).splitlines()) == 10
    assert github_annotations.format_annotations([make_outcome()]) == ""


def test_texts_of_a_notebook_are_no_workflow_commands() -> None:
    outcome = make_outcome(ReplayVerdict.CHANGED, notebook="::error::x", text=HOSTILE)
    report = github_annotations.format_github_report(outcome)
    for line in report.splitlines():
        assert not line.lstrip().startswith("::") and "##[" not in line
    annotations = github_annotations.format_annotations([outcome])
    assert len(annotations.splitlines()) == 1 and "##[" not in annotations


def test_summary_names_notebooks_that_do_not_reproduce() -> None:
    outcomes = [
        make_outcome(ReplayVerdict.SAME, notebook="good.ipynb"),
        make_outcome(ReplayVerdict.CHANGED),
        FAILED,
    ]
    assert format_summary(outcomes).splitlines() == [
        "1 of 3 notebooks reproduce",
        "  ✗ a.ipynb does not reproduce",
        "  ✗ b.ipynb was not verified",
    ]


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
@pytest.mark.parametrize("sort_keys", [False, True])
def test_source_lines(indent: int | None, sort_keys: bool) -> None:
    markdown = {"cell_type": "markdown", "metadata": {}, "source": ['"cells": [{\n']}
    cells: list[Any] = [code("x = 1\n", "a"), markdown, code('print("é")', "b")]
    metadata = {"nested": {"cells": [1], "source": "x"}}
    raw = {"metadata": metadata, "nbformat": 4, "cells": cells}
    text = json.dumps(raw, indent=indent, sort_keys=sort_keys)
    lines = find_source_lines(text)
    assert [*lines] == [1, 2]
    if indent is None:
        assert [*lines.values()] == [1, 1]
        return
    for number, source in ((1, "x = 1"), (2, "print(")):
        following = text.splitlines()[lines[number] - 1 : lines[number] + 1]
        assert '"source":' in following[0] and source in "".join(following)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"cells": 1}',
        '{"cells": [1]}',
        '{"cells": [{"a": ]}',
        "{[]: 1}",
        "[" * 99999,
    ],
)
def test_source_lines_of_an_invalid_notebook(text: str) -> None:
    assert find_source_lines(text) == {}


def test_several_notebooks_of_a_project(project: Quick) -> None:
    notebooks = {}
    for name in ("a.ipynb", "b.ipynb", "c.ipynb"):
        notebooks[name] = project.notebook(name, [code("print(1)", "a")])
        project.stepper("run", name)
    path = notebooks["b.ipynb"].path
    path.write_text(path.read_text().replace('"1\\n"', '"2\\n"'))
    result = project.stepper("verify", "a", "notebooks/b", "c", "-j", "2", check=1)
    assert "notebooks/a.ipynb: REPRODUCES" in result.stdout
    assert "      | - 2\n      | + 1" in result.stdout
    assert result.stdout.endswith(
        "2 of 3 notebooks reproduce\n  ✗ notebooks/b.ipynb does not reproduce\n"
    )
    documents = project.json("verify", "a", "b", "missing", check=2)
    assert [document.get("reproduces") for document in documents] == [True, False, None]
    assert "there is no notebook 'missing'" in documents[2]["error"]
    text = project.stepper("verify", "b", "--format", "junit", check=1).stdout
    (suite,) = ElementTree.fromstring(text)
    assert suite.get("name") == "notebooks/b.ipynb" and suite.get("failures") == "1"
    text = project.stepper("verify", "b", "--format", "github", check=1).stdout
    assert "\n::error file=notebooks/b.ipynb,line=" in text
    refused = project.stepper("verify", "a", "--python", "python3", check=2).stderr
    assert "--python can't be used in a project with stepper" in refused


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_replays_wait_for_each_other(project: Quick, jobs: int) -> None:
    source = "import os, time, uuid\nname = f'{uuid.uuid4()}.busy'\n"
    source += "open(name, 'w').close()\ntime.sleep(0.6)\n"
    source += "print(sum(each.endswith('busy') for each in os.listdir()))\n"
    source += "time.sleep(0.3)\nos.remove(name)"
    for name in ("a.ipynb", "b.ipynb"):
        project.notebook(name, [code(source, "a")])
        project.stepper("run", name)
    documents = project.json("verify", "a", "b", "--once", "-j", str(jobs), check=None)
    lines = [document["cells"][0]["lines"] for document in documents]
    assert lines == ([[], []] if jobs == 1 else [["- 1", "+ 2"]] * 2)
