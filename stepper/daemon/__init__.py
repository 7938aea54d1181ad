"""The daemon of one project: it handles hook events and commands for the notebooks."""
