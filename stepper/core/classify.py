"""Fault → Verdict: an ordered table that one can read aloud."""

from __future__ import annotations

import errno
import re

from stepper.core.model import Fault, Outcome, Verdict

R, T, U = Verdict.RECOVERABLE, Verdict.TRANSIENT, Verdict.UNRECOVERABLE

FATAL_ERRNOS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EDQUOT})
HTTP_TRANSIENT = frozenset({429, 502, 503, 504})
NETWORK_ERRNOS = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.ETIMEDOUT,
        errno.EPIPE,
    }
)

# The first row whose class stands in the fault's MRO decides. Rows above are more special than rows below.
BY_CLASS: tuple[tuple[str, Verdict], ...] = (
    ("MemoryError", U),
    ("PermissionError", U),
    ("SystemExit", U),
    ("IPython.core.interactiveshell.StdinNotImplementedError", U),
    ("IPython.core.error.StdinNotImplementedError", U),
    ("ConnectionError", T),
    ("socket.gaierror", T),
    ("socket.herror", T),
    ("TimeoutError", T),
    ("http.client.RemoteDisconnected", T),
    ("http.client.IncompleteRead", T),
    ("urllib3.exceptions.TimeoutError", T),
    ("urllib3.exceptions.ProtocolError", T),
    ("urllib3.exceptions.NewConnectionError", T),
    ("requests.exceptions.ConnectionError", T),
    ("requests.exceptions.Timeout", T),
    ("requests.exceptions.ChunkedEncodingError", T),
    ("httpx.TransportError", T),
    ("httpcore.NetworkError", T),
    ("httpcore.TimeoutException", T),
    ("aiohttp.client_exceptions.ClientConnectionError", T),
    ("aiohttp.client_exceptions.ClientPayloadError", T),
    ("aiohttp.client_exceptions.ServerTimeoutError", T),
    ("Exception", R),
)

# Message data, not prose: a key may hold the word by chance.
DATA_MESSAGES = frozenset({"KeyError", "IndexError"})
STOP_WORD = re.compile(r"\bSTOP\b")
STOP_START = re.compile(r"^['\"]?STOP:")
# UnsupportedProtocol, proxies and the like are wrong calls, though their base is a transport error.
WRONG_CALLS = frozenset({"httpx.UnsupportedProtocol", "httpx.LocalProtocolError", "httpx.DecodingError"})


def asks_to_stop(fault: Fault) -> bool:
    """Whether the cell itself says that a person must decide: the word STOP in capitals in its message."""
    pattern = STOP_START if DATA_MESSAGES & set(fault.mro) else STOP_WORD
    return bool(pattern.search(fault.evalue))


def of_fault(fault: Fault) -> Verdict:
    """Return what follows from an exception, by its whole MRO, its errno and its HTTP status."""
    if asks_to_stop(fault):
        return U
    number, status = fault.attributes.get("errno"), fault.attributes.get("status")
    if "OSError" in fault.mro and number in FATAL_ERRNOS:
        return U
    if isinstance(status, int):
        return T if status in HTTP_TRANSIENT else R
    if WRONG_CALLS & set(fault.mro):
        return R
    for name, verdict in BY_CLASS:
        if name in fault.mro:
            if name == "Exception" and _is_network(fault):
                return T
            return verdict
    return U if fault.mro else R


def _is_network(fault: Fault) -> bool:
    """Whether an OSError (urllib's URLError among them) stands for a connection that failed."""
    if "OSError" not in fault.mro:
        return False
    reason = fault.attributes.get("reason_mro") or ()
    return (
        fault.attributes.get("errno") in NETWORK_ERRNOS
        or fault.attributes.get("reason_errno") in NETWORK_ERRNOS
        or bool({"ConnectionError", "TimeoutError", "socket.gaierror"} & set(reason))
    )


def of_run(outcome: Outcome, fault: Fault | None) -> Verdict:
    """Return what follows from the end of a run."""
    if outcome is Outcome.ERROR and fault is not None:
        return of_fault(fault)
    return {
        Outcome.OK: Verdict.FINE,
        Outcome.ERROR: R,
        Outcome.TIMEOUT: R,
        Outcome.MEMORY: U,
        Outcome.KERNEL_DIED: U,
        Outcome.CANCELLED: Verdict.CANCELLED,
    }[outcome]
