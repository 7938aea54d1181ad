"""What is said of a fault besides the fault: a room that can be taken out."""
