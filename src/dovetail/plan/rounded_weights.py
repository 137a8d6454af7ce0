"""Weights that are not rounded to nearest: their scales and integers as part of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dovetail.edge import Edge
from dovetail.encoding import Array, QParams
from dovetail.numerics.bias import bias_params
from dovetail.plan.constraints import Operand, Problem, Unit
from dovetail.plan.qparams import per_output_channel
from dovetail.plan.validate import storage_on_edge
from dovetail.plan.weight_scales import adjusted_scales, bias_label
from dovetail.storage import Choice, Plan, Reason, Storage


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeight:
    """A weight on one edge: the qparams that were planned for it, those that it has instead, and its integers.

    ``integers``: None if they are the nearest ones. ``detail``: how it was rounded and what that gains.
    """

    planned: QParams
    params: QParams
    integers: Array | None
    detail: str


def with_rounded_weights(plan: Plan, problem: Problem, rounded: Mapping[Edge, RoundedWeight]) -> Plan:
    """The plan with these weights, as far as it still has the qparams that they were rounded for.

    The scale of an int32 bias follows that of its weight.
    """
    edges, stored = dict(plan.edges), dict(plan.stored)
    for edge, weight in rounded.items():
        choice = edges.get(edge)
        if choice is None or choice.storage != weight.planned:
            continue
        edges[edge] = replace(choice, storage=weight.params, detail=f"{choice.detail}; {weight.detail}")
        if weight.integers is not None:
            stored[edge] = weight.integers
    changed = replace(plan, edges=edges, stored=stored)
    for unit in problem.units:
        if any(operand.edge in rounded for operand in unit.operands) and (bias := _bias(plan, unit)) is not None:
            edges[bias.edge] = _with_scale_of_weight(changed, unit, bias)
    return replace(changed, edges=edges)


def allowed_scales(plan: Plan, unit: Unit, edge: Edge, weight: QParams, array: Array) -> Callable[[QParams], QParams]:
    """Qparams of a weight -> the same, with scales raised where the target's kernel or an int32 bias requires it.

    What kernels require is only known for the second operand: a constant on the left keeps its scales.
    """
    if next(operand.slot for operand in unit.operands if operand.edge == edge) != 1:
        return lambda params: weight
    source, output = _read(plan, unit, 0), plan.tensors[unit.outputs[0].name or ""].storage
    bias = _bias(plan, unit)

    return lambda params: adjusted_scales(unit, params, array, source, output, bias).params


def _bias(plan: Plan, unit: Unit) -> Operand | None:
    """The bias whose scale is derived from that of the weight."""
    for operand in unit.operands:
        choice = plan.edges.get(operand.edge)
        if choice is not None and choice.why is Reason.BIAS and isinstance(choice.storage, QParams):
            return operand
    return None


def _with_scale_of_weight(plan: Plan, unit: Unit, bias: Operand) -> Choice:
    source, weight = (_read(plan, unit, slot) for slot in (0, 1))
    if not isinstance(source, QParams) or not isinstance(weight, QParams):
        raise TypeError(f"{bias_label(bias)} is quantized, but the input or the weight of {unit.label} is not")
    scales = per_output_channel(unit.nodes[0], weight)
    return replace(plan.edges[bias.edge], storage=bias_params(source.scale, scales, label=bias_label(bias)))


def _read(plan: Plan, unit: Unit, slot: int) -> Storage:
    operand = next(operand for operand in unit.operands if operand.slot == slot)
    return storage_on_edge(plan, operand.edge, operand.name)
