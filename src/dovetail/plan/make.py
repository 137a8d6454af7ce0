"""The plan stage: constraints, groups, signatures and numbers become one storage decision per tensor and edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Encoding, Granularity, QParams
from dovetail.model.edit import constant_of
from dovetail.numerics.bias import bias_overflow, bias_params
from dovetail.op_support import OpTable, Signature
from dovetail.plan.breaks import costly_merges
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.qparams import QParamsBuilder, per_output_channel, widen
from dovetail.plan.request import Pins, Request
from dovetail.plan.solve import Solution, narrower_operands, solve
from dovetail.stats import Stats
from dovetail.storage import Choice, FloatStorage, Plan, Reason, ScaleSource, Storage

# A scale that is grown until a bias fits is grown a little more, so that rounding does not undo it.
_MARGIN = 1.01


def make_plan(
    model: ir.Model, table: OpTable, stats: Stats, request: Request, imported: ImportedQParams | None = None
) -> Plan:
    """Decide how everything in the graph is stored, under the target's constraints; the model is not changed.

    ``imported``: quantization parameters that came with the model, kept where they fit.
    """
    if not request.from_data:
        stats = replace(stats, tensors={})
    separate = _separate(model, table, stats, request)
    problem = build_problem(model, table, separate)
    solution = solve(problem, request)
    writer = _Writer(
        problem, solution, QParamsBuilder(problem, stats, request.method, imported), separate, request.pins
    )
    return Plan(
        target=table.target,
        precision=request.precision.name,
        tensors=writer.tensors(),
        edges=writer.edges(),
        quantized_io=request.quantized_io,
    )


def narrower(model: ir.Model, table: OpTable, stats: Stats, request: Request) -> dict[Edge, Encoding]:
    """The operands that this request plans wider than the target needs them: edge -> the narrower encoding."""
    problem = build_problem(model, table, _separate(model, table, stats, request))
    return narrower_operands(problem, solve(problem, request))


def _separate(model: ir.Model, table: OpTable, stats: Stats, request: Request) -> dict[Edge, str]:
    """The edges that convert instead of share, because it is pinned or because sharing would cost too much."""
    return {**request.pins.separate, **costly_merges(build_problem(model, table), stats)}


def observed(model: ir.Model, table: OpTable) -> tuple[str, ...]:
    """The tensors that a plan for this target can need statistics of: each group's sources, less fixed ones."""
    problem = build_problem(model, table)
    names = [name for sources in problem.sources.values() for name in sources]
    return tuple(name for name in names if not _always_fixed(problem.producer.get(name)))


def _always_fixed(unit: Unit | None) -> bool:
    """Whether every integer form that a unit can write has numbers of its own."""
    if unit is None or unit.support is None or not unit.support.fixed:
        return False
    fixed = {entry.dtype for entry in unit.support.fixed}
    return all(s.output.dtype in fixed for s in unit.signatures if s.output.dtype.is_quantized)


def _passed_through(unit: Unit) -> str:
    return f"{unit.label} passes its input's quantization through"


