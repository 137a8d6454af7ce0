"""Q4 on TensorRT: linear layers that the builder could compute as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, is_op
from dovetail.model.place import at_tensor
from dovetail.plan.blocks import WEIGHT
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.storage import Plan
from dovetail.targets.tensorrt.rules.storage import operand_source


@rule("Q428")
def tensor_quantized_again_per_layer(subject: CheckInput) -> Iterator[Finding]:
    """A tensor that several linear layers read has several Q/DQ pairs with different scales.

    ## What it finds
    In QDQ models: tensors, such as the output of a LayerNorm before q, k and v, that two or more MatMul or Gemm
    with a constant weight read through Q/DQ pairs whose scales differ. Pairs with the same scale are not reported.

    ## Why it matters
    It is a note. The builder computes all layers that read one quantized tensor as one gemm. With several scales it
    writes the tensor several times in 8 bit, and computes one gemm for each scale.

    ## How to fix it
    Use one scale, the largest, for all of them. `dovetail repair` does this, without calibration data. It costs
    accuracy only where the smaller scale clipped nothing: then its step was finer.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: LayerNorm, q, k and v, attention and the output layer are 8 layers
      with one gemm for q, k and v, in INT8 and in FP8, if their scales are equal, and 17 layers with three gemms if
      they differ; `dovetail repair` of the second has 8. Two layers on one tensor are 3 layers or 4, also for sm80. For
      sm120 they are two gemms with equal scales as well.
    """
    plan = subject.plan
    layers: defaultdict[ir.Value, list[tuple[ir.Node, float]]] = defaultdict(list)
    for node in subject.model.graph if plan is not None else ():
        scale = _scale_of_input(node, plan) if plan is not None else None
        if scale is not None:
            layers[scale[0]].append((node, scale[1]))
    for value, readers in layers.items():
        scales = sorted({scale for _, scale in readers})
        if len(scales) > 1:
            names = ", ".join(say(node) for node, _ in readers)
            yield Finding(
                "Q428",
                at_tensor(value),
                f"{str(at_tensor(value))!r} is quantized with {len(scales)} scales, {scales[0]:.4g} to "
                f"{scales[-1]:.4g}, for {names}: the builder computes one gemm for each scale",
                Severity.NOTE,
                {"scales": float(len(scales)), "smallest": scales[0], "largest": scales[-1]},
                f"use the scale {scales[-1]:.6g} for all of them: `dovetail repair` does this",
            )


def _scale_of_input(node: ir.Node, plan: Plan) -> tuple[ir.Value, float] | None:
    """The tensor that a linear layer with a quantized weight reads, and its scale; None for anything else."""
    if not is_op(node, "Gemm", "MatMul") or len(node.inputs) <= WEIGHT:
        return None
    (value, storage), (weight, stored) = (operand_source(node, index, plan) for index in (0, WEIGHT))
    if value is None or not isinstance(storage, QParams) or storage.scale.size != 1:
        return None
    if constant_of(weight) is None or not isinstance(stored, QParams):
        return None
    return value, float(storage.scale.reshape(()))
