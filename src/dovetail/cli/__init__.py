"""What a person calls; everything heavy is imported inside the commands, so that ``--help`` answers at once."""
