"""Qualcomm's own converters, by SDK version: what they do with an encodings file, and files and commands for them."""
