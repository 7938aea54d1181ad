"""Kernels that are SLURM jobs or job steps."""
