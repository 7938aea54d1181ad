"""`stepper verify`: replay a copy of a notebook and compare the outputs."""
