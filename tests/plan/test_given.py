"""Imported scales and zero points: kept for the tensors and constants they belong to, and for no others."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.model.origin import Origin
from dovetail.numerics.affine import dequantize, fake_quantize
from dovetail.numerics.ranges import weight_params
from dovetail.plan.imported_qparams import ImportedQParams, imported_qparams
from dovetail.qdq.invert import invert
from dovetail.storage import ScaleSource
from tests.equality import model_from, normal

S8 = Encoding(DType.S8, symmetric=True)
U8 = Encoding(DType.U8)
W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)
SCALED = """g (float[1,4,8] x) => (float[1,4,8] y) <float half = {0.5}>
{ a = Relu(x) b = Transpose<perm = [0,2,1]>(a) c = Mul(b, half) q = QuantizeLinear(c, s, z)
  d = DequantizeLinear(q, s, z) e = Transpose<perm = [0,2,1]>(d) y = Relu(e) }"""


def constants_only(**constants: tuple[QParams, ...]) -> ImportedQParams:
    return ImportedQParams({}, {}, constants)


def test_qparams_propagate_across_layout_and_scaling_operators() -> None:
    model, plan = invert(model_from(SCALED, s=np.float32(0.1), z=np.int8(0)))
    imported = imported_qparams(model, plan)
    assert float(imported.tensors["c"].scale) == np.float32(0.1)
    assert float(imported.implied["b"].scale) == pytest.approx(0.2)
    assert float(imported.implied["a"].scale) == pytest.approx(0.2)
    assert "x" not in {**imported.tensors, **imported.implied}
    sourced = imported.of_tensor(["a"], S8)
    assert sourced is not None
    assert sourced.source is ScaleSource.GIVEN
    assert (
        sourced.detail
        == "scale and zero point from the input model, propagated across scaling or data-movement operators"
    )


def test_of_several_qparams_of_one_tensor_the_widest_are_used_and_marked_as_changed() -> None:
    text = """g (float[1,4] x) => (float[1,4] y, float[1,4] u) {
        aq = QuantizeLinear(x, s, z) ad = DequantizeLinear(aq, s, z) bq = QuantizeLinear(x, t, z)
        bd = DequantizeLinear(bq, t, z) y = Relu(ad) u = Relu(bd) }"""
    model, plan = invert(model_from(text, s=np.float32(0.004), t=np.float32(0.03), z=np.int8(0)))
    imported = imported_qparams(model, plan)
    assert imported.several == {"x"}
    sourced = imported.of_tensor(["x"], S8)
    assert sourced is not None
    assert float(sourced[0].scale) == np.float32(0.03)
    assert sourced.source is ScaleSource.GIVEN_CHANGED
    assert sourced.detail == "widest of several scales in the input model"


def test_another_encoding_gets_the_range() -> None:
    imported = ImportedQParams({"t": QParams(U8, np.float32(0.02), np.int32(100))}, {}, {})
    sourced = imported.of_tensor(["t"], S8)
    assert sourced is not None
    params, source, detail = sourced
    assert source is ScaleSource.GIVEN_CHANGED
    assert detail == "same range as in the input model, in another encoding"
    assert float(params.scale) == pytest.approx(155 * 0.02 / 127)
    assert imported.of_tensor(["other"], S8) is None


def test_of_a_file_the_same_grid_in_the_other_sign_is_exact() -> None:
    unsigned = {"t": QParams(U8, np.float32(0.02), np.int32(100))}
    file = ImportedQParams(unsigned, {}, {}, from_file=True)
    sourced = file.of_tensor(["t"], Encoding(DType.S8))
    assert sourced is not None
    assert (sourced.source, float(sourced.params.scale)) == (ScaleSource.GIVEN, np.float32(0.02))
    assert int(sourced.params.zero_point) == -28
    symmetric = file.of_tensor(["t"], S8)  # zero point 0 is another grid
    assert symmetric is not None
    assert symmetric.source is ScaleSource.GIVEN_CHANGED


def test_an_unchanged_constant_keeps_its_qparams() -> None:
    weight = normal(8, 6)
    coarse = QParams(S8, np.float32(0.05), np.int32(0))
    computed = weight_params(weight, W8, 1)
    imported = constants_only(w=(coarse,))
    assert imported.of_constant(Origin("w"), weight, computed) is coarse
    assert imported.of_constant(Origin("w", exact=False), weight, computed) is None  # a pass changed its values
    assert imported.of_constant(Origin("v"), weight, computed) is None


def test_a_transposed_or_sliced_constant_keeps_its_qparams_if_it_is_on_their_grid() -> None:
    columns = weight_params(normal(8, 12), W8, 1)
    weight = fake_quantize(normal(8, 12), columns)
    imported = constants_only(w=(columns,))
    transposed = imported.of_constant(Origin("w", exact=False), weight.T.copy(), weight_params(weight.T, W8, 0))
    assert transposed is not None
    np.testing.assert_array_equal(transposed.scale, columns.scale)
    assert transposed.axis == 0
    right_half = weight[:, 6:]
    sliced = imported.of_constant(Origin("w", exact=False), right_half, weight_params(right_half, W8, 1))
    assert sliced is not None
    np.testing.assert_array_equal(sliced.scale, columns.scale[6:])
    scaled = imported.of_constant(Origin("w", exact=False), 0.3 * right_half, weight_params(0.3 * right_half, W8, 1))
    assert scaled is None


def test_asymmetric_weights_keep_their_step_where_the_target_has_symmetric_ones() -> None:
    """The weight is on the grid of uint8 with a zero point: another step would round it a second time."""
    random = np.random.default_rng(0)
    stored = random.integers(30, 220, (8, 6)).astype(np.uint8)
    stored[:, 0] = 255  # 255 - 120 is beyond int8: this channel cannot keep the step
    params = QParams(Encoding(DType.U8), np.float32(0.01), np.int32(120))
    weight = dequantize(stored, params)
    computed = weight_params(weight, W8, 1)
    imported = ImportedQParams({}, {}, {"w": (params,)})
    assert imported.of_constant(Origin("w"), weight, computed) is None
    kept = imported.same_step(Origin("w"), weight, computed)
    assert kept is not None
    assert kept.scale[0] == computed.scale[0]
    assert np.all(kept.scale[1:] == params.scale)
    assert np.array_equal(fake_quantize(weight, kept)[:, 1:], weight[:, 1:])
    off_grid = weight * np.float32(1.003)
    assert imported.same_step(Origin("w"), off_grid, weight_params(off_grid, W8, 1)) is None
    assert imported.same_step(Origin("v"), weight, computed) is None


def test_a_constant_keeps_its_grid_in_the_other_signedness() -> None:
    """int8 with zero point z is uint8 with z + 128, and the other way round."""
    stored = np.random.default_rng(0).integers(-128, 128, (4, 4)).astype(np.int8)
    params = QParams(Encoding(DType.S8), np.float32(0.02), np.int32(-33))
    array = dequantize(stored, params)
    wanted = Encoding(DType.U8)
    kept = ImportedQParams({}, {}, {"c": (params,)}).of_constant(Origin("c"), array, weight_params(array, wanted, None))
    assert kept == QParams(wanted, np.float32(0.02), np.int32(95))
    assert np.array_equal(fake_quantize(array, kept), array)


def test_another_encoding_does_not_represent_what_a_clip_never_writes() -> None:
    """int8 from -6 to 6 after a Clip(0, 6) becomes uint8 from 0 to 6, and a second consumer of its input keeps all."""
    text = """g (float[1,4] x) => (float[1,4] y, float[1,4] u) <float low = {0}, float high = {6}> {
        n = Neg(x) c = Clip(n, low, high) cq = QuantizeLinear(c, s, z) cd = DequantizeLinear(cq, s, z)
        nq = QuantizeLinear(n, t, z) nd = DequantizeLinear(nq, t, z) y = Sqrt(cd) u = Tanh(nd) }"""
    model, plan = invert(model_from(text, s=np.float32(6 / 127), t=np.float32(9 / 127), z=np.int8(0)))
    imported = imported_qparams(model, plan)
    clipped, whole = imported.of_tensor(["c"], U8), imported.of_tensor(["n"], U8)
    assert clipped is not None
    assert whole is not None
    assert (float(clipped.params.scale), int(clipped.params.zero_point)) == (pytest.approx(6 / 255), 0)
    assert (float(whole.params.scale), int(whole.params.zero_point)) == (pytest.approx(9 / 127), 128)
    kept = imported.of_tensor(["c"], S8)
    assert kept is not None
    assert (kept.source, float(kept.params.scale)) == (ScaleSource.GIVEN, np.float32(6 / 127))
