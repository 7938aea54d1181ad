"""Frames on the socket between a client and the daemon, and who is at its other end. The hook process loads this.

A message is a list of byte strings: magic, the number of parts (1 byte), each part's length (8 bytes,
big endian), then the parts. A request is [verb, version, environment, folder, payload]; an answer is
[kind, payload].
"""

import _socket
import sys

if False:  # for the type checker alone: typing is not loaded
    from collections.abc import Mapping

MAGIC = b"STP1"
MAX_PARTS = 8
# A hook's standard input holds the notebook twice; a frame that announces more than
# this is refused.
MAX_BYTES = 1 << 30

# Kinds of answers. PROGRESS may come any number of times before one of the others.
OK, PROGRESS, STALE, FAILED = b"ok", b"progress", b"stale", b"failed"

PREFIX = len(MAGIC) + 1


class FrameError(Exception):
    """The bytes are no frame of this protocol."""


def frame_header(*parts: bytes) -> bytes:
    """Return what comes before `parts` (at most 8, together at most 1 GiB) in their frame."""
    return (
        MAGIC
        + bytes([len(parts)])
        + b"".join([len(part).to_bytes(8, "big") for part in parts])
    )


def pack(*parts: bytes) -> bytes:
    """Return the frame that holds `parts`."""
    return frame_header(*parts) + b"".join(parts)


def parse_part_count(prefix: bytes) -> int:
    """Return how many parts follow the first `PREFIX` bytes of a frame; raise FrameError."""
    if (
        len(prefix) != PREFIX
        or prefix[: len(MAGIC)] != MAGIC
        or not 0 < prefix[-1] <= MAX_PARTS
    ):
        raise FrameError("not a frame of stepper's protocol")
    return prefix[-1]


def parse_part_lengths(table: bytes) -> list[int]:
    """Return the parts' lengths in bytes from the 8 bytes a part after the prefix; raise FrameError."""
    sizes = [int.from_bytes(table[i : i + 8], "big") for i in range(0, len(table), 8)]
    if sum(sizes) > MAX_BYTES:
        raise FrameError(
            f"a frame of {sum(sizes)} bytes is refused: at most {MAX_BYTES}"
        )
    return sizes


def pack_environ(environ: "Mapping[bytes, bytes]") -> bytes:
    """Return an environment as NUL-separated `NAME=value` bytes."""
    return b"\0".join(name + b"=" + value for name, value in environ.items())


def unpack_environ(block: bytes) -> "dict[str, str]":
    """Return the environment from `pack_environ`; undecodable bytes survive (surrogateescape)."""
    pairs = (item.partition(b"=") for item in block.split(b"\0") if item)
    return {
        k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape")
        for k, _, v in pairs
    }


def get_peer_uid(sock: _socket.socket) -> int:
    """Return the user at the other end of a unix socket; raise OSError."""
    if hasattr(_socket, "SO_PEERCRED"):
        # pid, uid, gid
        found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return int.from_bytes(found[4:8], sys.byteorder)
    return get_peer_uid_bsd(sock.fileno())


def get_peer_uid_bsd(handle: int, library: str | None = None) -> int:
    """Return the user at the other end of a unix socket where there is no SO_PEERCRED: macOS, BSD. Raise OSError."""
    import ctypes
    import os

    user, group = ctypes.c_uint32(), ctypes.c_uint32()
    if (
        ctypes.CDLL(library, use_errno=True).getpeereid(
            handle, ctypes.byref(user), ctypes.byref(group)
        )
        != 0
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return user.value
