"""The digest of a notebook, and of its outputs."""
