"""Kernels of installed kernelspecs, started as processes or by kernel provisioners."""
