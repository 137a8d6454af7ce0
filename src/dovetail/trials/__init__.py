"""Trying things: change a variant, plan it, build it, compare it with float, decide, and say why."""
