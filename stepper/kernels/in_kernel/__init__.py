"""Code that runs inside the kernel, on the project's own Python (3.9 or newer).

stepper never imports these modules: `kernels/helper_loader.py` reads them as text and
sends them to the kernel, in which cells cannot see the modules. The modules may import
only the standard library and IPython. They run no user code except an exception's
`__str__`, keep no user object alive, take at most a second and never make a cell fail.
"""
