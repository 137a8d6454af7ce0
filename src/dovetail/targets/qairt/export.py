"""The encodings of a plan in the version that an SDK reads, complete, so that the converter has no gap to fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.encodings import v0_6_1, v1_0_0, v2_0_0
from dovetail.encodings.as_plan import encodings_of, entry_of
from dovetail.encodings.convert import convert
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.shapes import model_tensors
from dovetail.model.edit import add_initializer, constant_of
from dovetail.model.origin import carry, each_value, origin_of
from dovetail.plan.same_values import as_symmetric
from dovetail.storage import Choice, Plan, Reason
from dovetail.targets.qairt.coloring import Domain, domains, float_tensors
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.predict import FLOATS, PredictedTensor
from dovetail.targets.qairt.sdk import Answer, Subject, Version

# What an SDK must read, by the version of the encodings file.
READS = {
    v0_6_1.VERSION: Subject.READS_0_6_1,
    v1_0_0.VERSION: Subject.READS_1_0_0,
    v2_0_0.VERSION: Subject.READS_2_0_0,
    v2_0_0.READ_ONLY: Subject.READS_2_1_0,
}
_BIAS_BITS = 32
_NO_SUCH_TENSOR = "your file has no tensor with these values: normalizing the graph changed them (a folded BatchNorm)"
_ONE_CONSTANT = (
    "your file has one constant for consumers that read it differently: give each its own, or drop keep_graph"
)
_ONE_ENTRY = "an encodings file has one entry per tensor, which cannot say how one operator reads it"


def version_of(sdk: Version, entries: Mapping[str, TensorEncoding]) -> str:
    """The version of encodings that an SDK reads; 2.0.0 has no float entries, 0.6.1 no blocks."""
    floats = any(entry.is_float for entry in entries.values())
    if fact(Subject.READS_2_0_0, sdk).answer is Answer.YES and not floats:
        return v2_0_0.VERSION
    blocks = any(entry.is_blocked for entry in entries.values())
    if blocks or (floats and fact(Subject.READS_1_0_0, sdk).answer is Answer.YES):
        return v1_0_0.VERSION
    return v0_6_1.VERSION


@dataclass(frozen=True, slots=True)
class LostEdge:
    """An edge at which the plan reads a tensor in other qparams than its entry has; ``scale``: if only that differs."""

    edge: Edge
    tensor: str
    dtype: DType
    scale: float | None = None

    @property
    def read_as(self) -> str:
        return f"{self.dtype}" if self.scale is None else f"{self.dtype} with scale {self.scale:.6g}"

    def __str__(self) -> str:
        return f"{self.edge} reads {self.tensor!r} as {self.read_as}"


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """The entries of a plan, by the names of the graph that is converted; ``lost``: edges that encodings cannot have.

    A file has one entry per tensor, so that a consumer which reads it in another encoding is left to the converter.
    ``symmetric``: tensors whose entry is signed, with the values of the unsigned dtype that the plan has.
    """

    entries: Mapping[str, TensorEncoding]
    lost: tuple[LostEdge, ...] = ()
    symmetric: frozenset[str] = frozenset()


def one_storage_per_constant(model: ir.Model, plan: Plan) -> ir.Model:
    """The graph with copies of constants that consumers read in different storages: encodings have one entry each."""
    model = model.clone()
    for value in list(model.graph.initializers.values()):
        groups: dict[object, list[tuple[ir.Node, int]]] = {}
        for node, index in value.uses():
            choice = plan.edges.get(Edge(str(node.name), index))
            groups.setdefault(None if choice is None else choice.storage, []).append((node, index))
        if (array := constant_of(value)) is None:
            continue
        for uses in list(groups.values())[1:]:
            copy = add_initializer(model.graph, array, name=f"{value.name}/copy", source=value)
            carry(copy, value)
            for node, index in uses:
                node.replace_input_with(index, copy)
    return model


def exported(model: ir.Model, plan: Plan) -> Exported:
    """The entries of every tensor and constant that the plan stores, float ones included."""
    symmetric = _symmetric_entries(model, plan)
    entries = {**encodings_of(plan, model).entries, **symmetric}
    return Exported(entries, lost_edges(model, plan, entries), frozenset(symmetric))


def _symmetric_entries(model: ir.Model, plan: Plan) -> dict[str, TensorEncoding]:
    """The entries of tensors that a consumer requires to be symmetric and that have such values, marked as symmetric.

    Tensors that share their qparams have the same entry, and so has a constant that joins them. A Conv and Relu that
    write such a tensor are not fused: zero is not its lowest integer.
    """
    groups: dict[str, QParams] = {}
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            read = plan.edges.get(Edge(str(node.name), index))
            own = None if value is None else plan.tensors.get(str(value.name))
            if value is None or read is None or own is None or not isinstance(own.storage, QParams):
                continue
            if isinstance(read.storage, QParams) and as_symmetric(own.storage, read.storage.encoding) == read.storage:
                groups[own.group or str(value.name)] = read.storage
    found = {name: groups[c.group or name] for name, c in plan.tensors.items() if (c.group or name) in groups}
    for node in model.graph:
        output = found.get(str(node.outputs[0].name)) if node.outputs else None
        for index, value in enumerate(node.inputs):
            choice = plan.edges.get(Edge(str(node.name), index))
            is_constant = value is not None and constant_of(value) is not None
            if output is not None and choice is not None and choice.why is Reason.SHARED and is_constant:
                found[str(value.name if value is not None else "")] = output
    return {name: entry_of(name, params, False) for name, params in found.items()}


def lost_edges(model: ir.Model, plan: Plan, entries: Mapping[str, TensorEncoding]) -> tuple[LostEdge, ...]:
    """The edges of a graph, or of a part of it, that read an activation in other qparams than those of its entry."""
    lost = []
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            edge = Edge(str(node.name), index)
            choice = plan.edges.get(edge)
            if value is None or choice is None or constant_of(value) is not None:
                continue
            name = str(value.name)
            entry, read = entries.get(name), choice.storage
            if isinstance(read, QParams) and entry != entry_of(name, read, False):
                same_dtype = entry is not None and entry.dtype_text == str(read.dtype)
                lost.append(LostEdge(edge, name, read.dtype, float(read.scale) if same_dtype else None))
    return tuple(lost)


def part_entries(part: ir.Model, plan: Plan, entries: Mapping[str, TensorEncoding]) -> dict[str, TensorEncoding]:
    """The integer entries of a part, and one for each of its inputs that is quantized only where it is read."""
    own = {str(value.name) for value in each_value(part.graph)}
    added = {name: entry for name, entry in integers_only(entries).items() if name in own}
    inputs = {str(value.name) for value in part.graph.inputs}
    for node in part.graph:
        for index, value in enumerate(node.inputs):
            choice = plan.edges.get(Edge(str(node.name), index))
            name = "" if value is None else str(value.name)
            if name in inputs and choice is not None and isinstance(choice.storage, QParams):
                added.setdefault(name, entry_of(name, choice.storage, False))
    return added


def integers_only(entries: Mapping[str, TensorEncoding]) -> dict[str, TensorEncoding]:
    """The entries without those of float tensors."""
    return {name: entry for name, entry in entries.items() if not entry.is_float}


def encodings_file(model: ir.Model, entries: Mapping[str, TensorEncoding], version: str) -> bytes:
    """The content of an encodings file; what the version cannot carry is an error that names it."""
    return convert(Encodings(v2_0_0.VERSION, entries), version, model_tensors(model)).content


def by_original_name(model: ir.Model, entries: Mapping[str, TensorEncoding]) -> dict[str, TensorEncoding]:
    """The entries of tensors that the caller's own file has, by their names there; the first one of several."""
    return {name: several[0] for name, several in _all_by_original_name(model, entries).items()}


