"""Code that runs inside the kernel, on the project's own Python (3.9 or newer).

stepper never imports these modules: `kernels/helper_loader.py` reads them as text and
sends them to the kernel, in which cells cannot see the modules. The modules may import
only the standard library and packages that ipykernel needs. The inspection of the
user's objects runs no user code except an exception's `__str__`, and keeps no object
alive. An error in a module must not make a cell fail.
"""
