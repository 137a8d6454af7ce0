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
    """A model from the text of its nodes; what they read beside the inputs is given as constants, floats as float32."""
    arrays = {name: np.asarray(number) for name, number in constants.items()}
    typed = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    return equality.model_from(f"case ({inputs}) => ({outputs}) {{ {body} }}", opset=opset, **typed)


def apply(model: ir.Model, *passes: Pass) -> PassRecord:
    """Run passes over the model, prove it valid, equal and traceable, and give the first record."""
    before = model.clone()
    records = [each(model) for each in passes]
    equality.check_valid(model)
    equality.assert_traceable(model, equality.names_in(before))
    equality.assert_equal(before, model)
    return records[0]


def ops(model: ir.Model) -> Counter[str]:
    """How many nodes of each operator a model has."""
    return Counter(equality.ops(model))
