"""Small attention graphs as text, and the checks that every pass over them has to stand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from dovetail.model.origin import origin_of, stamp
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.record import Pass, PassRecord

HEADER = '<ir_version: 10, opset_import: ["" : {opset}]>\n'
INPUTS = "float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v"


def parse(
    body: str, *, inputs: str = INPUTS, outputs: str = "float[1,2,5,4] y", opset: int = 21, **constants: Any
) -> ir.Model:
    """A model from the text of its nodes; what it reads beside the inputs is given as constants."""
    text = HEADER.format(opset=opset) + f"case ({inputs}) => ({outputs}) {{{body}}}"
    proto = onnx.parser.parse_model(text)
    for name, number in constants.items():
        array = np.asarray(number)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    for number, node in enumerate(model.graph):
        node.name = f"node{number}"
    stamp(model)
    infer_shapes(model)
    return model


def run(model: ir.Model, seed: int = 0) -> dict[str, Any]:
    """All outputs for random inputs, by ONNX Runtime without any optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    proto = ir.to_proto(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    feeds = {}
    for value in session.get_inputs():
        array = random.standard_normal(value.shape)
        feeds[value.name] = array > 0 if value.type == "tensor(bool)" else array.astype(np.float32)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def sqnr_db(reference: Any, other: Any) -> float:
    """How far another result is below a reference; 300 dB stands for equal."""
    error = float(np.square(reference.astype(np.float64) - other).sum())
    return 10 * np.log10(float(np.square(reference.astype(np.float64)).sum()) / error) if error else 300.0


def apply(model: ir.Model, *passes: Pass) -> PassRecord:
    """Run passes in order, check that the numbers, the names and the trail stand, and give the last record."""
    original = run(model)
    names = _names(model)
    records = [each(model) for each in passes]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    result = run(model)
    assert list(result) == list(original)
    for name, reference in original.items():
        assert np.isfinite(reference).all(), "a case must have numbers to compare"
        assert sqnr_db(reference, result[name]) >= 100, name
    assert_trail(model, names)
    return records[-1]


def assert_trail(model: ir.Model, names: set[str]) -> None:
    """Every value leads back to a name of the original file."""
    lost = [name for name in _names(model) if origin_of(_value(model, name)).name not in names]
    assert lost == []


def ops(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def _values(model: ir.Model) -> list[ir.Value]:
    made = [value for node in model.graph for value in node.outputs if value.name]
    return [*model.graph.inputs, *model.graph.initializers.values(), *made]


def _names(model: ir.Model) -> set[str]:
    return {str(value.name) for value in _values(model)}


def _value(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in _values(model) if value.name == name)
