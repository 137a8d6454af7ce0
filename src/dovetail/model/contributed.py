"""Rewrite operators of ONNX Runtime's own domain, which its optimizer and quantizer write, to ONNX operators.

Compilers other than ONNX Runtime do not know them. Semantics and defaults are those of ONNX Runtime 1.31.1's kernels,
with which tests/model/test_contributed.py compares every rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model import edit
from dovetail.model.edit import attribute
from dovetail.model.inference import inferred_types, rank_of

CONTRIBUTED = "com.microsoft"
_SKIP_EPSILON = 1e-12  # ONNX Runtime's default; that of LayerNormalization is 1e-5
_ALPHA = 1.702
# Activation of a FusedConv -> the names of its parameters, which are attributes except those of Clip.
_ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


# ONNX Runtime's optimizer also writes operators of the ONNX domain into opsets that do not define them yet; operator ->
# the first opset that does. Its kernels before that opset compute the same.
_EARLY = {"LayerNormalization": 17}


class _RankUnknown(Exception):
    """The rewrite needs a rank that is not known yet."""


def claim_early(model: ir.Model) -> None:
    """Give operators that the model's opset does not define yet the domain of ONNX Runtime, which defines them there.

    ``rewrite_contributed`` makes them ONNX operators again, once the opset has been raised.
    """
    for node in model.graph.all_nodes():
        if is_early(node, model.opset_imports):
            node.domain = CONTRIBUTED
            model.graph.opset_imports.setdefault(CONTRIBUTED, 1)


def is_early(node: ir.Node, imports: Mapping[str, int]) -> bool:
    """Whether ONNX defines an operator only in later opsets, and ONNX Runtime in this one too."""
    return not node.domain and imports[""] < _EARLY.get(node.op_type, 0)


def rewrite_contributed(model: ir.Model) -> tuple[str, ...]:
    """Rewrite every operator in ``REWRITES``, in place, and return the names of the operators that were rewritten.

    The opset is 21 or later. A FusedMatMul that transposes needs the rank of its operands, which may depend on another
    one: shapes are inferred again until none is left.
    """
    rewritten: dict[str, None] = {}
    pending = [node for node in model.graph.all_nodes() if _is_rewritable(node)]
    while pending:
        waiting = [node for node in pending if not _rewrite(node, rewritten)]
        if len(waiting) == len(pending):
            node = pending[0]
            raise InputError(
                f"node {node.name!r} ({CONTRIBUTED}.{node.op_type}) cannot be rewritten to ONNX: the rank of its "
                "operands is unknown; set the shapes of the inputs with --shape"
            )
        if waiting:
            inferred_types(model, apply=True)
        pending = waiting
    return tuple(rewritten)


def _is_rewritable(node: ir.Node) -> bool:
    return node.domain == CONTRIBUTED and node.op_type in REWRITES


def _rewrite(node: ir.Node, rewritten: dict[str, None]) -> bool:
    """Rewrite one node; False if a rank is not known yet."""
    try:
        outputs = REWRITES[node.op_type](node)
    except _RankUnknown:
        return False
    for old, new in outputs.items():
        edit.replace_value(old, new)
    edit.remove_dead(edit.graph_of(node), [node])
    rewritten[node.op_type] = None
    return True


def _gelu(node: ir.Node) -> dict[ir.Value, ir.Value]:
    return _result(node, _insert(node, "Gelu", [_required(node, 0)]))


def _bias_gelu(node: ir.Node) -> dict[ir.Value, ir.Value]:
    return _result(node, _insert(node, "Gelu", [_insert(node, "Add", [_required(node, 0), _required(node, 1)])]))


def _fast_gelu(node: ir.Node) -> dict[ir.Value, ir.Value]:
    x, bias = _required(node, 0), _optional(node, 1)
    x = x if bias is None else _insert(node, "Add", [x, bias])
    return _result(node, _insert(node, "Gelu", [x], {"approximate": "tanh"}))


def _quick_gelu(node: ir.Node) -> dict[ir.Value, ir.Value]:
    x = _required(node, 0)
    scaled = _insert(node, "Mul", [x, _scalar(node, attribute(node, "alpha", _ALPHA), "alpha")])
    return _result(node, _insert(node, "Mul", [x, _insert(node, "Sigmoid", [scaled])]))


def _layer_normalization(node: ir.Node) -> dict[ir.Value, ir.Value]:
    _refuse_training_outputs(node)
    bias = _optional(node, 2)
    inputs = [_required(node, 0), _required(node, 1), *([] if bias is None else [bias])]
    return _result(node, _insert(node, "LayerNormalization", inputs, dict(node.attributes)))


def _refuse_training_outputs(node: ir.Node) -> None:
    if any(_is_used(node, index) for index in (1, 2)):
        raise InputError(
            f"node {node.name!r} ({node.op_type}): its outputs for training, mean and inverse standard deviation, are "
            "used, which is not supported; export the model for inference"
        )


def _skip_layer_normalization(node: ir.Node) -> dict[ir.Value, ir.Value]:
    """Add, or two of them with a bias, and LayerNormalization over the last axis."""
    _refuse_training_outputs(node)
    total = _insert(node, "Add", [_required(node, 0), _required(node, 1)])
    bias, beta = _optional(node, 4), _optional(node, 3)
    total = total if bias is None else _insert(node, "Add", [total, bias])
    attributes = {"axis": -1, "epsilon": attribute(node, "epsilon", _SKIP_EPSILON)}
    scale_and_bias = [_required(node, 2), *([] if beta is None else [beta])]
    outputs = _result(node, _insert(node, "LayerNormalization", [total, *scale_and_bias], attributes))
    return {**outputs, node.outputs[3]: total} if _is_used(node, 3) else outputs


def _fused_matmul(node: ir.Node) -> dict[ir.Value, ir.Value]:
    operands = []
    for index, side in enumerate("AB"):
        value = _required(node, index)
        transposed, batch = (bool(attribute(node, f"trans{kind}{side}", 0)) for kind in ("", "Batch"))
        operands.append(_transposed(node, value, transposed, batch))
    result = _insert(node, "MatMul", operands)
    alpha = attribute(node, "alpha", 1.0)
    return _result(node, result if alpha == 1.0 else _insert(node, "Mul", [result, _scalar(node, alpha, "alpha")]))


def _transposed(node: ir.Node, value: ir.Value, transposed: bool, batch: bool) -> ir.Value:
    """The operand after FusedMatMul's transposes: ``batch`` moves the first axis after the other batch axes."""
    if not (transposed or batch):
        return value
    rank = rank_of(value)
    if rank is None:
        raise _RankUnknown
    if rank < 2:  # a vector is not transposed
        return value
    perm = list(range(rank))
    if batch:
        perm = [*perm[1:-1], 0, rank - 1]
    if transposed:
        perm = [*perm[:-2], perm[-1], perm[-2]]
    return value if perm == list(range(rank)) else _insert(node, "Transpose", [value], {"perm": perm})