class _Writer:
    """Writes the solution down, tensor by tensor and edge by edge."""

    def __init__(
        self, problem: Problem, solution: Solution, numbers: QParamsBuilder, separate: Mapping[Edge, str], pins: Pins
    ) -> None:
        self._problem = problem
        self._pins = pins
        self._in_float = FloatStorage(problem.table.float_encoding.dtype)
        self._solution = solution
        self._numbers = numbers
        self._separate = separate
        self._groups = {root: self._group(root, names) for root, names in problem.groups.items()}

    def tensors(self) -> dict[str, Choice]:
        choices = {
            name: Choice(self._in_float, Reason.INTERIOR, f"inside {unit.label}, never stored")
            for name, unit in self._problem.interior.items()
        }
        choices.update({name: self._groups[root] for name, root in self._problem.group_of.items()})
        return choices

    def edges(self) -> dict[Edge, Choice]:
        choices: dict[Edge, Choice] = {}
        for unit in self._problem.units:
            signature = self._solution.signatures[unit.name]
            for operand in unit.operands:
                choice = (
                    self._constant(unit, operand, signature, choices)
                    if operand.constant
                    else self._conversion(unit, operand, signature)
                )
                if choice is not None:
                    choices[operand.edge] = choice
        return choices

    def _group(self, root: str, names: tuple[str, ...]) -> Choice:
        decided = self._solution.groups[root]
        label = root if len(names) > 1 else None
        if not decided.encoding.dtype.is_quantized:
            return Choice(FloatStorage(decided.encoding.dtype), decided.why, decided.detail, label)
        scaled = self._numbers.group_params(root, decided.encoding)
        return Choice(scaled.params, decided.why, f"{decided.detail}; {scaled.detail}", label, scaled.source)

    def _conversion(self, unit: Unit, operand: Operand, signature: Signature) -> Choice | None:
        """The explicit conversion on an activation's edge, or None where the consumer takes it as it is stored."""
        stored = self._groups[self._problem.group_of[operand.name]].storage
        if operand in unit.shared():
            output = self._carried(unit)
            if output == stored or isinstance(output, FloatStorage):
                return None
            if operand.edge in self._separate:
                return Choice(output, Reason.SEPARATE, self._separate[operand.edge], scale_from=ScaleSource.DERIVED)
            return Choice(output, Reason.SHARED, _passed_through(unit), scale_from=ScaleSource.DERIVED)
        slot = signature.slot(operand.slot)
        if slot is None:
            return None
        wanted = slot.encoding
        if not wanted.dtype.is_quantized or (isinstance(stored, QParams) and stored.encoding == wanted):
            return None
        why, text = Reason.OPERAND, f"{unit.label} takes {wanted.dtype} here, the tensor is stored as {stored.dtype}"
        if (pin := self._pins.operands.get(operand.edge)) is not None:
            why, text = pin.why, pin.detail
        wider = widen(stored, wanted) if isinstance(stored, QParams) else None
        if wider is not None:
            return Choice(wider, why, text, scale_from=ScaleSource.DERIVED)
        scaled = self._numbers.group_params(self._problem.group_of[operand.name], wanted)
        return Choice(scaled.params, why, f"{text}; {scaled.detail}", scale_from=scaled.source)

    def _carried(self, unit: Unit) -> Storage:
        """The storage of what a unit writes."""
        return self._groups[self._problem.group_of[unit.outputs[0].name or ""]].storage

    def _constant(
        self, unit: Unit, operand: Operand, signature: Signature, done: Mapping[Edge, Choice]
    ) -> Choice | None:
        """How a constant is stored for this consumer."""
        slot = signature.slot(operand.slot)
        array = constant_of(operand.value)
        if slot is None or array is None:
            return None
        if not slot.encoding.dtype.is_quantized:
            text = f"{unit.label} takes this constant in float"
            return Choice(FloatStorage(slot.encoding.dtype), Reason.CONSTANT, text)
        if operand in unit.shared():
            return Choice(self._carried(unit), Reason.SHARED, _passed_through(unit), scale_from=ScaleSource.DERIVED)
        if slot.derived:
            return self._bias(unit, operand, done)
        if array.size == 0:
            return Choice(self._in_float, Reason.CONSTANT, "empty constant")
        joins = unit.support is not None and unit.support.joins
        output = self._carried(unit) if joins else None
        if isinstance(output, QParams) and output.encoding == slot.encoding:
            text = f"{unit.label} puts these bytes beside the others"  # converting them gains nothing
            return Choice(output, Reason.SHARED, text, scale_from=ScaleSource.DERIVED)
        params, source, words = self._numbers.constant_params(unit.nodes[0], operand, slot.encoding, array)
        follows = signature.slot(2)  # a bias whose scale is made from this one
        if operand.slot == 1 and follows is not None and follows.derived:
            params = self._room_for_bias(unit, params, done)
        if slot.encoding.granularity is Granularity.AXIS:
            text = f"{unit.label} weight, {params.dtype} per channel on axis {params.axis}{words}"
        else:
            text = f"constant operand of {unit.label}, its own range{words}"
        pin = self._pins.operands.get(operand.edge)
        why, text = (Reason.CONSTANT, text) if pin is None else (pin.why, pin.detail)
        return Choice(params, why, text, scale_from=source)

    def _seen(self, unit: Unit, operand: Operand, done: Mapping[Edge, Choice]) -> Storage:
        """The storage that the unit sees on this operand's edge."""
        if operand.edge in done:
            return done[operand.edge].storage
        return self._groups[self._problem.group_of[operand.name]].storage

    def _bias(self, unit: Unit, operand: Operand, done: Mapping[Edge, Choice]) -> Choice:
        by_slot = {o.slot: o for o in unit.operands}
        source, weight = (self._seen(unit, by_slot[slot], done) for slot in (0, 1))
        if not isinstance(source, QParams) or not isinstance(weight, QParams):
            return Choice(self._in_float, Reason.BIAS, "bias in float: input or weight is float")
        params = bias_params(source.scale, per_output_channel(unit.nodes[0], weight.scale))
        text = "bias, scale = input scale x weight scale"
        return Choice(params, Reason.BIAS, text, scale_from=ScaleSource.DERIVED)

    def _room_for_bias(self, unit: Unit, weight: QParams, done: Mapping[Edge, Choice]) -> QParams:
        """The weight's scale, grown on channels whose bias would not fit int32 with it."""
        by_slot = {o.slot: o for o in unit.operands}
        bias = constant_of(by_slot[2].value) if 2 in by_slot else None
        source = self._seen(unit, by_slot[0], done)
        if bias is None or bias.ndim != 1 or not isinstance(source, QParams) or not np.all(np.isfinite(bias)):
            return weight
        scales = per_output_channel(unit.nodes[0], weight.scale)
        overflow = bias_overflow(bias, bias_params(source.scale, scales))
        if overflow is None:
            return weight
        scale = np.array(weight.scale).reshape(-1)
        each = np.broadcast_to(scales, bias.shape)
        for channel, growth in zip(overflow.channels, overflow.growth, strict=True):
            index = channel % scale.size  # with groups, or per tensor, several output channels share a scale
            scale[index] = max(scale[index], each[channel] * growth * _MARGIN)
        return QParams(weight.encoding, scale.reshape(weight.scale.shape), weight.zero_point, weight.axis)
