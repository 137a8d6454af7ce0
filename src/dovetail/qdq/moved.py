"""Move DQ nodes above data-movement operators: Q -> Transpose -> DQ becomes Q -> DQ -> Transpose.

An operator that only rearranges elements gives bit-identical results before and after a per-tensor DQ.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.encoding import Granularity
from dovetail.model import edit
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.evaluate import EvaluationError, evaluate
from dovetail.qdq.params import QUANTIZED_TYPES, is_dequantize, qparams_of

# Data-movement operators: their outputs have only elements of their first input (Concat: of all inputs).
_MOVERS = frozenset(DATA_MOVEMENT_OPS) - {"MaxPool"} | {"Concat", "GatherND"}
# Quantized dtypes that NumPy has itself, so that arrays of them can be passed to ONNX Runtime.
_NUMPY_TYPES = frozenset(onnx_type for onnx_type, dtype in QUANTIZED_TYPES.items() if dtype.numpy.isbuiltin == 1)


def read_before_moving(model: ir.Model) -> None:
    """Move every DQ up to its Q, in place; a data-movement operator on a quantized constant is folded instead."""
    moving_nodes = [node for node in model.graph if edit.is_op(node, *_MOVERS)]
    for node in moving_nodes:
        _fold(node, model.opset_imports)
    for node in reversed(moving_nodes):
        _move_up(node)


def _fold(node: ir.Node, imports: dict[str, int]) -> None:
    """Constant-fold a data-movement operator on quantized constants; it stays where ONNX Runtime cannot compute it."""
    inputs = [(value, edit.constant_of(value)) for value in node.inputs if value is not None]
    arrays = {str(value.name): array for value, array in inputs if array is not None}
    if inputs[0][0].dtype not in _NUMPY_TYPES or len(arrays) != len(inputs):
        return
    if any(value.is_graph_output() for value in node.outputs):
        return
    try:
        results = evaluate(node, arrays, imports)
    except EvaluationError:
        return
    for value, result in zip(node.outputs, results, strict=True):
        edit.fold(value, ir.Tensor(result, name=value.name))


def _move_up(node: ir.Node) -> None:
    """Move DQ nodes from the outputs of a data-movement operator to its inputs, if only DQ nodes read its outputs."""
    uses = [use for value in node.outputs for use in value.uses()]
    if any(value.is_graph_output() for value in node.outputs):
        return
    if not uses or not all(is_dequantize(consumer) and index == 0 for consumer, index in uses):
        return
    dequantizes = [consumer for consumer, _ in uses]
    params = qparams_of(dequantizes[0])
    if params.encoding.granularity is not Granularity.TENSOR:
        return
    if any(qparams_of(dequantize) != params for dequantize in dequantizes[1:]):
        return
    for index in range(len(node.inputs) if node.op_type == "Concat" else 1):
        node.replace_input_with(index, _dequantized(node, index, dequantizes[0]))
    for output in node.outputs:
        output.type = ir.TensorType(ir.DataType.FLOAT)
    for dequantize in dequantizes:
        moved = dequantize.inputs[0]
        if moved is not None:
            edit.replace_value(dequantize.outputs[0], moved)
    edit.remove_dead(edit.graph_of(node), dequantizes)


def _dequantized(node: ir.Node, index: int, like: ir.Node) -> ir.Value:
    """The output of a new DQ on an input of a node, with the qparams of the DQ ``like``."""
    value = node.inputs[index]
    return edit.insert(
        node,
        "DequantizeLinear",
        [value, *like.inputs[1:]],
        source=like.outputs[0],
        replaces=[like],
        name=f"{node.name}/read{index}",
        shape=edit.shape_of(value),
        dtype=ir.DataType.FLOAT,
    )
