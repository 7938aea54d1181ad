"""The parts of the diagnosis that run in the user's kernel.

The modules are sent to the kernel as text. They run on Python 3.9 or later, import only
the standard library, IPython and its dependencies, and inspect values without running
the user's code. The diagnosis of an error starts no search after
`error_facts.SECONDS`. It returns findings: a finding is a sentence, often with the line
that last assigned the value.
"""
