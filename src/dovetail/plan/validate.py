"""Whether a plan can be carried out on a target: used on every plan, above all on one that was edited by hand."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem
from dovetail.storage import IN_FLOAT32, Edge, Plan, Storage
from dovetail.target import Signature, Slot, Target


def validate_plan(plan: Plan, model: ir.Model, target: Target) -> None:
    """Refuse a plan that names what is not there, breaks sharing, or asks an operator for what it does not have."""
    problem = build_problem(model, target)
    _check_names(plan, problem)
    for unit in problem.units:
        _check_sharing(plan, unit)
        _check_signature(plan, unit, target)


def _check_names(plan: Plan, problem: Problem) -> None:
    known = {*problem.group_of, *problem.interior}
    for name in plan.tensors:
        if name not in known:
            raise InputError(f"the plan names tensor {name!r}, which the graph does not have as a float tensor")
    missing = sorted(set(problem.group_of) - set(plan.tensors))
    if missing:
        raise InputError(f"the plan says nothing of tensor {missing[0]!r}")
    edges = {operand.edge for unit in problem.units for operand in unit.operands}
    for edge in plan.edges:
        if edge not in edges:
            raise InputError(f"the plan names edge {str(edge)!r}, which the graph does not have as a float input")


def seen_on(plan: Plan, edge: Edge, tensor: str) -> Storage:
    """The storage that a consumer sees on an edge."""
    choice = plan.edges.get(edge) or plan.tensors.get(tensor)
    return IN_FLOAT32 if choice is None else choice.storage


def _written(plan: Plan, unit: Unit) -> list[tuple[str, Storage]]:
    return [(v.name or "", plan.tensors[v.name or ""].storage) for v in unit.outputs]


def _check_sharing(plan: Plan, unit: Unit) -> None:
    """Where an operator only moves bytes, what goes in and what comes out must be stored alike."""
    for operand in unit.shared():
        seen = seen_on(plan, operand.edge, operand.name)
        for name, storage in _written(plan, unit):
            if isinstance(storage, QParams) and isinstance(seen, QParams) and seen != storage:
                raise InputError(
                    f"the plan stores {operand.name!r} and {name!r} differently, but {unit.label} {unit.name!r} "
                    "only moves bytes"
                )


def _check_signature(plan: Plan, unit: Unit, target: Target) -> None:
    if not unit.outputs:
        return
    outputs = {storage.dtype for _, storage in _written(plan, unit)}
    inputs = [(o, seen_on(plan, o.edge, o.name)) for o in unit.operands]
    if not any(outputs <= {s.output.dtype} and _accepts(s, inputs) for s in unit.signatures):
        text = ", ".join(storage.dtype for _, storage in inputs)
        raise InputError(
            f"{unit.label} {unit.name!r} has no form on {target.name} that takes ({text}) and writes "
            f"{', '.join(sorted(outputs))}"
        )


def _accepts(signature: Signature, inputs: list[tuple[Operand, Storage]]) -> bool:
    slots = [(operand, signature.slot(operand.slot), storage) for operand, storage in inputs]
    return all(slot is None or _fits(slot, operand, storage) for operand, slot, storage in slots)


def _fits(slot: Slot, operand: Operand, storage: Storage) -> bool:
    if slot.constant and not operand.constant:
        return False
    if not isinstance(storage, QParams):
        return not slot.encoding.dtype.is_quantized or slot.derived
    if not slot.encoding.dtype.is_quantized:
        return not operand.constant  # an integer tensor is read back into float
    return storage.dtype is slot.encoding.dtype
