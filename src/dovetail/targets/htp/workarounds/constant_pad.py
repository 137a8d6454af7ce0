"""A constant Pad that pads its last axis only at the end: HTP writes something else into the border."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.padding import padding_of
from dovetail.model.place import at_node
from dovetail.passes.fold_pad import fold_pad
from dovetail.passes.pad_to_conv import pad_to_conv
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

_CHANNELS = 1
_RANK_OF_IMAGES = 4


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP can compute this Pad wrongly: the last axis in memory is padded at the end and not at the start.

    Between convolutions the channels are the last axis in memory.
    """
    if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant":
        return False
    padding = padding_of(node)
    if padding is None:
        return False
    rank = padding.amounts.shape[1]
    last = {rank - 1, *([_CHANNELS] if rank >= _RANK_OF_IMAGES else [])}
    return any(padding.amounts[0, axis] <= 0 < padding.amounts[1, axis] for axis in last)


@rule("Q542")
def pad_at_the_end_of_the_last_axis(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a constant Pad wrongly that pads the last axis at its end only.

    ## What it finds
    Pad with mode `constant` that adds elements after, and none before, the last axis (the columns of an image) or the
    channels, in QDQ and float models. A float model is checked after the rewrites of `dovetail fit`.

    ## Why it matters
    The "same" padding of TensorFlow for a convolution with stride 2 is such a Pad, before the convolution. The model
    compiles, but the result is wrong: -10 to 19 dB against the simulation. Many such Pads are right: those that pad no
    other axis at its end are wrong for some sizes only.

    ## How to fix it
    `dovetail fit` and `dovetail repair` move the padding into the convolution or pooling operator behind the Pad if the
    result is the same, and otherwise write a Pad of zeros around an image as a convolution with an identity weight.
    Other Pads (another value or rank) stay as they are. A Concat with constants, or a Pad of both ends and a Slice, is
    compiled to the same wrong operator.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, v68 to v81, uint8, uint16 and float16: of all pads of 0
      or 1 elements at both ends of three axes, those are wrong that pad the last one only at its end and another axis
      at its end; of 416 random Pads 14 were wrong, all of them padded the last axis or the channels only at the end.
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node):
            yield Finding(
                "Q542",
                at_node(node),
                f"{say(node)} pads the last axis or the channels only at the end, which HTP may compute wrongly",
                Severity.WARNING,
                fix="move the padding into the convolution behind it, or into one with an identity weight; "
                "`dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround(
    "Q542", passes=(partial(fold_pad, applies=is_miscompiled), partial(pad_to_conv, applies=is_miscompiled))
)
