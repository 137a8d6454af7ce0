"""Q1: types of quantized tensors that Dovetail does not support."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.place import at_tensor
from dovetail.qdq.params import QUANTIZED_TYPES, is_dequantize, is_quantize, quantized_type
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


def unsupported_nodes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.DataType]]:
    """Yield the Q and DQ nodes of a type that a plan cannot have, with that type."""
    for node in model.graph:
        element = quantized_type(node) if is_quantize(node) or is_dequantize(node) else None
        if element is not None and element not in QUANTIZED_TYPES:
            yield node, element


@rule("Q112")
def unsupported_quantized_type(subject: CheckInput) -> Iterator[Finding]:
    """A tensor is quantized to a type that Dovetail does not support.

    ## What it finds
    In QDQ models: QuantizeLinear and DequantizeLinear with a type other than int4, uint4, int8, uint8, int16, uint16,
    int32 and float8e4m3fn, for example float8e5m2. These are the only findings in such a file, because no other rule
    can read it.

    ## Why it matters
    Dovetail cannot read the model, so nothing else in it is checked. The compilers that were tried reject float8e5m2,
    or leave its operators to the CPU; what they do with the other types is listed below as far as it was tried.

    ## How to fix it
    Quantize to float8e4m3fn or to int8: `dovetail fit` does this from the float model.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: the parser rejects float8e5m2 ("Failed to import initializer"), as
      activation and as weight; float8e4m3fnuz, float8e5m2fnuz and int2 as well
      (tests/backends/tensorrt/test_unsupported_types.py).
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: the provider takes no MatMul with float8e5m2
      or float8e4m3fnuz operands (the cases below).
    - ort-cpu: onnxruntime 1.31.1 runs float8e5m2 Q/DQ pairs (tests/backends/ort_cpu/test_rules.py); Dovetail does not
      quantize to it.
    """
    seen: set[ir.Value] = set()
    for node, element in unsupported_nodes(subject.raw) if subject.raw is not None else ():
        value = node.inputs[0]
        if value is None or value in seen:
            continue
        seen.update((value, node.outputs[0]))
        yield Finding(
            "Q112",
            at_tensor(value),
            f"{str(at_tensor(value))!r} is quantized to {str(element).lower()}, which Dovetail does not support",
            Severity.ERROR,
            fix="quantize it to float8e4m3fn or int8: `dovetail fit` does this from the float model",
        )
