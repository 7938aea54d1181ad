"""A run's outputs, from iopub messages to the outputs of a notebook's cell."""
