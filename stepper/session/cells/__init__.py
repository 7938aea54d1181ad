"""Runs, edits and reads the cells of a notebook, and writes their outputs."""
