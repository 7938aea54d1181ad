"""Tests that drive the real Claude Code client with a scripted model; nothing leaves the machine."""
