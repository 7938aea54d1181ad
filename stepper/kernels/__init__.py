"""The kernel client, the kernel backends, and the outputs of cells."""
