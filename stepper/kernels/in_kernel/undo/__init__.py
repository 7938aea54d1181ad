"""The undo of runs inside the kernel: before-images, snapshots and their restore."""
