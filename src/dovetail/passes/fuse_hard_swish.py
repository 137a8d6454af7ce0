"""Write x * Clip(x + 3, 0, 6) / 6, as exporters for old opsets do, as the operator HardSwish.

HTP has an integer kernel for HardSwish. In parts, its 8-bit Clip is biased by up to two steps (onnxruntime-qnn 2.7.0,
SoC 43, emulated, in a network with 17 of them).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, scalar_of, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# x * Clip(x + 3, 0, 6) / 6 is a product of two tensors and a number.
_MOST_FACTORS = 3


def fuse_hard_swish(model: ir.Model) -> PassRecord:
    """Replace every such product, in whatever order it is computed; other consumers of its parts still read them."""
    changed: list[Site] = []
    for node in list(model.graph):
        data = _hard_swish_input(node)
        if data is None or shape_of(data) != shape_of(node.outputs[0]):
            continue
        output = node.outputs[0]
        changed.append(Site(origin_of(output).name, "x * Clip(x + 3, 0, 6) / 6 rewritten as HardSwish"))
        new = edit.insert(node, "HardSwish", [data], source=output, replaces=[node], shape=shape_of(output))
        edit.replace_value(output, new)
        edit.remove_dead(model.graph, [node])
    return PassRecord("fuse_hard_swish", tuple(changed))


def _hard_swish_input(node: ir.Node) -> ir.Value | None:
    """x, if the node computes x * Clip(x + 3, 0, 6) / 6."""
    if not is_op(node, "Mul", "Div"):
        return None
    for gate in _factors(node.outputs[0], None, _MOST_FACTORS)[0]:
        data = _clipped_input(gate)
        tensors, factor = ([], 0.0) if data is None else _factors(node.outputs[0], data, _MOST_FACTORS)
        if sorted(map(id, tensors)) == sorted(map(id, (data, gate))) and math.isclose(factor, 1 / 6, rel_tol=1e-5):
            return data
    return None


def _factors(value: ir.Value | None, data: ir.Value | None, most: int) -> tuple[list[ir.Value], float]:
    """The tensors and the number that a value is the product of; ``data`` is taken as it is."""
    if value is None:
        return [], math.nan
    if (number := scalar_of(value)) is not None:
        return [], number
    node = None if value is data or not most else value.producer()
    if node is not None and is_op(node, "Mul"):
        (first, a), (second, b) = (_factors(operand, data, most - 1) for operand in node.inputs)
        return first + second, a * b
    divisor = scalar_of(node.inputs[1]) if node is not None and is_op(node, "Div") else None
    if node is not None and divisor:
        tensors, factor = _factors(node.inputs[0], data, most - 1)
        return tensors, factor / divisor
    return [value], 1.0


def _clipped_input(value: ir.Value) -> ir.Value | None:
    """x, if the value is Clip(x + 3, 0, 6)."""
    clip = value.producer()
    if clip is None or not is_op(clip, "Clip") or len(clip.inputs) != 3 or clip.inputs[0] is None:
        return None
    add = clip.inputs[0].producer()
    if [scalar_of(bound) for bound in clip.inputs[1:]] != [0.0, 6.0] or add is None or not is_op(add, "Add"):
        return None
    for data, offset in (add.inputs, reversed(add.inputs)):
        if scalar_of(offset) == 3.0:
            return data
    return None
