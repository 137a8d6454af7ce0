"""Figures, printed as ratios from one run: ``make bench``, or one of them by ``python -m bench.calibration``."""
