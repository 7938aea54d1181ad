"""Kernel errors are converted to faults, whatever their fields contain."""

from __future__ import annotations

from stepper.kernels.error_parsing import build_fault, clean_error


def test_missing_fields_of_an_error_are_empty() -> None:
    error = clean_error({"ename": None, "traceback": None})
    assert error == {"ename": "", "evalue": "", "traceback": ""}
    fault = build_fault({}, error, 1)
    assert fault is not None and fault.ename == "Error"


def test_traceback_may_be_a_string() -> None:
    error = clean_error({"ename": "E", "evalue": 1, "traceback": "line 1\nline 2"})
    assert error == {"ename": "E", "evalue": "1", "traceback": "line 1\nline 2"}


def test_line_of_a_syntax_error_is_a_number() -> None:
    facts = {"ename": "SyntaxError", "evalue": "", "mro": ["SyntaxError"]}
    lines = {}
    for value in (3, "three", None):
        fault = build_fault(
            {"fault": {**facts, "attributes": {"lineno": value}}},
            {"ename": "", "evalue": "", "traceback": ""},
            1,
        )
        assert fault is not None
        lines[value] = fault.line
    assert lines == {3: 3, "three": None, None: None}
