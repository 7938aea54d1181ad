"""The hook process, its client of the daemon, and Claude Code's payloads."""
