"""A plan written as encodings and read back is the same plan: the same QDQ graph is emitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.encoding import Granularity, QParams
from dovetail.encodings.as_plan import encodings_of, given_plan
from dovetail.encodings.convert import convert
from dovetail.encodings.read import parse_encodings, read_encodings
from dovetail.encodings.records import Encodings
from dovetail.encodings.shapes import model_tensors
from dovetail.errors import InputError
from dovetail.float_graph import prepared
from dovetail.model.edit import constant_of
from dovetail.model.read import read
from dovetail.model.write import serialized, write
from dovetail.numerics.affine import fake_quantize
from dovetail.op_support import OpTable, Precision
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.constraints import build_problem
from dovetail.plan.imported_qparams import imported_qparams
from dovetail.plan.make import make_plan
from dovetail.plan.pins import imported_pins
from dovetail.plan.request import Request
from dovetail.qdq.emit import emit_qdq
from dovetail.stats import DataInfo, Stats
from dovetail.storage import Plan, ScaleSource
from dovetail.targets import open_target
from dovetail.zoo import load
from tests.equality import model_from, normal
from tests.planning import graph, noise, planned

SAMPLES = Path(__file__).parent / "samples"
NO_STATS = Stats({}, DataInfo("", 0, ""))
LINEAR = """g (float[1,8,64] x) => (float[1,8,32] y)
{ a = MatMul(x, w) c = Add(a, b) d = Relu(c) y = MatMul(d, v) }"""


def planned_with(model: ir.Model, table: OpTable, precision: Precision, content: bytes) -> Plan:
    """The plan from encodings alone: there are no statistics, so every scale that is needed must be in them."""
    given = given_plan(model, parse_encodings(content))
    assert given.surplus == ()
    imported = imported_qparams(model, given.plan, from_file=True)
    problem = build_problem(model, table)
    request = Request(precision, from_data=False).pinned(imported_pins(problem, imported, precision))
    return make_plan(model, table, NO_STATS, request, imported)


def reread(model: ir.Model, folder: Path) -> ir.Model:
    """The graph as a caller's file, so that its names are the original ones."""
    again = read(write(model, folder / "graph.onnx")[0])
    infer_shapes(again)
    return again


def dequantized(model: ir.Model, plan: Plan) -> dict[str, np.ndarray]:
    nodes = {str(node.name): node for node in model.graph}
    real = {}
    for edge, choice in plan.edges.items():
        array = constant_of(nodes[edge.node].inputs[edge.index])
        if array is not None and isinstance(choice.storage, QParams):
            real[str(edge)] = fake_quantize(array, choice.storage)
    return real


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
@pytest.mark.parametrize(
    ("target", "precision"),
    [
        ("ort-cpu", "w8a8"),
        ("ort-cpu", "w8a16"),
        ("qnn-htp:v75", "w8a8"),
        ("qnn-htp:v75", "w8a16"),
        ("xnnpack", "w8a8"),
        ("tensorrt", "w8a8"),
    ],
)
def test_the_encodings_of_a_plan_give_the_same_qdq_graph(
    target: str, precision: str, version: str, tmp_path: Path
) -> None:
    opened = open_target(target)
    model = reread(prepared(read(load("vit_digits").model_path), opened), tmp_path)
    wanted = opened.table.precisions[precision]
    plan = planned(model, opened, wanted)
    tensors = model_tensors(model)
    content = convert(encodings_of(plan, model), version, tensors, lossy=True).content
    again = planned_with(model, opened.table, wanted, content)
    first, second = dequantized(model, plan), dequantized(model, again)
    assert first.keys() == second.keys()
    for edge, values in first.items():
        np.testing.assert_array_equal(values, second[edge], err_msg=edge)
    assert {n: c.storage for n, c in again.tensors.items()} == {n: c.storage for n, c in plan.tensors.items()}
    if not target.startswith("qnn-htp"):
        # There, a second operand of a MatMul has another encoding than its tensor, for which a file has no entry.
        assert serialized(emit_qdq(model, again)) == serialized(emit_qdq(model, plan))
    calibrated = [n for n, choice in again.tensors.items() if choice.scale_from is ScaleSource.CALIBRATED]
    assert calibrated == []


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
@pytest.mark.parametrize(
    ("target", "precision"), [("qnn-htp:v75", "w4a16"), ("ort-cpu", "w4a16-bq"), ("qnn-htp:v75", "w4a16-lpbq")]
)
def test_blocks_and_expanded_blocks_give_the_same_qdq_graph(
    target: str, precision: str, version: str, tmp_path: Path
) -> None:
    opened = open_target(target)
    model = model_from(LINEAR, w=normal(64, 64), b=normal(64), v=normal(64, 32))
    model = reread(model, tmp_path)
    wanted = opened.table.precisions[precision]
    plan = planned(model, opened, wanted, data=noise(model))
    granularity = {c.storage.encoding.granularity for c in plan.edges.values() if isinstance(c.storage, QParams)}
    assert wanted.weight.granularity in granularity
    content = convert(encodings_of(plan, model), version, model_tensors(model)).content
    again = planned_with(model, opened.table, wanted, content)
    assert serialized(emit_qdq(model, again)) == serialized(emit_qdq(model, plan))


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
def test_weights_of_the_samples_are_dequantized_as_the_file_says(version: str) -> None:
    """Conv with scales on axis 0 and MatMul on axis 1, dequantized by hand."""
    model = read(SAMPLES / "tiny.onnx")
    plan = given_plan(model, read_encodings(SAMPLES / f"w8a16_{version}.json")).plan
    real = dequantized(model, plan)
    arrays = {name: constant_of(model.graph.initializers[name]) for name in ("conv.w", "mm.w")}
    entries = read_encodings(SAMPLES / "w8a16_2.0.0.json").entries
    scales = {"conv.w": entries["conv.w"].scale.reshape(4, 1, 1, 1), "mm.w": entries["mm.w"].scale.reshape(1, 6)}
    for edge, values in real.items():
        name = "conv.w" if "conv" in edge else "mm.w"
        scale = scales[name].astype(np.float32)
        expected = np.clip(np.rint(arrays[name] / scale), -128, 127) * scale
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert len(real) == 2


