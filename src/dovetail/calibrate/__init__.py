"""Calibration: run the float model on streamed samples and collect the statistics that planning needs."""
