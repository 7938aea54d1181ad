"""What looks for facts in the kernel: sent there as text, like `kernel/inside`, when it is needed first."""
