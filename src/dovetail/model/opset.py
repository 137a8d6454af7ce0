"""Convert models below opset 21 to opset 21, for which the passes are written; later opsets stay as they are."""

from __future__ import annotations

import onnx_ir as ir
from onnx import version_converter

from dovetail.errors import InputError
from dovetail.model.onnx_crashes import REPORTED, Step, refuse_crash
from dovetail.model.skeleton import refill, skeleton

OPSET = 21
OLDEST_OPSET = 11
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
        raised.metadata_props.update(model.metadata_props)
        raised.graph.doc_string = model.graph.doc_string
    raised.ir_version = max(raised.ir_version, _IR_VERSION)
    return raised
