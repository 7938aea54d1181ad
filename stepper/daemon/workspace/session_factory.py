"""The creation of sessions.

Only this module connects the sessions with their adapters (kernel backends, notebook
files, diagnosis). The sessions use the adapters through protocols.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from stepper import diagnosis
from stepper.diagnosis import ipython_syntax
from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.diagnoser import Diagnoser
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.kernels.outputs import image_diff
from stepper.kernels.outputs.late_outputs import LateOutputs
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.model import Limits
from stepper.session.protocols import Journal, LaunchConfig
from stepper.session.run_recovery import recover_run
from stepper.session.session import Session

if TYPE_CHECKING:
    from stepper.daemon.workspace.project_notebooks import Workspace

OnChange = Callable[[], None]


def open_session(
    on_change: OnChange, workspace: Workspace, name: str, path: str
) -> Session:
    """Return a new session for a notebook of the workspace, by its name and path.

    The session calls `on_change` after each change of its state.
    """
    paths = workspace.paths
    store = workspace.notebook_paths.get_store(path)
    session = _create_session(
        on_change,
        workspace,
        name,
        path,
        journal=JournalFile(os.path.join(paths.journals, f"{store}.jsonl")),
        record=os.path.join(paths.kernels, f"{store}.json"),
        figures=os.path.join(paths.figures, store),
        get_limits=workspace.config.load_limits,
        get_launch_config=partial(workspace.get_launch_config, path),
    )
    relocate = partial(workspace.renames.follow_missing, session)
    session.file.set_relocate(relocate)
    session.file.set_restore(workspace.slim_copies.restore)
    return session


def open_replay(
    on_change: OnChange,
    workspace: Workspace,
    name: str,
    copy: str,
    record: str,
    launch: LaunchConfig,
    limits: Limits,
) -> Session:
    """Return a session without a journal, for a copy of a notebook.

    `copy` is the path of the copy, `record` the path for its kernel record.
    """
    from stepper.session.verification.replay import NullJournal

    figures = os.path.join(os.path.dirname(copy), "figures")
    return _create_session(
        on_change,
        workspace,
        name,
        copy,
        journal=NullJournal(),
        record=record,
        figures=figures,
        get_limits=lambda: limits,
        get_launch_config=lambda environ, kernel: launch,
    )


def _create_session(
    on_change: OnChange,
    workspace: Workspace,
    name: str,
    path: str,
    *,
    journal: Journal,
    record: str,
    figures: str,
    get_limits: Callable[[], Limits],
    get_launch_config: Callable[[Mapping[str, str], str], LaunchConfig],
) -> Session:
    """Return a session with adapters for its file, its kernel and diagnosis.

    `record` is the path of the kernel record, `figures` the folder for figures.
    """
    paths = workspace.paths
    file = IpynbFile(path)
    launcher = NotebookLauncher(
        record, paths.runtime, diagnosis.PARTS, lambda: workspace.environ
    )
    diagnoser = Diagnoser(
        path,
        ProjectEnvironment(paths.project),
        SavedImages(figures),
        ipython_syntax.get_transformer(),
    )
    return Session(
        name,
        file,
        LateOutputs(file),
        journal,
        launcher,
        limits=get_limits,
        get_launch_config=get_launch_config,
        diagnosis=diagnoser,
        recover_run=recover_run,
        on_change=on_change,
        compare_pixels=image_diff.compare_pixels,
    )
