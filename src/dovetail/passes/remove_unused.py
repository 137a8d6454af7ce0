"""Remove nodes, constants and optional outputs that are not used."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def remove_unused(model: ir.Model) -> PassRecord:
    """Remove everything that no graph output depends on; inputs and outputs of the model stay."""
    before = _contents(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    after = _contents(model)
    return PassRecord("remove_unused", tuple(Site(name, "unused") for name in before if name not in after))


def _contents(model: ir.Model) -> dict[str, None]:
    """The original names of all constants and node outputs."""
    values = [*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)]
    return dict.fromkeys(origin_of(value).name for value in values)
