"""The state of a session: each module has one class, which manages a part of it.

Other modules read the attributes of these objects and call their methods; they never
assign to the attributes. `tests/test_state_owners.py` checks this.
"""
