"""Kernels of installed kernelspecs, started as local processes or by provisioners."""
