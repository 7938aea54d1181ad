"""Background runs: cells that continue after their call got an interim answer."""
