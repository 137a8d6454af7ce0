"""Verifying a run: comparisons of float, simulation and target, and the verdicts."""
