"""Failing cells, each with the one fact that its fix needs and that Python's own message does not hold.

`python -m tests.faults [CLASS …]` runs them through stepper's engine in real kernels and prints, class by class, how often
the report holds that fact, how long the kernel's look took and how many words the report cost. The cells were written before
the suggestions that they test; none is removed because it fails.
"""
