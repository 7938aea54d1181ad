"""`stepper verify` without a daemon, for projects in which stepper is not installed.

The replays run in this process. All of stepper's own files are in a temporary folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from stepper.common.errors import KernelError, UsageError
from stepper.common.text import one_line, shell_quote
from stepper.daemon.config import Config
from stepper.daemon.replay import replay_workspace, standalone_paths
from stepper.daemon.replay.standalone_paths import StandalonePaths
from stepper.daemon.request import Request
from stepper.daemon.workspace import session_factory
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.kernels import backend_registry
from stepper.messages.verification import verify_report
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.commands.cli_commands import Verify
from stepper.policy.commands.command_schema import parse_arguments
from stepper.policy.comparison.verify_results import VerifyResult
from stepper.policy.configuration.kernel_config import (
    BackendConfig,
    BackendConfigError,
)
from stepper.policy.model import Limits
from stepper.session import progress_events
from stepper.session.caller import Caller

# Kernelspecs of the environment's own Python, as in jupyter_client.
OWN_KERNELSPECS = ("", "python", "python3")
SUFFIX = ".ipynb"


@dataclass
class StandaloneReplays:
    """The replays of one call of `verify`.

    To stop all of them, set `stopped`.
    """

    options: Verify
    environ: Mapping[str, str]
    stopped: asyncio.Event

    def find_project(self, notebook: str) -> str:
        """Return the folder to which the names of results are relative.

        Raise UsageError if the notebook does not exist.
        """
        return standalone_paths.find_project_folder(_find_notebook(notebook))

    async def verify(
        self, notebook: str, progress: progress_events.ProgressCallback
    ) -> VerifyResult:
        """Replay the notebook at a path, and return the result.

        Raise StepperError if the notebook can't be replayed.
        """
        path = _find_notebook(notebook)
        project = standalone_paths.find_project_folder(path)
        python = standalone_paths.find_python(self.options.python, path, self.environ)
        with standalone_paths.create_paths(project, python) as paths:
            kernelspec = self._find_kernelspec(paths, path, progress)
            config = StandaloneConfig(paths, kernelspec)
            workspace = StandaloneWorkspace(paths, config)
            caller = Caller(self.environ, disconnected=self.stopped)
            request = Request(
                workspace, caller, cwd=project, progress=progress, daemon_info={}
            )
            session = workspace.get_session(path)
            # Not the kernel backend in the notebook: no backend is configured.
            kernel = kernelspec or Limits.kernel
            options = parse_arguments(Verify, {**vars(self.options), "kernel": kernel})
            result = await replay_workspace.verify_notebook(request, session, options)
        # The usual text mentions the live kernel, and commands that run cells.
        text = verify_report.format_verify(
            result, kernelspec or python, is_kernelspec=bool(kernelspec)
        )
        return replace(result, text=text)

    def _find_kernelspec(
        self,
        paths: StandalonePaths,
        path: str,
        progress: progress_events.ProgressCallback,
    ) -> str:
        """Return the kernelspec for a notebook, or an empty string for `paths.python`.

        If the kernelspec in the notebook is not installed, send a progress event and
        use `paths.python`, or raise KernelError if the language is not Python.
        """
        if self.options.kernel:
            return self.options.kernel
        document = IpynbFile(path).read()
        name = document.kernelspec_name
        if name in OWN_KERNELSPECS:
            return ""
        installed = backend_registry.list_kernelspecs(self.environ, paths.python)
        if name.lower() in installed:
            return name
        quoted = one_line(name, 100)
        if document.language == "python":
            line = f"the kernelspec {quoted} is not installed; using {paths.python}"
            progress(progress_events.Waiting(line=line))
            return ""
        names = ", ".join(installed) or "none"
        raise KernelError(
            f"the notebook needs a kernel for {one_line(document.language, 100)}, but"
            f" the kernelspec {quoted} is not installed (installed: {names})",
            "jupyter kernelspec list",
        )


class StandaloneConfig(Config):
    """The limits of the project, with the kernel of one notebook.

    Kernel backends and the interpreter in the project's configuration are ignored.
    """

    def __init__(self, paths: StandalonePaths, kernelspec: str) -> None:
        super().__init__(paths)
        self.kernels: dict[str, BackendConfig] = {}
        if kernelspec:
            section = {kernelspec: {"kernelspec": kernelspec}}
            try:
                self.kernels = backend_registry.parse_backends(section)
            except BackendConfigError as error:
                message = f"the name of the kernelspec is not valid: {error.reason}"
                raise UsageError(message, "jupyter kernelspec list") from None

    def load_limits(self) -> Limits:
        """Return the limits of the project."""
        limits = super().load_limits()
        return replace(limits, python=None, kernel=Limits.kernel, kernels=self.kernels)


class StandaloneWorkspace(Workspace):
    """A workspace for one notebook at any path."""

    def __init__(self, paths: StandalonePaths, config: StandaloneConfig) -> None:
        super().__init__(
            paths,
            partial(session_factory.open_session, _do_nothing, self),
            partial(session_factory.open_replay, _do_nothing, self),
        )
        self.config = config
        self.resolve = _resolve


def replay_once(notebook: str) -> VerifyResult:
    """Replay the notebook at a path, and return the result.

    Raise StepperError if the notebook can't be replayed.
    """
    replays = StandaloneReplays(Verify(), dict(os.environ), asyncio.Event())
    return asyncio.run(replays.verify(notebook, _ignore_progress))


def _ignore_progress(_: object) -> None:
    """Ignore a progress event."""


def _resolve(path: str) -> str:
    """Return the real path of a notebook, which may be anywhere."""
    return os.path.realpath(path)


def _do_nothing() -> None:
    """Ignore a change of a session: there are no status lines to update."""


def _find_notebook(name: str) -> str:
    """Return the real path of a notebook; the suffix may be missing.

    Raise UsageError if the file does not exist.
    """
    for path in (name, f"{name}{SUFFIX}"):
        if os.path.isfile(path) and path.endswith(SUFFIX):
            return os.path.realpath(path)
    folder = os.path.dirname(name) or "."
    raise UsageError(
        f"there is no notebook {one_line(name, 300)!r}", f"ls {shell_quote(folder)}"
    )
