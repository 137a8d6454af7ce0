"""Encodings files (AIMET 0.6.1, 1.0.0, 2.0.0): readers, writers, conversion, and their use as a plan."""
