"""The kernel backends, by kind. No other module imports a backend.

A backend is imported when it is first used, because most projects use only `local`.
Other packages register backends as entry points in stepper's own environment, never in
the project's. An error in such a backend does not affect other backends.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepper.common import secure_files
from stepper.common.errors import KernelError, StepperError
from stepper.common.text import one_line
from stepper.kernels.kernel_backend import PYTHON, BackendCheck, Environ, KernelBackend
from stepper.policy.model import KernelMetadata

if TYPE_CHECKING:
    from pathlib import Path

    from stepper.policy.configuration.kernel_config import (
        BackendConfig,
        KeyPath,
        ParsedSettings,
        SettingsParser,
    )

log = logging.getLogger("stepper")
ENTRY_POINTS = "stepper.kernel_backends"
# The backend of kernels whose record names no backend.
LOCAL = "local"


def _load_local() -> KernelBackend:
    from stepper.kernels.backends.local.local_backend import LocalBackend

    return LocalBackend()


def _load_kernelspec() -> KernelBackend:
    from stepper.kernels.backends.kernelspec.kernelspec_backend import KernelspecBackend

    return KernelspecBackend()


def _load_slurm() -> KernelBackend:
    from stepper.kernels.backends.slurm.slurm_backend import SlurmBackend

    return SlurmBackend()


def _load_ssh() -> KernelBackend:
    from stepper.kernels.backends.ssh.ssh_backend import SshBackend

    return SshBackend()


def _load_jupyter() -> KernelBackend:
    from stepper.kernels.backends.jupyter.jupyter_backend import JupyterBackend

    return JupyterBackend()


# Kind of backend → the function that loads it.
CONFIGURABLE: dict[str, Callable[[], KernelBackend]] = {
    "slurm": _load_slurm,
    "jupyter": _load_jupyter,
    "ssh": _load_ssh,
    "kernelspec": _load_kernelspec,
}
BUILT_IN = {LOCAL: _load_local, **CONFIGURABLE}
_backends: dict[str, KernelBackend] = {}


def get_backend(kind: str) -> KernelBackend:
    """Return the backend of a kind, which is created on the first call.

    Raise KernelError if the backend is not installed, cannot be imported or does not
    implement KernelBackend.
    """
    if kind in _backends:
        return _backends[kind]
    load_built_in = BUILT_IN.get(kind)
    backend = load_built_in() if load_built_in else _load_entry_point(kind)
    _backends[kind] = backend
    return backend


def _load_entry_point(kind: str) -> KernelBackend:
    """Return the backend of a kind that another package provides.

    Raise KernelError if the backend is not installed, cannot be imported or does not
    implement KernelBackend.
    """
    entry_point = _find_entry_points().get(kind)
    if entry_point is None:
        raise KernelError(
            f"the kernel backend `{one_line(kind, 100)}` is not installed in stepper's"
            f" environment ({sys.prefix})"
        )
    try:
        backend = entry_point.load()()
    except Exception as error:
        log.exception("kernel backend %s: import failed", kind)
        raise KernelError(
            f"the kernel backend `{kind}` ({entry_point.value}) could not be imported:"
            f" {_format_error(error)}"
        ) from error
    if not isinstance(backend, KernelBackend):
        raise KernelError(
            f"the kernel backend `{kind}` ({entry_point.value}) does not implement"
            " stepper's KernelBackend protocol"
        )
    return backend


def _find_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of other packages' backends, by kind.

    Only packages in stepper's environment are searched.
    """
    # The working folder is left out, because it may contain untrusted files.
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    backends: dict[str, importlib.metadata.EntryPoint] = {}
    for distribution in importlib.metadata.distributions(path=folders):
        for entry_point in distribution.entry_points:
            if entry_point.group == ENTRY_POINTS:
                backends.setdefault(entry_point.name, entry_point)
    return backends


def parse_backends(section: Any) -> dict[str, BackendConfig]:
    """Return the backends in the section `kernels:` of the configuration, by name.

    Raise BackendConfigError if a definition is not valid.
    """
    from stepper.policy.configuration import kernel_config

    kinds = [*CONFIGURABLE]
    if not _has_only_built_in_kinds(section):
        other_kinds = sorted(_find_entry_points())
        kinds += [kind for kind in other_kinds if kind not in BUILT_IN]

    def find_parser(kind: str) -> SettingsParser | None:
        if kind in kinds:
            return _create_parser(kind)
        return None

    return kernel_config.parse_backends(section, find_parser, kinds)


