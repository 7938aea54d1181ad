"""Classification of errors: a table from error labels to verdicts.

The labels of an error are the names of its class and base classes, `errno NAME`, `HTTP`
and `HTTP STATUS`. The first row of `ROWS` that has one of these labels determines the
verdict, so special rows are above general ones. Errors without a row are recoverable.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import Any

from stepper.common.text import one_line
from stepper.policy.model import Fault, Outcome, Verdict

# The error class of a run that finished while no daemon was connected, in a kernel that
# does not record results. Journals contain this name. The run is never repeated.
UNOBSERVED_RUN = "NobodyHeard"

ROWS: tuple[tuple[Verdict, tuple[str, ...]], ...] = (
    # A server responded.
    (Verdict.TRANSIENT, ("HTTP 429", "HTTP 502", "HTTP 503", "HTTP 504")),
    (Verdict.RECOVERABLE, ("HTTP",)),
    # The user must act.
    (Verdict.UNRECOVERABLE, (UNOBSERVED_RUN,)),
    (Verdict.UNRECOVERABLE, ("MemoryError", "PermissionError", "SystemExit")),
    # Another program or the cell itself raised this. Interrupts by stepper have the
    # outcome `cancelled`.
    (Verdict.UNRECOVERABLE, ("KeyboardInterrupt",)),
    # input() and getpass()
    (Verdict.UNRECOVERABLE, ("IPython.core.error.StdinNotImplementedError",)),
    # Errors of the operating system. `errno` has another meaning for gaierror and ssl,
    # so their rows are above the rows with errno.
    (Verdict.TRANSIENT, ("socket.gaierror",)),
    # The connection was closed.
    (Verdict.TRANSIENT, ("ssl.SSLEOFError", "ssl.SSLZeroReturnError")),
    # A wrong certificate, or a server without TLS.
    (Verdict.RECOVERABLE, ("ssl.SSLError",)),
    (
        Verdict.UNRECOVERABLE,
        ("errno ENOSPC", "errno EDQUOT", "errno EMFILE", "errno ENFILE", "errno EIO"),
    ),
    (
        Verdict.TRANSIENT,
        (
            "errno EHOSTUNREACH",
            "errno EHOSTDOWN",
            "errno ENETUNREACH",
            "errno ENETDOWN",
        ),
    ),
    # Wrong calls, although their base class is a connection error.
    (Verdict.RECOVERABLE, ("httpx.UnsupportedProtocol", "httpx.LocalProtocolError")),
    # The network.
    (Verdict.TRANSIENT, ("ConnectionError", "TimeoutError", "socket.herror")),
    # Aliases of TimeoutError before Python 3.10 and 3.11.
    (Verdict.TRANSIENT, ("socket.timeout", "asyncio.exceptions.TimeoutError")),
    (
        Verdict.TRANSIENT,
        (
            "http.client.IncompleteRead",
            "http.client.BadStatusLine",
            "urllib.error.ContentTooShortError",
        ),
    ),
    (
        Verdict.TRANSIENT,
        ("urllib3.exceptions.TimeoutError", "urllib3.exceptions.ProtocolError"),
    ),
    (
        Verdict.TRANSIENT,
        ("urllib3.exceptions.NewConnectionError", "urllib3.exceptions.MaxRetryError"),
    ),
    (
        Verdict.TRANSIENT,
        ("requests.exceptions.ConnectionError", "requests.exceptions.Timeout"),
    ),
    (
        Verdict.TRANSIENT,
        ("requests.exceptions.ChunkedEncodingError", "requests.exceptions.RetryError"),
    ),
    (
        Verdict.TRANSIENT,
        (
            "httpx.TransportError",
            "httpcore.NetworkError",
            "httpcore.TimeoutException",
            "httpcore.RemoteProtocolError",
        ),
    ),
    (
        Verdict.TRANSIENT,
        (
            "aiohttp.client_exceptions.ClientConnectionError",
            "aiohttp.client_exceptions.ClientPayloadError",
        ),
    ),
)
VERDICTS = [(label, verdict) for verdict, labels in ROWS for label in labels]

# Errors of these classes wrap another error. The row of the wrapped error takes
# precedence.
WRAPPERS = frozenset(
    {
        "urllib.error.URLError",
        "urllib3.exceptions.HTTPError",
        "requests.exceptions.RequestException",
        "httpx.RequestError",
        "aiohttp.client_exceptions.ClientError",
    }
)

# The messages of these errors quote keys of the user's data, which may contain "STOP".
DATA_MESSAGES = frozenset({"KeyError", "IndexError"})
# The word STOP, but not NONSTOP, STOPPED, STOP_WORDS, NON-STOP, STOP-LOSS.
STOP_WORD = re.compile(r"(?<![\w-])STOP(?![\w-])")
STOP_PREFIX = re.compile(r"^['\"]?STOP:")
QUESTION = re.compile(r"^(?:[\w.]+: )?['\"]?STOP:(.*)")


def asks_to_stop(fault: Fault) -> bool:
    """Return whether the message of an error contains the word STOP.

    A cell raises such an error to ask the user a question. The message of an error in
    DATA_MESSAGES must start with `STOP:`.
    """
    has_data_message = bool(DATA_MESSAGES & _list_class_names(fault))
    pattern = STOP_PREFIX if has_data_message else STOP_WORD
    return pattern.search(fault.evalue) is not None


def extract_question(message: str) -> str:
    """Return the question in a message `STOP: QUESTION`, or an empty string.

    The message may start with the name of the error's class, as in `Run.error`.
    """
    match = QUESTION.search(message.strip())
    return one_line(match[1].strip("'\" ")) if match else ""


def list_labels(fault: Fault) -> set[str]:
    """Return the labels of an error, as in `ROWS`."""
    labels = _list_class_labels(_list_class_names(fault), fault.attributes.get("errno"))
    status = fault.attributes.get("status")
    if isinstance(status, int):
        labels |= {"HTTP", f"HTTP {status}"}
    return labels


def list_cause_labels(fault: Fault) -> set[str]:
    """Return the labels of the error that a wrapper contains.

    The result is empty if the error is not a wrapper.
    """
    if not WRAPPERS & _list_class_names(fault):
        return set()
    class_names = fault.attributes.get("reason_mro") or ()
    return _list_class_labels(class_names, fault.attributes.get("reason_errno"))


def is_external_death(fault: Fault | None) -> bool:
    """Return whether a kernel died for an external reason, such as a failed node.

    `fault` is the error of the run that the death interrupted, or None.
    """
    return fault is not None and "EndedOutside" in fault.mro


def classify_fault(fault: Fault) -> Verdict:
    """Return the verdict on an error that a cell raised."""
    if asks_to_stop(fault):
        return Verdict.UNRECOVERABLE
    for labels in (list_cause_labels(fault), list_labels(fault)):
        verdict = _find_verdict(labels)
        if verdict is not None:
            return verdict
    return Verdict.RECOVERABLE


def classify_run(outcome: Outcome, fault: Fault | None) -> Verdict:
    """Return the verdict on a run; `fault` is the error of its cell, if any."""
    if outcome is Outcome.ERROR and fault is not None:
        return classify_fault(fault)
    verdicts = {
        Outcome.OK: Verdict.FINE,
        Outcome.CANCELLED: Verdict.CANCELLED,
        Outcome.KERNEL_DIED: Verdict.UNRECOVERABLE,
        Outcome.MEMORY: Verdict.UNRECOVERABLE,
    }
    return verdicts.get(outcome, Verdict.RECOVERABLE)


def _list_class_names(fault: Fault) -> set[str]:
    """Return the names of an error's class and base classes.

    If the base classes are unknown because the kernel has no helper, return the name of
    the class only.
    """
    return set(fault.mro or (fault.ename,))


def _list_class_labels(class_names: Iterable[str], error_number: Any) -> set[str]:
    """Return the class names and, for a known number of an OSError, `errno NAME`."""
    labels = set(class_names)
    if "OSError" in labels and error_number in errno.errorcode:
        labels.add(f"errno {errno.errorcode[error_number]}")
    return labels


def _find_verdict(labels: set[str]) -> Verdict | None:
    """Return the verdict of the first row with one of the labels, or None."""
    return next((verdict for label, verdict in VERDICTS if label in labels), None)
