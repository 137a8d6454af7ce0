"""Q3: sharing, where several tensors must have the same quantization."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of
from dovetail.model.origin import nodes_of, origin_of
from dovetail.model.place import at_tensor
from dovetail.numerics.affine import dequantize, quantize
from dovetail.plan.constraints import Operand, Unit
from dovetail.plan.validate import storage_on_edge
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.storage import Plan


@rule("Q301")
def different_quantization_around_data_movement_op(subject: CheckInput) -> Iterator[Finding]:
    """An operator that only moves data has a different scale, zero point or dtype on its input and its output.

    ## What it finds
    Transpose, Reshape and every other operator that, according to the target's table, passes its input's quantization
    through to its output, if the data input and the output are both quantized but with different scales, zero points
    or dtypes. An explicit conversion before the operator (a Q/DQ pair with the output's scale and zero point) is
    allowed, and so are operators whose kernel on the target converts between scales and zero points of one dtype (on
    HTP Concat, DepthToSpace, Pad, Slice and Split), unless the value of a Pad is outside the range of its data.

    ## Why it matters
    The kernel copies integers. If the output has a different scale or zero point, the same integers represent
    different values. A compiler therefore rejects the graph or inserts a conversion that the model does not contain.
    The simulation does not show the problem, because it computes the operator in float.

    ## How to fix it
    Give the output the scale, zero point and dtype of the input. In a chain of such operators, use one scale and zero
    point for all tensors, with a range that covers them all. If the output must have a different quantization, insert
    an explicit conversion (a Q/DQ pair) before the operator.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torchao 0.18.0, x86-64: a static transpose with different parameters lowers
      without an error and is rejected when the program is loaded (xnn_status_invalid_parameter); the simulation has
      34.5 dB.
    - ort-cpu: onnxruntime 1.31.1, optimized graphs read back: with equal scales and zero points Transpose and Reshape
      run on integers; with different ones DequantizeLinear, the operator in float and QuantizeLinear remain. On this
      target the finding is a warning. A conversion directly after another Q/DQ pair that has no second consumer is
      merged into that pair, so the operator runs in float all the same.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs, 8 and 16 bits: with different scales or zero
      points Expand, Flatten, Gather, GatherElements, MaxPool, Reshape, Resize, Squeeze, Tile, Transpose and Unsqueeze
      run in float between Dequantize and Quantize (tests/backends/qnn_htp/test_operators.py), and SpaceToDepth copies
      the integers (9 to 13 dB). Concat, DepthToSpace, Pad, Slice and Split convert and agree with the simulation; from
      uint8 to uint16 all five run in float, and a Pad with 100 beside data up to 2.55 pads with 1.
    - qnn-htp: vendor's estimate for SoC 52 of attention in w8a16 whose Transposes of K and V write int16 instead of
      uint16: 1.6 to 2.9 times as long (`python -m bench.htp_patterns`).
    """
    if subject.plan is None:
        return
    severity = Severity.WARNING if subject.table.runs_float_between else Severity.ERROR
    for unit in subject.problem.units:
        for operand in unit.shared():
            input_qparams = storage_on_edge(subject.plan, operand.edge, operand.name)
            for output in unit.outputs:
                choice = subject.plan.tensors.get(output.name or "")
                output_qparams = None if choice is None else choice.storage
                if not isinstance(input_qparams, QParams) or not isinstance(output_qparams, QParams):
                    continue
                if _is_converted(subject.plan, unit, operand, input_qparams, output_qparams):
                    continue
                if input_qparams != output_qparams:
                    yield _finding(unit.nodes[0], operand.value, input_qparams, output, output_qparams, severity)


def _is_converted(plan: Plan, unit: Unit, operand: Operand, input_qparams: QParams, output_qparams: QParams) -> bool:
    """Whether the target's kernel converts an input to the scale and zero point of the output, and clips nothing.

    A constant beside the data (the value of a Pad) gets the scale and zero point of the data.
    """
    if unit.support is None or not unit.support.requantizes or input_qparams.dtype is not output_qparams.dtype:
        return False
    if unit.support.shares is None or operand.slot == 0:
        return True
    data = next((other for other in unit.operands if other.slot == 0), None)
    stored = None if data is None else storage_on_edge(plan, data.edge, data.name)
    value = constant_of(operand.value)
    if value is None or not isinstance(stored, QParams):
        return False
    rounded = dequantize(quantize(value, stored), stored)
    return bool(np.all(np.abs(rounded - value) <= stored.scale.max()))


def _finding(
    node: ir.Node,
    source: ir.Value,
    input_qparams: QParams,
    output: ir.Value,
    output_qparams: QParams,
    severity: Severity,
) -> Finding:
    input_name, output_name = origin_of(source).name, origin_of(output).name
    scales = {"scale_in": float(input_qparams.scale.max()), "scale_out": float(output_qparams.scale.max())}
    return Finding(
        "Q301",
        at_tensor(output),
        f"{node.op_type} {', '.join(nodes_of(node)) or node.name!r} only moves data, but its input {input_name!r} is "
        f"{_text(input_qparams)} and its output {output_name!r} is {_text(output_qparams)}",
        severity,
        scales,
        f"give {output_name!r} the scale, zero point and dtype of {input_name!r}, or insert a Q/DQ pair that converts "
        f"{input_name!r} before {node.op_type}",
    )


def _text(qparams: QParams) -> str:
    if qparams.axis is not None:
        return f"{qparams.dtype} with {qparams.scale.size} scales on axis {qparams.axis}"
    return f"{qparams.dtype} with scale {float(qparams.scale):.6g} and zero point {int(qparams.zero_point)}"