def _has_only_built_in_kinds(section: Any) -> bool:
    """Return whether all backends in the section `kernels:` are of built-in kinds.

    In this case, the entry points of other packages need not be searched.
    """
    if not isinstance(section, dict):
        return True
    for definition in section.values():
        if (
            isinstance(definition, dict)
            and not definition.keys() <= CONFIGURABLE.keys()
        ):
            return False
    return True


def _create_parser(kind: str) -> SettingsParser:
    """Return a function that parses the settings of a backend.

    If the backend itself fails, the function returns settings with a `problem`, so that
    the rest of the configuration remains valid.
    """
    from stepper.policy.configuration.kernel_config import (
        BackendConfigError,
        BackendDescription,
        ParsedSettings,
    )

    def parse_settings(values: Any, path: KeyPath) -> ParsedSettings:
        try:
            with report_errors(kind, BackendConfigError):
                backend = get_backend(kind)
                settings = backend.parse_settings(values, path)
                return ParsedSettings(settings, backend.describe(settings))
        except KernelError as error:
            description = BackendDescription(f"a backend {kind}")
            return ParsedSettings(None, description, error.message)

    return parse_settings


@contextlib.contextmanager
def report_errors(
    kind: str, expected: type[Exception] = StepperError
) -> Iterator[None]:
    """Convert unexpected exceptions of a backend to KernelError.

    StepperError and `expected` exceptions are raised unchanged.
    """
    try:
        yield
    except (StepperError, expected):
        raise
    except Exception as error:
        log.exception("kernel backend %s failed", kind)
        raise KernelError(
            f"the kernel backend `{kind}` failed: {_format_error(error)}"
        ) from error


def _format_error(error: Exception) -> str:
    """Return the class and the message of an exception in one line."""
    return one_line(f"{type(error).__name__}: {error}", 300)


def check_usable(backend: BackendConfig) -> None:
    """Raise KernelError if the settings of a backend could not be parsed."""
    if backend.problem:
        raise KernelError(backend.problem)


def list_kernelspecs(environ: Environ, python: str) -> list[str]:
    """Return the names of the installed kernelspecs.

    The folders of the environment variables `environ` and of the interpreter `python`
    are searched.
    """
    from stepper.kernels.backends.kernelspec import kernelspecs

    return [*kernelspecs.list_installed(environ, python)]


async def get_metadata(
    backend: BackendConfig | None, environ: Environ, python: str
) -> KernelMetadata:
    """Return the metadata of a backend's kernel for the notebook file.

    `backend` is None for the project's own Python. Raise KernelError if the metadata
    cannot be determined.
    """
    if backend is None:
        return PYTHON
    check_usable(backend)
    if backend.description.is_python:
        return PYTHON
    with report_errors(backend.kind):
        return await get_backend(backend.kind).get_metadata(backend, environ, python)


async def check_backend(
    backend: BackendConfig, environ: Environ, python: str
) -> BackendCheck:
    """Check that a backend can be reached, and return the result of the check.

    Raise KernelError if the backend cannot be reached.
    """
    check_usable(backend)
    with report_errors(backend.kind):
        return await get_backend(backend.kind).check(backend, environ, python)


async def remove_orphans(
    backends: Iterable[BackendConfig],
    runtime: str,
    get_records: Callable[[], Iterable[Path]],
    environ: Environ,
) -> None:
    """Remove this project's kernels that have no record.

    An error in one kind of backend is logged and does not affect the others.
    """
    by_kind: dict[str, list[BackendConfig]] = defaultdict(list)
    for backend in backends:
        if not backend.problem:
            by_kind[backend.kind].append(backend)
    for kind, configs in by_kind.items():
        try:
            with report_errors(kind):
                orphan_count = await get_backend(kind).remove_orphans(
                    configs, runtime, get_records, environ
                )
            if orphan_count:
                log.info(
                    "kernel backend %s: orphaned kernels removed: %d",
                    kind,
                    orphan_count,
                )
        except StepperError as error:
            message = "kernel backend %s: orphaned kernels could not be removed: %s"
            log.warning(message, kind, error.message)


def read_record(path: str) -> Mapping[str, Any]:
    """Return the content of a kernel's record, or an empty dict if it is unreadable."""
    try:
        record = json.loads(secure_files.read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(record, dict):
        return record
    return {}


def kill_recorded_kernel(path: str) -> bool:
    """Kill a recorded kernel without a daemon, and return whether it was running.

    `path` is the path of the kernel's record. Kernels that only a daemon can reach, and
    kernels of other packages' backends, are not killed, and their records are kept.
    """
    kind = str(read_record(path).get("kind", LOCAL))
    if kind not in BUILT_IN:
        return False
    return get_backend(kind).kill_recorded_kernel(path)
