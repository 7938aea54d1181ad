"""Notebook files and the journal: reading, atomic writing, and the JSON layout."""
