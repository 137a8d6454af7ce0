"""The examples of CONTRIBUTING.md as code that runs: a knob, a target and a precision, each in one file."""
