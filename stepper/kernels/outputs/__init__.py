"""Conversion of kernel messages to the outputs of a cell, within a size limit."""
