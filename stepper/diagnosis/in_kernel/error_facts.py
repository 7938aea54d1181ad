"""The facts on a failed cell for the report.

The kernel loads this module while it is idle after a cell, or at the latest when a cell
fails. EXPLAINERS contains the function that is called first for a class of exceptions.
Then, for most classes, the values on the failing lines are searched.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable

from stepper.diagnosis.in_kernel.call_errors import explain_call_error
from stepper.diagnosis.in_kernel.close_matches import find_quoted
from stepper.diagnosis.in_kernel.expression_values import UserFrame, list_user_frames
from stepper.diagnosis.in_kernel.failing_values import (
    Finding,
    build_rows,
    describe_rows,
    find_explanations,
    make_finding,
)
from stepper.diagnosis.in_kernel.file_read_errors import explain_read_error
from stepper.diagnosis.in_kernel.import_errors import explain_import_error
from stepper.diagnosis.in_kernel.key_and_attribute_errors import (
    explain_attribute_error,
    explain_key_error,
)
from stepper.diagnosis.in_kernel.last_assignment import explain_hidden_name
from stepper.diagnosis.in_kernel.partial_effects import list_changes
from stepper.diagnosis.in_kernel.written_file_check import describe_files
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    list_class_names,
    peek,
    shell,
    shorten,
)

SECONDS = 0.6  # for all searches together
MAX_FINDINGS = 12
MAX_LOCAL_NAMES = 400
NAME_LIMIT = 80  # characters
PATH_LIMIT = 400
Explainer = Callable[[BaseException, "list[UserFrame]"], Any]


def _explain_attribute_or_call(
    error: BaseException, frames: list[UserFrame]
) -> Finding | None:
    """Return a finding on an AttributeError, or None."""
    # Some libraries report an unknown keyword argument as an AttributeError.
    if "keyword" in get_message(error):
        return explain_call_error(error, frames)
    return explain_attribute_error(error, frames)


EXPLAINERS: dict[str, Explainer] = {
    "ImportError": explain_import_error,
    "KeyError": explain_key_error,
    "AttributeError": _explain_attribute_or_call,
    "TypeError": explain_call_error,
}
FILE_ERRORS = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")
# Exceptions for which the values are not searched.
EXPLAINER_ONLY = ("NameError", "ImportError", "SyntaxError", *FILE_ERRORS)
# Exceptions for which the values are searched only if the explainer has no result.
EXPLAINER_FIRST = ("KeyError", "AttributeError")
# Messages of other errors about a missing key.
MISSING_KEY_MESSAGES = re.compile(r"\bnot (?:in|found|a valid|present)\b")
MIN_PATH = 3  # characters: shorter constants are in a message by chance


def collect_facts(error: BaseException) -> dict[str, Any]:
    """Return the facts on an error for the report.

    `look` contains the findings, `changed` the changed names and `files` the changed
    files.
    """
    return {
        "look": call_safely(find_facts, error) or {},
        "changed": call_safely(list_changes, error),
        "files": call_safely(describe_files) or {},
    }


def find_facts(error: BaseException) -> dict[str, Any]:
    """Return the findings on an error as JSON.

    After a NameError, `locals` contains the local names. After an error on a missing
    file, `path` is the file, and `program` is true if the file is a program that could
    not be started.
    """
    deadline = clock() + SECONDS
    frames = call_safely(list_user_frames, error.__traceback__) or []
    names = set(list_class_names(type(error)))
    if "NameError" in names and frames:
        return call_safely(explain_name_error, error, frames) or {}
    findings: list[Finding] = []
    for name, explain in EXPLAINERS.items():
        if name in names:
            finding = call_safely(explain, error, frames)
            if finding:
                findings.append(finding)
            break
    is_explained = bool(findings) and not names.isdisjoint(EXPLAINER_FIRST)
    if names.isdisjoint(EXPLAINER_ONLY) and not is_explained:
        findings += search_values(error, frames, deadline)
    facts: dict[str, Any] = {"findings": findings[:MAX_FINDINGS]}
    if not names.isdisjoint(FILE_ERRORS):
        path = find_path(get_message(error), frames)
        facts["path"] = shorten(path, PATH_LIMIT)
        facts.update(call_safely(describe_missing_program, error) or {})
    return facts


def find_path(message: str, frames: list[UserFrame]) -> str:
    """Return a string constant of the failing lines that an error message contains.

    Return an empty string if the message contains none of these constants.
    """
    for frame in frames:
        for text in frame.list_strings():
            if len(text) >= MIN_PATH and text in message:
                return text
    return ""


def explain_name_error(error: BaseException, frames: list[UserFrame]) -> dict[str, Any]:
    """Return the facts on a NameError as JSON.

    `findings` contains a finding on the scope that hides the name, if any, and `locals`
    the local names.
    """
    name = str(peek(error, "name") or find_quoted(get_message(error)))
    finding = explain_hidden_name(name, frames[0])
    findings = [finding] if finding else []
    return {
        "findings": findings,
        "locals": list_local_names(frames)[:MAX_LOCAL_NAMES],
    }


def list_local_names(frames: list[UserFrame]) -> list[str]:
    """Return the local names of the function that failed.

    For a comprehension or lambda, the names of the enclosing function are included.
    Return an empty list if the code failed outside a function.
    """
    names: list[str] = []
    for frame in frames:
        if frame.frame.f_locals is shell.user_ns:
            break
        for name in frame.frame.f_locals:
            short_name = shorten(name, NAME_LIMIT)
            names.append(short_name)
        if not frame.frame.f_code.co_name.startswith("<"):
            break
    return names


def search_values(
    error: BaseException, frames: list[UserFrame], deadline: float
) -> list[Finding]:
    """Return findings on an error from its message and the values in its frames.

    No search starts after the deadline.
    """
    message = get_message(error)
    rows = call_safely(build_rows, frames, message) or []

    def search_texts() -> Iterable[Any]:
        """Return findings on a text or file that could not be read."""
        return map(make_finding, explain_read_error(error, frames))

    def search_keys() -> Iterable[Any]:
        """Return findings on a missing key, if the message is about one."""
        if not MISSING_KEY_MESSAGES.search(message):
            return ()
        return filter(None, [explain_key_error(error, frames)])

    searches: list[Callable[[], Iterable[Any]]] = [
        search_texts,
        lambda: find_explanations(error, rows),
        search_keys,
        lambda: describe_rows(error, rows, frames),
    ]
    findings: list[Finding] = []
    for search in searches:
        if clock() < deadline:
            findings += call_safely(_list_results, search) or []
    return findings


def _list_results(search: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return all results of a search, which may be a generator."""
    return list(search())


def describe_missing_program(error: BaseException) -> dict[str, Any]:
    """Return facts on a missing program that `subprocess` tried to start.

    `error` is about a missing file. Return an empty dict if the file is not a program.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = peek(error, "filename")
    if trace is None or type(name) is not str:
        return {}
    if trace.tb_frame.f_globals.get("__name__") != "subprocess":
        return {}
    if trace.tb_frame.f_locals.get("cwd") == name:  # a missing folder
        return {}
    finding = make_finding(f"the program {name!r} was not found")
    return {"program": True, "findings": [finding]}
