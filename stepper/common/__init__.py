"""Utilities that every package uses: errors, socket frames, paths, private files, text.

Nothing in here imports another package of stepper.
"""
