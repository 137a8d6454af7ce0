"""Small attention graphs as text, for the passes that change attention."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.pass_record import Pass, PassRecord
from tests import equality

INPUTS = "float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v"


def parse(
    body: str, *, inputs: str = INPUTS, outputs: str = "float[1,2,5,4] y", opset: int = 21, **constants: Any
) -> ir.Model:
    """A model from the text of its nodes and its inputs, outputs and constants; float constants become float32."""
    arrays = {name: np.asarray(constant) for name, constant in constants.items()}
    typed = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    return equality.model_from(f"case ({inputs}) => ({outputs}) {{ {body} }}", opset=opset, **typed)


def apply(model: ir.Model, *passes: Pass) -> PassRecord:
    """Run passes on the model, check that it is valid, equal and traceable, and return the first record."""
    before = model.clone()
    records = [run_pass(model) for run_pass in passes]
    equality.check_valid(model)
    equality.assert_traceable(model, equality.names_in(before))
    equality.assert_equal(before, model)
    return records[0]


def ops(model: ir.Model) -> Counter[str]:
    """The number of nodes of each operator."""
    return Counter(equality.ops(model))