def _fused_conv(node: ir.Node) -> dict[ir.Value, ir.Value]:
    """Conv, then Add of the optional fourth input, then the activation."""
    name, parameters = attribute(node, "activation", ""), attribute(node, "activation_params", ())
    if name and (name not in _ACTIVATIONS or len(parameters) != len(_ACTIVATIONS[name])):
        raise InputError(
            f"node {node.name!r} ({CONTRIBUTED}.FusedConv) has the activation {name!r} with {len(parameters)} "
            "parameters, which is not supported"
        )
    own = ("activation", "activation_params")
    bias, addend = _optional(node, 2), _optional(node, 3)
    attributes = {key: value for key, value in node.attributes.items() if key not in own}
    result = _insert(node, "Conv", [*node.inputs[:2], *([] if bias is None else [bias])], attributes)
    result = result if addend is None else _insert(node, "Add", [result, addend])
    if name == "Clip":
        bounds = [_scalar(node, bound, key) for key, bound in zip(_ACTIVATIONS[name], parameters, strict=True)]
        result = _insert(node, name, [result, *bounds])
    elif name:
        named = dict(zip(_ACTIVATIONS[name], map(float, parameters), strict=True))
        result = _insert(node, name, [result], named)
    return _result(node, result)


# Operator -> the function that inserts what it computes; it returns the new value of every output that is used.
REWRITES: dict[str, Callable[[ir.Node], dict[ir.Value, ir.Value]]] = {
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "LayerNormalization": _layer_normalization,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_normalization,
}


def _result(node: ir.Node, value: ir.Value) -> dict[ir.Value, ir.Value]:
    return {node.outputs[0]: value}


def _insert(
    node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any] | None = None
) -> ir.Value:
    return edit.insert(node, op_type, inputs, attributes=attributes, source=node.outputs[0], replaces=[node])


def _scalar(node: ir.Node, number: float, name: str) -> ir.Value:
    """A constant in the type of the node's first input."""
    dtype = _required(node, 0).dtype or node.outputs[0].dtype or ir.DataType.FLOAT
    array = np.array(number, dtype.numpy())
    return edit.add_initializer(edit.graph_of(node), array, name=f"{node.name}/{name}", source=node.outputs[0])


def _optional(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _required(node: ir.Node, index: int) -> ir.Value:
    value = _optional(node, index)
    if value is None:
        raise InputError(f"node {node.name!r} ({CONTRIBUTED}.{node.op_type}) has no input {index}, which it requires")
    return value


def _is_used(node: ir.Node, index: int) -> bool:
    if index >= len(node.outputs):
        return False
    return bool(node.outputs[index].uses()) or node.outputs[index].is_graph_output()
