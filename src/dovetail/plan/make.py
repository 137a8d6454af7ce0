"""The plan stage: one dtype, scale and zero point per tensor and edge, from groups, signatures and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Array, Encoding, Granularity, QParams
from dovetail.model.edit import constant_of
from dovetail.numerics.bias import bias_params
from dovetail.op_support import OpTable, Precision, Signature
from dovetail.plan.blocks import WEIGHT, why_no_blocks
from dovetail.plan.breaks import costly_merges, negative_merges
from dovetail.plan.constraints import Operand, Problem, Unit, build_problem, with_conversions
from dovetail.plan.early_conversions import early_conversions
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.one_encoding import also_in_float, given_groups, stored_as_read, symmetric_reads
from dovetail.plan.qparams import QParamsBuilder, per_output_channel, widen
from dovetail.plan.request import Pins, Request
from dovetail.plan.same_values import as_symmetric
from dovetail.plan.solve import Solution, narrower_operands, solve
from dovetail.plan.weight_scales import AdjustedScales, adjusted_scales, bias_label
from dovetail.stats import DataInfo, Stats
from dovetail.storage import Choice, FloatStorage, Plan, Reason, ScaleSource, Storage

# An input that must not have its tensor's scale gets one that is this much larger, so that no value is clipped.
_RESCALED = 1.01
_NO_STATS = Stats({}, DataInfo("", 0, ""))


def make_plan(
    model: ir.Model, table: OpTable, stats: Stats, request: Request, imported: ImportedQParams | None = None
) -> Plan:
    """Choose the dtype and qparams of every tensor and edge under the target's constraints; does not edit the model.

    ``imported``: quantization parameters that came with the model, kept where they fit.
    """
    if not request.from_data:
        stats = replace(stats, tensors={})
    problem, solution, separate, request = _solved(model, table, stats, request, imported)
    builder = QParamsBuilder(problem, stats, request.method, imported)
    writer = _Writer(problem, solution, builder, separate, request, given_groups(problem, imported))
    tensors, edges = writer.tensors(), writer.edges()
    if table.one_encoding:
        tensors, edges = stored_as_read(problem, tensors, edges, request.pins)
    return Plan(
        target=table.target,
        precision=request.precision.name,
        tensors=tensors,
        edges=edges,
        quantized_io=request.quantized_io,
    )


def narrower(model: ir.Model, table: OpTable, stats: Stats, request: Request) -> dict[Edge, Encoding]:
    """The operands for which the target also supports fewer bits than this request plans: edge -> that encoding."""
    problem, solution, *_ = _solved(model, table, stats, request)
    return narrower_operands(problem, solution)


def _solved(
    model: ir.Model, table: OpTable, stats: Stats, request: Request, imported: ImportedQParams | None = None
) -> tuple[Problem, Solution, dict[Edge, str], Request]:
    """The problem of a graph, its solution, the edges that convert instead of sharing qparams, with the reason; and
    the request that was solved, which for a format with one encoding per tensor has more operators in float."""
    while True:
        problem, solution, separate = _solved_once(build_problem(model, table), stats, request)
        given = given_groups(problem, imported)
        more = also_in_float(problem, solution, request.pins, given) if table.one_encoding else Pins()
        if not more.units and not more.groups:
            return problem, solution, separate, request
        request = request.pinned(more).without_operands_of(more.units)


def _solved_once(problem: Problem, stats: Stats, request: Request) -> tuple[Problem, Solution, dict[Edge, str]]:
    separate = _separate(problem, stats, request)
    problem = with_conversions(problem, separate)
    solution = solve(problem, request)
    if early := early_conversions(problem, solution, request.pins):
        separate |= early
        problem = with_conversions(problem, separate)
        solution = solve(problem, request)
    return problem, solution, separate


def _separate(problem: Problem, stats: Stats, request: Request) -> dict[Edge, str]:
    """The edges that convert instead of sharing qparams, because of a pin or because sharing would cost too much."""
    edges = {**request.pins.separate, **costly_merges(problem, stats)}
    return {**edges, **negative_merges(problem, stats, edges)}


def check_pins(model: ir.Model, table: OpTable, request: Request) -> None:
    """Raise InputError for a pin that is not possible on the target; needs no statistics."""
    problem = build_problem(model, table)
    solve(with_conversions(problem, _separate(problem, _NO_STATS, request)), request)


def observed(model: ir.Model, table: OpTable) -> tuple[str, ...]:
    """The tensors whose statistics a plan for this target can need: every group's sources without fixed qparams."""
    problem = build_problem(model, table)
    names = [name for sources in problem.sources.values() for name in sources]
    return tuple(name for name in names if not _always_fixed(problem.producer.get(name)))


