"""Write every linear layer as MatMul with a [K,N] constant, followed by Add of a [N] constant."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def unify_linear(model: ir.Model) -> PassRecord:
    """Rewrite Gemm with a constant weight; alpha, beta and transB are folded into the constants."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        if not edit.is_op(node, "Gemm"):
            continue
        where = origin_of(node.outputs[0]).name
        if constant_of(node.inputs[1]) is None:
            declined.append(Site(where, "the second operand of the Gemm is not constant"))
        elif shape_of(node.inputs[0]) is None:
            declined.append(Site(where, "the shape of the Gemm's input is unknown"))
        else:
            split_gemm(model.graph, node)
            changed.append(Site(where, "Gemm rewritten as MatMul and Add"))
    return PassRecord("unify_linear", tuple(changed), tuple(declined))


def split_gemm(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a Gemm with a constant weight by MatMul and Add."""
    data, weight, *rest = node.inputs
    output, shape = node.outputs[0], shape_of(node.outputs[0])
    if attribute(node, "transA", 0):
        transposed = tuple(reversed(shape_of(data) or ()))
        data = edit.insert(
            node, "Transpose", [data], attributes={"perm": [1, 0]}, source=output, replaces=[node], shape=transposed
        )
    result = edit.insert(
        node, "MatMul", [data, _weight(graph, node, weight)], source=output, replaces=[node], shape=shape
    )
    bias = rest[0] if rest else None
    if bias is not None:
        bias = _bias(graph, node, bias)
        result = edit.insert(node, "Add", [result, bias], source=output, replaces=[node], shape=shape)
    edit.replace_value(output, result)
    edit.remove_dead(graph, [node])


def _weight(graph: ir.Graph, node: ir.Node, weight: ir.Value | None) -> ir.Value:
    array, alpha = constant_of(weight), attribute(node, "alpha", 1.0)
    if weight is None or array is None:
        raise TypeError(f"the weight of {node.name!r} is not constant")
    if not attribute(node, "transB", 0) and alpha == 1.0:
        return weight
    array = array.T if attribute(node, "transB", 0) else array
    return edit.add_initializer(graph, _scaled(array, alpha), name=f"{weight.name}/matmul", source=weight)


def _bias(graph: ir.Graph, node: ir.Node, bias: ir.Value) -> ir.Value:
    array, beta = constant_of(bias), attribute(node, "beta", 1.0)
    if array is None:
        if beta == 1.0:
            return bias
        factor = np.array(beta, dtype=np.float32 if bias.dtype is None else bias.dtype.numpy())
        constant = edit.add_initializer(graph, factor, name=f"{bias.name}/beta", source=bias)
        return edit.insert(node, "Mul", [bias, constant], source=bias, replaces=[node], shape=shape_of(bias))
    weight = constant_of(node.inputs[1])
    width = weight.shape[0 if attribute(node, "transB", 0) else 1] if weight is not None else 0
    per_row = array.ndim == 2 and array.shape[0] != 1
    broadcast = array if per_row else np.broadcast_to(array.reshape(-1), (width,))
    if beta == 1.0 and broadcast.shape == array.shape:
        return bias
    return edit.add_initializer(graph, _scaled(broadcast, beta), name=f"{bias.name}/bias", source=bias)


def _scaled(array: Array, factor: float) -> Array:
    return array if factor == 1.0 else (array.astype(np.float64) * factor).astype(array.dtype)