def test_float_entries_stay_float_and_the_rest_is_quantized() -> None:
    opened = open_target("ort-cpu")
    model = prepared(read(SAMPLES / "tiny.onnx"), opened)
    content = (SAMPLES / "w8a16_float_mixed_1.0.0.json").read_bytes()
    plan = planned_with(model, opened.table, opened.table.precisions["w8a16"], content)
    assert not plan.tensors["relu_out"].storage.dtype.is_quantized
    assert not plan.tensors["tr"].storage.dtype.is_quantized
    assert plan.tensors["x"].storage.dtype.is_quantized
    only_weight = parse_encodings(content)  # without the float entries of its neighbours
    entries = {n: e for n, e in only_weight.entries.items() if n not in ("y", "relu_out")}
    entries["relu_out"] = read_encodings(SAMPLES / "w8a16_1.0.0.json").entries["relu_out"]
    content = convert(Encodings("1.0.0", entries), "1.0.0").content
    plan = planned_with(model, opened.table, opened.table.precisions["w8a16"], content)
    quantized = {str(edge) for edge, choice in plan.edges.items() if choice.storage.dtype.is_quantized}
    assert "conv:1" in quantized
    assert "add_out/Gemm:1" not in quantized


def test_a_layer_with_weights_of_another_width_keeps_them(tmp_path: Path) -> None:
    opened = open_target("qnn-htp:v75")
    model = reread(prepared(read(load("vit_digits").model_path), opened), tmp_path)
    wide, narrow = (opened.table.precisions[name] for name in ("w8a16", "w4a16"))
    entries = dict(encodings_of(planned(model, opened, narrow), model).entries)
    other = encodings_of(planned(model, opened, wide), model).entries
    weight = next(n for n, e in entries.items() if e.granularity is Granularity.AXIS and e.bits == 4)
    entries[weight] = other[weight]
    content = convert(Encodings("2.0.0", entries), "2.0.0").content
    plan = planned_with(model, opened.table, narrow, content)
    users = {str(node.name) for node in model.graph for v in node.inputs if v is not None and v.name == weight}
    edge = next(choice for edge, choice in plan.edges.items() if edge.node in users and edge.index == 1)
    assert (edge.storage.dtype.bits, edge.scale_from) == (8, ScaleSource.GIVEN)


def test_surplus_names_are_listed_and_a_wrong_shape_is_named() -> None:
    model = read(SAMPLES / "tiny.onnx")
    content = (SAMPLES / "w8a16_1.0.0.json").read_bytes()
    assert given_plan(model, parse_encodings(content.replace(b'"relu_out"', b'"relu"'))).surplus == ("relu",)
    other = graph("g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }")
    with pytest.raises(InputError, match=r"entry 'w': it has 6 scales on axis 1, but the tensor has shape \[4, 2\]"):
        given_plan(other, parse_encodings(content.replace(b'"mm.w"', b'"w"')))
