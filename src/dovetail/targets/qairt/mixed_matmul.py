"""MatMuls of two activations in precisions that HTP has no kernel for, by what is predicted about the operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model.edit import constant_of
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.predict import PredictedTensor
from dovetail.targets.qairt.sdk import Answer, SdkFact, Subject, Version

# An Einsum is a MatMul whose second operand is transposed.
MATMULS = ("MatMul", "Einsum")


@dataclass(frozen=True, slots=True, eq=False)
class MixedMatMul:
    """A MatMul of a float16 activation by an 8-bit one, and what is known about the SDK and such MatMuls."""

    node: ir.Node
    float_operand: PredictedTensor
    narrow_operand: PredictedTensor
    fact: SdkFact


def mixed_matmuls(model: ir.Model, predicted: Mapping[str, PredictedTensor], sdk: Version) -> Iterator[MixedMatMul]:
    """The MatMuls that the SDK does not support, or may not support."""
    for node in model.graph:
        if node.op_type not in MATMULS or any(constant_of(value) is not None for value in node.inputs):
            continue
        rows = [predicted[str(value.name)] for value in node.inputs if value is not None and value.name in predicted]
        floats = [row for row in rows if row.dtype == "float16"]
        narrow = [row for row in rows if row.dtype in ("uint8", "int8")]
        if not floats or not narrow:
            continue
        known = fact(Subject.FLOAT_BY_UINT8 if narrow[0].dtype == "uint8" else Subject.FLOAT_BY_INT8, sdk)
        if known.answer is not Answer.YES:
            yield MixedMatMul(node, floats[0], narrow[0], known)
