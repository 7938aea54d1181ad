"""stepper: run each cell that Claude Code writes immediately, in a persistent kernel."""

__version__ = "0.1.0"
