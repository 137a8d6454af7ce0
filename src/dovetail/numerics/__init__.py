"""Numerics in NumPy, without graphs: quantization, range search, error measures.

Start with ``affine`` (quantize and dequantize); ``ranges`` turns observed values into scales.
"""
