"""The way to a device and back: samples and expected outputs in a folder, and what is true of what came back."""
