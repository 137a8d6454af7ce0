"""Check that a target supports a plan: runs on every plan, and matters most for one that was edited by hand."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.edit import input_axis, shape_of
from dovetail.model.origin import each_value
from dovetail.numerics.bias import bias_params
from dovetail.numerics.block import spread
from dovetail.op_support import OpTable, Signature, Slot
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem
from dovetail.plan.qparams import channel_axis, per_output_channel
from dovetail.storage import IN_FLOAT32, Plan, Storage

# A person who edits a plan writes fewer digits than float32 has.
_SCALE_RTOL = 1e-5


def validate_plan(plan: Plan, model: ir.Model, table: OpTable) -> None:
    """Raise InputError for a plan with unknown names, unequal shared qparams, or an operator without a kernel."""
    problem = build_problem(model, table)
    _check_names(plan, problem)
    _check_scale_shapes(plan, model, problem)
    for unit in problem.units:
        _check_sharing(plan, unit)
        _check_signature(plan, unit, problem)


def _check_names(plan: Plan, problem: Problem) -> None:
    tensors = {*problem.group_of, *problem.interior}
    for name in plan.tensors:
        if name not in tensors:
            raise InputError(f"the plan has a row for tensor {name!r}, but the graph has no float tensor of that name")
    missing = sorted(set(problem.group_of) - set(plan.tensors))
    if missing:
        raise InputError(f"the plan has no row for tensor {missing[0]!r}")
    edges = {operand.edge for unit in problem.units for operand in unit.operands}
    for edge in plan.edges:
        if edge not in edges:
            raise InputError(f"the plan has a row for edge {str(edge)!r}, but the graph has no float input there")


def _check_scale_shapes(plan: Plan, model: ir.Model, problem: Problem) -> None:
    """Check that every scale has the shape that its tensor, axis and granularity require."""
    values = {v.name or "": v for v in each_value(model.graph)}
    operands = {o.edge: o.value for unit in problem.units for o in unit.operands}
    rows = [(f"tensor {name!r}", values[name], choice) for name, choice in plan.tensors.items()]
    rows += [(f"edge {str(edge)!r}", operands[edge], choice) for edge, choice in plan.edges.items()]
    for where, value, choice in rows:
        shape = shape_of(value)
        if isinstance(choice.storage, QParams) and shape is not None:
            try:
                spread(shape, choice.storage)
            except InputError as error:
                raise InputError(f"{where} of the plan: {error}") from error


def storage_on_edge(plan: Plan, edge: Edge, tensor: str) -> Storage:
    """The storage in which a consumer reads a tensor on an edge."""
    choice = plan.edges.get(edge) or plan.tensors.get(tensor)
    return IN_FLOAT32 if choice is None else choice.storage


def _written(plan: Plan, unit: Unit) -> list[tuple[str, Storage]]:
    return [(v.name or "", plan.tensors[v.name or ""].storage) for v in unit.outputs]


def _check_sharing(plan: Plan, unit: Unit) -> None:
    """Check that an operator which passes its input's quantization through has equal qparams on input and output."""
    for operand in unit.shared():
        read = storage_on_edge(plan, operand.edge, operand.name)
        for name, storage in _written(plan, unit):
            if isinstance(storage, QParams) and isinstance(read, QParams) and read != storage:
                raise InputError(
                    f"the plan has different dtypes, scales or zero points for {operand.name!r} and {name!r}, but "
                    f"{unit.label} {unit.name!r} passes its input's quantization through: make them equal"
                )


def _check_signature(plan: Plan, unit: Unit, problem: Problem) -> None:
    if not unit.outputs:
        return
    outputs = _written(plan, unit)
    inputs = [(o, storage_on_edge(plan, o.edge, o.name)) for o in unit.operands]
    as_read = _written_as_read(plan, unit, problem)
    for signature in unit.signatures:
        in_float = as_read and not signature.output.dtype.is_quantized
        if (in_float or all(_writes(signature.output, s) for _, s in outputs)) and _accepts(signature, inputs):
            _check_channels(unit, signature, inputs)
            _check_derived(unit, signature, {o.slot: (o, storage) for o, storage in inputs})
            return
    read = ", ".join(f"{operand.name!r} as {_describe(storage)}" for operand, storage in inputs)
    written = ", ".join(f"{name!r} as {_describe(storage)}" for name, storage in outputs)
    raise InputError(
        f"{problem.table.target} has no kernel for {unit.label} {unit.name!r} that reads {read} and writes {written}"
    )


