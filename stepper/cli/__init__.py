"""The command line: asks the daemon and shows its answers."""
