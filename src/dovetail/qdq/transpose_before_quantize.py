"""Transposes between a pair and a product: in front of the Quantize, or done once and for all on a stored weight.

``Q -> DQ -> Transpose -> MatMul`` becomes ``Transpose -> Q -> DQ -> MatMul``; the axis of scales per channel moves with
it. TensorRT-RTX 1.7.1.116 fuses either way; it is kept for classic TensorRT, which wants DQ directly in front of the
product (NVIDIA/Model-Optimizer, pull request 1289).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.qdq.pair import QdqPair, insert_read, insert_store, pair_of
from dovetail.qdq.params import is_dequantize

_PRODUCTS = ("MatMul", "Gemm")
_Made = dict[tuple[ir.Node, ir.Node], ir.Value]


def transpose_before_quantize(model: ir.Model) -> PassRecord:
    """Turn what goes into the pair, for every activation that a product reads behind a Transpose."""
    return _run(model, "transpose_before_quantize", constant=False, rewrite=_turned_activation)


def transpose_stored_weights(model: ir.Model) -> PassRecord:
    """Turn the stored integers, for every weight that a product reads behind a Transpose."""
    return _run(model, "transpose_stored_weights", constant=True, rewrite=_turned_weight)


def _run(
    model: ir.Model, name: str, *, constant: bool, rewrite: Callable[[QdqPair, ir.Node, tuple[int, ...]], ir.Value]
) -> PassRecord:
    changed: list[Site] = []
    declined: list[Site] = []
    made: _Made = {}
    for node in [node for node in model.graph if is_op(node, *_PRODUCTS)]:
        for index in (0, 1):
            turn, read = _behind(node.inputs[index])
            if turn is None or read is None:
                continue
            pair, where = pair_of(read), origin_of(turn.outputs[0]).name
            if not isinstance(pair, str) and (pair.store is None) is not constant:
                continue
            why = pair if isinstance(pair, str) else _why_not(pair, turn)
            if isinstance(pair, str) or why:
                declined.append(Site(where, f"the Transpose behind DequantizeLinear {read.name!r} stays: {why}"))
                continue
            if (read, turn) not in made:
                made[read, turn] = rewrite(pair, turn, perm_of(turn))
            node.replace_input_with(index, made[read, turn])
            edit.remove_dead(model.graph, [turn])
            axis = f", scales now along axis {perm_of(turn).index(pair.axis)}" if pair.per_channel else ""
            changed.append(Site(where, f"the {'stored weight' if constant else 'tensor'} is transposed first{axis}"))
    return PassRecord(name, tuple(changed), tuple(declined))


def _behind(value: ir.Value | None) -> tuple[ir.Node | None, ir.Node | None]:
    """The Transpose that gives a value, and the Dequantize in front of it, a Cast between or not."""
    turn = None if value is None else value.producer()
    if turn is None or not is_op(turn, "Transpose") or turn.inputs[0] is None:
        return None, None
    above = turn.inputs[0].producer()
    if above is not None and is_op(above, "Cast") and above.inputs[0] is not None:
        above = above.inputs[0].producer()
    return turn, above if is_dequantize(above) else None


def _why_not(pair: QdqPair, turn: ir.Node) -> str:
    if turn.inputs[0] is not pair.read.outputs[0]:
        return "a Cast stands between them, which fold_casts takes out where it can"
    if attribute(pair.read, "block_size", 0):
        return "its scales are per block"
    if edit.shape_of(turn.outputs[0]) is None:
        return "its shape is not known"
    return ""


def _turned_activation(pair: QdqPair, turn: ir.Node, perm: tuple[int, ...]) -> ir.Value:
    store, scale = pair.store, pair.read.inputs[1]
    if store is None or store.inputs[0] is None or store.inputs[1] is None or scale is None:
        raise ValueError(f"{pair.read.name!r} ends no pair")
    axis = perm.index(pair.axis) if pair.per_channel else None
    value = insert_step(store, store.inputs[0], Step("Transpose", perm), replaces=[turn])
    stored = insert_store(store, pair, value, store.inputs[1], axis=axis)
    return insert_read(pair.read, pair, stored, scale, axis=axis, like=turn.outputs[0])


def _turned_weight(pair: QdqPair, turn: ir.Node, perm: tuple[int, ...]) -> ir.Value:
    array, scale = constant_of(pair.stored), pair.read.inputs[1]
    if array is None or scale is None:
        raise ValueError(f"{pair.read.name!r} reads no constant")
    axis = perm.index(pair.axis) if pair.per_channel else None
    graph = edit.graph_of(turn)
    turned = np.ascontiguousarray(array.transpose(perm))
    stored = edit.add_initializer(graph, turned, name=f"{pair.stored.name}/turned", source=pair.stored)
    return insert_read(pair.read, pair, stored, scale, axis=axis, like=turn.outputs[0])
