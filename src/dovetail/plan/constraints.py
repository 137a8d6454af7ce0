"""The planning problem of one graph on one target: units (fused operators), and groups with shared qparams."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import FLOAT32, Encoding
from dovetail.model.edit import constant_of, is_float, sole_consumer
from dovetail.op_support import Chain, OpSupport, OpTable, Signature, Slot
from dovetail.plan.groups import UnionFind


@dataclass(frozen=True, slots=True)
class Operand:
    """A float input of a unit: its edge in the graph, and its slot in the unit's signature."""

    edge: Edge
    value: ir.Value
    slot: int
    constant: bool

    @property
    def name(self) -> str:
        return self.value.name or ""


@dataclass(frozen=True)
class Unit:
    """An operator as the target runs it: one node, or a fused chain of nodes with no quantization in between."""

    nodes: tuple[ir.Node, ...]
    support: OpSupport | None
    operands: tuple[Operand, ...]
    outputs: tuple[ir.Value, ...]
    float_encoding: Encoding = FLOAT32
    chain: Chain | None = None

    @property
    def name(self) -> str:
        return self.nodes[0].name or ""

    @property
    def label(self) -> str:
        return "+".join(node.op_type for node in self.nodes)

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The signatures available for this unit; an operator that is not in the target's table runs in float."""
        in_float = Signature((Slot(self.float_encoding),), self.float_encoding, variadic=True)
        if self.support is None:
            return (in_float,)
        head = self.nodes[0]
        return tuple(s for s in self.support.signatures if s.when is None or not s.when(head)) or (in_float,)

    def shared(self) -> tuple[Operand, ...]:
        """The operands whose quantization passes through to the outputs."""
        if self.support is None or self.support.shares == ():
            return ()
        indices = self.support.shares
        return tuple(o for o in self.operands if indices is None or o.slot in indices)


