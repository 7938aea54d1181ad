"""Outputs that exceed the report or the notebook: all reported counts are correct."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator

import pytest

from stepper.common.text import TRUNCATED
from stepper.messages.quoted_output import Completeness, quote
from tests.conftest import Notebook, Project, reuse_project, text_of
from tests.test_long_cells import STARTED, Edit

LIMIT = 20_000
ALL_STORED, PART_STORED = Completeness.WHOLE.value, Completeness.PART.value
LEFT_OUT = re.compile(
    r"^… ([\d,]+) lines? \(([\d,]+) characters?\) left out(?:; (.+))?$"
)
REPEATED_LINES = re.compile(
    r"^… (at least )?([\d,]+) more lines like this( in the notebook)?$"
)
UNKNOWN = re.compile(r"(?m)^… [\d,]+ lines \([\d,]+ characters\) left out$")
GAP = re.compile(rf"\n?… .+ {re.escape(TRUNCATED)}\n?")
NOTE = re.compile(r"Note: left out of the notebook: ([\d,]+) characters")
CUT = re.compile(r"^\| .+ …([\d,]+) characters… ")

CELLS = {
    "lines": "for n in range({count}): print('line', n)",
    "one line again and again": "for n in range({count}): print('working on it')",
    "long lines": "for n in range({count} // 50): print(str(n % 10) * 3000)",
    "a few long lines": "for n in range(30): print(str(n % 10) * 500)",
    "both streams": (
        "import sys\n"
        "for n in range({count} // 2):\n"
        "    print('out', n)\n"
        "    print('err', n, file=sys.stderr)\n"
        "    if n % 500 == 0: sys.stdout.flush(); sys.stderr.flush()"
    ),
}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def run_and_capture(source: str) -> str:
    """Return what a cell prints, both streams."""
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer), contextlib.redirect_stderr(buffer):
        exec(source, {})
    return buffer.getvalue()


def assert_counts(
    report: str, stored: str, printed_text: str, in_notebook: bool = True
) -> None:
    """Assert that each count of a report agrees with the printed and stored text."""
    is_part = TRUNCATED in stored
    note = NOTE.search(report)
    stored_text = GAP.sub("", stored)
    if in_notebook:
        assert bool(note) == is_part, report[:300]
        assert not (note and ALL_STORED in report), report
        assert is_part or PART_STORED not in report
    else:
        assert ALL_STORED not in report and PART_STORED not in report and not note
    missing = len(printed_text) - len(stored_text)
    if note:  # a line that is split can have one line feed more or less
        assert abs(number(note[1]) - missing) <= 2
    quoted = report[report.index("\n| ") + 1 :].split("\n")
    lines = stored.strip("\n").split("\n")
    count = characters = 0
    for line in quoted:
        if match := LEFT_OUT.match(line):
            count += number(match[1])
            characters += number(match[2])
            expected = ""
            if in_notebook:
                expected = PART_STORED if is_part else ALL_STORED
            assert (match[3] or "") == expected
        elif match := REPEATED_LINES.match(line):
            count += number(match[2])
            like = [line for line in lines if line == "working on it"]
            characters += number(match[2]) * len("working on it\n")
            assert bool(match[1]) == (is_part and not in_notebook)
            assert bool(match[3]) == (is_part and in_notebook)
            assert number(match[2]) < len(like)
        elif line.startswith("| "):
            count += 1
            cut = CUT.match(line)
            shown = len(line) - 2
            if cut:
                mark = f" …{cut[1]} characters… "
                shown += number(cut[1]) - len(mark)
            characters += shown + 1
        else:
            break
    assert count == len(lines), report
    assert characters == len("\n".join(lines)) + 1, report


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    for project in reuse_project(module_project):
        project.config(f"max_output_bytes: {LIMIT}\n")
        yield project
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("count", [300, 6000], ids=["whole", "part"])
@pytest.mark.parametrize("kind", [*CELLS])
def test_truncated_report_counts_are_correct(
    project: Project, kind: str, count: int
) -> None:
    notebook = project.new()
    source = CELLS[kind].format(count=count)
    cell, answer = notebook.insert(source)
    assert "ran ok" in answer.text
    stored = text_of(notebook.cell(cell))
    assert (TRUNCATED in stored) == (count == 6000 and kind != "a few long lines")
    assert_counts(answer.text, stored, run_and_capture(source))
    follow = project.stepper("output", "1").stdout
    assert ALL_STORED not in follow and PART_STORED not in follow


def test_report_does_not_claim_output_missing_from_the_notebook(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    # code executed outside a cell
    source = CELLS["lines"].format(count=3000)
    monkeypatch.setenv("STEPPER_SESSION", "s")
    response = project.json("eval", source)
    assert_counts(
        response["text"], response["output"], run_and_capture(source), in_notebook=False
    )
    # A cell that creates another cell, and a long error message.
    payload = (
        "get_ipython().set_next_input('\\n'.join(f'x = {n}' for n in range(3000)))"
    )
    text = notebook.insert(payload)[1].text
    assert "stepper does not:" in text and ALL_STORED not in text
    assert re.search(r"^… 2,\d\d\d lines \([\d,]+ characters\) left out$", text, re.M)
    _, answer = notebook.insert("raise ValueError('a\\n' * 40 + 'b\\nc\\n' * 400)")
    assert "The message:" in answer.text and ALL_STORED not in answer.text
    assert re.search(UNKNOWN, answer.text)


@pytest.mark.nightly
def test_cell_deleted_while_running(project: Project) -> None:
    notebook = project.new()
    notebook.insert("import pathlib, time")
    source = (
        f"while not pathlib.Path('go').exists(): time.sleep(0.02)\n{CELLS['lines']}"
    )
    edit = Edit(notebook, "# stepper: wait=0.3\n" + source.format(count=1000))
    assert "still running" in edit.answer.text
    assert ALL_STORED not in edit.answer.text and PART_STORED not in edit.answer.text
    notebook.delete(edit.cell_id)
    (notebook.path.parent / "go").touch()
    text = edit.woken
    assert "ran ok" in text and ALL_STORED not in text and PART_STORED not in text
    assert re.search(UNKNOWN, text)


@pytest.mark.nightly
def test_interim_report_does_not_claim_output_in_the_notebook(project: Project) -> None:
    notebook = project.new()
    wait = "\nimport pathlib, time\nwhile not pathlib.Path('go2').exists(): time.sleep(0.02)"
    source = CELLS["lines"].format(count=400)
    edit = Edit(notebook, "# stepper: wait=1\n" + source + wait)
    interim = edit.answer.text
    assert "still running" in interim and "left out" in interim
    assert ALL_STORED not in interim and PART_STORED not in interim
    (notebook.path.parent / "go2").touch()
    assert ALL_STORED in edit.woken


@pytest.mark.nightly
def test_truncated_mcp_result_counts_are_correct(project: Project) -> None:
    pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
    from mcp import Client

    from tests.test_mcp import create_notebook, run_scenario, text

    async def story(client: Client) -> None:
        name = await create_notebook(client)
        notebook = Notebook(project, project.folder / name)
        for count in (300, 6000):
            for kind in ("lines", "one line again and again", "both streams"):
                source = CELLS[kind].format(count=count)
                result = await client.call_tool("run_cell", {"source": source})
                report = text(result).partition("\nNotebook: ")[0]
                cell = str(json.loads(notebook.path.read_text())["cells"][-1]["id"])
                stored = text_of(notebook.cell(cell))
                assert_counts(report, stored, run_and_capture(source))
                read = await client.call_tool("read_notebook", {"cell_ids": [cell]})
                brief = text(read)
                assert not (TRUNCATED in stored and ALL_STORED in brief)

    run_scenario(project, story)


@pytest.mark.nightly
def test_cell_that_prints_a_truncation_line(project: Project) -> None:
    """A printed line that looks like stepper's does not change the counts."""
    notebook = project.new()
    forged = f"print('… 484,923,423 characters {TRUNCATED}')\n" + CELLS["lines"]
    text = notebook.insert(forged.format(count=500))[1].text
    assert f"left out; {ALL_STORED}" in text and PART_STORED not in text


