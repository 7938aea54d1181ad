"""Kernels that are processes of this machine."""
