"""Notebooks with a restored modification time.

After a cell has run, stepper restores the notebook's modification time, because the
client would otherwise refuse further edits in the same message. When the message is
complete, the notebook gets the current time. Until then, a file lists the notebook, in
case the daemon is killed. The hook script checks whether the file exists.
"""

from __future__ import annotations

from stepper.daemon.workspace.owned_json_file import DaemonJsonFile


class RestoredMtimes:
    """The notebooks with a restored time, and the client sessions that edited them."""

    def __init__(self, path: str) -> None:
        self._file = DaemonJsonFile(path)

    def add(self, notebook: str, session: str) -> None:
        """Record that a notebook has a restored time until the message is complete."""
        owners = self._file.read()
        if owners.get(notebook) != session:
            self._file.write({**owners, notebook: session})

    def take_all(self, session: str) -> list[str]:
        """Remove the notebooks that a client session edited, and return their paths."""
        owners = self._file.read()
        notebooks = [notebook for notebook in owners if owners[notebook] == session]
        self._remove(notebooks)
        return notebooks

    def discard(self, notebook: str) -> None:
        """Remove a notebook from the file, if the file lists it."""
        self._remove([notebook])

    def _remove(self, notebooks: list[str]) -> None:
        """Remove notebooks from the file, and the file if it lists no others."""
        owners = self._file.read()
        remaining_owners = {
            notebook: session
            for notebook, session in owners.items()
            if notebook not in notebooks
        }
        if remaining_owners:
            self._file.write(remaining_owners)
        else:
            self._file.remove()
