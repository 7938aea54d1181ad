"""One-time notices to the agent, which are part of the next report."""

from __future__ import annotations

from collections.abc import Hashable


class Notices:
    """The notices that the next report will contain.

    Any code may add a notice. Only the code that formats a report removes notices.
    """

    def __init__(self) -> None:
        self._texts: dict[Hashable, str] = {}  # by subject

    def add(self, text: str, subject: Hashable = None) -> None:
        """Add a notice; replace an earlier notice on the same subject.

        Without a subject, the text itself identifies the notice.
        """
        key = subject or text
        self._texts.pop(key, None)
        self._texts[key] = text

    def discard(self, subject: Hashable) -> None:
        """Remove the notice on a subject, if there is one."""
        self._texts.pop(subject, None)

    def list_texts(self) -> list[str]:
        """Return the notices, oldest first."""
        return list(self._texts.values())

    def pop_all(self) -> list[str]:
        """Return the notices, oldest first, and remove them."""
        texts = self.list_texts()
        self._texts.clear()
        return texts
