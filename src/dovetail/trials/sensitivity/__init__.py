"""Which tensors, operators and blocks cost accuracy when they are quantized, with everything else in float."""
