"""A Resize that reads other positions on HTP than in ONNX: the provider ignores ``nearest_mode`` and ``scales``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.model.resize import positions_of
from dovetail.passes.resize_to_gather import resize_to_gather
from dovetail.passes.resize_to_matmul import resize_to_matmul
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

# Positions that differ by less give the same interpolated value in 16 bits.
_TOLERANCE = 1e-3
# The rounding with which a nearest Resize of another rank than 4 compiles, by coordinate transformation.
_OTHER_RANKS = {"align_corners": "round_prefer_ceil", "asymmetric": "floor", "half_pixel": "floor"}


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP reads other positions of the input than this Resize says, or rejects it."""
    positions = positions_of(node) if is_op(node, "Resize") else None
    if positions is None:
        return False
    before, after = (shape_of(value) or () for value in (node.inputs[0], node.outputs[0]))
    if not _compiles(node, len(before)):
        return True
    return any(
        np.abs(row - _positions_on_htp(node, before[axis], after[axis])).max() > _TOLERANCE
        for axis, row in positions.items()
    )


def is_weighted_differently(node: ir.Node) -> bool:
    """Whether HTP rejects this interpolation or weights the elements differently: more than nearest or linear."""
    if not is_op(node, "Resize"):
        return False
    if attribute(node, "antialias", 0) or attribute(node, "exclude_outside", 0):
        return str(attribute(node, "mode", "nearest")) != "nearest"
    scales = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    before, after = (shape_of(value) for value in (node.inputs[0], node.outputs[0]))
    if attribute(node, "mode", "nearest") != "cubic" or scales is None or before is None or after is None:
        return False
    if len(scales) != len(before):  # the scales of some axes
        return True
    return bool((np.abs(scales * before - after) > _TOLERANCE * np.array(before)).any())


def _positions_on_htp(node: ir.Node, size: int, new: int) -> Array:
    """The positions along an axis that HTP reads; it knows only the sizes before and after."""
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    index = np.arange(new)
    nearest = attribute(node, "mode", "nearest") == "nearest"
    position: Array = index * size / new  # asymmetric
    if transform == "align_corners":
        position = index * ((size - 1) / max(new - 1, 1))
    elif transform == "half_pixel" or (transform == "pytorch_half_pixel" and not nearest and new > 1):
        position = (index + 0.5) * size / new - 0.5
    elif transform == "pytorch_half_pixel" and new == 1:
        position = index * 0.0
    if nearest:
        rounds = transform in ("half_pixel", "align_corners")
        position = np.floor(position + (0.5 + _TOLERANCE / size if rounds else _TOLERANCE / size))
    return np.clip(position, 0, size - 1)


def _compiles(node: ir.Node, rank: int) -> bool:
    """Whether the provider accepts the modes of a Resize."""
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if transform not in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        return False
    if attribute(node, "mode", "nearest") != "nearest":
        return True
    if rank == 4:
        return transform != "asymmetric" or rounding not in ("round_prefer_floor", "ceil")
    return bool(_OTHER_RANKS.get(transform) == rounding)


@rule("Q543")
def resize_positions_not_supported(subject: CheckInput) -> Iterator[Finding]:
    """A Resize reads other elements of its input on HTP than in ONNX, or is rejected.

    ## What it finds
    Nearest and linear Resizes for which the positions that ONNX defines are not those that HTP uses. For a nearest
    Resize the provider ignores `nearest_mode`: HTP rounds to the nearest position, half up, with `half_pixel` and
    `align_corners`, and down with `asymmetric` and `pytorch_half_pixel`. The finding depends on the sizes: a factor of
    2 with `half_pixel` and `round_prefer_floor` is the same either way, with `floor` or `ceil` it is not. For a linear
    Resize the provider ignores `scales` and divides the sizes: 5 columns times 0.5 are 2, and 2/5 is not 0.5. Also
    found: combinations of modes that the provider rejects, among them `antialias` and cubic Resizes whose `scales` are
    not the ratio of the sizes, and `exclude_outside`, which it ignores. A float model is checked after the rewrites of
    `dovetail fit`.

    ## Why it matters
    The model compiles, in integers and in float16, and its feature maps are shifted by an element or scaled by another
    factor; the simulation is right.

    ## How to fix it
    `dovetail fit` and `dovetail repair` select the same elements in another way: as a Resize with `asymmetric` and
    `floor` if every element is repeated equally often, else with Gathers of rows and columns; a linear Resize is
    written out as interpolation between two Gathers, any other one as two MatMuls with constant weights. In an export
    from PyTorch, use `size=` instead of `scale_factor=`.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, uint8, uint16 and float16: half_pixel with floor
      and factor 2 agrees with the simulation to -1.8 dB, asymmetric with round_prefer_ceil to -1.4 dB, linear
      half_pixel with `scales` 0.5 on 5 columns to 1.3 dB; 4 transformations x 4 roundings x 9 sizes follow the rule
      above. The source of the provider (resize_op_builder.cc) passes no rounding to ResizeNearestNeighbor.
    - qnn-htp: the same, cubic by 1.5 of 9 x 10: "Resize cubic mode requires scales to match output/input shape"; by 2
      it compiles (74 dB). `exclude_outside`: 24 and 30 dB. `antialias`: "Resize doesn't support anti-aliasing".
    - qnn-htp: onnxruntime-qnn 2.4.0 and 2.6.0 (QAIRT 2.48.40 and 2.50.40), SoC 43, emulated: the same results on
      half_pixel with floor and factor 2.
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node) or is_weighted_differently(node):
            modes = ", ".join(str(attribute(node, name, default)) for name, default in _MODES.items())
            yield Finding(
                "Q543",
                at_node(node),
                f"{say(node)} ({modes}): HTP reads other positions of the input, or rejects these modes",
                Severity.ERROR,
                fix="write it with Gathers or MatMuls along its axes; `dovetail fit` and `dovetail repair` do this",
            )


_MODES = {
    "mode": "nearest",
    "coordinate_transformation_mode": "half_pixel",
    "nearest_mode": "round_prefer_floor",
}
WORKAROUND = Workaround(
    "Q543",
    passes=(
        partial(resize_to_gather, applies=is_miscompiled),
        partial(resize_to_matmul, applies=is_weighted_differently),
    ),
)
