"""Convert models below opset 21 to opset 21, for which the passes are written; later opsets stay as they are."""

from __future__ import annotations

import onnx_ir as ir
from onnx import version_converter

from dovetail.errors import InputError
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.onnx_crashes import REPORTED, Step, refuse_crash
from dovetail.model.skeleton import refill, skeleton

OPSET = 21
OLDEST_OPSET = 7  # the first that ONNX Runtime supports
_FIRST_WITH_COORDINATES = 11  # Resize has coordinate transformations and roundings
_IR_VERSION = 10  # the first that allows opset 21, and metadata on every value


def raise_opset(model: ir.Model) -> ir.Model:
    """A copy of the model at opset 21 or later, with the same names, weights and metadata.

    onnx's version converter serializes the whole model, so it gets a skeleton: the model without its large weights,
    which ``refill`` puts back afterwards. It also drops functions and node metadata, so functions are inlined before it
    and origins are recorded after it.
    """
    version = model.opset_imports[""]
    if version >= OPSET:
        raised = model.clone()
    else:
        bare = skeleton(model)
        refuse_crash({Step.CONVERT: bare})
        try:
            proto = version_converter.convert_version(bare, OPSET)
        except REPORTED as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"the model's opset {version} could not be converted to {OPSET}: {reason}") from error
        raised = ir.from_proto(proto)
        refill(raised, model)
        if version < _FIRST_WITH_COORDINATES:
            _set_coordinates(raised)
        raised.metadata_props.update(model.metadata_props)
        raised.graph.doc_string = model.graph.doc_string
    raised.ir_version = max(raised.ir_version, _IR_VERSION)
    return raised


def _set_coordinates(model: ir.Model) -> None:
    """Give every Resize the positions that it and Upsample had below opset 11, which onnx's converter leaves out.

    ONNX Runtime divides the index by the scale, and rounds down for a nearest Resize that enlarges, up for one that
    shrinks (``UpsampleNearestMode::SIMPLE``).
    """
    for node in model.graph.all_nodes():
        if not is_op(node, "Resize"):
            continue
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "asymmetric"
        )
        if attribute(node, "mode", "nearest") == "nearest":
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", _rounding(node))


def _rounding(node: ir.Node) -> str:
    scales = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is None or not (scales < 1).any():
        return "floor"
    if (scales > 1).any():
        raise InputError(
            f"node {node.name or str(node.outputs[0].name)!r} (Resize) enlarges one axis and shrinks another: below "
            "opset 11 it rounds differently on the two axes, which one Resize of a later opset cannot do; export the "
            "model with opset 11 or later"
        )
    return "ceil"
