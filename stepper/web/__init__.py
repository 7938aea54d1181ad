"""Live views of notebooks for users: `stepper view` (a page) and `stepper watch`.

Views only read. They are clients of the daemon and never start it.
"""
