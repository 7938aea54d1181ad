"""Tests that drive the Codex and Gemini CLIs, and Claude Code without its hooks, against `stepper mcp`; nothing leaves the machine."""
