"""The notebooks of a project: discovery, names, renames and external changes."""
