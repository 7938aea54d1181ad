"""Static data flow between cells: which names a source reads, binds and changes."""
