"""Kernel backends: the kinds of places where a kernel can run."""
