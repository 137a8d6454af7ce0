"""Write a Conv with a kernel of one column as one of two columns: zeros, and a column of padding that they are for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_RANK_OF_IMAGES = 4


def widen_kernel(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Rewrite the Convs on images with one column for which ``applies`` is true; the outputs do not change.

    The zeros are at the left of the kernel, and one more column is padded at the left: every output is the sum of the
    same products, and of zeros.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Conv") or not applies(node):
            continue
        where, weight = origin_of(node.outputs[0]).name, node.inputs[1]
        array = constant_of(weight)
        if weight is None or array is None or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
            declined.append(Site(where, "its pads are computed, or its weight is not constant"))
            continue
        if array.ndim != _RANK_OF_IMAGES or array.shape[-1] != 1:
            declined.append(Site(where, "its kernel does not have one column"))
            continue
        name = edit.free_name(model.graph, f"{weight.name}/two_columns")
        wider = np.pad(array, [(0, 0), (0, 0), (0, 0), (1, 0)])
        _rewrite(node, edit.add_initializer(edit.graph_of(node), wider, name=name, source=weight))
        changed.append(Site(where, "a column of zeros added to the kernel, and one to the padding"))
    return PassRecord("widen_kernel", tuple(changed), tuple(declined))


def _rewrite(node: ir.Node, weight: ir.Value) -> None:
    output = node.outputs[0]
    top, left, bottom, right = attribute(node, "pads", [0] * 4)
    dropped = ("auto_pad", "dilations", "pads", "kernel_shape")
    attributes = {name: attr for name, attr in node.attributes.items() if name not in dropped}
    rows, _ = attribute(node, "dilations", [1, 1])
    new = edit.insert(
        node,
        "Conv",
        [node.inputs[0], weight, *node.inputs[2:]],
        attributes={
            **attributes,
            "dilations": [rows, 1],
            "pads": [top, left + 1, bottom, right],
            "kernel_shape": list((shape_of(weight) or ())[2:]),
        },
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
    edit.replace_value(output, new)
    edit.remove_dead(edit.graph_of(new.producer() or node), [node])