def _all_by_original_name(model: ir.Model, entries: Mapping[str, TensorEncoding]) -> dict[str, list[TensorEncoding]]:
    """All entries of each tensor of the caller's own file: of a constant and its copies, each has one."""
    values = {str(value.name): value for value in each_value(model.graph)}
    found: dict[str, list[TensorEncoding]] = {}
    for name, entry in entries.items():
        if name in values and (origin := origin_of(values[name])).exact:
            found.setdefault(origin.name, []).append(replace(entry, name=origin.name))
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor, an edge or an operator whose predicted precision on the device is not the planned one."""

    tensor: str
    planned: str
    predicted: str
    cause: str


def not_as_planned(
    model: ir.Model, plan: Plan, export: Exported, predicted: Mapping[str, PredictedTensor]
) -> tuple[Difference, ...]:
    """The tensors, constants, edges and operators that are predicted in another precision than the plan has.

    Tensors inside fused operators are not stored; float16 and float32 at graph inputs and outputs are the same here.
    """
    rows = []
    for name, choice in _planned(model, plan).items():
        row = predicted.get(name)
        if row is None:
            continue
        dtype = choice.storage.dtype
        planned = export.entries[name].dtype_text if name in export.symmetric else str(dtype)
        same_float = not dtype.is_quantized and row.dtype in FLOATS
        if not same_float and row.dtype != planned:
            rows.append(Difference(name, planned, row.dtype, str(row.cause)))
    rows += _operators_not_as_planned(model, plan, predicted)
    for lost in export.lost:
        row = predicted.get(lost.tensor)
        found = "not predicted" if row is None else row.dtype
        rows.append(Difference(f"{lost.tensor} at {lost.edge}", lost.read_as, found, _ONE_ENTRY))
    return tuple(rows)


def _operators_not_as_planned(
    model: ir.Model, plan: Plan, predicted: Mapping[str, PredictedTensor]
) -> Iterator[Difference]:
    """The operators that compute in float although they are planned in integers, or the other way."""
    planned = domains(model, plan)
    for name, in_float in float_tensors(model, predicted).items():
        domain = planned[name]
        if domain is Domain.NEITHER or (domain is Domain.FLOAT) == (in_float is not None):
            continue
        found, cause = Domain.INTEGER, "all its tensors have entries"
        if in_float is not None:
            found, cause = Domain.FLOAT, f"{in_float.tensor!r} is float: {in_float.cause}"
        yield Difference(f"operator {name}", str(domain), str(found), cause)


def without_original_name(model: ir.Model, entries: Mapping[str, TensorEncoding]) -> tuple[Difference, ...]:
    """The entries that the caller's own file has no tensor for: passes changed the values, as a folded BatchNorm does.

    Biases are not among them: their scale follows from their layer.
    """
    values = {str(value.name): value for value in each_value(model.graph)}
    return tuple(
        Difference(name, entry.dtype_text, "no entry", _NO_SUCH_TENSOR)
        for name, entry in entries.items()
        if name in values and not origin_of(values[name]).exact and entry.bits != _BIAS_BITS
    )


def with_two_entries(model: ir.Model, entries: Mapping[str, TensorEncoding]) -> tuple[Difference, ...]:
    """The tensors of the caller's own file that would need two unequal entries: a constant with two consumers.

    Biases are not among them: their scale follows from their layer.
    """
    rows = []
    for name, several in _all_by_original_name(model, entries).items():
        planned = [entry for entry in several if entry.bits != _BIAS_BITS or entry.is_float]
        others = [entry for entry in planned if entry != planned[0]]
        rows += [Difference(name, _entry_text(entry), _entry_text(planned[0]), _ONE_CONSTANT) for entry in others]
    return tuple(rows)


def _entry_text(entry: TensorEncoding) -> str:
    if entry.is_float or entry.scale.size != 1:
        return entry.dtype_text
    return f"{entry.dtype_text} with scale {float(entry.scale):.6g} and zero point {int(entry.zero_point)}"


def not_predicted(model: ir.Model, plan: Plan, predicted: Mapping[str, PredictedTensor]) -> tuple[str, ...]:
    """The planned tensors and constants that nothing is predicted about."""
    return tuple(name for name in _planned(model, plan) if name not in predicted)


def _planned(model: ir.Model, plan: Plan) -> dict[str, Choice]:
    """The tensors that the plan stores; those that are quantized only where they are read are edges."""
    nodes = {str(node.name): node for node in model.graph}
    planned = {n: c for n, c in plan.tensors.items() if c.why not in (Reason.INTERIOR, Reason.ON_EDGES)}
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is not None and str(value.name) not in plan.tensors:
            planned.setdefault(str(value.name), choice)
    return planned
