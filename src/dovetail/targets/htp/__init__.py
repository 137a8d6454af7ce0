"""Qualcomm's HTP, independent of the tool that compiles for it: chips, the op table, rewrites, rules."""
