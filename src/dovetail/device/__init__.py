"""Running on a device: a folder with samples and expected outputs, and the verification of its outputs."""
