from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.errors import InputError
from dovetail.model.edit import shape_of
from dovetail.model.read import read
from dovetail.passes.normalize import NORMALIZE, normalize
from tests.equality import (
    Array,
    assert_equal,
    assert_traceable,
    check_valid,
    model_from,
    names_in,
    normal,
    ops,
    run,
    sqnr_db,
)
from tests.networks.wheels import ocr_model

REAL_FLOOR_DB = 80.0

# A layer normalization, a linear layer with GELU, and shape arithmetic, as TorchScript exports them.
TORCHSCRIPT = """g (float[batch,4,8] x) => (float[batch,16] y)
    <int64[1] minus = {-1}, float two = {2}, float eps = {0.00001}, float root2 = {1.4142135}, float one = {1},
     float half = {0.5}, int64 zero = {0}, int64[1] ax = {0}>
    { m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps)
      r = Sqrt(e) n = Div(d, r) g1 = Mul(n, gamma) g2 = Add(g1, beta)
      wt = Transpose<perm=[1,0]>(w) p = MatMul(g2, wt) h = Add(b, p)
      a1 = Div(h, root2) a2 = Erf(a1) a3 = Add(a2, one) a4 = Mul(h, a3) a5 = Mul(a4, half)
      s = Shape(a5) s0 = Gather(s, zero) u = Unsqueeze(s0, ax) t = Concat<axis=0>(u, minus) y = Reshape(a5, t) }"""
WEIGHTS = {"gamma": normal(8), "beta": normal(8, seed=1), "w": normal(4, 8, seed=2), "b": normal(4, seed=3)}


def _read(path: Path, text: str, opset: int = 13, **shapes: tuple[int, ...]) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    (path / "m.onnx").write_bytes(proto.SerializeToString())
    return read(path / "m.onnx", shapes)


def _assert_canonical(model: ir.Model) -> None:
    check_valid(model)
    for value in (*model.graph.initializers.values(), *(v for node in model.graph for v in node.outputs)):
        assert shape_of(value) is not None, value.name
        assert value.dtype is not None, value.name
    assert len({node.name for node in model.graph}) == len(model.graph)


def _lines_of_text(shape: tuple[int, ...]) -> Array:
    """Dark strokes on a bright page: on noise the detector outputs sigmoids of 1e-7, which are only rounding noise."""
    rng = np.random.default_rng(0)
    image = np.full(shape, 0.9, dtype=np.float32)
    for top in range(12, shape[2] - 12, 26):
        for left in range(12, shape[3] - 12, 13):
            image[:, :, top : top + 14, left : left + rng.integers(3, 9)] = -1.5
    return image + rng.normal(size=shape).astype(np.float32) * np.float32(0.05)


def test_whole_stage(tmp_path: Path) -> None:
    model = _read(tmp_path, TORCHSCRIPT, x=(2, 4, 8))
    after, records = normalize(model)
    assert ops(after) == ["LayerNormalization", "MatMul", "Add", "Gelu", "Reshape"]
    _assert_canonical(after)
    assert_traceable(after, names_in(model))
    assert_equal(model, after)
    assert {"fold_constants", "fuse_gelu", "fuse_layer_norm"} <= {record.name for record in records if record.changed}


def test_input_model_is_not_changed(tmp_path: Path) -> None:
    model = _read(tmp_path, TORCHSCRIPT, x=(2, 4, 8))
    before = ir.to_proto(model).SerializeToString()
    first, _ = normalize(model)
    second, _ = normalize(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()


def test_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (normalize(_read(tmp_path, TORCHSCRIPT, x=(2, 4, 8)))[0] for _ in range(2))
    assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()


def test_canonical_form_is_not_changed(tmp_path: Path) -> None:
    once, _ = normalize(_read(tmp_path, TORCHSCRIPT, x=(2, 4, 8)))
    twice, _ = normalize(once)
    assert ops(once) == ops(twice)


def test_symbolic_shapes_are_declined_not_refused(tmp_path: Path) -> None:
    _, records = normalize(_read(tmp_path, TORCHSCRIPT))
    assert any(record.declined for record in records if record.name == "infer_shapes")


def test_control_flow_on_data_is_refused() -> None:
    model = model_from("""g (float[3] x, bool c) => (float[3] y)
        { y = If(c) <then_branch = a () => (float[3] z) { z = Neg(x) },
                     else_branch = b () => (float[3] z) { z = Abs(x) }> }""")
    with pytest.raises(
        InputError,
        match=r"node 'If_0' \(If\) is control flow that depends on the inputs, which no quantized target supports",
    ):
        normalize(model)


def test_condition_computed_from_a_shape_is_folded() -> None:
    model = model_from("""g (float[1,3] x) => (float[3] y) <int64[1] one = {1}, int64[1] ax = {0}>
        { s = Shape<end=1>(x) c = Equal(s, one)
          y = If(c) <then_branch = a () => (float[3] z) { z = Squeeze(x, ax) },
                     else_branch = b () => (float[3] z) { t = ReduceSum<keepdims=0>(x, ax) z = Abs(t) }> }""")
    after, _ = normalize(model)
    assert ops(after) == ["Reshape"]
    assert_equal(model, after)


def test_every_pass_is_in_the_list_once_or_in_a_repeated_group() -> None:
    passes = [pass_ for step in NORMALIZE for pass_ in (step if isinstance(step, tuple) else (step,))]
    repeated = {name for name, count in Counter(pass_.__name__ for pass_ in passes).items() if count > 1}
    assert repeated <= {"infer_shapes", "remove_noops", "fold_constants", "unify_reshapes", "merge_layout"}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("PP-OCRv6_rec_small.onnx", (1, 3, 48, 320)),
        ("PP-OCRv6_det_small.onnx", (1, 3, 128, 160)),
        ("ch_ppocr_mobile_v2.0_cls_mobile.onnx", (1, 3, 48, 192)),
    ],
)
def test_paddle_models(name: str, shape: tuple[int, ...]) -> None:
    model = read(ocr_model(name), {"x": shape})
    after, _ = normalize(model)
    _assert_canonical(after)
    assert_traceable(after, names_in(read(ocr_model(name))))
    assert len(after.graph) < len(model.graph) / 2
    assert not {"Identity", "BatchNormalization", "Erf", "Squeeze", "Unsqueeze", "Shape"} & set(ops(after))
    inputs = {"x": _lines_of_text(shape)}
    for expected, actual in zip(run(model, inputs).values(), run(after, inputs).values(), strict=True):
        assert sqnr_db(expected, actual) >= REAL_FLOOR_DB


def test_recognizer_gets_its_fusions() -> None:
    after, _ = normalize(read(ocr_model("PP-OCRv6_rec_small.onnx"), {"x": (1, 3, 48, 320)}))
    counts = Counter(ops(after))
    assert counts["LayerNormalization"] == 5
    assert counts["Gelu"] == 13
    assert all(np.isfinite(v.const_value.numpy()).all() for v in after.graph.initializers.values() if v.const_value)
