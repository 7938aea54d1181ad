"""The command line: asks the daemon and renders its answers."""
