"""Rules for ONNX Runtime on CPU."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op, sole_consumer
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule
from dovetail.storage import Plan, Storage

_FLOAT8 = DType.F8E4M3
# What the default optimizations replace by an integer kernel, which does not have float8. A QuantizeLinear after these
# is moved before them, and a DequantizeLinear before them after:
_MOVED_PAST = frozenset(("MaxPool", "Slice", "Squeeze", "Unsqueeze"))
# After a DequantizeLinear:
_BEHIND = frozenset(("ArgMax", "MatMul"))
# Between a DequantizeLinear and a QuantizeLinear. Of these, the second ones only if every operand is in float8.
_BETWEEN = frozenset(
    ("AveragePool", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GlobalAveragePool", "LeakyRelu")
) | frozenset(("ReduceMax", "ReduceMin", "Resize", "Sigmoid", "Softmax", "Split", "Tile"))
_BETWEEN_ALIKE = frozenset(("Add", "Concat", "Mul", "Where"))
_LINEAR = ("Conv", "Gemm")


@rule("Q151")
def float8_with_default_optimizations(subject: CheckInput) -> Iterator[Finding]:
    """ONNX Runtime's default optimizations fail on, or change, a model that is quantized to float8.

    ## What it finds
    In QDQ models with float8e4m3fn: operators that the optimizations replace by integer kernels, and a Clip or Relu in
    front of a QuantizeLinear. One finding for what does not load, and one for each Relu that is removed. The operators:

    - with Q/DQ pairs before and after: Conv, Gemm, Add, Mul, Concat, Where, AveragePool, GlobalAveragePool,
      LeakyRelu, Sigmoid, Softmax, ReduceMax, ReduceMin, DepthToSpace, Expand, Flatten, Gather, GatherElements, Resize
      with mode nearest, Split and Tile. Add, Mul, Concat and Where load with an operand that is not in float8, Conv and
      Gemm with a bias in float8, or with an int32 bias beside a float weight.
    - with Q/DQ pairs before it alone: MatMul and Gemm by a quantized operand, ArgMax.
    - with Q/DQ pairs before or after: MaxPool, Slice, Squeeze and Unsqueeze.

    ## Why it matters
    There are no such kernels for float8, so the session is not created ("Type 'tensor(float8e4m3fn)' of input parameter
    ... is invalid"). A Relu before a QuantizeLinear is silently removed: with integers, saturation does the same;
    with float8 the negative values remain.

    ## How to fix it
    Set the session option `session.disable_quant_qdq` to `1` and pass `disabled_optimizers=["ReluQuantRewrite",
    "ClipQuantRewrite"]` to the session, as Dovetail's simulation does. ONNX Runtime then computes in float between the
    Q/DQ pairs: float8 is for targets that have it, such as `tensorrt:sm89`.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1: the operators above in float8, most of them "INVALID_GRAPH", MatMul "Failed to find
      kernel for QLinearMatMul"; a Relu is left out, also with `session.disable_quant_qdq` alone. Transpose, Reshape,
      Pad, Sub, Div, Tanh, Gelu, the norms and others load with unchanged outputs, and so do Add, Mul and MatMul by a
      float constant (tests/backends/ort_cpu/test_float8.py has one graph for each).
    """
    plan = subject.plan
    if plan is None:
        return
    not_loaded = [operation for operation in operations(subject) if _is_not_loaded(operation, plan)]
    if not_loaded:
        more = "" if len(not_loaded) == 1 else f" and {len(not_loaded) - 1} more"
        yield _finding(
            not_loaded[0].node,
            f"{say(not_loaded[0].node)}{more} between Q/DQ pairs in float8: ONNX Runtime does not load the model with "
            "its default optimizations",
        )
    for node in subject.model.graph:
        if is_op(node, "Relu") and _is_float8(node.outputs[0], plan):
            yield _finding(node, f"{say(node)} is before a QuantizeLinear to float8: ONNX Runtime removes it")


def _is_not_loaded(operation: Operation, plan: Plan) -> bool:
    op, constants = operation.op, operation.constants
    reads = bool(operation.activations) and all(storage.dtype is _FLOAT8 for storage in operation.activations)
    writes, relu_in_float = _output(operation, plan)
    if op in _MOVED_PAST:
        return reads or writes
    if op == "Clip" or not reads:
        return op == "Clip" and writes
    if op in _LINEAR:
        return _is_linear_replaced(operation, writes, relu_in_float)
    if op in _BEHIND:
        return all(isinstance(storage, QParams) for storage in constants) and not relu_in_float
    if op == "Resize" and attribute(operation.node, "mode", "nearest") != "nearest":
        return False
    alike = all(storage.dtype is _FLOAT8 for storage in constants)
    return writes and (op in _BETWEEN or (op in _BETWEEN_ALIKE and alike))


def _is_linear_replaced(operation: Operation, writes: bool, relu_in_float: bool) -> bool:
    """Whether a Conv or Gemm becomes an integer kernel: with a float weight as well, which is quantized for it."""
    data, weight, bias = (_storage_at(operation, slot) for slot in range(3))
    bias_in_float = bias is not None and not isinstance(bias, QParams)
    if data is None or data.dtype is not _FLOAT8 or (bias is not None and bias.dtype is _FLOAT8):
        return False
    if not isinstance(weight, QParams):
        return writes and (bias is None or bias_in_float)
    return writes or (operation.op == "Gemm" and not bias_in_float and not relu_in_float)


def _storage_at(operation: Operation, slot: int) -> Storage | None:
    operand = operation.input_at(slot)
    return None if operand is None else operand[1]


def _output(operation: Operation, plan: Plan) -> tuple[bool, bool]:
    """Whether it is quantized to float8, and whether a Relu that is not reads it in float.

    The QuantizeLinear may be after a Relu, which is removed. With a Relu in float a MatMul and a Gemm are fused.
    """
    last = next(node for node in reversed(operation.unit.nodes) if not is_op(node, "Relu") or node is operation.node)
    if any(_is_float8(value, plan) for value in last.outputs):
        return True, False
    relu = sole_consumer(last.outputs[0])
    if relu is None or not is_op(relu, "Relu"):
        return False, False
    writes = _is_float8(relu.outputs[0], plan)
    return writes, not writes


def _is_float8(value: ir.Value, plan: Plan) -> bool:
    choice = plan.tensors.get(str(value.name))
    return choice is not None and choice.storage.dtype is _FLOAT8


def _finding(node: ir.Node, message: str) -> Finding:
    fix = 'set session.disable_quant_qdq=1 and disabled_optimizers=["ReluQuantRewrite", "ClipQuantRewrite"]'
    return Finding("Q151", at_node(node), message, Severity.ERROR, fix=fix)
