"""What is on record of kernels elsewhere, sealed: only what this user's stepper wrote, for that very file, is one.

A pull may put any file below `.stepper/`. What it says of a host, a job, ports or keys would be asked, and told what
cells hold. So a record has a seal, made with a key in the user's own state folder, where no checkout can write.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepper.common import private_files
from stepper.common.paths import Paths, record_root

SEAL = "seal"


def write(path: str, told: Mapping[str, Any]) -> None:
    """Replace a kernel's record; raise OSError."""
    plain = {name: value for name, value in told.items() if name != SEAL}
    private_files.replace(
        path, json.dumps({**plain, SEAL: _seal(path, plain)}).encode()
    )


def is_sealed(path: str, told: Mapping[str, Any]) -> bool:
    """Whether this user's stepper wrote what a record holds, and there."""
    plain = {name: value for name, value in told.items() if name != SEAL}
    try:
        return hmac.compare_digest(
            str(told.get(SEAL)).encode("utf-8", "replace"), _seal(path, plain).encode()
        )
    except OSError:
        return False


def _seal(path: str, told: Mapping[str, Any]) -> str:
    text = json.dumps([os.path.realpath(path), told], sort_keys=True)
    return hmac.new(_key(), text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def _key() -> bytes:
    """Return the user's key, made with the first record; raise OSError."""
    # the person's home may lie behind a link
    folder = os.path.realpath(os.path.dirname(record_root()))
    path = os.path.join(folder, "key")
    with contextlib.suppress(FileNotFoundError):
        return private_files.read(path)
    new = f"{path}.{os.getpid()}"
    private_files.replace(new, secrets.token_hex(32).encode())
    with contextlib.suppress(FileExistsError):  # another daemon was first
        os.link(new, path)
    private_files.remove(new)
    return private_files.read(path)


def of_project(paths: Paths) -> Iterator[Path]:
    """Give the records of a project's kernels, those of replays too."""
    yield from Path(paths.kernels).rglob("*.json")
    yield from Path(paths.verify).glob("*/*/kernel.json")
