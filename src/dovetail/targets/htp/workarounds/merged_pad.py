"""A constant Pad between operators on images: HTP merges it into the one after it, which pads in another way."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.padding import Padding, padding_of
from dovetail.model.place import at_node
from dovetail.passes.fold_pad_into_mean import is_spatial_mean
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.padding import passes_without
from dovetail.targets.htp.workarounds.workaround import Workaround

_RANK_OF_IMAGES = 4
# Wrong after a Pad with zeros, too, like means over rows and columns: the zeros are not counted, or other rows are.
_WRONG_BEHIND_ZEROS = ("AveragePool", "ConvTranspose")


def why_wrong(node: ir.Node) -> str:
    """Why HTP may compute this Pad, or what reads it, wrongly; empty if it does not."""
    padding = _padding_of_image(node)
    if padding is None:
        return ""
    if padding.value:
        return f"its value is {padding.value:g}, and HTP pads with zeros if it merges it into an operator"
    for consumer, _ in node.outputs[0].uses():
        is_padded_max_pool = is_op(consumer, "MaxPool") and _pads(consumer)
        if is_op(consumer, *_WRONG_BEHIND_ZEROS) or is_spatial_mean(consumer) or is_padded_max_pool:
            return f"HTP merges it into {say(consumer)}, which pads in another way"
    return ""


def _pads(node: ir.Node) -> bool:
    """Whether a pooling pads its input, by numbers or by ``auto_pad``."""
    return any(attribute(node, "pads", ())) or str(attribute(node, "auto_pad", "NOTSET")).startswith("SAME")


def _padding_of_image(node: ir.Node) -> Padding | None:
    """What a constant Pad adds to the rows or columns of an image; None for every other node."""
    if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant":
        return None
    padding = padding_of(node)
    is_image = padding is not None and padding.amounts.shape[1] == _RANK_OF_IMAGES
    return padding if padding is not None and is_image and padding.amounts[:, 2:].any() else None


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP may compute this Pad, or what reads it, wrongly."""
    return bool(why_wrong(node))


@rule("Q557")
def pad_merged_into_other_padding(subject: CheckInput) -> Iterator[Finding]:
    """HTP merges a Pad into the operator after it, which does not pad in the same way.

    ## What it finds
    Pad with mode `constant` that adds rows or columns to a tensor of rank 4, if its value is not zero, or if it is read
    by AveragePool, GlobalAveragePool, ReduceMean over rows and columns, ConvTranspose, or a MaxPool with pads. QDQ and
    float models; a float model is checked after the rewrites of `dovetail fit`.

    ## Why it matters
    After an operator on images such as Conv or MaxPool, the compiler merges the Pad into the next one: the value
    becomes zero, a mean does not count the padding, a MaxPool pads with the lowest value. The outputs are wrong, -5 to
    22 dB against the simulation, in 16 bits and float16, and mostly in 8 bits.

    ## How to fix it
    Move the padding into the operator after the Pad where it can pad in the same way (AveragePool with
    `count_include_pad`). The mean of a padded image is the mean of the image, multiplied by the share of its elements.
    Otherwise write the Pad as a convolution with an identity weight; a value other than zero is subtracted before it
    and is its bias. `dovetail fit` and `dovetail repair` do this, for values of up to 16. Zeros before a Conv, before a
    mean over other axes, or before a MaxPool without pads, are right as they are.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: 12 channels, 10 x 20 and 14 x 9, with one row and
      one or two columns at each end, after Conv or MaxPool. Zeros: AveragePool 2 x 2 9 dB, in float16 -1 dB,
      GlobalAveragePool and ReduceMean over rows and columns 10 to 12 dB, in float16 -91 dB, MaxPool 3 x 3 with pads
      22 dB, ConvTranspose 18 dB; above 70 dB before Conv, MaxPool without pads, ReduceMean over channels, over rows or
      over columns, ReduceMax, Resize, InstanceNormalization, SpaceToDepth and elementwise operators. A value of 0.5: -5
      to 17 dB also before Conv with pads, directly or after a Relu. After an elementwise operator on a graph input
      all are right.
    """
    for node in subject.model.graph.all_nodes():
        reason = why_wrong(node)
        if reason:
            yield Finding(
                "Q557",
                at_node(node),
                f"{say(node)} may be computed wrongly: {reason}",
                Severity.WARNING,
                fix="move the padding into the operator after it, or into a convolution with an identity weight, as "
                "`dovetail fit` and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q557", passes=passes_without(is_miscompiled))
