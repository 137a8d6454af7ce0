"""Sweeps: many small generated graphs on one target, and the smallest patterns that it refuses or gets wrong.

``Sweep`` runs one in a folder; ``python -m bench.sweep`` is the command.
"""
