"""Graphs of the same models from different exporters; built locally, seeded, with random weights."""
