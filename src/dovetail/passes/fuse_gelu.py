"""Fuse the operators of a GELU, exact or with tanh, into Gelu."""

from __future__ import annotations

import math

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# A polynomial in two variables, the input x and the curve e (its Erf or Tanh): (power of x, of e) -> coefficient.
Polynomial = dict[tuple[int, int], float]

_TANH_SLOPE = math.sqrt(2 / math.pi)
# Curve -> the attribute ``approximate`` of Gelu, and the argument of the curve as a polynomial in x.
_ARGUMENTS: dict[str, tuple[str, Polynomial]] = {
    "Erf": ("none", {(1, 0): math.sqrt(0.5)}),
    "Tanh": ("tanh", {(1, 0): _TANH_SLOPE, (3, 0): _TANH_SLOPE * 0.044715}),
}
_GELU: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
_SIGMOID_SLOPE = 1.702
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
_DEPTH = 6


def fuse_gelu(model: ir.Model) -> PassRecord:
    """Replace x/2 (1 + erf(x/sqrt 2)), or its tanh approximation, by Gelu, however the expression is written.

    The expressions are compared as polynomials: the argument of the curve in x, and the result in x and the curve, so
    that the order of factors, Div or Mul, Pow or Mul, and the position of the factor 1/2 do not matter.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        if is_op(node, *_ARGUMENTS):
            approximate, argument = _ARGUMENTS[node.op_type]
            gelu = _find(node, argument)
            if gelu is not None:
                changed.append(Site(origin_of(gelu[1]).name, f"GELU ({node.op_type}) fused"))
                _fuse(model.graph, node, *gelu, approximate)
            elif node.op_type == "Erf":
                declined.append(Site(origin_of(node.outputs[0]).name, "the Erf is not part of a GELU"))
        elif _is_sigmoid_gelu(node):
            declined.append(Site(origin_of(node.outputs[0]).name, "x sigmoid(1.702 x) only approximates Gelu"))
    return PassRecord("fuse_gelu", tuple(changed), tuple(declined))


def _find(curve: ir.Node, argument: Polynomial) -> tuple[ir.Value, ir.Value] | None:
    """The input and the output of the GELU around a curve."""
    for x in _sources(curve.inputs[0]):
        if not _equal(_polynomial(curve.inputs[0], x, None), argument, x):
            continue
        for result in _results(curve.outputs[0]):
            if _equal(_polynomial(result, x, curve.outputs[0]), _GELU, x):
                return x, result
    return None


def _fuse(graph: ir.Graph, curve: ir.Node, x: ir.Value, result: ir.Value, approximate: str) -> None:
    last = result.producer()
    if last is None:
        raise TypeError(f"{result.name!r} has no producer")
    new = edit.insert(
        last,
        "Gelu",
        [x],
        attributes={"approximate": approximate},
        source=result,
        replaces=[curve, last],
        shape=shape_of(result),
    )
    edit.replace_value(result, new)
    edit.remove_dead(graph, [last])


def _sources(value: ir.Value | None) -> list[ir.Value]:
    """The values that an expression may be a polynomial of: itself and its arithmetic inputs, nearest first."""
    sources: dict[ir.Value, None] = {}
    layer = [value]
    for _ in range(_DEPTH):
        variables = [v for v in layer if v is not None and edit.constant_of(v) is None]
        sources.update(dict.fromkeys(variables))
        producers = [v.producer() for v in variables]
        layer = [v for node in producers if node is not None and is_op(node, *_ARITHMETIC) for v in node.inputs]
    return list(sources)


def _results(value: ir.Value) -> list[ir.Value]:
    """The values that arithmetic computes from a value, nearest first."""
    results: dict[ir.Value, None] = {}
    layer = [value]
    for _ in range(_DEPTH):
        consumers = dict.fromkeys(node for v in layer for node in v.consumers() if is_op(node, *_ARITHMETIC))
        layer = [node.outputs[0] for node in consumers]
        results.update(dict.fromkeys(layer))
    return list(results)


def _polynomial(value: ir.Value | None, x: ir.Value, e: ir.Value | None, depth: int = _DEPTH) -> Polynomial | None:
    """The value as a polynomial of x and e, or None if it depends on anything else."""
    if value is x:
        return {(1, 0): 1.0}
    if value is not None and value is e:
        return {(0, 1): 1.0}
    constant = scalar_of(value)
    if constant is not None:
        return {(0, 0): constant}
    node = value.producer() if value is not None else None
    if node is None or depth == 0 or not is_op(node, *_ARITHMETIC):
        return None
    left = _polynomial(node.inputs[0], x, e, depth - 1)
    right = _polynomial(node.inputs[1], x, e, depth - 1)
    return None if left is None or right is None else _combine(node.op_type, left, right)


def _combine(op_type: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    constant = right.get((0, 0)) if set(right) == {(0, 0)} else None
    if op_type in ("Add", "Sub"):
        sign = 1.0 if op_type == "Add" else -1.0
        return {power: left.get(power, 0.0) + sign * right.get(power, 0.0) for power in (*left, *right)}
    if op_type == "Mul":
        return _product(left, right)
    if op_type == "Div":
        return {power: factor / constant for power, factor in left.items()} if constant else None
    if constant not in (2.0, 3.0):
        return None
    square = _product(left, left)
    return square if constant == 2.0 else _product(square, left)


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (i, j), a in left.items():
        for (k, m), b in right.items():
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + a * b
    return result


def _equal(actual: Polynomial | None, expected: Polynomial, x: ir.Value) -> bool:
    """Whether two polynomials agree to the precision of constants in x's type that are written with a few digits."""
    if actual is None or not set(expected) <= set(actual):
        return False
    tolerance = 1e-3 if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else 2e-6
    return all(abs(factor - expected.get(power, 0.0)) <= tolerance * abs(factor) for power, factor in actual.items())


def _is_sigmoid_gelu(node: ir.Node) -> bool:
    if not is_op(node, "Mul"):
        return False
    for x, gate in (tuple(node.inputs), tuple(reversed(node.inputs))):
        sigmoid = gate.producer() if gate is not None else None
        if x is None or sigmoid is None or not is_op(sigmoid, "Sigmoid"):
            continue
        slope = _polynomial(sigmoid.inputs[0], x, None)
        if slope is not None and set(slope) == {(1, 0)} and math.isclose(slope[1, 0], _SIGMOID_SLOPE, rel_tol=1e-3):
            return True
    return False
