"""The diagnosis of runs: suggestions, warnings and figure summaries.

Only the daemon's server passes the diagnosis to a session: without it, everything else
still works.
"""

# The parts of the kernel's helper that are loaded when needed → the package of each.
PARTS = {
    "file_writes": "stepper.diagnosis.in_kernel",
    "error_facts": "stepper.diagnosis.in_kernel",
    "run_warnings": "stepper.diagnosis.in_kernel",
    "matplotlib_facts": "stepper.diagnosis.in_kernel",
    "criterion_check": "stepper.diagnosis.in_kernel",
    "shell_commands": "stepper.diagnosis.in_kernel",
}
