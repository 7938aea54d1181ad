"""The notebook and its journal as files."""
