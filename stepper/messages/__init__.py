"""Functions that format the texts for agents and users."""
