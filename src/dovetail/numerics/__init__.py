"""Numbers without graphs: quantizing, ranges, errors, in NumPy alone.

Start with ``affine`` (what a stored value means); ``ranges`` is the way from observed values to scales.
"""