@dataclass(frozen=True, slots=True)
class Problem:
    """What has to be decided: the units in graph order, and the groups of values that share their qparams.

    ``group_of`` maps every float value that can be quantized to its group's representative. ``sources``: the members
    of a group whose values are not passed through from another member; only these need statistics. ``interior``: the
    values between the nodes of a fused unit, which are never quantized. ``readers``: the consumers of each value.
    """

    table: OpTable
    units: tuple[Unit, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    interior: Mapping[str, Unit]
    groups: Mapping[str, tuple[str, ...]]
    group_of: Mapping[str, str]
    sources: Mapping[str, tuple[str, ...]]
    producer: Mapping[str, Unit]
    values: Mapping[str, ir.Value]
    readers: Mapping[str, tuple[Unit, ...]]

    def readers_of(self, names: Iterable[str]) -> list[Unit]:
        """The units that consume these values; a unit is listed once for each value that it consumes."""
        return [unit for name in names for unit in self.readers.get(name, ())]

    def writers_of(self, root: str) -> list[Unit]:
        """The units that produce a group's values, in graph order."""
        producers = [self.producer[name] for name in self.groups[root] if name in self.producer]
        return list({unit.name: unit for unit in producers}.values())


def build_problem(model: ir.Model, table: OpTable) -> Problem:
    """Collect the units and sharing groups of a graph."""
    graph = model.graph
    units = _units(graph, table)
    inputs = tuple(v for v in graph.inputs if is_float(v))
    readers: dict[str, list[Unit]] = {}
    for unit in units:
        for name in dict.fromkeys(operand.name for operand in unit.operands):
            readers.setdefault(name, []).append(unit)
    groups, sources = _groups(units, inputs, frozenset())
    return Problem(
        table=table,
        units=units,
        inputs=inputs,
        outputs=tuple(v for v in graph.outputs if is_float(v)),
        interior={v.name or "": unit for unit in units for n in unit.nodes[:-1] for v in n.outputs},
        groups=groups,
        group_of={name: root for root, names in groups.items() for name in names},
        sources=sources,
        producer={v.name or "": unit for unit in units for v in unit.outputs},
        values={v.name or "": v for v in (*inputs, *(v for unit in units for v in unit.outputs))},
        readers={name: tuple(consumers) for name, consumers in readers.items()},
    )


def with_conversions(problem: Problem, edges: Collection[Edge]) -> Problem:
    """The same problem, where these edges do not share qparams: they convert."""
    if not edges:
        return problem
    groups, sources = _groups(problem.units, problem.inputs, frozenset(edges))
    group_of = {name: root for root, names in groups.items() for name in names}
    return replace(problem, groups=groups, group_of=group_of, sources=sources)


def with_group_divided(problem: Problem, root: str, edges: Collection[Edge]) -> Problem:
    """The same problem, where these edges do not share qparams; only those inside the group ``root`` may be new."""
    members = frozenset(problem.groups[root])
    inputs = tuple(value for value in problem.inputs if value.name in members)
    divided, sources = _groups(tuple(problem.writers_of(root)), inputs, frozenset(edges))
    roots = [new for new in divided if new in members]  # other outputs of the same units are in other groups
    groups = {old: names for old, names in problem.groups.items() if old != root}
    return replace(
        problem,
        groups={**groups, **{new: divided[new] for new in roots}},
        group_of={**problem.group_of, **{name: new for new in roots for name in divided[new]}},
        sources={**problem.sources, **{new: sources[new] for new in roots}},
    )


def _groups(
    units: tuple[Unit, ...], inputs: tuple[ir.Value, ...], converted: frozenset[Edge]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """The values that share qparams, by group, and of each group those that are not passed through from another."""
    names = [v.name or "" for v in inputs]
    names += [v.name or "" for unit in units for v in unit.outputs]
    groups = UnionFind(names)
    passed_through: set[str] = set()
    for unit in units:
        for operand in unit.shared():
            passed_through.update(output.name or "" for output in unit.outputs)
            for output in unit.outputs:
                if not operand.constant and operand.edge not in converted:
                    groups.union(operand.name, output.name or "")
    members = groups.sets()
    sources = {root: tuple(n for n in names if n not in passed_through) for root, names in members.items()}
    return members, sources


def sharing_without(problem: Problem, name: str, *, without: Unit) -> tuple[str, ...]:
    """The values that would share their qparams with ``name`` if the unit ``without`` did not pass them through."""
    reached, waiting = {name}, [name]
    while waiting:
        value = waiting.pop()
        producer = problem.producer.get(value)
        neighbors = (*problem.readers.get(value, ()), *(() if producer is None else (producer,)))
        for unit in neighbors:
            inputs = [operand.name for operand in unit.shared() if not operand.constant]
            outputs = [output.name or "" for output in unit.outputs]
            if unit is not without and inputs and (value in inputs or value in outputs):
                more = [tensor for tensor in dict.fromkeys((*inputs, *outputs)) if tensor not in reached]
                reached.update(more)
                waiting += more
    return tuple(member for member in problem.groups[problem.group_of[name]] if member in reached)


def _units(graph: ir.Graph, table: OpTable) -> tuple[Unit, ...]:
    chained: set[int] = set()
    units = []
    for node in graph:
        if id(node) in chained:
            continue
        chain, nodes = _chain_from(node, table.chains)
        chained.update(id(n) for n in nodes)
        units.append(_unit(nodes, chain, table))
    return tuple(units)


def op_key(node: ir.Node) -> str:
    """The name of a node's operator in a target's table."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def _chain_from(node: ir.Node, chains: tuple[Chain, ...]) -> tuple[Chain | None, tuple[ir.Node, ...]]:
    """The longest chain of the target that starts at this node and whose inner values have no other consumer."""
    longest: tuple[Chain | None, tuple[ir.Node, ...]] = (None, (node,))
    for chain in chains:
        nodes = _follow(node, chain)
        if nodes is not None and len(nodes) > len(longest[1]):
            longest = (chain, nodes)
    return longest


def _follow(node: ir.Node, chain: Chain) -> tuple[ir.Node, ...] | None:
    """The nodes of this chain from ``node`` on; None if the graph does not have it here."""
    if op_key(node) != chain.ops[0]:
        return None
    nodes = [node]
    for position, op in enumerate(chain.ops[1:]):
        if len(nodes[-1].outputs) != 1:
            return None
        inside = nodes[-1].outputs[0]
        follower = sole_consumer(inside)
        if follower is None or op_key(follower) != op:
            return None
        side_inputs = [v for v in follower.inputs if v is not None and v is not inside]
        if chain.bias and position == 0:
            if len(side_inputs) != 1 or not _is_bias(node, side_inputs[0]):
                return None
        elif any(constant_of(v) is None for v in side_inputs):
            return None
        nodes.append(follower)
    return tuple(nodes)


def _is_bias(node: ir.Node, value: ir.Value) -> bool:
    """Whether a value is a bias of this linear node: a constant with one element per output channel of its weight."""
    array = constant_of(value)
    weight = constant_of(node.inputs[1])
    return array is not None and weight is not None and array.ndim == 1 and array.shape[0] == weight.shape[-1]


def _unit(nodes: tuple[ir.Node, ...], chain: Chain | None, table: OpTable) -> Unit:
    head = nodes[0]
    slots = [(head, index, index) for index in range(len(head.inputs))]
    if chain is not None and chain.bias:
        inside = head.outputs[0]
        slots += [(nodes[1], i, len(head.inputs)) for i, v in enumerate(nodes[1].inputs) if v is not inside]
    operands = tuple(
        Operand(Edge(node.name or "", index), value, slot, constant_of(value) is not None)
        for node, index, slot in slots
        if (value := node.inputs[index]) is not None and is_float(value)
    )
    outputs = tuple(v for v in nodes[-1].outputs if is_float(v))
    return Unit(nodes, table.ops.get(op_key(head)), operands, outputs, table.float_encoding, chain)