def _written_as_read(plan: Plan, unit: Unit, problem: Problem) -> bool:
    """Whether a float operator may write its output quantized, as its consumers read it, without a conversion.

    This needs a format with one encoding per tensor, and an input in float, by which the operator is seen as float.
    """
    reads_float = any(
        not storage_on_edge(plan, o.edge, o.name).dtype.is_quantized
        for o in unit.operands
        if not o.constant and o.edge not in plan.edges
    )
    outputs = {value.name for value in problem.outputs}
    return (
        problem.table.one_encoding
        and not unit.shared()
        and reads_float
        and all(name not in outputs and _is_read_as(problem, name, storage) for name, storage in _written(plan, unit))
    )


def _is_read_as(problem: Problem, name: str, storage: Storage) -> bool:
    """Whether all consumers of a tensor have a kernel that reads it in this storage."""
    slots = [
        [s.slot(o.slot) for s in unit.signatures]
        for unit in problem.readers.get(name, ())
        for o in unit.operands
        if o.name == name
    ]
    return bool(slots) and all(any(s is not None and _writes(s.encoding, storage) for s in each) for each in slots)


def _describe(storage: Storage) -> str:
    if not isinstance(storage, QParams) or storage.encoding.granularity is Granularity.TENSOR:
        return str(storage.dtype)
    return f"{storage.dtype} per {storage.encoding.granularity}"


def _check_channels(unit: Unit, signature: Signature, inputs: list[tuple[Operand, Storage]]) -> None:
    """Check that a weight has its scales per output channel, or blocks along the input channels."""
    for operand, storage in inputs:
        slot, shape = signature.slot(operand.slot), shape_of(operand.value)
        if slot is None or slot.derived or shape is None or not isinstance(storage, QParams) or storage.axis is None:
            continue
        if storage.encoding.is_blocked:
            expected, channels = input_axis(unit.nodes[0], len(shape)), "input"
        else:
            expected, channels = channel_axis(unit.nodes[0], operand.edge.index, len(shape)), "output"
        if storage.axis % len(shape) != expected:
            raise InputError(
                f"edge {str(operand.edge)!r} of the plan: axis {storage.axis} of {operand.name!r} is not the "
                f"{channels} channel axis of {unit.label}, which is axis {expected}"
            )


def _check_derived(unit: Unit, signature: Signature, by_slot: dict[int, tuple[Operand, Storage]]) -> None:
    """Check that an int32 bias has the scale of the accumulator that it is added to: input scale x weight scale."""
    for index, (operand, storage) in by_slot.items():
        slot = signature.slot(index)
        if slot is None or not slot.derived or not isinstance(storage, QParams):
            continue
        source, weight = (by_slot[i][1] for i in (0, 1))
        if not isinstance(source, QParams) or not isinstance(weight, QParams):
            raise InputError(
                f"edge {str(operand.edge)!r} of the plan: bias {operand.name!r} is quantized, but the input or the "
                "weight is float: quantize all three or none"
            )
        scales = per_output_channel(unit.nodes[0], weight)
        expected = bias_params(source.scale, scales, label=f"bias {operand.name!r}").scale
        if storage.scale.shape != expected.shape or not np.allclose(storage.scale, expected, rtol=_SCALE_RTOL, atol=0):
            raise InputError(
                f"edge {str(operand.edge)!r} of the plan: the scale of bias {operand.name!r} must be input scale x "
                f"weight scale, {_first(expected):.9g} and not {_first(storage.scale):.9g}"
            )


def _first(scale: Array) -> float:
    return float(scale.reshape(-1)[0])


def _writes(encoding: Encoding, storage: Storage) -> bool:
    return storage.dtype is encoding.dtype and _no_finer(storage, encoding)


def _no_finer(storage: Storage, encoding: Encoding) -> bool:
    """Whether a storage's granularity is supported: per tensor always, per channel or block only if it is the same."""
    return not isinstance(storage, QParams) or (
        storage.encoding.granularity is Granularity.TENSOR
        or (
            storage.encoding.granularity is encoding.granularity
            and encoding.block_size in (0, storage.encoding.block_size)
        )
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
        return not operand.constant and _no_finer(storage, slot.encoding)  # a quantized tensor is dequantized
    return _writes(slot.encoding, storage)
