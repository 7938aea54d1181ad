"""The commands of the CLI and of MCP as tables of typed arguments."""
