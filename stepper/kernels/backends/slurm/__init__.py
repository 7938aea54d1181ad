"""Kernels that are batch jobs of SLURM's."""
