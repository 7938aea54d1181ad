"""Finding and reading installed kernelspecs.

The folders are those that Jupyter searches in the kernel's environment, in the same
order: JUPYTER_PATH, the user's folder, the project's environment and the system
folders. A virtual environment precedes the user's folder. stepper's own environment is
not searched. jupyter_client's KernelSpecManager is not used, because it imports
traitlets and searches the environment in which it runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepper.common.errors import KernelError
from stepper.policy.configuration.kernel_config import KERNELSPEC_NAME

MAX_SIZE = 1 << 20  # bytes of a kernel.json
ENVIRONMENT_VARIABLE = re.compile(r"\$\{(\w+)\}")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
PYTHON_NAMES = ("python", "python3")
# Values of JUPYTER_PREFER_ENV_PATH that mean no.
FALSE_VALUES = ("no", "n", "false", "off", "0", "0.0")
# This provisioner starts a local process, as stepper itself does.
LOCAL_PROVISIONER = "local-provisioner"


@dataclass(frozen=True)
class Kernelspec:
    """An installed kernelspec."""

    name: str
    folder: str
    argv: tuple[str, ...]
    language: str
    display_name: str
    env: Mapping[str, str] = field(default_factory=dict)
    interrupt_mode: str = "signal"
    # The kernel provisioner of jupyter_client that starts the kernel; empty if the
    # kernel is started as a process.
    provisioner: str = ""

    def build_command(self, connection_file: str, python: str) -> list[str]:
        """Return the command that starts the kernel.

        `python` is the project's interpreter. It replaces the program `python` or
        `python3`, and its environment replaces `{prefix}`. If `python` is not an
        absolute path, `{prefix}` is replaced by stepper's own environment.
        """
        prefix = sys.prefix
        if os.path.isabs(python):
            prefix = os.path.dirname(os.path.dirname(python))
        values = {
            "connection_file": connection_file,
            "resource_dir": self.folder,
            "prefix": prefix,
        }

        def get_value(match: re.Match[str]) -> str:
            return values.get(match[1], match[0])

        command = []
        for part in self.argv:
            command.append(PLACEHOLDER.sub(get_value, part))
        if python and command[0] in PYTHON_NAMES:
            command[0] = python
        return command

    def build_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the kernel's process.

        The variables in `environ` are extended by the variables of the kernelspec, in
        which `${NAME}` is replaced by the value of NAME in `environ`.
        """

        def get_value(match: re.Match[str]) -> str:
            return environ.get(match[1], match[0])

        own_variables = {
            name: ENVIRONMENT_VARIABLE.sub(get_value, value)
            for name, value in self.env.items()
        }
        return {**environ, **own_variables}


def list_folders(environ: Mapping[str, str], python: str) -> list[Path]:
    """Return the folders that may contain kernelspecs, in order of precedence.

    `python` is the project's interpreter, or an empty string if there is none.
    """
    home = environ.get("HOME") or os.path.expanduser("~")
    share = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
    user_folder = os.path.join(share, "jupyter")
    if sys.platform == "darwin":
        user_folder = os.path.join(home, "Library/Jupyter")
    user_folder = environ.get("JUPYTER_DATA_DIR") or user_folder
    folders = environ.get("JUPYTER_PATH", "").split(os.pathsep)
    folders.append(user_folder)
    if python:
        prefix = os.path.dirname(os.path.dirname(python))
        env_folder = os.path.join(prefix, "share/jupyter")
        if _prefers_environment(environ, prefix):
            folders.insert(-1, env_folder)
        else:
            folders.append(env_folder)
    folders.append("/usr/local/share/jupyter")
    folders.append("/usr/share/jupyter")
    absolute_folders = filter(os.path.isabs, dict.fromkeys(folders))
    return [Path(folder, "kernels") for folder in absolute_folders]


def _prefers_environment(environ: Mapping[str, str], prefix: str) -> bool:
    """Return whether an environment's kernelspecs precede the user's.

    This is the rule of `jupyter_core.paths.prefer_environment_over_user`: the
    environment is virtual, or JUPYTER_PREFER_ENV_PATH requires it.
    """
    setting = environ.get("JUPYTER_PREFER_ENV_PATH")
    if setting is not None:
        return setting.lower() not in FALSE_VALUES
    if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        return True
    conda_prefix = environ.get("CONDA_PREFIX", "")
    is_base = environ.get("CONDA_DEFAULT_ENV", "base") == "base"
    return bool(conda_prefix) and prefix.startswith(conda_prefix) and not is_base


def list_installed(environ: Mapping[str, str], python: str) -> dict[str, Kernelspec]:
    """Return the installed kernelspecs by name, without those that are not valid."""
    specs: dict[str, Kernelspec] = {}
    for folder in list_folders(environ, python):
        for path in sorted(folder.glob("*/kernel.json")):
            name = path.parent.name.lower()
            if name in specs or not KERNELSPEC_NAME.fullmatch(name):
                continue
            spec = _read_spec(name, path)
            if spec:
                specs[name] = spec
    return specs


def find_kernelspec(name: str, environ: Mapping[str, str], python: str) -> Kernelspec:
    """Return the installed kernelspec with a name.

    Raise KernelError if the kernelspec is not installed.
    """
    specs = list_installed(environ, python)
    spec = specs.get(name.lower())
    if spec is None:
        names = ", ".join(specs) or "none"
        raise KernelError(
            f"the kernelspec {name!r} is not installed"
            f" (installed kernelspecs: {names})",
            "jupyter kernelspec list",
        )
    return spec


def _read_spec(name: str, path: Path) -> Kernelspec | None:
    """Return the kernelspec in a kernel.json file, or None if the file is not valid."""
    try:
        with path.open("rb") as stream:
            content = json.loads(stream.read(MAX_SIZE))
        argv = content["argv"]
        if not isinstance(argv, list) or not argv:
            return None
        if not all(isinstance(part, str) for part in argv):
            return None
        env = content.get("env") or {}
        variables = {str(key): str(value) for key, value in env.items()}
        language = content.get("language") or ""
        display_name = content.get("display_name") or name
        interrupt_mode = content.get("interrupt_mode") or "signal"
        return Kernelspec(
            name,
            folder=str(path.parent),
            argv=tuple(argv),
            language=str(language),
            display_name=str(display_name),
            env=variables,
            interrupt_mode=str(interrupt_mode),
            provisioner=_get_provisioner(content),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _get_provisioner(content: Mapping[str, Any]) -> str:
    """Return the name of the kernel provisioner in a kernelspec.

    `content` is the content of the kernel.json file. Return an empty string if the
    kernel is a local process. Raise AttributeError if the metadata is not valid.
    """
    metadata = content.get("metadata") or {}
    provisioner = metadata.get("kernel_provisioner") or {}
    name = str(provisioner.get("provisioner_name") or "")
    if name == LOCAL_PROVISIONER:
        return ""
    return name
