"""A 16-bit SiLU: HTP computes it wrongly for some sizes, unless its two branches have different scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node
from dovetail.model.silu import gated_input
from dovetail.plan.validate import storage_on_edge
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

_16_BIT = (DType.U16, DType.S16)
# Measured on every height from 1 to 25 and some up to 128, and on widths and channels around these limits: wrong at
# heights from 9 to 12, and above them if there are at most 8 columns and 32 channels.
_MIN_HEIGHT, _MAX_HEIGHT, _MAX_WIDTH, _MAX_CHANNELS = 9, 12, 8, 32
# ONNX defines these for tensors with the channels before height and width; all others are stored as they are.
_OF_IMAGES = (
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "InstanceNormalization",
    "MaxPool",
    "Resize",
    "SpaceToDepth",
)
_LAYOUT_KEPT = (
    *("Add", "Clip", "Concat", "Div", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul"),
    *("Pad", "PRelu", "Relu", "Sigmoid", "Slice", "Split", "Sub", "Tanh"),
)


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP computes this SiLU wrongly in 16 bits, if both of its branches have the same scale."""
    index = gated_input(node)
    image = None if index is None else _image(node.inputs[index])
    if image is None:
        return False
    height, width, channels = image
    narrow = width <= _MAX_WIDTH and channels <= _MAX_CHANNELS
    return height >= _MIN_HEIGHT and (height <= _MAX_HEIGHT or narrow)


def _image(value: ir.Value | None) -> tuple[int, int, int] | None:
    """Height, width and channels of a tensor of rank 4, the order in which HTP stores it; None for other ranks."""
    shape = shape_of(value)
    if shape is None or len(shape) != 4:
        return None
    return (shape[2], shape[3], shape[1]) if _has_channels_first(value) else shape[1:]


def _has_channels_first(value: ir.Value | None) -> bool:
    """Whether a tensor comes from an operator for images, through elementwise operators and Concat only."""
    waiting, seen = [value], set()
    while waiting:
        producer = None if (value := waiting.pop()) is None else value.producer()
        if producer is None or producer in seen:
            continue
        seen.add(producer)
        if is_op(producer, *_OF_IMAGES):
            return True
        if is_op(producer, *_LAYOUT_KEPT):
            waiting += [operand for operand in producer.inputs if operand is not None]
    return False


def _rescaled(node: ir.Node, index: int, dtype: DType) -> str:
    """Why the direct branch of a SiLU needs a scale of its own; empty for other inputs."""
    if dtype not in _16_BIT or index != gated_input(node) or not is_miscompiled(node):
        return ""
    return "requantized: HTP computes this 16-bit SiLU wrongly if both of its branches have the same scale (Q541)"


@rule("Q541")
def silu_with_one_scale_for_both_branches(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a 16-bit SiLU wrongly for some sizes of the tensor.

    ## What it finds
    In QDQ models: `x * Sigmoid(x)` of a 16-bit tensor of rank 4 whose two branches have the same scale and zero point,
    if the tensor has 9 to 12 rows, or more rows, at most 8 columns and at most 32 channels. If it is computed with the
    channels last, as by LayerNormalization, its rows are the second axis and its channels the last one.

    ## Why it matters
    HTP fuses Sigmoid and Mul, and the fused operator is wrong for these sizes: 0 to 14 dB against the simulation. Every
    other SiLU is right, so that a network fails at one resolution and not at another: YOLOv8n at 320 x 320 has 16 of
    them where its features are 10 x 10.

    ## How to fix it
    Insert a Q/DQ pair with another scale between x and the Mul: HTP then fuses nothing. `dovetail fit` and `dovetail
    repair` do this, with a scale that is 1 % larger. A SiLU in 8 bits is right as it is.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: all heights from 1 to 25 with eight widths from 1
      to 33; 1 to 160 channels, batches of 1, 2 and 4; after Conv, ConvTranspose, Concat, Mul, MaxPool, Resize, MatMul
      and LayerNormalization. After Add and AveragePool, tensors of 9 to 12 rows are right; after a graph input, all
      are.
    - qnn-htp: onnxruntime-qnn 2.4.0 and 2.6.0 (QAIRT 2.48.40 and 2.50.40), SoC 43, emulated: the same results on 10 x
      20, 13 x 8 and 8 x 8.
    """
    plan = subject.plan
    if plan is None:
        return
    for node in subject.model.graph.all_nodes():
        index = gated_input(node)
        if index is None or not is_miscompiled(node):
            continue
        gate = node.inputs[1 - index]
        sigmoid = None if gate is None else gate.producer()
        value = node.inputs[index]
        if sigmoid is None or value is None:
            continue
        branches = [
            storage_on_edge(plan, Edge(consumer.name or "", position), str(value.name))
            for consumer, position in ((node, index), (sigmoid, 0))
        ]
        if isinstance(branches[0], QParams) and branches[0].dtype in _16_BIT and branches[0] == branches[1]:
            yield Finding(
                "Q541",
                at_node(node),
                f"{say(node)}: HTP computes x * Sigmoid(x) wrongly for this size, because both branches read "
                f"{origin_of(value).name!r} in {branches[0].dtype} with the same scale",
                Severity.ERROR,
                fix="insert a Q/DQ pair with another scale before the Mul, as `dovetail fit` and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q541", limits={"Mul": lambda support: replace(support, rescaled=_rescaled)})
