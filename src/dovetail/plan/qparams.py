"""Scales and zero points: fixed by the target's table, imported, calibrated over a group, or from a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.errors import InputError, MissingScaleError
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.edit import attribute, constant_of, input_axis
from dovetail.model.origin import origin_of
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.numerics.lpbq import channel_scales
from dovetail.numerics.methods import RangeMethod
from dovetail.numerics.ranges import find_range, params_from_range, weight_params
from dovetail.op_support import FixedQParams, Slot
from dovetail.plan.constraints import Operand, Problem
from dovetail.plan.imported_qparams import FROM_MODEL, ImportedQParams
from dovetail.plan.saturation import needed_range
from dovetail.stats import Stats, TensorStats
from dovetail.storage import ScaleSource, SourcedQParams

FLOAT8_ENDS = (-FLOAT8_HIGHEST, FLOAT8_HIGHEST)
# Operators whose output holds every element of their input.
_WHOLE = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

# By how much the ends of a range may differ that counts as centered at zero: less than one step of 8 bits.
_CENTERED = 1e-3


class Range(NamedTuple):
    """The smallest and largest real value that qparams have to represent."""

    low: float
    high: float

    def union(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    @property
    def width(self) -> float:
        return max(self.high, 0.0) - min(self.low, 0.0)


# Any range represents zeros exactly. A scale of 1 in 16 bits would be a range up to 65 535: the int32 bias of a layer
# after such a tensor (a dead squeeze-excite branch) has this scale times the weight's, and was rounded away.
RANGE_OF_ZEROS = Range(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class QParamsBuilder:
    """Turns statistics into QParams for one problem, by one range method."""

    problem: Problem
    stats: Stats
    method: str
    imported: ImportedQParams | None = None

    def group_range(self, root: str, encoding: Encoding) -> tuple[Range, str]:
        """The union of the ranges of a group's sources, and a text that says where it comes from."""
        ranges = self._ranges(root, encoding, {root})
        total = next(iter(ranges.values()))
        for source_range in ranges.values():
            total = total.union(source_range)
        detail = f"range [{total.low:.4g}, {total.high:.4g}] by {self.method}"
        if any(self._is_limited(name, encoding) for name in self.problem.sources[root]):
            detail += ", without values for which the activation function after it is constant"
        return total, detail if len(ranges) == 1 else f"{detail}, union of {len(ranges)} sources"

    def _ranges(self, root: str, encoding: Encoding, seen: set[str]) -> dict[str, Range]:
        """The ranges that a group has to represent: of its sources, its constants, and tensors converted into it."""
        ranges = {name: self.source_range(name, encoding) for name in self.problem.sources[root]}
        for unit in self.problem.writers_of(root):
            for operand in unit.shared():
                array = constant_of(operand.value) if operand.constant else None
                if array is not None and array.size:
                    ranges[operand.name] = Range(float(array.min()), float(array.max()))
                origin = self.problem.group_of.get(operand.name, root)
                if origin not in seen:
                    ranges |= self._ranges(origin, encoding, {*seen, origin})
        return ranges

    def source_range(self, name: str, encoding: Encoding) -> Range:
        """The range of one source: fixed by its producer for this dtype, else from its statistics."""
        fixed = self._fixed(name)
        entry = fixed.get(encoding.dtype)
        observed = self.stats.tensors.get(name)
        if entry is None and observed is None and fixed:
            entry = next(iter(fixed.values()))  # not observed, because it is fixed in every quantized dtype
        if entry is not None:
            low, high = (entry.dtype.grid.low, entry.dtype.grid.high) if entry.dtype.is_integer else FLOAT8_ENDS
            return Range((low - entry.zero_point) * entry.scale, (high - entry.zero_point) * entry.scale)
        if observed is None and not self.stats.tensors:
            value = self.problem.values.get(name)
            where = name if value is None else origin_of(value).name
            if self.imported is not None and self.imported.from_file:
                raise MissingScaleError(_no_scale_in_file(where, self.imported))
            raise InputError(
                f"the model has no scale for {where!r}, and there is no calibration data to find one: pass --calib DATA"
            )
        if observed is None:
            raise ValueError(f"calibration did not observe {name!r}, which the plan needs")
        if self._unclipped(name):
            return Range(observed.low, observed.high)
        return Range(*self._needed(name, self._found(observed, encoding), encoding))

    def _found(self, observed: TensorStats, encoding: Encoding) -> tuple[float, float]:
        """The range that the method chooses for what was observed."""
        if observed.counts is None:
            return observed.low, observed.high
        return find_range(self.method, observed.counts, observed.low, observed.high, encoding)

    def _needed(self, name: str, found: tuple[float, float], encoding: Encoding) -> tuple[float, float]:
        """The part of a range that the readers of the value's group need."""
        members = [self.problem.values[member] for member in self.problem.groups[self.problem.group_of[name]]]
        return needed_range(members, *found, encoding)

    def _is_limited(self, name: str, encoding: Encoding) -> bool:
        """Whether the range of a source is narrower than the method's, because its readers do not need the rest."""
        observed = self.stats.tensors.get(name)
        if observed is None or encoding.dtype in self._fixed(name) or self._unclipped(name):
            return False
        found = self._found(observed, encoding)
        return self._needed(name, found, encoding) != found

    def _unclipped(self, name: str) -> bool:
        """Whether a producer or consumer of the value's group needs its whole range."""
        members = self.problem.groups[self.problem.group_of[name]]
        units = [self.problem.producer.get(member) for member in members]
        readers = self.problem.readers_of(members)
        return any(unit is not None and unit.support is not None and unit.support.unclipped for unit in units + readers)

    def _fixed(self, name: str) -> dict[DType, FixedQParams]:
        unit = self.problem.producer.get(name)
        entries = () if unit is None or unit.support is None else unit.support.fixed
        return {entry.dtype: entry for entry in entries}

    def group_params(self, root: str, encoding: Encoding) -> SourcedQParams:
        """The QParams that every member of a group shares, and where they come from."""
        sources = self.problem.sources[root]
        entry = self._fixed(sources[0]).get(encoding.dtype) if len(sources) == 1 else None
        if entry is not None:
            scale, zero_point = np.asarray(entry.scale), np.asarray(entry.zero_point)
            label = self.problem.producer[sources[0]].label
            detail = f"{label} has the fixed output scale {entry.scale:.6g}"
            return SourcedQParams(QParams(encoding, scale, zero_point), ScaleSource.FIXED, detail)
        if (imported := self._imported_params(root, encoding)) is not None:
            return self._raised(root, imported)
        total, detail = self.group_range(root, encoding)
        if total.low == total.high == 0.0:
            total, detail = RANGE_OF_ZEROS, f"only zeros were observed, range [0, {RANGE_OF_ZEROS.high:g}]"
        if sources and not any(name in self.problem.producer for name in sources):
            total = with_ends_on_grid(total, encoding)
        params = params_from_range(total.low, total.high, encoding)
        allowed = self._allowed_scale(root, encoding.dtype, float(params.scale))
        if allowed > float(params.scale):
            growth = allowed / float(params.scale)
            wider = params_from_range(total.low * growth, total.high * growth, encoding)
            params = QParams(encoding, np.asarray(allowed, params.scale.dtype), wider.zero_point)
            detail += f", scale enlarged by {100 * (growth - 1):.2g} % as the target's kernel requires"
        return SourcedQParams(params, ScaleSource.CALIBRATED, detail)

    def symmetric_params(self, root: str, encoding: Encoding, required: Encoding) -> SourcedQParams:
        """The qparams of a group in ``encoding`` that have the values of symmetric ones in ``required``."""
        symmetric = self.group_params(root, required)
        scale = self._allowed_scale(root, encoding.dtype, float(symmetric.params.scale))
        zero_point = np.asarray(encoding.dtype.grid.low - required.dtype.grid.low, symmetric.params.zero_point.dtype)
        params = QParams(encoding, np.asarray(scale, symmetric.params.scale.dtype), zero_point)
        detail = f"{symmetric.detail}, symmetric as a consumer requires: what ships has one encoding per tensor"
        return SourcedQParams(params, symmetric.source, detail)

    def _raised(self, root: str, imported: SourcedQParams) -> SourcedQParams:
        """Imported qparams, with a larger scale where the consumers' kernels require one."""
        params = imported.params
        least = 0.0 if params.axis is not None else self._input_scale(root, params.dtype, float(params.scale))
        if float(params.scale) >= least:
            return imported
        detail = f"{imported.detail}, scale raised from {float(params.scale):.3g} as the target's kernel requires"
        raised = QParams(params.encoding, np.asarray(least), params.zero_point)
        return SourcedQParams(raised, ScaleSource.GIVEN_CHANGED, detail)

    def _imported_params(self, root: str, encoding: Encoding) -> SourcedQParams | None:
        """The imported qparams of a group, or of the tensor that its source is a multiple of.

        A group that merges several tensors is calibrated instead: the qparams of one need not fit the others.
        """
        if self.imported is None:
            return None
        if (origin := self._converted_from(root)) is not None:
            return self._imported_params(origin, encoding)
        if len(self.problem.sources[root]) != 1 or self._merges(root):
            return self._imported_of_merged(root, encoding)
        names = [name for member in self._whole(root) for name in self._original(member)]
        if (imported := self.imported.of_tensor(names, encoding)) is not None:
            return imported
        for source in self.problem.sources[root]:
            unit = self.problem.producer.get(source)
            scale = None if unit is None else scale_at(unit.nodes[0], ScalePlace.QUERY)
            scaled_group = None if scale is None else self.problem.group_of.get(str(scale.data.name))
            if scale is None or not scale.factor or scaled_group is None:
                continue
            if (imported := self._imported_params(scaled_group, encoding)) is not None:
                factor = abs(scale.factor)
                params = QParams(encoding, imported.params.scale * np.float32(factor), imported.params.zero_point)
                return SourcedQParams(params, imported.source, f"{imported.detail}, scale times {factor:.4g}")
        return None if self.stats.tensors else self._imported_of_multiple(root, encoding)

    def _imported_of_multiple(self, root: str, encoding: Encoding) -> SourcedQParams | None:
        """The qparams of a tensor that was not in the input model, from those of a multiple of it that was."""
        members = self.problem.groups[root]
        for unit in self.problem.readers_of(members):
            scale = scale_at(unit.nodes[0], ScalePlace.QUERY)
            if scale is None or not scale.factor or scale.factor < 0 or scale.data.name not in members:
                continue
            names = [name for output in unit.outputs for name in self._original(output.name or "")]
            if self.imported is not None and (imported := self.imported.of_tensor(names, encoding)) is not None:
                params = QParams(encoding, imported.params.scale / np.float32(scale.factor), imported.params.zero_point)
                return SourcedQParams(params, imported.source, f"{imported.detail}, scale times {1 / scale.factor:.4g}")
        return None

    def _imported_of_merged(self, root: str, encoding: Encoding) -> SourcedQParams | None:
        """The qparams that a file has for what operators merge in a group: they represent every tensor in it.

        None where the file has none, or different ones for the outputs of several such operators.
        """
        if self.imported is None or not self.imported.from_file:
            return None
        merging = [unit for unit in self.problem.writers_of(root) if len(unit.shared()) > 1]
        outputs = [self._original(v.name or "") for unit in merging for v in unit.outputs]
        given = [
            next((self.imported.tensors[n] for n in names if n in self.imported.tensors), None) for names in outputs
        ]
        if not given or any(params is None or params != given[0] for params in given):
            return None
        return self.imported.of_tensor(outputs[0], encoding)

    def _converted_from(self, root: str) -> str | None:
        """The group from which one tensor is converted into this one, if all that this one does is to move its data."""
        if self.problem.sources[root]:
            return None
        operands = [o for unit in self.problem.writers_of(root) for o in unit.shared()]
        origins = {None if o.constant else self.problem.group_of[o.name] for o in operands} - {root}
        return origins.pop() if len(origins) == 1 else None

    def _merges(self, root: str) -> bool:
        """Whether a group's source is merged (Concat) with a constant or with a tensor converted into the group."""
        members = frozenset(self.problem.groups[root])
        writers = {u.name: u for name in members if (u := self.problem.producer.get(name)) is not None}
        return any(o.name not in members for unit in writers.values() for o in unit.shared())

    def _whole(self, root: str) -> list[str]:
        """The members of a group that hold every element of its source, not a slice of it."""
        members = list(self.problem.sources[root])
        for name in members:  # the loop appends to this list
            readers = [u for u in self.problem.readers_of([name]) if any(o.name == name for o in u.shared())]
            members += [v.name or "" for unit in readers if unit.nodes[0].op_type in _WHOLE for v in unit.outputs]
        return members

    def _original(self, name: str) -> tuple[str, ...]:
        """The names of a value in the caller's file, if it still has the same values there."""
        if self.imported is not None and name in self.imported.moved:
            return (self.imported.moved[name],)
        value = self.problem.values.get(name)
        origin = None if value is None else origin_of(value)
        return origin.names if origin is not None and origin.exact else ()

    def constant_params(self, node: ir.Node, operand: Operand, slot: Slot, array: Array) -> SourcedQParams:
        """The qparams of a constant: its imported ones where they still apply, else from its own values."""
        params = constant_params(node, operand, slot.encoding, array, _of_constants(self.method))
        if self.imported is None:
            return SourcedQParams(params, ScaleSource.VALUES, "range of its values")
        origin = origin_of(operand.value)
        imported = self.imported.of_constant(origin, array, params)
        if imported is None and (same_step := self.imported.same_step(origin, array, params)) is not None:
            return SourcedQParams(same_step, ScaleSource.GIVEN_CHANGED, "same scale as in the input model, symmetric")
        if imported is None:
            return SourcedQParams(params, ScaleSource.VALUES, "range of its values")
        if slot.per_channel and imported.axis is None:
            imported = _repeated(imported, params)
        return SourcedQParams(imported, ScaleSource.GIVEN, FROM_MODEL)

    def _allowed_scale(self, root: str, dtype: DType, scale: float) -> float:
        """The smallest scale, not below ``scale``, that the kernels of a group's consumers and producers support."""
        scale = self._input_scale(root, dtype, scale)
        for unit in self.problem.writers_of(root):
            if unit.support is not None and unit.support.output_scale is not None:
                scale = unit.support.output_scale(unit.nodes[0], dtype, scale)
        return scale

    def _input_scale(self, root: str, dtype: DType, scale: float) -> float:
        """The smallest scale, not below ``scale``, that the kernels of a group's consumers support."""
        readers = self.problem.readers_of(self.problem.groups[root])
        supports = [(unit.nodes[0], unit.support) for unit in readers if unit.support is not None]
        scale = max([scale, *(support.least_scale.get(dtype, 0.0) for _, support in supports)])
        for node, support in supports:
            if support.input_scale is not None:
                scale = support.input_scale(node, dtype, scale)
        return scale