@pytest.mark.nightly
def test_warnings_are_counted(project: Project) -> None:
    notebook = project.new()
    distinct = (
        "import warnings\nfor n in range(500): warnings.warn(f'value {n} is odd')"
    )
    text = notebook.insert(distinct)[1].text
    matches = re.findall(r"^\w+: UserWarning \(line 2\): value \d+ is odd$", text, re.M)
    (further,) = re.findall(r"^… and ([\d,]+) more \w+$", text, re.M)
    assert len(matches) + number(further) == 500
    same = "import warnings\nwarnings.simplefilter('always')\n"
    same += "for n in range(500): warnings.warn('value is odd')"
    text = notebook.insert(same)[1].text
    assert "UserWarning (line 3, 500 times): value is odd" in text
    assert "more" not in text.partition("Output:")[0]


def count_represented_lines(text: str) -> int:
    """Return how many lines of the output a quotation shows or counts."""
    matches = (REPEATED_LINES.match(line) for line in text.split("\n"))
    return sum(number(match[2]) if match else 1 for match in matches)


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_truncated_middle_is_counted(count: int) -> None:
    lines = [f"{n} " + "x" * (n % 7) * 200 for n in range(count)]
    lines += ["the same"] * count
    lines += [f"{n} end" for n in range(count)]
    text = quote("\n".join(lines), 500, Completeness.WHOLE)
    head, middle, tail = re.split(r"(?m)^… (.+) left out; .+\n", text)
    line_count, characters = re.findall(r"[\d,]+", middle)
    head_count = count_represented_lines(head.strip("\n"))
    tail_count = count_represented_lines(tail)
    left_out = lines[head_count : len(lines) - tail_count]
    assert number(line_count) == len(left_out)
    assert number(characters) == len("\n".join(left_out)) + 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_half_a_gigabyte_in_one_cell(fresh_project: Project) -> None:
    """A real case: 2.4 million lines, 484,923,423 characters, on both streams."""
    notebook = fresh_project.new()
    count = 2_400_000
    source = (
        "# stepper: timeout=10m wait=none\n"
        "import sys\n"
        f"for n in range({count}):\n"
        "    print('x' * 194, n)\n"
        "    if n % 1000 == 0: print('err', n, file=sys.stderr)"
    )
    cell, answer = notebook.insert(source)
    text = answer.text
    assert "ran ok" in text, text[:500]
    printed_count = sum(196 + len(str(n)) for n in range(count))
    printed_count += sum(len(f"err {n}\n") for n in range(0, count, 1000))
    assert printed_count > 484_923_423
    stored = text_of(notebook.cell(cell))
    stored_count = len(GAP.sub("", stored))
    note = NOTE.search(text)
    assert note and abs(printed_count - stored_count - number(note[1])) < 100
    assert PART_STORED in text and ALL_STORED not in text
    counts = LEFT_OUT.search(
        next(line for line in text.split("\n") if PART_STORED in line)
    )
    shown = sum(line.startswith("| ") for line in text.split("\n"))
    assert counts
    assert number(counts[1]) == len(stored.strip("\n").split("\n")) - shown
