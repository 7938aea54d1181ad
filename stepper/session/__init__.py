"""The work on one notebook: runs cells and answers commands.

`stepper/policy` makes the decisions; this package carries them out through the
protocols in `protocols.py`.
"""
