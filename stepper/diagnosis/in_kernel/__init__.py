"""The diagnosis's parts that run in the user's kernel: sent as text, typed, Python 3.9, standard library and IPython.

They look at values without running the user's code, take at most `failed.SECONDS`, and tell findings: sentences, each
with the place where a value was bound last.
"""
