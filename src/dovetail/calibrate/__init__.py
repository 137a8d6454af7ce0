"""Running the float model over streamed samples and keeping what the plan can need."""
