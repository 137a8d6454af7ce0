"""Q5: coordinates in pixels, whose integers are as coarse as the image is large."""

from __future__ import annotations

from collections.abc import Iterator

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
# A point, or a box.
_COORDINATES = (2, 4)
_RANKS = (2, 3)
_CALLER = "the caller, as an output of the model"
# From this scale on, in pixels, a box is visibly displaced.
_COARSE_PIXELS = 1.0


@rule("Q510")
def coordinates_times_image_size(subject: CheckInput) -> Iterator[Finding]:
    """Coordinates are multiplied by the size of the image, and the result in pixels is quantized.

    ## What it finds
    Quantized outputs of a Mul or Div by a constant with a factor of 32 or more, in which a row or a column has 2 or 4
    elements (points, boxes) and which are relative coordinates before: of magnitude 2 at most. The finding names the
    operator, the factor, the readers, and the scale in pixels.

    ## Why it matters
    With one factor for all coordinates the integers are those of the relative ones, so the multiplication itself loses
    nothing. But with 8 bits the boxes of an image of 640 pixels are whole multiples of 2.5 pixels, and whatever shares
    their scale (scores in the same Concat) has no more than these 256 steps either. Then the finding is a warning; with
    16 bits the scale is 0.01 pixels, and it is a note, so that a range of 640 beside others of 1 is not taken for an
    error.

    ## How to fix it
    Multiply by the size of the image behind the model, on the device's CPU, or keep the tensor in float or in 16 bits
    with the `--keep` line of the finding.

    ## Seen on
    - every target, by arithmetic: the scale of an 8-bit tensor with a range of 640 is 640 / 255 = 2.5.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated (`python -m bench.ranges`): the boxes of a decoder
      in w8a16 are at 53.6 dB against float with this multiplication, and at 53.2 dB without it.
    """
    for tensor in activations(subject):
        factors = _factors(tensor.value.producer())
        if factors is None or not _has_coordinates(tensor.value):
            continue
        largest = float(np.abs(factors).max())
        if np.abs(factors).min() < _SMALLEST_IMAGE:
            continue
        if max(abs(tensor.low), abs(tensor.high)) <= _LARGEST_COORDINATE * largest:
            yield _coordinates(subject, tensor, largest)


def _factors(node: ir.Node | None) -> Array | None:
    """What a Mul or Div multiplies its other operand by; None for other operators."""
    if node is None or not is_op(node, "Mul", "Div"):
        return None
    constants = [constant_of(value) for value in node.inputs]
    if is_op(node, "Div"):
        divisor = constants[1]
        has_inverse = constants[0] is None and divisor is not None and divisor.size and divisor.all()
        return 1 / divisor if divisor is not None and has_inverse else None
    known = [array for array in constants if array is not None and array.size]
    return known[0] if len(known) == 1 else None


def _has_coordinates(value: ir.Value) -> bool:
    """Whether a row or a column is a point or a box: [..., 4], or [batch, 4, boxes] as in YOLO's heads; no image."""
    shape = shape_of(value)
    return shape is not None and len(shape) in _RANKS and (shape[-1] in _COORDINATES or shape[1] in _COORDINATES)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The operators that compute with a tensor, behind data movement."""
    for node, _ in value.uses():
        if node.op_type not in DATA_MOVEMENT_OPS:
            yield node
            continue
        for output in node.outputs:
            yield from _readers(output)


def _coordinates(subject: CheckInput, tensor: Activation, factor: float) -> Finding:
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
        f"{operator} multiplies relative coordinates by up to {factor:.6g}: its output {name!r} ranges from "
        f"{tensor.low:.4g} to {tensor.high:.4g} pixels with a scale of {step:.3g} pixels; it is read by {readers}",
        Severity.WARNING if step >= _COARSE_PIXELS else Severity.NOTE,
        {"factor": factor, "low": tensor.low, "high": tensor.high, "step": step},
        f"remove {operator} from the model and multiply its outputs on the CPU{line}",
    )
