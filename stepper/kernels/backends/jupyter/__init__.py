"""Kernels on a Jupyter server, a JupyterHub or a gateway."""
