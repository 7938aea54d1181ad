"""Run the daemon: `python -m stepper.daemon PROJECT`."""

from stepper.daemon.server import main

main()
