"""The hook process and the way to the daemon; the one place that knows Claude Code's field names."""
