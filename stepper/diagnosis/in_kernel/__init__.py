"""The parts of the diagnosis that run in the user's kernel.

They are sent as text, run on Python 3.9 with the standard library and IPython, and
inspect values without running the user's code. The diagnosis of an error takes at most
`error_facts.SECONDS`. It returns findings: sentences, each with the line that last
assigned the value.
"""
