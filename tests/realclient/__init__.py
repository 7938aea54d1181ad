"""Tests with the real Claude Code client and a scripted model. No data leaves the machine."""
