"""`python -m stepper.daemon PROJECT`: the server."""

from stepper.daemon.server import main

main()
