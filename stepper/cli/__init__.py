"""The command line: sends requests to the daemon, and renders the responses."""
