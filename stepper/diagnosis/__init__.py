"""The diagnosis of runs: suggestions, warnings and figure summaries.

The diagnosis is optional: only the daemon's server passes a diagnosis to a session, and
a session also works without one.
"""

# The parts of the kernel's helper that are loaded when needed → their packages.
PARTS = {
    "file_writes": "stepper.diagnosis.in_kernel",
    "error_facts": "stepper.diagnosis.in_kernel",
    "suspicious_results": "stepper.diagnosis.in_kernel",
    "matplotlib_facts": "stepper.diagnosis.in_kernel",
    "criterion_check": "stepper.diagnosis.in_kernel",
    "shell_commands": "stepper.diagnosis.in_kernel",
}
