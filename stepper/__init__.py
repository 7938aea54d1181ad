"""stepper: run each cell that Claude Code writes in a persistent Jupyter kernel."""

__version__ = "0.1.0"
