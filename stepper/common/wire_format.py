"""The frames that clients and the daemon exchange on the daemon's socket.

A message is a list of byte strings, framed as: magic, the number of parts (1 byte), the
length of each part (8 bytes, big endian), the parts. A request is [verb, version,
environment, folder, payload]; a response is [kind, payload]. The hook process loads
this module, so it imports `_socket` and `sys` only.
"""

import _socket
import sys

if False:  # only for the type checker: importing typing takes too long
    from collections.abc import Mapping

MAGIC = b"STP1"
MAX_PARTS = 8
# A hook's standard input contains the notebook twice. Larger frames are rejected.
MAX_BYTES = 1 << 30

# Kinds of responses. Any number of PROGRESS responses precede one of the others.
OK = b"ok"
PROGRESS = b"progress"
STALE = b"stale"
FAILED = b"failed"

LENGTH_BYTES = 8
PREFIX = len(MAGIC) + 1


class FrameError(Exception):
    """The bytes are not a valid frame of this protocol."""


def pack_header(*parts: bytes) -> bytes:
    """Return the bytes that precede `parts` in a frame.

    The limits MAX_PARTS and MAX_BYTES are checked by the receiver only.
    """
    table = [len(part).to_bytes(LENGTH_BYTES, "big") for part in parts]
    part_count = bytes([len(parts)])
    return MAGIC + part_count + b"".join(table)


def pack(*parts: bytes) -> bytes:
    """Return the frame of `parts`."""
    return pack_header(*parts) + b"".join(parts)


def parse_part_count(prefix: bytes) -> int:
    """Return the number of parts from the first `PREFIX` bytes of a frame.

    Raise FrameError if the bytes are not the start of a frame.
    """
    has_magic = len(prefix) == PREFIX and prefix.startswith(MAGIC)
    if not has_magic or not 0 < prefix[-1] <= MAX_PARTS:
        raise FrameError("not a frame of stepper's protocol")
    return prefix[-1]


def parse_part_lengths(table: bytes) -> list[int]:
    """Return the lengths of the parts, in bytes, from the table after the prefix.

    Raise FrameError if the frame is too large.
    """
    lengths = []
    for start in range(0, len(table), LENGTH_BYTES):
        field = table[start : start + LENGTH_BYTES]
        lengths.append(int.from_bytes(field, "big"))
    size = sum(lengths)
    if size > MAX_BYTES:
        raise FrameError(f"a frame of {size} bytes is too large (limit: {MAX_BYTES})")
    return lengths


def pack_environ(environ: "Mapping[bytes, bytes]") -> bytes:
    """Return an environment as NUL-separated `NAME=value` bytes."""
    items = [name + b"=" + value for name, value in environ.items()]
    return b"\0".join(items)


def unpack_environ(block: bytes) -> "dict[str, str]":
    """Return the environment variables that `pack_environ` packed, by name.

    Undecodable bytes become surrogate escapes, as in `os.environ`.
    """
    environ = {}
    for item in block.split(b"\0"):
        if item:
            text = item.decode("utf-8", "surrogateescape")
            name, _, value = text.partition("=")
            environ[name] = value
    return environ


def get_peer_uid(sock: _socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket.

    Raise OSError if the system cannot determine the user id.
    """
    if hasattr(_socket, "SO_PEERCRED"):
        # The result is a struct ucred: the process id, user id and group id, each with
        # four bytes.
        credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        uid = credentials[4:8]
        return int.from_bytes(uid, sys.byteorder)
    return get_peer_uid_bsd(sock.fileno())


def get_peer_uid_bsd(descriptor: int, library: str | None = None) -> int:
    """Return the user id of a Unix socket's peer on macOS and BSD.

    These systems have no SO_PEERCRED. `library` is the path of the C library, or None
    for the library of this process. Raise OSError if the system cannot determine the
    user id.
    """
    import ctypes
    import os

    libc = ctypes.CDLL(library, use_errno=True)
    user = ctypes.c_uint32()
    group = ctypes.c_uint32()
    result = libc.getpeereid(
        descriptor,
        ctypes.byref(user),
        ctypes.byref(group),
    )
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return user.value
