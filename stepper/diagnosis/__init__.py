"""Finds the fact behind a fault. A room that can be taken out: only the server hands it in."""

# What the kernel's helper loads when it is needed: the part's module → the package that
# holds it.
PARTS = {
    "file_writes": "stepper.diagnosis.in_kernel",
    "error_facts": "stepper.diagnosis.in_kernel",
    "warning_checks": "stepper.diagnosis.in_kernel",
    "matplotlib_facts": "stepper.diagnosis.in_kernel",
    "criterion_check": "stepper.diagnosis.in_kernel",
    "shell_commands": "stepper.diagnosis.in_kernel",
}
