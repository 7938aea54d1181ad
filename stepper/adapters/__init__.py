"""The world behind the ports: kernels, notebook files, journals."""
