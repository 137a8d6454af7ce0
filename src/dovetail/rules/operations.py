"""Operators of a QDQ graph as a compiler gets them: what each reads and writes in stored form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.encoding import DType, Granularity, QParams
from dovetail.model.edit import constant_of, is_op, shape_of, sole_consumer
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node
from dovetail.plan.constraints import Operand, Unit, build_problem, op_key
from dovetail.plan.validate import seen_on
from dovetail.rules.check_input import CheckInput
from dovetail.storage import IN_FLOAT32, Plan, Storage

LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
BIAS_INPUT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operator, or a chain that runs as one, with the storage of every float operand and result.

    ``op`` is what it runs as: MatMul and Add with nothing stored between them are a Gemm.
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
        """Whether the model means it to run on integers: all activations and results are stored as such."""
        stored = (*self.activations, *self.outputs)
        return bool(self.activations and self.outputs) and all(isinstance(each, QParams) for each in stored)

    def read(self, index: int) -> tuple[Operand, Storage] | None:
        """The operand at an input of the first node, with its storage."""
        return next((each for each in self.inputs if each[0].slot == index), None)

    @property
    def stranded(self) -> bool:
        """Whether it reads a constant that only an integer kernel takes: in float, reading that back is refused."""
        stored = [each for each in self.constants if isinstance(each, QParams)]
        return any(each.dtype is DType.S32 or each.encoding.granularity is not Granularity.TENSOR for each in stored)


def operations(subject: CheckInput) -> Iterator[Operation]:
    """Every operator of a graph whose storage is decided; none of a graph that is still float."""
    plan = subject.plan
    if plan is None:
        return
    units = build_problem(subject.model, subject.table).units
    heads = {unit.nodes[0]: unit for unit in units}
    done: set[ir.Node] = set()
    for unit in units:
        if unit.nodes[0] in done:
            continue
        layer = _layer(unit, heads, plan)
        done.update(layer.nodes)
        inputs = tuple((operand, seen_on(plan, operand.edge, operand.name)) for operand in layer.operands)
        chosen = [plan.tensors.get(value.name or "") for value in layer.outputs]
        outputs = tuple(IN_FLOAT32 if choice is None else choice.storage for choice in chosen)
        yield Operation("Gemm" if layer is not unit else op_key(unit.nodes[0]), layer, inputs, outputs)


def _layer(unit: Unit, heads: Mapping[ir.Node, Unit], plan: Plan) -> Unit:
    """The unit; MatMul by a matrix, Add of a vector and Relu as one, which onnxruntime makes a Gemm of."""
    matmul = unit.nodes[0]
    add = _follower(unit, heads, plan, "Add") if is_op(matmul, "MatMul") else None
    if add is None or constant_of(matmul.inputs[1]) is None or len(shape_of(matmul.inputs[1]) or ()) != 2:
        return unit
    bias = next((operand for operand in add.operands if operand.constant), None)
    if bias is None or len(shape_of(bias.value) or ()) != 1:
        return unit
    relu = _follower(add, heads, plan, "Relu")
    parts = (unit, add) if relu is None else (unit, add, relu)
    nodes = tuple(part.nodes[0] for part in parts)
    return Unit(nodes, unit.support, (*unit.operands, replace(bias, slot=BIAS_INPUT)), parts[-1].outputs)


def _follower(unit: Unit, heads: Mapping[ir.Node, Unit], plan: Plan, op: str) -> Unit | None:
    """The one operator that reads a result which is not stored, if it is the one that is asked for."""
    value = unit.outputs[0] if len(unit.outputs) == 1 else None
    node = None if value is None else sole_consumer(value)
    choice = None if value is None else plan.tensors.get(value.name or "")
    stored = choice is not None and isinstance(choice.storage, QParams)
    return heads.get(node) if node is not None and is_op(node, op) and not stored else None


def say(node: ir.Node) -> str:
    """A node in a sentence."""
    return f"{node.op_type} {str(at_node(node))!r}"


def named(operand: Operand) -> str:
    """The caller's name of an operand."""
    return origin_of(operand.value).name


def words(storage: Storage) -> str:
    """A storage in a sentence."""
    return str(storage.dtype) if storage.dtype.is_quantized else "float"
