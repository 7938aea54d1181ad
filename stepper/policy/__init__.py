"""What is to happen, as pure functions over values: no clock, no file, no socket, no kernel."""
