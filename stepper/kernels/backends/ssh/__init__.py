"""Kernels that are processes of a host that `ssh` reaches."""
