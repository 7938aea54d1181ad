"""One notebook's session: carries out what policy decides, over ports that the rooms below the daemon fill."""
