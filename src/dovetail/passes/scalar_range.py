"""Give a Range the scalars that ONNX asks for."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def scalar_range(model: ir.Model) -> PassRecord:
    """Write a constant start, limit or step of one element as a scalar, for the Range alone.

    ONNX Runtime takes a computed tensor of one element there, and refuses to load a constant one: without this pass,
    folding such a tensor would make a graph that does not load, and the size of the Range could not be inferred.
    """
    changed: list[Site] = []
    for node in model.graph:
        for index, value in enumerate(node.inputs if edit.is_op(node, "Range") else ()):
            array = edit.constant_of(value)
            if value is None or array is None or array.ndim == 0 or array.size != 1:
                continue
            scalar = edit.add_initializer(model.graph, array.reshape(()), name=f"{value.name}/scalar", source=value)
            node.replace_input_with(index, scalar)
            changed.append(Site(origin_of(node.outputs[0]).name, f"{origin_of(value).name!r} is a scalar"))
    return PassRecord("scalar_range", tuple(changed))
