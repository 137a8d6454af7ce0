"""What is true of a run: float against simulation against target, and the verdicts."""
