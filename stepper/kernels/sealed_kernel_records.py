"""Records of remote kernels, protected by a seal.

`git pull` can place any file in `.stepper/`. stepper connects to the host, job or port
in a record and sends the code of cells there, so it must not trust a record from a
repository. Each record therefore contains a seal, an HMAC of its path and content. The
key is in the user's state folder, which a repository cannot write to.
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

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.common.paths import Paths, get_record_root

SEAL = "seal"
Record = Mapping[str, Any]


def write(path: str, record: Record) -> None:
    """Write a kernel's record with its seal, replacing an existing one.

    Raise OSError if the record cannot be written.
    """
    sealed_record = _remove_seal(record)
    sealed_record[SEAL] = _compute_seal(path, sealed_record)
    text = json.dumps(sealed_record)
    secure_files.replace(path, text.encode())


def save(path: str, record: Record) -> None:
    """Write a kernel's record with its seal, like `write`.

    Raise KernelError, with a message for the user, if the record cannot be written.
    """
    try:
        write(path, record)
    except OSError as error:
        raise KernelError(
            f"the kernel record {path} could not be written: {error.strerror}",
            "df -h .stepper",
        ) from error


def is_sealed(path: str, record: Record) -> bool:
    """Return whether stepper wrote a record for this user and this path."""
    content = _remove_seal(record)
    seal = str(record.get(SEAL))
    try:
        expected = _compute_seal(path, content)
    except OSError:
        return False
    actual = seal.encode("utf-8", "replace")
    return hmac.compare_digest(actual, expected.encode())


def _remove_seal(record: Record) -> dict[str, Any]:
    """Return a copy of a record without its seal."""
    return {name: value for name, value in record.items() if name != SEAL}


def _compute_seal(path: str, content: Record) -> str:
    """Return the seal of a record's path and content.

    Raise OSError if the key cannot be read or created.
    """
    sealed_values = [os.path.realpath(path), content]
    text = json.dumps(sealed_values, sort_keys=True)
    data = text.encode("utf-8", "surrogatepass")
    return hmac.new(_get_or_create_key(), data, "sha256").hexdigest()


def _get_or_create_key() -> bytes:
    """Return the user's key, and create it if it does not exist.

    Raise OSError if the key cannot be read or created.
    """
    # The home folder may be behind a symbolic link.
    folder = os.path.realpath(os.path.dirname(get_record_root()))
    path = os.path.join(folder, "key")
    with contextlib.suppress(FileNotFoundError):
        return secure_files.read(path)
    new_path = f"{path}.{os.getpid()}"
    key = secrets.token_hex(32)
    secure_files.replace(new_path, key.encode())
    with contextlib.suppress(FileExistsError):  # another daemon was faster
        os.link(new_path, path)
    secure_files.remove(new_path)
    return secure_files.read(path)


def find_project_records(paths: Paths) -> Iterator[Path]:
    """Yield the paths of a project's kernel records, including those of replays."""
    kernels = Path(paths.kernels)
    yield from kernels.rglob("*.json")
    replays = Path(paths.verify)
    yield from replays.glob("*/*/kernel.json")
