"""Reading integers back before they are moved: Q -> Transpose -> DQ becomes Q -> DQ -> Transpose.

An operator that only moves elements gives the same numbers on either side of a DQ with one scale, to the bit.
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.encoding import Granularity
from dovetail.model import edit
from dovetail.model.evaluate import CannotEvaluate, evaluate
from dovetail.model.movers import MOVERS
from dovetail.qdq.params import STORED_TYPES, is_dequantize, qparams_of

# Operators whose outputs hold elements of their first input (of all inputs: Concat) and nothing else.
_MOVERS = frozenset(MOVERS) - {"MaxPool"} | {"Concat", "GatherND"}
# Stored types that NumPy itself has, so that ONNX Runtime can be given them.
_FED = frozenset(dtype for dtype, stored in STORED_TYPES.items() if stored.numpy.isbuiltin == 1)


def read_before_moving(model: ir.Model) -> None:
    """Move every DQ up to where its integers were stored, in place; moved integer constants are computed instead."""
    moves = [node for node in model.graph if edit.is_op(node, *_MOVERS)]
    for node in moves:
        _fold(node, model.opset_imports)
    for node in reversed(moves):
        _move_up(node)


def _fold(node: ir.Node, imports: dict[str, int]) -> None:
    """Compute a move of constant integers; where ONNX Runtime cannot, it stays a move like any other."""
    read = [(value, edit.constant_of(value)) for value in node.inputs if value is not None]
    arrays = {str(value.name): array for value, array in read if array is not None}
    if read[0][0].dtype not in _FED or len(arrays) != len(read):
        return
    if any(value.is_graph_output() for value in node.outputs):
        return
    try:
        results = evaluate(node, arrays, imports)
    except CannotEvaluate:
        return
    for value, result in zip(node.outputs, results, strict=True):
        edit.fold(value, ir.Tensor(result, name=value.name))


def _move_up(node: ir.Node) -> None:
    """Put the DQ that alone reads what a node moves in front of it."""
    uses = [use for value in node.outputs for use in value.uses()]
    if any(value.is_graph_output() for value in node.outputs):
        return
    if not uses or not all(is_dequantize(reader) and index == 0 for reader, index in uses):
        return
    reads = [reader for reader, _ in uses]
    params = qparams_of(reads[0])
    if params.encoding.granularity is not Granularity.TENSOR or any(qparams_of(read) != params for read in reads[1:]):
        return
    for index in range(len(node.inputs) if node.op_type == "Concat" else 1):
        node.replace_input_with(index, _read_back(node, index, reads[0]))
    for output in node.outputs:
        output.type = ir.TensorType(ir.DataType.FLOAT)
    for read in reads:
        moved = read.inputs[0]
        if moved is not None:
            edit.replace_value(read.outputs[0], moved)
    edit.remove_dead(edit.graph_of(node), reads)


def _read_back(node: ir.Node, index: int, like: ir.Node) -> ir.Value:
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
