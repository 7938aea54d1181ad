"""Kernels: starting and finding them, executing code, and collecting the outputs."""
