"""What the diagnosis sends into the kernel: typed, on the project's own Python (3.9 and newer), never imported here.

`helper.py` reads these files as text. They call no code of the user's, keep no object alive and never fail a cell.
"""
