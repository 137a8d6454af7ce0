"""Padded pooling whose windows do not overlap, or with an even size: wrong on HTP for some sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.place import at_node
from dovetail.passes.padded_pool_to_conv import padded_pool_to_conv
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def may_be_miscompiled(node: ir.Node) -> bool:
    """Whether HTP may compute this pooling wrongly, in integers or in float16."""
    if not is_op(node, "AveragePool", "MaxPool"):
        return False
    kernel = attribute(node, "kernel_shape", ())
    strides, pads = attribute(node, "strides", [1] * len(kernel)), attribute(node, "pads", ())
    if not any(pads):
        return False
    as_stride = any(size == stride > 1 for size, stride in zip(kernel, strides, strict=False))
    if is_op(node, "MaxPool") or as_stride:
        return as_stride
    if not attribute(node, "count_include_pad", 0) or any(size % 2 == 0 for size in kernel):
        return True
    return any(2 * pad > size - 1 for pad, size in zip(pads, (*kernel, *kernel), strict=False))


@rule("Q555")
def padded_pooling(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes padded pooling wrongly for some sizes of the window.

    ## What it finds
    AveragePool and MaxPool with padding whose window is as large as the stride along an axis; AveragePool with padding
    that it does not count (`count_include_pad=0`), whose window has an even size, or whose padding is larger than half
    of it. A float model is checked after the rewrites of `dovetail fit`.

    ## Why it matters
    The model compiles, but the pooled tensor is wrong, or the emulator crashes: windows that do not overlap are read
    from the wrong places if the padding comes before the first element. A MaxPool is wrong in float16 only. The usual
    windows of 3 x 3 with a padding of 1 that is counted and a stride of 1 or 2 are right.

    ## How to fix it
    Write an AveragePool as a depthwise Conv with equal weights, which pads by itself, and repeat the border before a
    MaxPool, with Slice and Concat, because a Pad that does so is wrong in float16 (Q561). `dovetail fit` and `dovetail
    repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: AveragePool of 2 x 2 with a stride of 2 and
      padding at the start -1 dB against the simulation in 8 and 16 bits, at the end 90 dB; as a Conv 81 dB. Of 70
      random AveragePools with padding, 27 were wrong in 16 bits, and one of these crashed the emulator: 26 have a
      window as large as the stride, one a padding of 2 for a window of 3. In float16 18 were wrong, also windows of 4 x
      4 and 3 x 2 with a stride of 1.
    - qnn-htp: the same, AveragePool of 3 x 3 that does not count its padding, 4 channels, 11 x 17: with a stride of 2
      and padding at the start only, 8 bits, 15 and 29 dB; with a stride of 1 and padding of 1, float16, 2 dB.
    - qnn-htp: the same, MaxPool of 2 x 2 with a stride of 2, in float16: 4 of 14 with padding have 10 to 16 dB; after
      the repeated border 73 dB. In integers all were right.
    """
    for node in subject.model.graph.all_nodes():
        if may_be_miscompiled(node):
            yield Finding(
                "Q555",
                at_node(node),
                f"{say(node)} is padded, and HTP computes windows of this size wrongly for some sizes of the image",
                Severity.WARNING,
                fix="write an average as a depthwise Conv, and repeat the border before a maximum, as `dovetail fit` "
                "and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q555", passes=(partial(padded_pool_to_conv, applies=may_be_miscompiled),))
