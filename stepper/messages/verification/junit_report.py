"""The results of `stepper verify` as a JUnit XML report.

GitLab, Jenkins and many actions for GitHub read this format. Each notebook is a test
suite, and each of its code cells a test case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax import saxutils

from stepper.messages.verification.notebook_outcome import (
    NotebookOutcome,
    describe_cell,
    format_outcome,
    is_skipped,
)
from stepper.policy.comparison.verify_results import CellVerdict

# Characters that XML 1.0 does not allow, not even as a character reference.
INVALID = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Parsers of XML replace these in attributes by spaces.
ATTRIBUTE_ENTITIES = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;", '"': "&quot;"}


def format_junit(outcomes: Sequence[NotebookOutcome]) -> str:
    """Return the XML document with the results for all notebooks."""
    suites = [_format_suite(outcome) for outcome in outcomes]
    body = "\n".join(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites name="notebooks">\n{body}\n</testsuites>'
    )


def _format_suite(outcome: NotebookOutcome) -> str:
    """Return the test suite of a notebook.

    If the notebook was not verified, the only test case is the notebook itself.
    """
    failures = skipped = errors = 0
    duration_s = 0.0
    if outcome.result is None:
        cases = [_format_error(outcome)]
        errors = 1
    else:
        cells = outcome.result.cells
        cases = [_format_cell(outcome, cell) for cell in cells]
        skipped = sum(is_skipped(cell) for cell in cells)
        failures = len(cells) - outcome.result.reproduced_count - skipped
        duration_s = outcome.result.duration_s
    text = _escape(format_outcome(outcome))
    lines = [
        f"<testsuite name={_quote(outcome.notebook)} tests={_quote(len(cases))}"
        f" failures={_quote(failures)} errors={_quote(errors)}"
        f" skipped={_quote(skipped)} time={_quote(f'{duration_s:.3f}')}>",
        *cases,
        f"<system-out>{text}</system-out>",
        "</testsuite>",
    ]
    return "\n".join(lines)


def _format_cell(outcome: NotebookOutcome, cell: CellVerdict) -> str:
    """Return the test case of a cell."""
    attributes = ""
    if cell.number in outcome.source_lines:
        attributes += f" line={_quote(outcome.source_lines[cell.number])}"
    if cell.duration_s is not None:
        attributes += f" time={_quote(f'{cell.duration_s:.3f}')}"
    start = _format_case_start(outcome, f"cell {cell.number}", attributes)
    if cell.verdict.reproduces:
        return f"{start}/>"
    message = _quote(describe_cell(cell))
    if is_skipped(cell):
        return f"{start}><skipped message={message}/></testcase>"
    details = _escape("\n".join(cell.lines))
    return (
        f"{start}><failure type={_quote(cell.verdict)} message={message}>"
        f"{details}</failure></testcase>"
    )


def _format_error(outcome: NotebookOutcome) -> str:
    """Return the test case of a notebook that was not verified."""
    start = _format_case_start(outcome, "notebook", "")
    message = _quote(outcome.error)
    return (
        f"{start}><error message={message}>{_escape(outcome.advice)}</error></testcase>"
    )


def _format_case_start(outcome: NotebookOutcome, name: str, attributes: str) -> str:
    """Return the start of a test case's tag. `attributes` are further attributes.

    GitLab shows `classname` and `name`, and links `file`.
    """
    notebook = _quote(outcome.notebook)
    names = f"classname={notebook} name={_quote(name)}"
    return f"<testcase {names} file={notebook}{attributes}"


def _escape(text: str) -> str:
    """Return a text for the content of an element."""
    return saxutils.escape(_replace_invalid(text))


def _quote(value: object) -> str:
    """Return a value as an attribute's value, in quotes."""
    text = saxutils.escape(_replace_invalid(str(value)), ATTRIBUTE_ENTITIES)
    return f'"{text}"'


def _replace_invalid(text: str) -> str:
    """Replace characters that no XML document may contain."""
    return INVALID.sub("\N{REPLACEMENT CHARACTER}", text)
