"""Q5: coordinates in pixels, whose integers are as coarse as the image is large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor, named
from dovetail.rules.check_input import CheckInput
from dovetail.rules.keep_line import float_precision, keep_line, names_to_keep
from dovetail.rules.rule import rule
from dovetail.rules.stored import Activation, activations

# No image is smaller, and no coordinate relative to the image is larger: boxes may lie partly outside it.
_SMALLEST_IMAGE, _LARGEST_COORDINATE = 32.0, 2.0
# The strides of a detector's feature maps are powers of 2 in this range, at least two of them.
_STRIDES = (2.0, 256.0)
_RELATIVE, _CELLS = "coordinates relative to the image", "coordinates in cells of feature maps"
# A point, or a box.
_COORDINATES = (2, 4)
_RANKS = (2, 3)
_IMAGE_RANK = 4
# The size of an image as an input: height and width, perhaps for each image, and how it reaches the boxes.
_SIDES = 2
_MOVES_SIZE = (*DATA_MOVEMENT_OPS, "Cast", "Concat", "Expand", "Tile")
_CALLER = "the caller, as an output of the model"
# From this scale on, in pixels, a box is visibly displaced.
_COARSE_PIXELS = 1.0


@rule("Q510")
def coordinates_times_image_size(subject: CheckInput) -> Iterator[Finding]:
    """Coordinates are multiplied by the size of the image, and the result in pixels is quantized.

    ## What it finds
    Quantized outputs of a Mul or Div, in which a row or a column has 2 or 4 elements (points, boxes), by a constant
    that is the size of an image, or of a Mul by an input of the model that has it (two numbers per image, [2] or
    [batch, 2], as `orig_target_sizes` of RT-DETR; a tensor times itself is none). As a constant, that is: a width and a
    height that differ, 32 or more (640, 480, 640, 480); one factor that is a side of an image input of the model; or a
    factor per box, which is the stride of its feature map (8, 16 and 32 in YOLO's heads). With the first two, what is
    multiplied has a magnitude of 2 at most. Four scores times 100 are none of these. The finding names the operator,
    the factor, the readers, and the scale in pixels.

    ## Why it matters
    With one factor for all coordinates the integers are those of the relative ones, so the multiplication itself loses
    nothing. But with 8 bits the boxes of an image of 640 pixels are whole multiples of 2.5 pixels, and whatever shares
    their scale (scores in the same Concat) has no more than these 256 steps either. Then the finding is a warning; with
    16 bits the scale is 0.01 pixels, and it is a note, so that a range of 640 beside others of 1 is not taken for an
    error.

    ## How to fix it
    Multiply by the size of the image after the model, on the device's CPU, or keep the tensor in float or in 16 bits
    with the `--keep` line of the finding.

    ## Seen on
    - every target, by arithmetic: the scale of an 8-bit tensor with a range of 640 is 640 / 255 = 2.5.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated (`python -m bench.ranges`, and
      tests/backends/qnn_htp/test_ranges.py): the boxes of a decoder
      in w8a16 are at 53.6 dB against float with this multiplication, and at 53.2 dB without it.
    - ort-cpu: onnxruntime 1.31.1, w8a8, YOLOv8n (nudenet 3.4.2): `/model.22/Mul_5` multiplies by strides up to 32, and
      its output has a scale of 1.24 pixels (tests/backends/ort_cpu/test_rules.py).
    """
    sides = _image_sides(subject.model.graph)
    for tensor in activations(subject):
        node, shape = tensor.value.producer(), shape_of(tensor.value)
        if node is None or shape is None or len(shape) not in _RANKS or not _axes(shape):
            continue
        factors, magnitude = _factors(node), max(abs(tensor.low), abs(tensor.high))
        if factors is None:
            size = _size_input(node, shape)
            if size is not None and magnitude > _SMALLEST_IMAGE:
                yield _coordinates(subject, tensor, f"{_RELATIVE} by the input {origin_of(size).name!r}", {})
            continue
        largest = float(np.abs(factors).max())
        if any(_are_strides(vector) for vector in _per_box(factors, shape)) and magnitude > _SMALLEST_IMAGE:
            yield _coordinates(subject, tensor, f"{_CELLS} by up to {largest:.6g}", {"factor": largest})
        elif magnitude <= _LARGEST_COORDINATE * largest and any(
            _is_image_size(vector, sides) for vector in _per_coordinate(factors, shape)
        ):
            yield _coordinates(subject, tensor, f"{_RELATIVE} by up to {largest:.6g}", {"factor": largest})


def _factors(node: ir.Node) -> Array | None:
    """The constant by which a Mul or Div multiplies its other operand; None if there is none."""
    if not is_op(node, "Mul", "Div"):
        return None
    constants = [constant_of(value) for value in node.inputs]
    if is_op(node, "Div"):
        divisor = constants[1]
        has_inverse = constants[0] is None and divisor is not None and divisor.size and divisor.all()
        return 1 / divisor if divisor is not None and has_inverse else None
    known = [array for array in constants if array is not None and array.size]
    return known[0] if len(known) == 1 else None


def _size_input(node: ir.Node, shape: Sequence[int]) -> ir.Value | None:
    """The model's input with two numbers per image by which a Mul multiplies another tensor; None if there is none.

    ``shape``: that of the result, [boxes, 4] for one image or [batch, boxes, 4].
    """
    batch = shape[0] if len(shape) > 2 else 1
    for value, other in zip(node.inputs, reversed(node.inputs), strict=True) if is_op(node, "Mul") else ():
        while value is not None and not value.is_graph_input():
            producer = value.producer()
            value = producer.inputs[0] if producer is not None and producer.op_type in _MOVES_SIZE else None
        if shape_of(value) in ((_SIDES,), (1, _SIDES), (batch, _SIDES)) and value not in _inputs_behind(other):
            return value
    return None


def _inputs_behind(value: ir.Value | None) -> set[ir.Value]:
    """The inputs of the model that a tensor is computed from."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is not None and current not in seen:
            seen.add(current)
            producer = current.producer()
            waiting += () if producer is None else producer.inputs
    return {current for current in seen if current.is_graph_input()}


def _axes(shape: Sequence[int]) -> list[int]:
    """The axes along which a point or a box lies: the last one, or [batch, 4, boxes] as in YOLO's heads."""
    return [axis for axis in dict.fromkeys((len(shape) - 1, 1)) if shape[axis] in _COORDINATES]


def _per_coordinate(factors: Array, shape: Sequence[int]) -> Iterator[Array]:
    """The factors of the coordinates of a box, if they are those of all boxes."""
    for axis in _axes(shape):
        rows = np.moveaxis(np.broadcast_to(factors, shape), axis, -1).reshape(-1, shape[axis])
        if (rows == rows[0]).all():
            yield rows[0]


def _per_box(factors: Array, shape: Sequence[int]) -> Iterator[Array]:
    """The factors of all boxes, if they are those of all coordinates of a box."""
    for axis in _axes(shape):
        rows = np.moveaxis(np.broadcast_to(factors, shape), axis, -1).reshape(-1, shape[axis])
        if (rows == rows[:, :1]).all():
            yield rows[:, 0]


def _is_image_size(factors: Array, sides: frozenset[int]) -> bool:
    """Whether they are width and height, once or twice; equal ones only if an image of the model has this side."""
    if factors.min() < _SMALLEST_IMAGE or (factors.reshape(-1, 2) != factors[:2]).any():
        return False
    return bool(factors[0] != factors[1]) or float(factors[0]) in sides


def _are_strides(factors: Array) -> bool:
    """Whether they are strides of feature maps."""
    strides = np.unique(factors)
    low, high = _STRIDES
    is_power_of_2 = np.frexp(strides)[0] == 0.5
    return bool(strides.size > 1 and strides[0] >= low and strides[-1] <= high and is_power_of_2.all())


def _image_sides(graph: ir.Graph) -> frozenset[int]:
    """The heights and widths of the model's image inputs."""
    shapes = [shape for value in graph.inputs if (shape := shape_of(value)) is not None and len(shape) == _IMAGE_RANK]
    return frozenset(side for shape in shapes for side in shape[1:] if side >= _SMALLEST_IMAGE)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The operators that compute with a tensor, after data movement."""
    for node, _ in value.uses():
        if node.op_type not in DATA_MOVEMENT_OPS:
            yield node
            continue
        for output in node.outputs:
            yield from _readers(output)


def _coordinates(subject: CheckInput, tensor: Activation, product: str, numbers: Mapping[str, float]) -> Finding:
    """``product``: what is multiplied by what."""
    name, producer = origin_of(tensor.value).name, tensor.value.producer()
    step = float((tensor.planned or tensor.params(tensor.encodings[-1])).scale.max())
    operator = "" if producer is None else named(producer)
    read = [named(node) for node in dict.fromkeys(_readers(tensor.value))]
    readers = ", ".join([*read, *([_CALLER] if tensor.value.is_graph_output() or not read else [])])
    precision = float_precision(subject.table)
    line = "" if precision is None else f", or keep it in float: {keep_line(names_to_keep(tensor.value), precision)}"
    return Finding(
        "Q510",
        at_tensor(tensor.value),
        f"{operator} multiplies {product}: its output {name!r} ranges from "
        f"{tensor.low:.4g} to {tensor.high:.4g} pixels with a scale of {step:.3g} pixels; it is read by {readers}",
        Severity.WARNING if step >= _COARSE_PIXELS else Severity.NOTE,
        {**numbers, "low": tensor.low, "high": tensor.high, "step": step},
        f"remove {operator} from the model and multiply its outputs on the CPU{line}",
    )
