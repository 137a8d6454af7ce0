"""Dovetail fits quantized vision models to the silicon they ship to, and proves it."""

__version__ = "0.1.0"