def _no_scale_in_file(name: str, imported: ImportedQParams) -> str:
    if name in imported.tensors:
        why = f"a rewrite for the target changed the values of {name!r}, so that its scale does not apply"
    else:
        why = f"the encodings have no scale for {name!r}"
    return f"{why}, and there is no calibration data to find one: pass --calib DATA"


def with_ends_on_grid(total: Range, encoding: Encoding) -> Range:
    """The 8-bit range of an input, one step wider if it reaches as far below zero as above: the grid has both ends.

    With 255 steps over [-1, 1] the zero point would be 127.5. Rounded, it leaves each of the 256 values of a pixel half
    way between two steps: the largest error that there is, and backends round such values differently (onnxruntime to
    even, HTP away from zero: 191 of 256 were one step off, onnxruntime-qnn 2.7.0, emulated).
    """
    is_centered = math.isclose(-total.low, total.high, rel_tol=_CENTERED)
    if encoding.symmetric or not encoding.dtype.is_integer or encoding.dtype.bits != 8 or not is_centered:
        return total
    below = (encoding.dtype.grid.high - encoding.dtype.grid.low) // 2
    end = max(-total.low, total.high)
    return Range(-end, end * (below + 1) / below)


def _repeated(params: QParams, computed: QParams) -> QParams:
    """A scale of the whole tensor, repeated for every channel of ``computed``."""
    shape = computed.scale.shape
    scale, zero_point = (np.broadcast_to(array, shape) for array in (params.scale, params.zero_point))
    return QParams(computed.encoding, scale, zero_point, computed.axis)


