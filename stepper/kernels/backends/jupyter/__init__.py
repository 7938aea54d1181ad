"""Kernels of a Jupyter server, a hub's, or a gateway."""
