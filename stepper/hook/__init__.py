"""The hook process, its client of the daemon, and the parser of Claude Code's payloads."""