def _always_fixed(unit: Unit | None) -> bool:
    """Whether every quantized dtype that a unit can write has a fixed scale and zero point."""
    if unit is None or unit.support is None or not unit.support.fixed:
        return False
    fixed = {qparams.dtype for qparams in unit.support.fixed}
    return all(s.output.dtype in fixed for s in unit.signatures if s.output.dtype.is_quantized)


def _passed_through(unit: Unit) -> str:
    return f"{unit.label} passes its input's quantization through"


class _Writer:
    """Turns a solution into the choices of a plan, tensor by tensor and edge by edge."""

    def __init__(
        self,
        problem: Problem,
        solution: Solution,
        qparams: QParamsBuilder,
        separate: Mapping[Edge, str],
        request: Request,
        given: frozenset[str],
    ) -> None:
        self._problem = problem
        self._pins, self._precision = request.pins, request.precision
        self._in_float = FloatStorage(problem.table.float_encoding.dtype)
        self._solution = solution
        self._qparams = qparams
        self._separate = separate
        self._symmetric = symmetric_reads(problem, solution, given) if problem.table.one_encoding else {}
        self._groups = {root: self._group(root, names) for root, names in problem.groups.items()}

    def tensors(self) -> dict[str, Choice]:
        choices = {name: self._interior(unit) for name, unit in self._problem.interior.items()}
        choices.update({name: self._groups[root] for name, root in self._problem.group_of.items()})
        return choices

    def _interior(self, unit: Unit) -> Choice:
        """The storage of the tensors between the operators of a chain: none, if the target fuses them."""
        output = self._output_storage(unit)
        at_lowest = unit.chain is not None and unit.chain.at_lowest
        if at_lowest and isinstance(output, QParams) and int(output.zero_point) != output.dtype.grid.low:
            text = f"{unit.label} is not fused, because zero is not the lowest integer of its output"
            return Choice(output, Reason.SHARED, text, scale_from=ScaleSource.DERIVED)
        return Choice(self._in_float, Reason.INTERIOR, f"inside the fused {unit.label}, not quantized")

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
        scaled = self._qparams.group_params(root, decided.encoding)
        if (required := self._symmetric.get(root)) is not None:
            scaled = self._qparams.symmetric_params(root, decided.encoding, required)
        return Choice(scaled.params, decided.why, f"{decided.detail}; {scaled.detail}", label, scaled.source)

    def _conversion(self, unit: Unit, operand: Operand, signature: Signature) -> Choice | None:
        """The explicit conversion on an activation's edge, or None where the consumer reads the tensor as it is."""
        storage = self._groups[self._problem.group_of[operand.name]].storage
        if operand in unit.shared():
            output = self._output_storage(unit)
            if output == storage or isinstance(output, FloatStorage):
                return None
            if operand.edge in self._separate:
                return Choice(output, Reason.SEPARATE, self._separate[operand.edge], scale_from=ScaleSource.DERIVED)
            return Choice(output, Reason.SHARED, _passed_through(unit), scale_from=ScaleSource.DERIVED)
        slot = signature.slot(operand.slot)
        if slot is None:
            return None
        required = slot.encoding
        if isinstance(storage, QParams) and not required.dtype.is_quantized and (asked := self._asked_in_float(unit)):
            return Choice(FloatStorage(required.dtype), *asked)
        if not required.dtype.is_quantized:
            return None
        if isinstance(storage, QParams) and storage.encoding == required:
            return _rescaled(unit, operand, storage)
        why, text = Reason.OPERAND, f"{unit.label} requires {required.dtype} here, the tensor is {storage.dtype}"
        if (pin := self._pins.operands.get(operand.edge)) is not None:
            why, text = pin.why, pin.detail
        exact = (widen(storage, required) or as_symmetric(storage, required)) if isinstance(storage, QParams) else None
        if exact is not None:
            return Choice(exact, why, text, scale_from=ScaleSource.DERIVED)
        scaled = self._qparams.group_params(self._problem.group_of[operand.name], required)
        return Choice(scaled.params, why, f"{text}; {scaled.detail}", scale_from=scaled.source)

    def _asked_in_float(self, unit: Unit) -> tuple[Reason, str] | None:
        """Why a unit reads its activations in float, if the caller or a trial asked for that."""
        pin, precision = self._pins.units.get(unit.name), self._wanted(unit)
        if precision.activation.dtype.is_quantized:
            return None
        if pin is not None:
            return pin.why, f"{pin.detail}: {unit.label} computes in float"
        return Reason.PRECISION, f"{precision.name}: {unit.label} computes in float"

    def _output_storage(self, unit: Unit) -> Storage:
        """The storage of a unit's outputs."""
        return self._groups[self._problem.group_of[unit.outputs[0].name or ""]].storage

    def _constant(
        self, unit: Unit, operand: Operand, signature: Signature, done: Mapping[Edge, Choice]
    ) -> Choice | None:
        """The storage of a constant for this consumer."""
        slot = signature.slot(operand.slot)
        array = constant_of(operand.value)
        if slot is None or array is None:
            return None
        if not slot.encoding.dtype.is_quantized:
            why, text = Reason.CONSTANT, f"{unit.label} requires this constant in float"
            pin = self._pins.units.get(unit.name)
            if pin is not None and not pin.precision.weight.dtype.is_quantized:
                why, text = pin.why, pin.detail
            return Choice(FloatStorage(slot.encoding.dtype), why, text)
        if operand in unit.shared():
            return Choice(
                self._output_storage(unit), Reason.SHARED, _passed_through(unit), scale_from=ScaleSource.DERIVED
            )
        if slot.derived:
            return self._bias(unit, operand, done)
        if array.size == 0:
            return Choice(self._in_float, Reason.CONSTANT, "empty constant")
        joins = unit.support is not None and unit.support.joins
        output = self._output_storage(unit) if joins else None
        if isinstance(output, QParams) and output.encoding == slot.encoding:
            text = f"same scale and zero point as the output of {unit.label}"  # saves a requantization
            return Choice(output, Reason.SHARED, text, scale_from=ScaleSource.DERIVED)
        params, source, detail = self._qparams.constant_params(unit.nodes[0], operand, slot, array)
        adjusted = AdjustedScales(params)
        if operand.slot == 1:
            adjusted = self._adjusted(unit, signature, params, array, done)
            detail = ", ".join(filter(None, (detail, adjusted.detail)))
            changed = adjusted.params is not params and source is ScaleSource.GIVEN
            params, source = adjusted.params, ScaleSource.GIVEN_CHANGED if changed else source
        reasons = (
            why_no_blocks(unit, operand, self._wanted(unit).weight, slot.encoding, self._problem.table),
            self._why_not_as_given(unit, operand, source),
        )
        text = "; ".join(filter(None, (_weight_text(unit, slot.encoding, params), detail, *reasons)))
        operand_pin = self._pins.operands.get(operand.edge)
        why, text = (Reason.CONSTANT, text) if operand_pin is None else (operand_pin.why, operand_pin.detail)
        return Choice(params, why, text, scale_from=source, raised_channels=adjusted.raised_channels)

    def _why_not_as_given(self, unit: Unit, operand: Operand, source: ScaleSource) -> str:
        """Why a weight has other bits or blocks than in the input model; empty if its scales are those given."""
        pin = self._pins.units.get(unit.name)
        if pin is None or pin.why is not Reason.RECORDED or operand.slot != WEIGHT or source is ScaleSource.GIVEN:
            return ""
        return pin.detail

    def _wanted(self, unit: Unit) -> Precision:
        """The precision that was requested for a unit."""
        pin = self._pins.units.get(unit.name)
        return self._precision if pin is None else pin.precision

    def _adjusted(
        self, unit: Unit, signature: Signature, weight: QParams, array: Array, done: Mapping[Edge, Choice]
    ) -> AdjustedScales:
        """The weight's qparams with scales that suit the target and the int32 bias."""
        by_slot = {o.slot: o for o in unit.operands}
        bias_slot = signature.slot(2)  # the bias's scale is derived from this weight's scale
        bias = by_slot.get(2) if bias_slot is not None and bias_slot.derived else None
        if bias is None and (unit.support is None or unit.support.least_weight_scale is None):
            return AdjustedScales(weight)
        source, output = self._seen(by_slot[0], done), self._output_storage(unit)
        return adjusted_scales(unit, weight, array, source, output, bias)

    def _seen(self, operand: Operand, done: Mapping[Edge, Choice]) -> Storage:
        """The storage in which the unit reads this operand."""
        if operand.edge in done:
            return done[operand.edge].storage
        return self._groups[self._problem.group_of[operand.name]].storage

    def _bias(self, unit: Unit, operand: Operand, done: Mapping[Edge, Choice]) -> Choice:
        by_slot = {o.slot: o for o in unit.operands}
        source, weight = (self._seen(by_slot[slot], done) for slot in (0, 1))
        if not isinstance(source, QParams) or not isinstance(weight, QParams):
            return Choice(self._in_float, Reason.BIAS, "bias in float, because the input or the weight is float")
        scales = per_output_channel(unit.nodes[0], weight)
        params = bias_params(source.scale, scales, label=bias_label(operand))
        text = "bias, scale = input scale x weight scale"
        return Choice(params, Reason.BIAS, text, scale_from=ScaleSource.DERIVED)


