"""Q1: operators outside ONNX that the target does not have."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.op_support import OpTable
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule

_FIX = "export the model without onnxruntime's fusions, or write the operator with operators of ONNX"


@rule("Q108")
def operator_outside_onnx(subject: CheckInput) -> Iterator[Finding]:
    """An operator belongs to a domain outside ONNX that the target does not have.

    ## What it finds
    Operators of the domain `com.microsoft`, which onnxruntime's transformer optimizer creates (MultiHeadAttention,
    Attention, BiasSoftmax and others), for a target that does not run them. Gelu, FastGelu, QuickGelu, BiasGelu,
    SkipLayerNormalization, FusedMatMul and FusedConv are rewritten to ONNX when the model is read, and not reported.

    ## Why it matters
    The target's compiler does not know the operator: it rejects the model, or crashes. `dovetail fit` refuses it.

    ## How to fix it
    Export the model without onnxruntime's fusions (optimize it later, on the device that runs ONNX Runtime), or write
    the operator with ONNX operators: MultiHeadAttention as Attention (opset 23), or as MatMul, Softmax and MatMul.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: "Operators of type `MultiHeadAttention` are
      not supported by QNN EP".
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: the builder crashes (SIGSEGV) on com.microsoft.MultiHeadAttention.
    - xnnpack: executorch 1.5.1: the operator has no mapping to torch.
    """
    for node in subject.model.graph.all_nodes():
        if why := _why_outside(node, subject.table):
            yield Finding("Q108", at_node(node), why, Severity.ERROR, fix=_FIX)


def require_domains(model: ir.Model, table: OpTable) -> None:
    """Refuse a model with an operator of a domain that the target does not have."""
    for node in model.graph.all_nodes():
        if why := _why_outside(node, table):
            raise InputError(f"{why}; {_FIX}")


def _why_outside(node: ir.Node, table: OpTable) -> str:
    """Why the target does not have a node's operator; empty if its domain is one of the target's."""
    if node.domain in ("ai.onnx", *table.domains) or is_quantize(node) or is_dequantize(node):
        return ""
    return (
        f"node {str(at_node(node))!r} uses {node.domain}.{node.op_type}, an operator of the domain {node.domain}, "
        f"which {table.target} does not have"
    )
