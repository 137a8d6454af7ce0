"""Rules for ONNX Runtime on CPU."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import DType
from dovetail.finding import Finding, Severity
from dovetail.model.edit import is_op
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule

_FLOAT8 = DType.F8E4M3
# What the default optimizations replace by an integer kernel, which does not have float8: behind a DequantizeLinear,
# and only between that and a QuantizeLinear.
_BEHIND = frozenset(("Gemm", "MatMul", "MaxPool", "Slice", "Unsqueeze"))
_BETWEEN = frozenset(("Add", "AveragePool", "Conv", "LeakyRelu", "Mul", "Sigmoid", "Softmax"))


@rule("Q151")
def float8_with_default_optimizations(subject: CheckInput) -> Iterator[Finding]:
    """ONNX Runtime's default optimizations fail on, or change, a model that is quantized to float8.

    ## What it finds
    In QDQ models with float8e4m3fn: operators that the optimizations replace by integer kernels (MatMul, Gemm, Conv,
    Add, Mul, pooling, Sigmoid, Softmax, LeakyRelu, Slice, Unsqueeze), a Clip and a Relu in front of a QuantizeLinear.
    One finding for what does not load, and one for each Relu that is removed.

    ## Why it matters
    There are no such kernels for float8, so the session is not created ("Type 'tensor(float8e4m3fn)' of input parameter
    ... is invalid"). A Relu in front of a QuantizeLinear is silently removed: with integers, saturation does the same;
    with float8 the negative values remain.

    ## How to fix it
    Set the session option `session.disable_quant_qdq` to `1` and pass `disabled_optimizers=["ReluQuantRewrite",
    "ClipQuantRewrite"]` to the session, as Dovetail's simulation does. ONNX Runtime then computes in float between the
    Q/DQ pairs: float8 is for targets that have it, such as `tensorrt:sm89`.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1: the operators above between Q/DQ pairs in float8, most of them "INVALID_GRAPH",
      MatMul "Failed to find kernel for QLinearMatMul"; a Relu is left out, also with `session.disable_quant_qdq` alone.
    """
    not_loaded = [operation for operation in operations(subject) if _is_not_loaded(operation)]
    if not_loaded:
        more = "" if len(not_loaded) == 1 else f" and {len(not_loaded) - 1} more"
        yield _finding(
            not_loaded[0],
            f"{say(not_loaded[0].node)}{more} between Q/DQ pairs in float8: ONNX Runtime does not load the model with "
            "its default optimizations",
        )
    for operation in operations(subject):
        if is_op(operation.unit.nodes[-1], "Relu") and _writes_float8(operation):
            relu = say(operation.unit.nodes[-1])
            yield _finding(operation, f"{relu} is in front of a QuantizeLinear to float8: ONNX Runtime removes it")


def _is_not_loaded(operation: Operation) -> bool:
    last = operation.unit.nodes[-1]
    if is_op(last, "Clip"):
        return _writes_float8(operation)
    reads = bool(operation.activations) and all(storage.dtype is _FLOAT8 for storage in operation.activations)
    return reads and (operation.op in _BEHIND or (operation.op in _BETWEEN and _writes_float8(operation)))


def _writes_float8(operation: Operation) -> bool:
    return any(storage.dtype is _FLOAT8 for storage in operation.outputs)


def _finding(operation: Operation, message: str) -> Finding:
    fix = 'set session.disable_quant_qdq=1 and disabled_optimizers=["ReluQuantRewrite", "ClipQuantRewrite"]'
    return Finding("Q151", at_node(operation.node), message, Severity.ERROR, fix=fix)
