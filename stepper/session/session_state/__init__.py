"""The state of a session: each module has one class, which owns a part of it.

Other modules read the attributes of an owner and call its methods; they never assign to
them. `tests/test_state_owners.py` checks this.
"""
