"""Background runs: cells that continue after the client got an interim response."""
