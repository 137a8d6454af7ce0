"""A padded 1 x 1 Conv of each channel alone: wrong on HTP in 8 bits if rows are padded before columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.passes.widen_kernel import widen_kernel
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.chips import chip_of
from dovetail.targets.htp.workarounds.workaround import Workaround

_WRONG_BITS, _RANK_OF_IMAGES, _WRONG_FROM = 8, 4, 73


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP computes this Conv wrongly in 8 bits."""
    image, weight = (shape_of(value) for value in node.inputs[:2]) if is_op(node, "Conv") else (None, None)
    if image is None or weight is None or len(weight) != _RANK_OF_IMAGES:
        return False
    each_alone = int(attribute(node, "group", 1)) == image[1] == weight[0]
    top, left = (*attribute(node, "pads", ()), 0, 0)[:2]
    strided = all(step > 1 for step in attribute(node, "strides", [1, 1]))
    return each_alone and weight[2:] == (1, 1) and top > 0 and left == 0 and not strided


@rule("Q560")
def padded_convolution_of_single_channels(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a padded 1 x 1 Conv of single channels wrongly in 8 bits.

    ## What it finds
    In QDQ models: an 8-bit Conv of 1 x 1 with as many groups as input and output channels, or with one channel, which
    pads rows at the top and no columns at the left, and does not have a stride along both axes, from v73 on.

    ## Why it matters
    The model compiles, but the output is wrong at every size: 1 to 13 dB against the simulation. A Pad that is moved
    into a scale per channel is such a Conv, and so is the Pad of an image of one channel that is written as one.

    ## How to fix it
    Add a column of zeros at the left of the kernel, and pad one more column at the left. `dovetail fit` and `dovetail
    repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, v73, v75, v79 and v81: 1 to 40 channels, 5 x 4 to 20 x
      31, with 1 to 3 rows at the top, batches of 1, 2 and 4, with a stride of 1, 1 x 2 and 2 x 1, after a graph input,
      Neg and Relu; with the column of zeros 38 to 55 dB. Right: v68 and v69; 16 bits and float16; columns padded at the
      left, or no rows at the top; strides of 2 x 2 and 3 x 3; two output channels per group, or two channels in a
      group; kernels of 1 x 2, 1 x 3, 2 x 2, 3 x 1, 3 x 3 and 5 x 1 with the same pads.
    """
    if chip_of(subject).architecture < _WRONG_FROM:
        return
    for operation in operations(subject):
        tensors = (*operation.activations, *operation.outputs)
        in_8_bits = any(isinstance(storage, QParams) and storage.dtype.bits == _WRONG_BITS for storage in tensors)
        if in_8_bits and operation.in_integers and is_miscompiled(operation.node):
            yield Finding(
                "Q560",
                at_node(operation.node),
                f"{say(operation.node)} computes each channel alone and pads rows at the top but no columns at the "
                "left, which HTP computes wrongly in 8 bits",
                Severity.ERROR,
                fix="add a column of zeros at the left of the kernel and pad one more column there; `dovetail fit` and "
                "`dovetail repair` do this",
            )


WORKAROUND = Workaround("Q560", passes=(partial(widen_kernel, applies=is_miscompiled),))
