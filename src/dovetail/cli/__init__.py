"""The command line; large modules are imported inside the commands, so that ``--help`` is fast."""
