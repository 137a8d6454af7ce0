"""A constant Pad that adds a different number of elements at the two ends of an axis: wrong on HTP for some sizes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.padding import padding_of
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.padding import passes_without
from dovetail.targets.htp.workarounds.workaround import Workaround


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP may compute this Pad wrongly: an axis has more elements added at one end than at the other."""
    if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant":
        return False
    padding = padding_of(node)
    return padding is not None and bool((padding.amounts[0] != padding.amounts[1]).any())


@rule("Q542")
def asymmetric_constant_pad(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a constant Pad that is not symmetric wrongly for some sizes.

    ## What it finds
    Pad with mode `constant` that adds more elements at one end of an axis than at the other, in QDQ and float models. A
    float model is checked after the rewrites of `dovetail fit`.

    ## Why it matters
    The "same" padding of TensorFlow for a convolution with stride 2 is such a Pad before the convolution: one row and
    one column at the end. The model compiles, but the padded tensor is wrong: -10 to 19 dB against the simulation.
    Which Pads are wrong depends on their sizes and neighbors; a symmetric Pad was always right.

    ## How to fix it
    Move the padding into the convolution or pooling operator after the Pad. `dovetail fit` and `dovetail repair` do
    this if the result is the same, and otherwise write a Pad around an image as a convolution with an identity weight;
    a value other than zero is subtracted before it and is its bias. For another rank than 4, zeros at the ends of the
    last axis are added by a MatMul with an identity matrix, other Pads stay as they are. A Concat with constants, a
    larger symmetric Pad and a Slice, or one Pad per axis is compiled to the same wrong operator.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, v68 to v81, uint8, uint16 and float16: of 416 random Pads
      14 were wrong, all of them asymmetric. Of all pads of 0 or 1 elements at both ends of three axes, those were wrong
      that pad the last axis and another one at the end, but the last one not at the start. Four rows before an image of
      22 channels, 20 x 28, after a convolution, on v81: -3.5 dB; one row: right. The exact condition is not known. A
      Pad of 16 channels, 14 x 21, with one row and column of 0.5 at the end, in float16 on v73: 31 dB. Of 60 Pads of
      rank 2, 3 and 5, four of rank 3 were wrong, -2 to 13 dB, uint8 and float16; those pad the last axis only at its
      end. One of them, [1, 5, 4] with one row at each end and two columns at the end, on every version from v68 to v81:
      -2 dB in 8 and 16 bits; as a MatMul 55 dB and more. The zero point does not matter: symmetric Pads of uint8 and
      uint16 tensors with zero points 100 and 20000, which an earlier report says are wrong at every size, are right.
    - qnn-htp: onnxruntime-qnn 2.4.0 and 2.6.0 (QAIRT 2.48.40 and 2.50.40), SoC 43, emulated: the same results on a Pad
      of one row and one column at the end (7 dB).
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node):
            yield Finding(
                "Q542",
                at_node(node),
                f"{say(node)} pads an axis differently at its two ends, which HTP computes wrongly for some sizes",
                Severity.WARNING,
                fix="move the padding into the convolution after it, or into one with an identity weight, as "
                "`dovetail fit` and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q542", passes=passes_without(is_miscompiled))
