"""The padding of convolutions and pooling."""

from __future__ import annotations

import math

from dovetail.qdq.params import is_dequantize
from dovetail.targets.xnnpack.operators.registry import Call

# After a dequantize, the lowering makes the output of padding with zeros int8 and leaves its input float, which
# XNNPACK rejects at load (executorch 1.5.1); with any other value the pad stays in float.
_NEARLY_ZERO = 1e-38


def paddings(call: Call, kernel: list[int], strides: list[int], dilations: list[int]) -> tuple[list[int], list[int]]:
    """The padding before and after each axis; auto_pad pads so that the output size depends on the stride only."""
    spatial, auto_pad = len(kernel), str(call.attribute("auto_pad", "NOTSET"))
    if auto_pad in ("NOTSET", "VALID"):
        pads = list(call.attribute("pads", [0] * (2 * spatial)))
        return pads[:spatial], pads[spatial:]
    total = [
        max((math.ceil(size / stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        for size, window, stride, dilation in zip(call.shape()[2:], kernel, strides, dilations, strict=True)
    ]
    return halves(total, upper=auto_pad == "SAME_UPPER")


def halves(total: list[int], *, upper: bool) -> tuple[list[int], list[int]]:
    """A padding split between both sides of each axis; ``upper``: an odd element goes to the end."""
    smaller, larger = [amount // 2 for amount in total], [amount - amount // 2 for amount in total]
    return (smaller, larger) if upper else (larger, smaller)


def as_torch(before: list[int], after: list[int]) -> list[int]:
    """The amounts in the order of torch's pad: from the last axis to the first, before and after."""
    return [amount for pair in reversed(list(zip(before, after, strict=True))) for amount in pair]


def zero(call: Call) -> float:
    """The value to pad with zeros with, in float."""
    source = call.node.inputs[0]
    return _NEARLY_ZERO if source is not None and is_dequantize(source.producer()) else 0.0
