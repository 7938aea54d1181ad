"""Kernels on a remote host that is reached over ssh."""
