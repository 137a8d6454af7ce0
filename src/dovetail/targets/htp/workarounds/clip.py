"""A Clip whose output has a wider range than its bounds: HTP leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import is_op, scalar_of
from dovetail.model.place import at_node
from dovetail.passes.clip_to_min_max import clip_to_min_max
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

# HTP fuses a Clip with these; after Neg and AveragePool it is computed on its own.
_FUSED_WITH = ("Add", "Conv", "ConvTranspose", "Gemm", "Mul")
# On HTP these pass the quantization of their input through, and the others join it with that of another tensor.
_PASSING, _JOINING = (*DATA_MOVEMENT_OPS, "Pad", "Resize"), ("Concat", "ScatterElements")


def is_fused(node: ir.Node) -> bool:
    """Whether HTP fuses this Clip with the operator before it."""
    value = node.inputs[0] if is_op(node, "Clip") else None
    return value is not None and is_op(value.producer(), *_FUSED_WITH)


def may_be_miscompiled(node: ir.Node) -> bool:
    """Whether the output of a fused Clip may get a wider range than its bounds: it is concatenated with something."""
    return is_fused(node) and _is_joined(node.outputs[0])


def _is_joined(value: ir.Value) -> bool:
    """Whether a tensor shares its scale with another one, in a Concat for example, directly or through operators that
    pass its quantization through."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        if (value := waiting.pop()) in seen:
            continue
        seen.add(value)
        for consumer, _ in value.uses():
            if is_op(consumer, *_JOINING):
                return True
            if is_op(consumer, *_PASSING):
                waiting += consumer.outputs
    return False


def _lost_bound(node: ir.Node, params: QParams) -> str:
    """The bound that HTP does not apply, because the output's scale and zero point represent values beyond it."""
    grid, scale, zero_point = params.dtype.grid, float(params.scale), int(params.zero_point)
    low, high = (scalar_of(node.inputs[index]) if len(node.inputs) > index else None for index in (1, 2))
    if params.dtype.bits <= 8 and zero_point != grid.low:
        return ""
    if high is not None and (grid.high - zero_point) * scale > high + scale:
        return f"maximum {high:g}"
    if low is not None and (grid.low - zero_point) * scale < low - scale:
        return f"minimum {low:g}"
    return ""


@rule("Q551")
def clip_with_wider_output_range(subject: CheckInput) -> Iterator[Finding]:
    """HTP leaves out a Clip whose output's scale and zero point represent values beyond its bounds.

    ## What it finds
    In QDQ models: a Clip after Conv, ConvTranspose, Gemm, Add or Mul whose output has a scale and zero point with
    which values above its maximum or below its minimum can be represented; in 8 bits only if the zero point is the
    lowest integer. This is so where the output is concatenated with a tensor of a wider range.

    ## Why it matters
    HTP fuses the Clip with the operator before it and clamps to what the output can represent instead of to the bounds:
    a Relu6 returns values above 6. Nothing is reported, and the simulation is right.

    ## How to fix it
    Give the output of the Clip a scale and zero point of its own, or write it as Min(Max(x, minimum), maximum).
    `dovetail fit` and `dovetail repair` do the latter for a Clip before a Concat, also if a Resize, Pad or Reshape is
    between them.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: Clip(x, 0, 1) concatenated with values up to 10
      agrees with the simulation to 2 to 23 dB in 16 bits, and in 8 bits if no value is negative (else to 42 dB); as
      Relu and Min to 85 dB and more in 16 bits. After Neg and AveragePool it is right as it is. With a Resize before
      the Concat, in two sweep graphs: -2 and 13 dB against float where the simulation has 44 and 40.
    """
    plan = subject.plan
    if plan is None:
        return
    for node in subject.model.graph.all_nodes():
        choice = plan.tensors.get(str(node.outputs[0].name)) if is_fused(node) else None
        storage = None if choice is None else choice.storage
        lost = _lost_bound(node, storage) if isinstance(storage, QParams) and storage.dtype.is_integer else ""
        if lost:
            yield Finding(
                "Q551",
                at_node(node),
                f"{say(node)}: HTP does not apply its {lost}, because the scale and zero point of its output represent "
                "values beyond it",
                Severity.ERROR,
                fix="write it as Min(Max(x, minimum), maximum), or quantize its output with the range of its bounds",
            )


WORKAROUND = Workaround("Q551", passes=(partial(clip_to_min_max, applies=may_be_miscompiled),))
