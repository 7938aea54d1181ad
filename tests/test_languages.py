"""Notebooks in other languages, as the agent and the user see them.

test_kernel_contract.py tests their kernels.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.messages import run_report
from stepper.messages.run_report import RunSummary
from stepper.policy import cell_directives
from stepper.policy.model import Cell, Fault, Outcome, Run, Verdict
from tests import apt_packages
from tests.conftest import Notebook, Project, mark_nightly, scratch
from tests.environments import environment
from tests.npm_packages import Unavailable, unavailable


def bash() -> dict[str, object]:
    return {
        "argv": [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"],
        "language": "bash",
    }


def r() -> dict[str, object]:
    program = apt_packages.find_or_unpack_program(
        "R",
        "r-base-core",
        "r-cran-irkernel",
        file="/usr/share/jupyter/kernels/ir/kernel.json",
    )
    return {
        "argv": [
            program,
            "--slave",
            "-e",
            "IRkernel::main()",
            "--args",
            "{connection_file}",
        ],
        "language": "R",
    }


def deno() -> dict[str, object]:
    """A JavaScript and TypeScript kernel, from the `deno` package on PyPI."""
    program = str(Path(environment(sys.executable, "deno>=2.9,<3")).parent / "deno")
    return {
        "argv": [program, "jupyter", "--kernel", "--conn", "{connection_file}"],
        "language": "typescript",
    }


SPECS = {"bash": bash, "r": r, "deno": deno}


@pytest.fixture(scope="module", params=mark_nightly(SPECS, "r"))
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def project(
    language: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    folder = Path(tempfile.mkdtemp(prefix="lang"))
    spec = folder / "kernels" / "theirs"
    spec.mkdir(parents=True)
    try:
        (spec / "kernel.json").write_text(
            json.dumps({"display_name": language, **SPECS[language]()})
        )
    except Unavailable as why:
        unavailable(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        for project in scratch(tmp_path_factory.mktemp(language) / "repo"):
            project.config(
                "kernels: {it: {kernelspec: theirs}}\ncell_timeout_seconds: 120\n"
            )
            project.stepper("trust", "--yes")
            yield project


CELLS = {  # sets x to 20 and shows it, fails in a function, runs forever, draws
    "r": (
        "x <- 20\nx",
        "f <- function(a) stop('no such thing')\nf(3)",
        "repeat Sys.sleep(0.1)",
        "plot(1:9)",
    ),
    "bash": ("x=20; echo $x", "no_such_command", "while true; do sleep 0.1; done", ""),
    "deno": (
        "let x = 20; x",
        "function f() { nope() }\nf()",
        "await new Promise(r => setTimeout(r, 60000))",
        "",
    ),
}


def test_reports_of_other_languages_have_no_python_facts(
    project: Project, language: str
) -> None:
    binds, fails, endless, draws = CELLS[language]
    mark = "//" if language == "deno" else "#"
    response = project.json(
        "new", "A look", "--kernel", "it", "--step", "x is bound | x > 100"
    )
    notebook = Notebook(project, project.folder / response["notebook"])
    report = notebook.insert(f"{mark} stepper: step=1 timeout=99s\n{binds}")[1].text
    assert (
        "ran ok" in report
        and "20" in report
        and "done" in report
        and "riterion" not in report
    ), report  # for the agent to judge
    cell, failed = notebook.insert(fails)
    assert "FAILED" in failed.text and "NameError" not in failed.text
    if language != "bash":  # it has none
        assert (
            "Traceback:\n| " in failed.text
            and ("1. f(3)" if language == "r" else "at f (<anonymous>") in failed.text
        )
    for phrase in ("Values on the line", "last assigned", "Before it failed", "helper"):
        assert phrase not in failed.text
    if draws:
        figure_report = notebook.replace(cell, draws).text
        assert (
            "Figure 1: " in figure_report
            and Path(
                figure_report.split("Figure 1: ")[1].split(".png")[0] + ".png"
            ).exists()
        ), figure_report
    output = project.stepper("context").stdout
    assert "The kernel is running" in output and "no variables" not in output
    assert project.json("eval", binds.replace("let ", ""))["outcome"] == "ok"
    slow = notebook.insert(f"{mark} stepper: timeout=1s\n{endless}")[1]
    assert f"`{mark} stepper: timeout=10m`" in slow.text + slow.stop, (
        slow.text + slow.stop
    )
    if language == "deno":  # the report says that an interrupt ends the kernel
        assert "kernel died (SIGINT)" in slow.stop
        return
    assert "the kernel keeps its variables" in slow.text
    outcomes = [run["outcome"] for run in project.json("history")]
    assert outcomes == ["ok", "error", *["ok"] * bool(draws), "timeout"]


@pytest.mark.parametrize(
    ("line", "timeout"),
    [
        ("# stepper: timeout=9s", 9),
        ("// stepper: timeout=9s", 9),
        ("-- stepper: timeout=9s", 9),
        (";; stepper: timeout=9s", 9),
        ("% stepper: timeout=9s", 9),
        ("/* stepper: timeout=9s */", 9),
        ("(* stepper: timeout=9s *)", 9),
        ("%%bash", None),
        ("%%time stepper: timeout=9s", None),
        ("stepper: timeout=9s", None),
        ("x = 3  # stepper: timeout=9s", None),
        ('"// stepper: timeout=9s"', None),
    ],
)
def test_directive_is_parsed_in_any_comment_syntax(
    line: str, timeout: float | None
) -> None:
    assert (
        cell_directives.parse(f"{line}\nx").timeout == timeout
        and not cell_directives.parse(line).problems
    )
    assert (
        cell_directives.get_comment_marker("TypeScript") == "//"
        and cell_directives.get_comment_marker("sql") == "--"
        and cell_directives.get_comment_marker("R") == "#"
    )


def test_unknown_directive_is_quoted() -> None:
    assert (
        cell_directives.parse("-- stepper: nonsense")
        .problems[0]
        .startswith("`-- stepper: nonsense` is not a valid option")
    )


def test_traceback_is_reported_without_helper() -> None:
    def render(fault: Fault) -> str:
        options = {
            "outcome": Outcome.ERROR,
            "verdict": Verdict.RECOVERABLE,
            "fault": fault,
            "step": None,
            "index": 0,
        }
        at = "2026-11-23T12:00:00Z"
        run = Run(
            run=1,
            cell_id="c",
            number=1,
            source_hash="",
            started_at=at,
            duration_s=0.1,
            key="c",
            **options,
        )
        return run_report.format_run(
            RunSummary(Cell("c", 0, 1, "code", "f(3)"), run)
        ).text

    calls = (
        "Error in f(3): no such thing\nTraceback:\n\n1. f(3)\n2. stop('no such thing')"
    )
    assert "Traceback:\n| 1. f(3)\n| 2. stop('no such thing')" in render(
        Fault("ERROR", "Error in f(3): no such thing", (), traceback=calls)
    )
    assert "Traceback" not in render(Fault("Error", "127", (), traceback=""))
    assert "Traceback" not in render(
        Fault("ValueError", "no", ("ValueError",), traceback="…\nValueError: no")
    )
