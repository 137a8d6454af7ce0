"""Trials: change a variant, plan it, build it, compare it with float, and decide with a recorded reason."""
