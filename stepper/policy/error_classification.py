"""Fault → Verdict: an ordered table that one can read aloud."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import Any

from stepper.common.text import one_line
from stepper.policy.model import Fault, Outcome, Verdict

R, T, U = Verdict.RECOVERABLE, Verdict.TRANSIENT, Verdict.UNRECOVERABLE

# a run that lost its daemon, in a kernel that remembers nothing: it is never run twice
NOBODY_HEARD = "NobodyHeard"

# A fault is known by its words: the names of all its classes, its `errno NAME`, its
# `HTTP STATUS`. The first row whose
# word it has decides, so rows above are more special than rows below. What has no row
# is recoverable.
ROWS: tuple[tuple[Verdict, tuple[str, ...]], ...] = (
    # a server answered
    (T, ("HTTP 429", "HTTP 502", "HTTP 503", "HTTP 504")),
    (R, ("HTTP",)),
    # a person must act
    (U, (NOBODY_HEARD,)),
    (U, ("MemoryError", "PermissionError", "SystemExit")),
    # not by stepper, that is `cancelled`: somebody else wants an end, or the cell
    # itself
    (U, ("KeyboardInterrupt",)),
    (U, ("IPython.core.error.StdinNotImplementedError",)),  # input() and getpass()
    # what the operating system says; below ssl and gaierror, whose numbers mean
    # something else
    (T, ("socket.gaierror",)),
    (T, ("ssl.SSLEOFError", "ssl.SSLZeroReturnError")),  # cut off
    (R, ("ssl.SSLError",)),  # the certificate, or no TLS at the other end: a wrong call
    (U, ("errno ENOSPC", "errno EDQUOT", "errno EMFILE", "errno ENFILE", "errno EIO")),
    (
        T,
        (
            "errno EHOSTUNREACH",
            "errno EHOSTDOWN",
            "errno ENETUNREACH",
            "errno ENETDOWN",
        ),
    ),
    # wrong calls, though a connection error is their base
    (R, ("httpx.UnsupportedProtocol", "httpx.LocalProtocolError")),
    # the network
    (T, ("ConnectionError", "TimeoutError", "socket.herror")),
    # Python 3.9, and up to 3.10
    (T, ("socket.timeout", "asyncio.exceptions.TimeoutError")),
    (
        T,
        (
            "http.client.IncompleteRead",
            "http.client.BadStatusLine",
            "urllib.error.ContentTooShortError",
        ),
    ),
    (T, ("urllib3.exceptions.TimeoutError", "urllib3.exceptions.ProtocolError")),
    (T, ("urllib3.exceptions.NewConnectionError", "urllib3.exceptions.MaxRetryError")),
    (T, ("requests.exceptions.ConnectionError", "requests.exceptions.Timeout")),
    (T, ("requests.exceptions.ChunkedEncodingError", "requests.exceptions.RetryError")),
    (
        T,
        (
            "httpx.TransportError",
            "httpcore.NetworkError",
            "httpcore.TimeoutException",
            "httpcore.RemoteProtocolError",
        ),
    ),
    (
        T,
        (
            "aiohttp.client_exceptions.ClientConnectionError",
            "aiohttp.client_exceptions.ClientPayloadError",
        ),
    ),
)
TABLE = [(word, verdict) for verdict, its_words in ROWS for word in its_words]

# These only pass on what failed below them: a row of their cause goes before their own.
WRAPPERS = frozenset(
    {
        "urllib.error.URLError",
        "urllib3.exceptions.HTTPError",
        "requests.exceptions.RequestException",
        "httpx.RequestError",
        "aiohttp.client_exceptions.ClientError",
    }
)

# Message data, not prose: a key may hold the word by chance.
DATA_MESSAGES = frozenset({"KeyError", "IndexError"})
# not NONSTOP, STOPPED, STOP_WORDS, NON-STOP, STOP-LOSS
STOP_WORD = re.compile(r"(?<![\w-])STOP(?![\w-])")
STOP_START = re.compile(r"^['\"]?STOP:")
QUESTION = re.compile(r"^(?:[\w.]+: )?['\"]?STOP:(.*)")


def asks_to_stop(fault: Fault) -> bool:
    """Whether the cell itself says that a person must decide: the word STOP in capitals in its message."""
    return bool(
        (STOP_START if DATA_MESSAGES & _names(fault) else STOP_WORD).search(
            fault.evalue
        )
    )


def question(message: str) -> str:
    """Return what a message asks the person, '' where it asks nothing: `STOP: QUESTION`, its class before it or not."""
    found = QUESTION.search(message.strip())
    return one_line(found[1].strip("'\" ")) if found else ""


def words(fault: Fault) -> set[str]:
    """Return by what a fault is known: its classes, `errno NAME`, `HTTP` and `HTTP STATUS`."""
    found = _words(_names(fault), fault.attributes.get("errno"))
    status = fault.attributes.get("status")
    return found | {"HTTP", f"HTTP {status}"} if isinstance(status, int) else found


def ended_outside(fault: Fault | None) -> bool:
    """Whether a kernel was ended by what no cell has a part in, such as its node's failure."""
    return fault is not None and "EndedOutside" in fault.mro


def causes(fault: Fault) -> set[str]:
    """Return the words of what is below an error that only passes it on; empty for all others."""
    if not WRAPPERS & _names(fault):
        return set()
    return _words(
        fault.attributes.get("reason_mro") or (), fault.attributes.get("reason_errno")
    )


def of_fault(fault: Fault) -> Verdict:
    """Return what follows from an exception, by its whole MRO, its errno, its HTTP status and what it passes on."""
    if asks_to_stop(fault):
        return U
    return _row(causes(fault)) or _row(words(fault)) or R


def of_run(outcome: Outcome, fault: Fault | None) -> Verdict:
    """Return what follows from the end of a run."""
    if outcome is Outcome.ERROR and fault is not None:
        return of_fault(fault)
    ends = {
        Outcome.OK: Verdict.FINE,
        Outcome.CANCELLED: Verdict.CANCELLED,
        Outcome.KERNEL_DIED: U,
        Outcome.MEMORY: U,
    }
    return ends.get(outcome, R)


def _names(fault: Fault) -> set[str]:
    """Return the names of the fault's classes; where the helper told none, the kernel's name for it must do."""
    return set(fault.mro or (fault.ename,))


def _words(names: Iterable[str], number: Any) -> set[str]:
    found = set(names)
    if "OSError" in found and number in errno.errorcode:
        found.add(f"errno {errno.errorcode[number]}")
    return found


def _row(known: set[str]) -> Verdict | None:
    return next((verdict for word, verdict in TABLE if word in known), None)
