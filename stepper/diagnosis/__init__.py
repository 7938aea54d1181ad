"""Finds the fact behind a fault. A room that can be taken out: only the server hands it in."""

# What the kernel's helper loads when it is needed: the part's module → the package that
# holds it.
PARTS = {
    "failed": "stepper.diagnosis.inside",
    "doubts": "stepper.diagnosis.inside",
    "figures": "stepper.diagnosis.inside",
    "criterion": "stepper.diagnosis.inside",
    "commands": "stepper.diagnosis.inside",
}
