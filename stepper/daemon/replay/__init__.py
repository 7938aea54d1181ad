"""The folder and the kernels of a replay for `stepper verify`."""
