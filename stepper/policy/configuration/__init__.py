"""Sections of `.stepper/config.yaml`, parsed and validated."""
