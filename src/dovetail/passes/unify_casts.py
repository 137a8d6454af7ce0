"""Write CastLike as Cast."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def unify_casts(model: ir.Model) -> PassRecord:
    """Rewrite CastLike as Cast, so that a constant can be folded without the tensor whose type it is cast to."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        if not edit.is_op(node, "CastLike") or node.inputs[1] is None:
            continue
        output, dtype = node.outputs[0], node.inputs[1].dtype
        where = origin_of(output).name
        if dtype is None:
            declined.append(Site(where, f"the type of {node.inputs[1].name!r} is unknown"))
            continue
        new = edit.insert(
            node,
            "Cast",
            [node.inputs[0]],
            attributes={"to": int(dtype)},
            source=output,
            replaces=[node],
            shape=shape_of(output),
            dtype=dtype,
        )
        edit.replace_value(output, new)
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"CastLike rewritten as Cast to {dtype.name.lower()}"))
    return PassRecord("unify_casts", tuple(changed), tuple(declined))
