"""What every room stands on: errors, wire, paths, private files, text. It imports nothing of stepper above it."""
