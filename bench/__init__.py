"""Benchmarks that print ratios from one run: ``make bench`` for all, ``python -m bench.calibration`` for one."""
