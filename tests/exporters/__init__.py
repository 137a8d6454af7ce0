"""Graphs of the same models from different exporters; all local, seeded, with random weights."""
