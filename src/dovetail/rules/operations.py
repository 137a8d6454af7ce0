"""Operators of a QDQ graph as a compiler sees them: each with the quantization of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import onnx_ir as ir

from dovetail.encoding import DType, Granularity, QParams
from dovetail.model.edit import constant_of, is_op, shape_of, sole_consumer
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node
from dovetail.plan.constraints import Operand, Unit, op_key
from dovetail.plan.validate import storage_on_edge
from dovetail.rules.check_input import CheckInput
from dovetail.storage import IN_FLOAT32, Plan, Storage

LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
BIAS_INPUT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operator, or a chain that runs as one, with the dtype and qparams of every float input and every used output.

    ``op`` is what it runs as: a MatMul and an Add without a Q/DQ pair between them are a Gemm.
    """

    op: str
    unit: Unit
    inputs: tuple[tuple[Operand, Storage], ...]
    outputs: tuple[Storage, ...]

    @property
    def node(self) -> ir.Node:
        return self.unit.nodes[0]

    @property
    def activations(self) -> tuple[Storage, ...]:
        return tuple(storage for operand, storage in self.inputs if not operand.constant)

    @property
    def constants(self) -> tuple[Storage, ...]:
        return tuple(storage for operand, storage in self.inputs if operand.constant)

    @property
    def in_integers(self) -> bool:
        """Whether the model intends an integer kernel: all activation inputs and all outputs are quantized."""
        return bool(self.outputs) and self.is_quantized

    @property
    def is_quantized(self) -> bool:
        """The same for any operator, also one that has no float output, only indices, booleans or a shape."""
        tensors = (*self.activations, *self.outputs)
        return bool(self.activations) and all(isinstance(storage, QParams) for storage in tensors)

    def input_at(self, index: int) -> tuple[Operand, Storage] | None:
        """The operand at an input of the first node, with its storage."""
        return next(((operand, storage) for operand, storage in self.inputs if operand.slot == index), None)

    @property
    def needs_integer_kernel(self) -> bool:
        """Whether it has an int32, per-channel or per-block constant, which a compiler cannot dequantize to float."""
        quantized = [storage for storage in self.constants if isinstance(storage, QParams)]
        return any(s.dtype is DType.S32 or s.encoding.granularity is not Granularity.TENSOR for s in quantized)


# The operators of the inputs that are being checked.
_OPERATIONS: WeakKeyDictionary[CheckInput, tuple[Operation, ...]] = WeakKeyDictionary()


def operations(subject: CheckInput) -> tuple[Operation, ...]:
    """Every operator of a graph that has a plan; nothing for a float graph without one. Nearly every rule asks."""
    if subject not in _OPERATIONS:
        _OPERATIONS[subject] = tuple(_operations(subject))
    return _OPERATIONS[subject]


def _operations(subject: CheckInput) -> Iterator[Operation]:
    plan = subject.plan
    if plan is None:
        return
    units = subject.problem.units
    heads = {unit.nodes[0]: unit for unit in units}
    done: set[ir.Node] = set()
    for unit in units:
        if unit.nodes[0] in done:
            continue
        layer = _layer(unit, heads, plan)
        done.update(layer.nodes)
        inputs = tuple((operand, storage_on_edge(plan, operand.edge, operand.name)) for operand in layer.operands)
        used = [value for value in layer.outputs if value.uses() or value.is_graph_output()]
        choices = [plan.tensors.get(value.name or "") for value in used]
        outputs = tuple(IN_FLOAT32 if choice is None else choice.storage for choice in choices)
        yield Operation("Gemm" if layer is not unit else op_key(unit.nodes[0]), layer, inputs, outputs)


def _layer(unit: Unit, heads: Mapping[ir.Node, Unit], plan: Plan) -> Unit:
    """The unit itself, or MatMul by a matrix, Add of a vector and Relu as one Gemm, as onnxruntime fuses them."""
    matmul = unit.nodes[0]
    add = _follower(unit, heads, plan, "Add") if is_op(matmul, "MatMul") else None
    if add is None or constant_of(matmul.inputs[1]) is None or len(shape_of(matmul.inputs[1]) or ()) != 2:
        return unit
    bias = next((operand for operand in add.operands if operand.constant), None)
    if bias is None or len(shape_of(bias.value) or ()) != 1:
        return unit
    relu = _follower(add, heads, plan, "Relu")
    fused = (unit, add) if relu is None else (unit, add, relu)
    nodes = tuple(member.nodes[0] for member in fused)
    return Unit(nodes, unit.support, (*unit.operands, replace(bias, slot=BIAS_INPUT)), fused[-1].outputs)


def _follower(unit: Unit, heads: Mapping[ir.Node, Unit], plan: Plan, op: str) -> Unit | None:
    """The only consumer of an output that is not quantized, if that consumer is an ``op``; None otherwise."""
    value = unit.outputs[0] if len(unit.outputs) == 1 else None
    node = None if value is None else sole_consumer(value)
    choice = None if value is None else plan.tensors.get(value.name or "")
    quantized = choice is not None and isinstance(choice.storage, QParams)
    return heads.get(node) if node is not None and is_op(node, op) and not quantized else None


def say(node: ir.Node) -> str:
    """A node in a message: its operator type and its original name."""
    return f"{node.op_type} {str(at_node(node))!r}"


def original_name(operand: Operand) -> str:
    """The name that an operand has in the caller's model."""
    return origin_of(operand.value).name


def dtype_text(storage: Storage) -> str:
    """The dtype of a storage in a message; ``float`` for every float dtype."""
    return str(storage.dtype) if storage.dtype.is_quantized else "float"
