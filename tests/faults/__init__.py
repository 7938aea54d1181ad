"""Failing cells, each with the fact that is needed for the fix but missing in Python's message.

`python -m tests.faults [CLASS …]` runs the cells in real kernels. For each class it
prints how many reports contain the fact, how long the inspection in the kernel took,
and how many words the report has. The cells were written before the suggestions that
they test. No cell is removed because it fails.
"""
