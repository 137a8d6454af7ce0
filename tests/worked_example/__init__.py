"""The examples of CONTRIBUTING.md, executed: a knob, a target and a precision, each in one file."""