def widen(stored: QParams, encoding: Encoding) -> QParams | None:
    """The uint16 qparams that represent every value of uint8 ones exactly; None for other dtypes.

    255 x 257 = 65535, so scale / 257 and zero point x 257 cover the same range, and no value changes.
    """
    wide, narrow = encoding.dtype, stored.dtype
    if (wide.bits, narrow.bits) != (16, 8) or not wide.is_integer or not narrow.is_integer:
        return None
    if wide.grid.signed or narrow.grid.signed or encoding.symmetric:
        return None
    if {encoding.granularity, stored.encoding.granularity} != {Granularity.TENSOR}:
        return None
    return QParams(encoding, stored.scale / np.float32(257), stored.zero_point * 257)


def constant_params(
    node: ir.Node, operand: Operand, encoding: Encoding, array: Array, method: str = RangeMethod.MINMAX
) -> QParams:
    """The QParams of a constant, from its own values."""
    if encoding.granularity is Granularity.TENSOR:
        return weight_params(array, encoding, None, method)
    if encoding.is_blocked:
        return weight_params(array, encoding, input_axis(node, array.ndim), method)
    return weight_params(array, encoding, channel_axis(node, operand.edge.index, array.ndim), method)


def _of_constants(method: str) -> str:
    """The range method of a constant: mse if requested, else minmax; the others need observed statistics."""
    return method if method == RangeMethod.MSE else RangeMethod.MINMAX


def per_output_channel(node: ir.Node, weight: QParams) -> Array:
    """The scales of a weight's integers, one per output channel, from which the scale of its bias is derived.

    A grouped ConvTranspose repeats its scales for every group. A depthwise ConvTranspose has one scale for all
    channels, and so has its bias.
    """
    scale = channel_scales(weight)
    groups = int(attribute(node, "group", 1)) if node.op_type == "ConvTranspose" and scale.ndim else 1
    if groups > 1 and scale.size == 1:
        return scale.reshape(())
    return np.tile(scale, groups) if groups > 1 else scale


def channel_axis(node: ir.Node, index: int, rank: int) -> int:
    """The output channel axis of a weight, which depends on the operator and not on the target."""
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm" and index == 1:
        return 0 if attribute(node, "transB", 0) else 1
    return rank - 1
