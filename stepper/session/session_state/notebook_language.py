"""The language of a notebook, and the analysis of its sources."""

from __future__ import annotations

import functools

from stepper.policy import cell_directives
from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.session.diagnosis_protocol import Diagnosis

PYTHON_LANGUAGES = ("python", "python3", "ipython")
ANALYSES = 5000  # sources whose analysis is cached


class NotebookLanguage:
    """The language of a notebook, and the diagnosis for this language.

    Only `Session.read` sets the language. Any code may read the attributes. The
    language is Python until the notebook is read.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._python_diagnosis = diagnosis
        self.diagnosis = diagnosis
        self.is_python = True
        self.comment = "#"  # the marker of comments
        # Returns the names that a source reads and assigns.
        self.analyze_names = functools.lru_cache(ANALYSES)(self._analyze_names)

    def select(self, language: str) -> None:
        """Use the language in the notebook's metadata."""
        self.is_python = language in PYTHON_LANGUAGES
        self.diagnosis = self._python_diagnosis.select_language(language)
        self.comment = cell_directives.get_comment_marker(language)

    def move(self, path: str) -> None:
        """Pass the new path of a renamed notebook to the diagnosis."""
        self._python_diagnosis.move(path)

    def _analyze_names(self, source: str) -> NameUsage:
        """Return the names that a source reads and assigns."""
        usage = name_analysis.analyze_source(source, self.diagnosis.convert_to_python)
        usage.mentions.clear()  # not needed, and large
        return usage
