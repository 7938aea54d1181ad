"""The server of one project: hook events and commands, each a row in a table, on its notebooks' sessions."""
