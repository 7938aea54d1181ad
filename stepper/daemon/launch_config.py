"""The launch configuration of a kernel: backend, interpreter, folder and environment.

The project's configuration may come from a repository that the user does not trust, so
a backend or an interpreter is used only if the user accepted it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepper.common.errors import KernelError
from stepper.common.paths import Paths, get_ipykernel_folder
from stepper.common.text import one_line
from stepper.daemon.kernel_environment_variables import build_kernel_environ
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Limits
from stepper.session.protocols import LaunchConfig

if TYPE_CHECKING:
    # Imported only if the configuration has `kernels:`.
    from stepper.policy.configuration.kernel_config import BackendConfig


def build_launch_config(
    paths: Paths,
    limits: Limits,
    notebook: str,
    environ: Mapping[str, str],
    backend_name: str = "",
) -> LaunchConfig:
    """Return the launch configuration for the kernel of the notebook at a path.

    `environ` is the environment of the process that requested the kernel. If
    `backend_name` is empty, the configured backend is used. Raise KernelError if the
    backend or the interpreter does not exist or was not accepted by the user.
    """
    backend = _get_accepted_backend(paths, limits, notebook, backend_name)
    if backend is None:
        python = _get_accepted_interpreter(paths, limits.python)
    else:
        python = paths.find_trusted_python(limits.python)
    cwd = paths.project
    if limits.kernel_cwd == "notebook":
        cwd = os.path.dirname(notebook)
    # Each backend removes its own token from the environment.
    other_tokens = [
        variable
        for other in limits.kernels.values()
        if other is not backend
        for variable in other.description.secret_variables
    ]
    hidden_variables = [*limits.hide_env, *other_tokens]
    env = paths.active_env
    kernel_environ = build_kernel_environ(environ, python, env, hidden_variables)
    return LaunchConfig(
        python=python,
        cwd=cwd,
        environ=kernel_environ,
        bundled_ipykernel=get_ipykernel_folder(env),
        backend=backend,
    )


def format_unknown_backend(name: str, limits: Limits) -> str:
    """Return the error message for a kernel backend that is not configured."""
    names = ", ".join([*limits.kernels, Limits.kernel])
    return (
        f"there is no kernel backend {one_line(name, 100)!r}; available: {names} (see"
        " `kernels:` in .stepper/config.yaml)"
    )


def _get_accepted_backend(
    paths: Paths,
    limits: Limits,
    notebook: str,
    backend_name: str,
) -> BackendConfig | None:
    """Return the backend for a kernel, or None for an interpreter on this machine.

    Raise KernelError if the backend is not defined or was not accepted.
    """
    name = backend_name or limits.kernel
    if name == Limits.kernel:
        return None
    backend = limits.kernels.get(name)
    if backend is None:
        commands = CommandLines(paths.relpath(notebook))
        choose = commands.shell("use --kernel NAME")
        raise KernelError(
            format_unknown_backend(name, limits),
            f"add the backend to `kernels:`, or choose another backend: {choose}",
        )
    if not paths.trusts_backend(backend.definition):
        raise KernelError(
            f"`kernels.{name}` in .stepper/config.yaml was not accepted by you",
            "stepper trust",
        )
    return backend


def _get_accepted_interpreter(paths: Paths, configured: str | None) -> str:
    """Return the path of the interpreter for kernels on this machine.

    Raise KernelError if the interpreter is missing or was not accepted.
    """
    python = paths.find_python(configured)
    if os.path.isdir(python) or not os.access(python, os.X_OK):
        hint = "correct `python:` in .stepper/config.yaml"
        if not configured:
            hint = _suggest_install(paths)
        raise KernelError(
            f"there is no interpreter for the kernel: {python} is missing or not"
            " an executable file",
            hint,
        )
    if not paths.trusts_python(python):
        source = python
        if configured:
            source = f"`python: {configured}` in .stepper/config.yaml"
        raise KernelError(
            f"{source} was not accepted by you (another person may have chosen it)",
            "stepper trust",
        )
    return python


def _suggest_install(paths: Paths) -> str:
    """Return the command that creates the project's environment."""
    project = shlex.quote(paths.project)
    return (
        f"./install.sh {project}  # in a clone of stepper (or: uvx notebook-stepper"
        f" install {project}); creates .venv if it is missing, or uses another"
        " environment with --python PATH"
    )
