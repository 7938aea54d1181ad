"""The result of `stepper verify` as text, for CI systems and for pytest."""
