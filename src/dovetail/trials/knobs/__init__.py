"""What can be chosen by trying, one file a knob; a target lists those that it has."""
