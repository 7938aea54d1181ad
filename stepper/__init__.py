"""stepper: a cell that Claude Code writes runs at once, in a kernel that lives on."""

__version__ = "0.1.0"
