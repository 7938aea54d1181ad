"""What runs in the kernel, on the project's own Python (3.9 and newer): standard library and IPython only.

Nothing here is imported by stepper: `kernels/helper_loader.py` reads these files as text and sends them to the kernel, where
they become modules that no cell sees. They call no code of the user's but an exception's `__str__`, keep no user object
alive, take at most a second and never fail a cell.
"""
