"""Tests with the Codex and Gemini CLIs, and with Claude Code without its hooks.

The clients use `stepper mcp`. No data leaves the machine.
"""
