"""Faces for people who look on: a page (`stepper view`) and a terminal (`stepper watch`). Read only, clients alone."""
