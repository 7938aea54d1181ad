"""The current notebooks: one for the project, and one for each client session."""

from __future__ import annotations

from collections.abc import Mapping

from stepper.daemon.workspace.owned_json_file import DaemonJsonFile

MAX_SESSIONS = 50  # the number of client sessions that are remembered
PROJECT = ""  # the key of the project's current notebook


class CurrentNotebooks:
    """The current notebooks by client session, saved in a file.

    The notebooks' names are relative to the project.
    """

    def __init__(self, path: str) -> None:
        self._file = DaemonJsonFile(path)

    def get_all(self) -> dict[str, str]:
        """Return the current notebook of each client session.

        The key `PROJECT` contains the current notebook of the project.
        """
        data = self._file.read()
        names = {PROJECT: data.get("current")}
        sessions = data.get("sessions")
        if isinstance(sessions, dict):
            names.update(sessions)
        currents = {}
        for session, name in names.items():
            if name and isinstance(name, str):
                currents[session] = name
        return currents

    def get(self, session: str = PROJECT) -> str | None:
        """Return the current notebook of a client session, or else of the project.

        Return None if neither has a current notebook.
        """
        currents = self.get_all()
        return currents.get(session) or currents.get(PROJECT)

    def set(self, name: str, session: str = PROJECT) -> None:
        """Make a notebook the current notebook of a client session and the project."""
        currents = self.get_all()
        currents[PROJECT] = name
        if session:
            currents.pop(session, None)  # the latest session comes last
            currents[session] = name
            sessions = [key for key in currents if key != PROJECT]
            for oldest in sessions[:-MAX_SESSIONS]:
                del currents[oldest]
        self._write(currents)

    def rename(self, new_names: Mapping[str, str]) -> None:
        """Replace the names of renamed notebooks.

        `new_names` maps former names to new names.
        """
        currents = self.get_all()
        renamed_currents = {
            session: new_names.get(name, name) for session, name in currents.items()
        }
        if renamed_currents != currents:
            self._write(renamed_currents)

    def restore(self, previous: Mapping[str, str], name: str, session: str) -> None:
        """Restore the previous current notebooks after a refused call.

        The call made `name` the current notebook of the session and the project. If
        another call has set a different notebook since, that notebook remains.
        """
        currents = self.get_all()
        for key in {session, PROJECT}:
            if currents.get(key) != name:
                continue
            if key in previous:
                currents[key] = previous[key]
            else:
                del currents[key]
        self._write(currents)

    def _write(self, currents: Mapping[str, str]) -> None:
        """Write the current notebooks to the file, if they have changed."""
        sessions = dict(currents)
        project_name = sessions.pop(PROJECT, None)
        data = {"current": project_name, "sessions": sessions}
        if self._file.read() != data:
            self._file.write(data)
