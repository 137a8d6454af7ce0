"""Check that the shapes of a model fit its operators, before a pass or a runtime fails on one that does not."""

from __future__ import annotations

import math
import re

import onnx
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.edit import constant_of, is_op
from dovetail.model.inference import Types, infer, inferred_types, types_in
from dovetail.model.origin import nodes_of
from dovetail.model.skeleton import without_recorded_shapes

# One error of onnx 1.23: "(op_type:MatMul, node name: mm): [ShapeInferenceError] Incompatible dimensions ...".
_ERROR = re.compile(r"\(op_type:(\w+), node name: (.*?)\): \[\w+\] (.*)")
# An error inside the function that defines an operator: onnx fails on some of them whose attributes have defaults.
_INSIDE_FUNCTION = "Inference error(s)"


def check_shapes(model: ir.Model, bare: onnx.ModelProto | None = None) -> None:
    """Refuse a node that no runtime can run on inputs of these shapes, such as a MatMul of 1x7 and 8x8.

    What shape inference cannot decide (unknown shapes, operators outside ONNX) is accepted. ``bare``: the result of
    ``without_recorded_shapes``, if the caller has it.
    """
    try:
        types = types_in(infer(bare or without_recorded_shapes(model), strict=True))
    except onnx.shape_inference.InferenceError as error:
        for op_type, name, reason in _ERROR.findall(str(error)):
            if _INSIDE_FUNCTION not in reason:
                raise InputError(_message(model, op_type, name, reason)) from error
        types = inferred_types(model)
    for node in model.graph:
        if is_op(node, "Reshape"):
            _check_reshape(model, node, types)
        elif is_op(node, "Resize"):
            _check_resize(model, node)


def _check_reshape(model: ir.Model, node: ir.Node, types: Types) -> None:
    """Refuse a Reshape to another number of elements, which onnx does not check if no size is left open."""
    before, after = _static(node.inputs[0], types), _static(node.outputs[0], types)
    if before is not None and after is not None and math.prod(before) != math.prod(after):
        reason = f"{math.prod(before)} elements cannot have the shape {_text(after)}"
        raise InputError(_message(model, "Reshape", str(node.name), reason))


def _check_resize(model: ir.Model, node: ir.Node) -> None:
    """Refuse a Resize by a scale or to a size that ONNX Runtime refuses when it runs; onnx does not check them."""
    for name, value in zip(("scale", "size"), node.inputs[2:4], strict=False):
        factors = None if value is None else constant_of(value)
        wrong = [] if factors is None else [float(factor) for factor in factors.flat if not 0 < factor < math.inf]
        if wrong:
            raise InputError(
                _message(model, "Resize", str(node.name), f"the {name} {wrong[0]:g} is not a positive number")
            )


def _message(model: ir.Model, op_type: str, name: str, reason: str) -> str:
    node = next((node for node in model.graph if node.name == name), None)
    original = next(iter(nodes_of(node)), name) if node is not None else name
    types = inferred_types(model)
    operands = "" if node is None else ", ".join(_operand(value, types) for value in node.inputs)
    inputs = ", ".join(_operand(value, types) for value in model.graph.inputs)
    return (
        f"node {original!r} ({op_type}) cannot run: {reason.strip().rstrip('.')}; its inputs are {operands or 'none'}, "
        f"those of the model are {inputs or 'none'}"
    )


def _operand(value: ir.Value | None, types: Types) -> str:
    return "none" if value is None else f"{value.name} {_text(_dims(value, types))}"


def _dims(value: ir.Value, types: Types) -> tuple[int | str, ...] | None:
    """The dimensions of a tensor, a symbol or ``?`` for an unknown one; None if its rank is unknown."""
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    inferred = types.get(str(value.name))
    if inferred is not None:
        if not inferred.tensor_type.HasField("shape"):
            return None
        dims = inferred.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
    return None if value.shape is None else tuple(d if isinstance(d, int) else d.value or "?" for d in value.shape)


def _static(value: ir.Value | None, types: Types) -> tuple[int, ...] | None:
    dims = None if value is None else _dims(value, types)
    sizes = None if dims is None else tuple(dim for dim in dims if isinstance(dim, int))
    return sizes if dims is not None and sizes is not None and len(sizes) == len(dims) else None


def _text(dims: tuple[int | str, ...] | None) -> str:
    return "of unknown shape" if dims is None else f"[{','.join(map(str, dims))}]"