def _weight_text(unit: Unit, encoding: Encoding, params: QParams) -> str:
    """What a constant is to its operator, and how it is quantized."""
    match encoding.granularity:
        case Granularity.AXIS:
            return f"{unit.label} weight, {params.dtype} per channel on axis {params.axis}"
        case Granularity.BLOCK:
            return f"{unit.label} weight, {params.dtype} in blocks of {encoding.block_size} on axis {params.axis}"
        case Granularity.EXPANDED_BLOCK:
            return (
                f"{unit.label} weight, {params.dtype} in blocks of {encoding.block_size} on axis {params.axis}, "
                f"expanded to {encoding.expanded_bits} bits per channel"
            )
    return f"constant operand of {unit.label}"


def _rescaled(unit: Unit, operand: Operand, storage: QParams) -> Choice | None:
    """The requantization that the target requires on this edge, by its op table; None where it requires none."""
    rescaled = None if unit.support is None else unit.support.rescaled
    reason = "" if rescaled is None else rescaled(unit.nodes[0], operand.edge.index, storage.dtype)
    if not reason:
        return None
    scale = storage.scale * storage.scale.dtype.type(_RESCALED)
    params = QParams(storage.encoding, scale, storage.zero_point, storage.axis)
    return Choice(params, Reason.OPERAND, reason, scale_from=ScaleSource.DERIVED)
