"""Kernel backends: the ways in which stepper can run kernels."""
