"""Finds the fact behind a fault or a doubt. It can be taken out: only the server hands it in."""
