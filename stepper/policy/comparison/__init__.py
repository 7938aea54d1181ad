"""Comparison of fresh outputs with recorded ones, for verify."""
