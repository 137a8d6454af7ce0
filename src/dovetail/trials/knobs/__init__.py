"""The knobs, one per file; a target lists the ones that apply to it."""
