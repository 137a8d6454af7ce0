"""Convert a float32 graph to float16, with float32 inputs and outputs, for strongly typed builds.

Scales of QuantizeLinear and DequantizeLinear become float16 too, which ONNX allows from opset 19 on. A node with a
constant that float16 cannot hold (a scale or an epsilon that would become zero, a number above 65504 that is not a
mask) stays in float32 between two Casts, and so does a division by what has an epsilon: 0/0 is NaN. Masks are raised to
leave room for the scores: -65504 plus a score of -20 is -inf, and a row of -inf becomes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.origin import origin_of
from dovetail.model.softmax_masks import mask_limits
from dovetail.pass_record import PassRecord, Site

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
# From this opset on QuantizeLinear and DequantizeLinear accept float16 scales.
HALF_SCALES_OPSET = 19
LARGEST = float(np.finfo(np.float16).max)
SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)
# Inputs that ONNX requires in float32, whatever the type of the data: operator -> input indices.
_ALWAYS_FLOAT = {"Resize": (2,), "Upsample": (1,)}
_FLOAT_OPS = ("NonMaxSuppression",)
_SCALED = ("QuantizeLinear", "DequantizeLinear")
# Operators that apply masks: the exact value of a masking constant does not matter, as long as it is very low.
_MASKS = ("Add", "Where")
# The largest magnitude of all masks of one Softmax together; exp(-30 000) is zero in every float type.
_MASK_ROOM = 60000.0


def as_float16(model: ir.Model) -> PassRecord:
    """Convert every float32 tensor inside the graph to float16; the record lists the nodes kept in float32, and why."""
    scaled = any(is_op(node, *_SCALED) for node in model.graph)
    if scaled and model.opset_imports.get("", 0) < HALF_SCALES_OPSET:
        raise InputError(
            f"the model uses opset {model.opset_imports.get('', 0)}, but float16 scales require opset "
            f"{HALF_SCALES_OPSET}"
        )
    return _Float16Converter(model.graph).run()


def why_not_float16(array: Array) -> str:
    """Why an array cannot be kept in float16 as scales or factors; empty if it can."""
    magnitude = np.abs(np.asarray(array, np.float64))
    if magnitude.size and float(magnitude.max()) > LARGEST and np.isfinite(magnitude).all():
        return f"{float(magnitude.max()):.4g} is above the largest float16, {LARGEST:g}"
    small = magnitude[(magnitude > 0) & (magnitude < SMALLEST_NORMAL)]
    if small.size:
        return f"{float(small.min()):.4g} is below the smallest normal float16, {SMALLEST_NORMAL:.4g}"
    return ""


class _Float16Converter:
    """Converts one graph; every new Cast and every converted constant is created once and shared."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._kept: dict[ir.Node, str] = {}
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._halves: dict[tuple[ir.Value, float], ir.Value] = {}
        self._mask_limits = mask_limits(graph, _MASK_ROOM)

    def run(self) -> PassRecord:
        nodes = [node for node in self._graph if not is_op(node, "Constant")]
        self._kept = {node: why for node in nodes if (why := _why_kept(node))}
        for node in nodes:
            if _has_epsilon(node):
                why = f"it divides by the output of {node.name!r}, which float16 may round to zero"
                self._kept |= dict.fromkeys(_divisions(node.outputs[0]), why)
        outputs = {v: i for i, v in enumerate(self._graph.outputs) if v.dtype is _FLOAT and not v.is_graph_input()}
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is not None and value.dtype in (_FLOAT, _HALF):
                    self._convert_input(node, index, value)
            self._convert_outputs(node)
        for value, index in outputs.items():
            self._as_output(value, index)
        for name, value in list(self._graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self._graph.initializers[name]
        halved = len(nodes) - len(self._kept)
        changed = (Site("graph", f"{halved} of {len(nodes)} operators converted to float16"),) if halved else ()
        declined = tuple(Site(_where(node), f"kept in float32: {why}") for node, why in self._kept.items())
        return PassRecord("as_float16", changed, declined)

    def _convert_input(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Give a node its input in the type that it computes in."""
        dtype = _FLOAT if node in self._kept or index in _ALWAYS_FLOAT.get(node.op_type, ()) else _HALF
        if is_op(node, "Cast") or value.dtype is dtype:
            return
        array = constant_of(value)
        if array is not None and dtype is _HALF:
            node.replace_input_with(index, self._half(value, array, self._mask_limits.get((node, index), LARGEST)))
        else:
            node.replace_input_with(index, self._cast(node, value, dtype))

    def _convert_outputs(self, node: ir.Node) -> None:
        if node in self._kept or (is_op(node, "Cast") and attribute(node, "to", 0) != _FLOAT):
            return
        for name in ("to", "dtype"):
            if attribute(node, name, 0) == _FLOAT:
                node.attributes[name] = ir.AttrInt64(name, int(_HALF))
        filled = attribute(node, "value", None)
        if is_op(node, "ConstantOfShape"):
            array = np.zeros(1, np.float32) if filled is None else filled.numpy()
            if array.dtype == np.float32:
                node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(array.astype(np.float16)))
        for output in node.outputs:
            if output.dtype is _FLOAT:
                output.type = ir.TensorType(_HALF)

    def _half(self, value: ir.Value, array: Array, reach: float) -> ir.Value:
        """The constant in float16; a mask with values below ``-reach`` is clipped there, in a copy of its own."""
        clipped = np.where(np.isfinite(array), np.clip(array, -reach, LARGEST), array).astype(np.float16)
        key = value, reach if (array[np.isfinite(array)] < -reach).any() else LARGEST
        if key not in self._halves:
            name = f"{value.name}/half"
            self._halves[key] = edit.add_initializer(self._graph, clipped, name=name, source=value)
        return self._halves[key]

    def _cast(self, before: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value cast to another type; the Cast is inserted before the first consumer and shared by all."""
        if (value, dtype) not in self._casts:
            self._casts[value, dtype] = edit.insert(
                before,
                "Cast",
                [value],
                attributes={"to": int(dtype)},
                source=value,
                replaces=[],
                shape=edit.shape_of(value),
                dtype=dtype,
            )
        return self._casts[value, dtype]

    def _as_output(self, value: ir.Value, index: int) -> None:
        """Restore a float32 output of the graph, under its name."""
        if value.dtype is _FLOAT:
            return
        name = str(value.name)
        value.name = edit.free_name(self._graph, f"{name}/half")
        node = ir.node("Cast", [value], {"to": int(_FLOAT)}, name=edit.free_name(self._graph, f"{name}/Cast"))
        final = node.outputs[0]
        final.name, final.type, final.shape = name, ir.TensorType(_FLOAT), value.shape
        final.metadata_props.update(value.metadata_props)
        self._graph.append(node)
        self._graph.outputs[index] = final


def _why_kept(node: ir.Node) -> str:
    """Why a node must compute in float32; empty if it need not."""
    if is_op(node, *_FLOAT_OPS):
        return f"{node.op_type} supports float32 only"
    for index, value in enumerate(node.inputs):
        array = constant_of(value)
        if array is None or array.dtype != np.float32 or index in _ALWAYS_FLOAT.get(node.op_type, ()):
            continue
        scale = is_op(node, *_SCALED) and index == 1
        factor = array.size == 1 and not is_op(node, *_MASKS, "Clip")
        large = not is_op(node, *_MASKS, "Clip") and bool((np.abs(array[np.isfinite(array)]) > LARGEST).any())
        if (scale or factor or large or _has_epsilon(node)) and (why := why_not_float16(array)):
            return f"input {index} of {node.op_type}: {why}"
    return ""


def _has_epsilon(node: ir.Node) -> bool:
    """Whether a node adds a number that float16 cannot hold, or has it as lower bound: an Add, a Max, or a Clip."""
    if is_op(node, "Clip"):
        numbers = [constant_of(value) for value in node.inputs[1:2]]
    else:
        numbers = [constant_of(value) for value in (node.inputs if is_op(node, "Add", "Max") else ())]
    found = [array for array in numbers if array is not None and array.size == 1 and array.dtype == np.float32]
    return any(0 < abs(float(array.reshape(-1)[0])) < SMALLEST_NORMAL for array in found)


def _divisions(divisor: ir.Value) -> Iterator[ir.Node]:
    """The operators that divide by a value, directly or after a Sqrt or Expand, and those in between."""
    for consumer, index in divisor.uses():
        if is_op(consumer, "Reciprocal") or (is_op(consumer, "Div") and index == 1):
            yield consumer
        elif is_op(consumer, "Sqrt", "Expand") and index == 0 and (further := list(_divisions(consumer.outputs[0]))):
            yield from (consumer, *further)


def _where(node: ir.Node) -> str:
    return origin_of(node.outputs[0]).name
