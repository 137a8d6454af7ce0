"""Write a ConvTranspose without ``output_padding``: it pads less at the end, or has zeros at the end of its kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def fold_output_padding(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the ConvTransposes with output padding for which ``applies`` is true; the outputs do not change.

    Output padding computes that many more elements at the end, as ``pads`` that are smaller by as much do.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        extra = attribute(node, "output_padding", ())
        if not is_op(node, "ConvTranspose") or not any(extra) or not applies(node):
            continue
        where, weight = origin_of(node.outputs[0]).name, node.inputs[1]
        array = constant_of(weight)
        automatic = attribute(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "output_shape", None)
        if automatic or weight is None or array is None:
            declined.append(Site(where, "its pads are computed, or its weight is not constant"))
            continue
        ends = np.array(attribute(node, "pads", [0] * 2 * len(extra))).reshape(2, -1) - [[0] * len(extra), extra]
        longer = np.maximum(-ends[1], 0)
        if longer.any():
            steps = np.array(attribute(node, "dilations", [1] * len(extra)))
            longer = -(-longer // steps)  # rows and columns of the kernel, which are this many elements apart
            ends[1] += longer * steps
            kernel = np.pad(array, [(0, 0), (0, 0), *((0, int(more)) for more in longer)])
            weight = edit.add_initializer(model.graph, kernel, name=f"{weight.name}/padded", source=weight)
        _rewrite(node, weight, ends.reshape(-1).tolist())
        changed.append(Site(where, f"output padding {list(extra)} moved into the pads"))
    return PassRecord("fold_output_padding", tuple(changed), tuple(declined))


def _rewrite(node: ir.Node, weight: ir.Value, pads: list[int]) -> None:
    output, kernel = node.outputs[0], list((shape_of(weight) or ())[2:])
    dropped = ("auto_pad", "output_padding", "pads", "kernel_shape")
    attributes = {name: attr for name, attr in node.attributes.items() if name not in dropped}
    new = edit.insert(
        node,
        "ConvTranspose",
        [node.inputs[0], weight, *node.inputs[2:]],
        attributes={**attributes, "pads": pads, "kernel_shape": kernel},
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
    edit.replace_value(output, new)
    edit.remove_dead(edit.graph_of(new.producer() or node), [node])
