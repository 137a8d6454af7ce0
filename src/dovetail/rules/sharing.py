"""Q3: sharing, where one storage has to serve several tensors."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.origin import nodes_of, origin_of
from dovetail.model.place import at_tensor
from dovetail.plan.constraints import build_problem
from dovetail.plan.validate import seen_on
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


@rule("Q301")
def different_storage_around_byte_preserving_op(subject: CheckInput) -> Iterator[Finding]:
    """An operator that only moves bytes has different scales, zero points or dtypes in and out.

    ## What it finds
    Transpose, Reshape and every other operator that the target's table marks as carrying stored bytes on, where the
    data input and the output are both quantized, but not alike. An explicit conversion in front of the operator
    (Q and DQ with the numbers of the output) is no violation.

    ## Why it matters
    The kernel copies integers. With other numbers on the output the same integers mean other values, so a compiler
    refuses the graph, or converts where nobody asked for it. The simulation shows nothing: it computes in float.

    ## How to fix it
    Give the output the scale, zero point and dtype of the input; over a chain of such operators, all of them one and
    the same, with a range that covers them all. Where the output must have others, convert explicitly in front of the
    operator.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torchao 0.18.0, x86-64: a static transpose with different parameters is refused at
      load (xnn_status_invalid_parameter), after a silent lowering and a simulation of 34.5 dB.
    - ort-cpu: onnxruntime 1.31.1, optimized graphs read back: with equal numbers Transpose and Reshape run on the
      integers; with different ones DequantizeLinear, the operator in float and QuantizeLinear stay. A warning there.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs: with different numbers a Reshape runs in
      float between Dequantize and Quantize, and a Transpose gets a Convert that nobody asked for.
    """
    if subject.plan is None:
        return
    severity = Severity.WARNING if subject.table.runs_float_between else Severity.ERROR
    for unit in build_problem(subject.model, subject.table).units:
        for operand in unit.shared():
            seen = seen_on(subject.plan, operand.edge, operand.name)
            for output in unit.outputs:
                choice = subject.plan.tensors.get(output.name or "")
                written = None if choice is None else choice.storage
                if isinstance(seen, QParams) and isinstance(written, QParams) and seen != written:
                    yield _finding(unit.nodes[0], operand.value, seen, output, written, severity)


def _finding(
    node: ir.Node, source: ir.Value, seen: QParams, output: ir.Value, written: QParams, severity: Severity
) -> Finding:
    before, after = origin_of(source).name, origin_of(output).name
    numbers = {"scale_in": float(seen.scale.max()), "scale_out": float(written.scale.max())}
    return Finding(
        "Q301",
        at_tensor(output),
        f"{node.op_type} {', '.join(nodes_of(node)) or node.name!r} only moves bytes, but reads {before!r} as "
        f"{_text(seen)} and writes {after!r} as {_text(written)}",
        severity,
        numbers,
        f"store {after!r} like {before!r}, or convert {before!r} explicitly in front of {node.op_type}",
    )


def _text(params: QParams) -> str:
    if params.axis is not None:
        return f"{params.dtype} with {params.scale.size} scales on axis {params.axis}"
    return f"{params.dtype} with scale {float(params.scale):.6g} and zero point {int(params.zero_point)}"
