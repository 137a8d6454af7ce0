"""Encodings as a plan for the float model that they belong to, and a plan as encodings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, Granularity, QParams, expanded_qparams
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.shapes import model_tensors, with_model
from dovetail.encodings.v2_0_0 import VERSION
from dovetail.encodings.values import bad
from dovetail.errors import InputError
from dovetail.model.edit import constant_of
from dovetail.numerics.block import scale_shape
from dovetail.storage import Choice, FloatStorage, Plan, Reason, ScaleSource

_AS_GIVEN = "as in the encodings"
_DTYPES = {(dtype.grid.bits, dtype.grid.signed): dtype for dtype in DType if dtype.is_integer}
_BIAS_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class GivenPlan:
    """The plan that encodings are for a float model, and the names of entries that the model has no tensor for."""

    plan: Plan
    surplus: tuple[str, ...]


def given_plan(model: ir.Model, encodings: Encodings) -> GivenPlan:
    """The storage of every tensor that has an entry; int32 entries of biases are not used: their scale is derived."""
    encodings = with_model(encodings, model_tensors(model))
    tensors: dict[str, Choice] = {}
    edges: dict[Edge, Choice] = {}
    surplus = dict.fromkeys(encodings.entries)
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in [*values, *model.graph.initializers.values()]:
        entry = encodings.entries.get(str(value.name))
        if entry is None:
            continue
        surplus.pop(entry.name, None)
        array = constant_of(value)
        if array is None:
            tensors[entry.name] = _choice(entry, ())
        elif entry.is_float or entry.bits != _BIAS_BITS:
            choice = _choice(entry, array.shape)
            edges |= {Edge(str(node.name), index): choice for node, index in value.uses()}
    return GivenPlan(Plan("", _AS_GIVEN, tensors, edges), tuple(surplus))


def _choice(entry: TensorEncoding, shape: tuple[int, ...]) -> Choice:
    if entry.is_float:
        return Choice(FloatStorage(DType.F16 if entry.bits == 16 else DType.F32), Reason.RECORDED, _AS_GIVEN)
    return Choice(qparams_of(entry, shape), Reason.RECORDED, _AS_GIVEN, scale_from=ScaleSource.GIVEN)


def qparams_of(entry: TensorEncoding, shape: tuple[int, ...]) -> QParams:
    """The qparams of an integer entry whose axis is known, for a tensor of this shape."""
    dtype = _DTYPES.get((entry.bits, entry.signed))
    if dtype is None:
        raise bad(entry.name, f"{entry.dtype_text} is not supported; expected 4, 8 or 16 bits, or int32")
    symmetric = entry.symmetric and entry.signed
    encoding = Encoding(dtype, symmetric, entry.granularity, entry.block_size, entry.expanded_bits)
    if not entry.is_blocked:
        return QParams(encoding, entry.scale, entry.zero_point, entry.axis)
    full = scale_shape(shape, encoding, entry.axis)
    if entry.int_scale is None:
        scale, zero_point = (np.broadcast_to(array, full) for array in (entry.scale, entry.zero_point))
        return QParams(encoding, scale, zero_point, entry.axis)
    axis = int(entry.axis or 0)
    integers = np.uint8 if 1 << encoding.scale_bits <= np.iinfo(np.uint8).max else np.uint16
    channel = np.broadcast_to(entry.scale, (*full[:axis], 1, *full[axis + 1 :]))
    return expanded_qparams(encoding, channel, np.broadcast_to(entry.int_scale, full).astype(integers), axis)


def encodings_of(plan: Plan, model: ir.Model) -> Encodings:
    """The encodings of a plan, by the names of the graph that it plans.

    A file has one entry per tensor. An activation that is quantized only on the edges to its consumers has the qparams
    of the first; where a consumer reads a quantized tensor in another storage, that is not in the file. A constant that
    its consumers read in different storages is an error.
    """
    nodes = {str(node.name): node for node in model.graph}
    entries = {name: entry_of(name, c.storage, False) for name, c in plan.tensors.items() if _has_entry(c)}
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is None or choice.storage.dtype is DType.F32:
            continue
        name, is_constant = str(value.name), constant_of(value) is not None
        if not is_constant and not isinstance(choice.storage, QParams):
            continue
        entry = entry_of(name, choice.storage, is_constant)
        if entries.setdefault(name, entry) != entry and is_constant:
            raise InputError(f"constant {name!r} is quantized differently for its consumers: encodings have one entry")
    return Encodings(VERSION, entries)


def _has_entry(choice: Choice) -> bool:
    """Whether a tensor's own storage is in the file: quantized, or in float16 although it need not be."""
    if isinstance(choice.storage, QParams):
        return choice.is_stored
    chosen = choice.why not in (Reason.INTERIOR, Reason.ON_EDGES, Reason.OUTPUT)
    return chosen and choice.storage.dtype is DType.F16


def entry_of(name: str, storage: QParams | FloatStorage, is_parameter: bool) -> TensorEncoding:
    """The entry of a tensor that is stored like this."""
    if isinstance(storage, FloatStorage):
        return TensorEncoding(name, storage.dtype.bits, is_parameter, is_float=True)
    if not storage.dtype.is_integer:
        raise InputError(f"{name!r} is {storage.dtype}, which encodings cannot have")
    encoding = storage.encoding
    signed = storage.dtype.grid.signed
    channel = storage.scale if storage.channel_scale is None else storage.channel_scale
    return TensorEncoding(
        name, storage.dtype.bits, is_parameter, granularity=encoding.granularity, signed=signed,
        symmetric=signed and not storage.zero_point.any(), scale=channel.astype(np.float64),
        zero_point=storage.zero_point.astype(np.int64), axis=storage.axis, block_size=encoding.block_size,
        int_scale=None if storage.int_scale is None else storage.int_scale.astype(np.int64),
        expanded_bits=encoding.expanded_bits if encoding.granularity is Granularity.EXPANDED_BLOCK else 0,
    )  # fmt: skip
