"""Decisions of stepper as pure functions: no clock, no files, no sockets, no kernel."""
