"""Legality rules: one small function each, with a code, a name, and a docstring that is its documentation."""
