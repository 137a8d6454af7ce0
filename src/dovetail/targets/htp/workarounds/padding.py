"""The passes that write a Pad in another way, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from dovetail.pass_record import Pass
from dovetail.passes.fold_pad import fold_pad
from dovetail.passes.fold_pad_into_mean import fold_pad_into_mean
from dovetail.passes.pad_to_conv import pad_to_conv
from dovetail.passes.pad_to_matmul import pad_to_matmul


def passes_without(applies: Callable[[ir.Node], bool]) -> tuple[Pass, ...]:
    """Move the Pads for which ``applies`` is true into what reads them, else into a convolution or a MatMul."""
    passes = (fold_pad, fold_pad_into_mean, pad_to_matmul, pad_to_conv)
    return tuple(partial(change, applies=applies) for change in passes)
