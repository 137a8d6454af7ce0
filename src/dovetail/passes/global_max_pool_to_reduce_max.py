"""Write GlobalMaxPool as ReduceMax, for targets that have an integer kernel for ReduceMax only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def global_max_pool_to_reduce_max(model: ir.Model) -> PassRecord:
    """Replace every GlobalMaxPool whose rank is known by ReduceMax over all axes after the channels."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "GlobalMaxPool"):
            continue
        output, shape = node.outputs[0], shape_of(node.inputs[0])
        where = origin_of(output).name
        if shape is None:
            declined.append(Site(where, "its shape is unknown"))
            continue
        axes = edit.add_initializer(
            model.graph, np.arange(2, len(shape), dtype=np.int64), name=f"{output.name}/axes", source=output
        )
        value = edit.insert(
            node,
            "ReduceMax",
            [node.inputs[0], axes],
            attributes={"keepdims": 1},
            source=output,
            replaces=[node],
            shape=shape_of(output),
        )
        edit.replace_value(output, value)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, "GlobalMaxPool rewritten as ReduceMax"))
    return PassRecord("global_max_pool_to_reduce_max", tuple(changed), tuple(declined))
