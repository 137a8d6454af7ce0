"""Numbers that came with a model: kept for the tensors and constants they belong to, and for no others."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.model.origin import Origin
from dovetail.numerics.affine import fake_quantize
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


def none(**constants: tuple[QParams, ...]) -> ImportedQParams:
    return ImportedQParams({}, {}, constants)


def test_numbers_follow_moves_and_factors() -> None:
    model, plan = invert(model_from(SCALED, s=np.float32(0.1), z=np.int8(0)))
    given = imported_qparams(model, plan)
    assert float(given.tensors["c"].scale) == np.float32(0.1)
    assert float(given.implied["b"].scale) == pytest.approx(0.2)
    assert float(given.implied["a"].scale) == pytest.approx(0.2)
    assert "x" not in {**given.tensors, **given.implied}
    found = given.of_tensor(["a"], S8)
    assert found is not None
    assert (found.source, found.detail) == (ScaleSource.GIVEN, "as given, scaled or moved")


def test_of_several_numbers_for_one_tensor_the_widest_are_taken_and_not_called_given() -> None:
    text = """g (float[1,4] x) => (float[1,4] y, float[1,4] u) {
        aq = QuantizeLinear(x, s, z) ad = DequantizeLinear(aq, s, z) bq = QuantizeLinear(x, t, z)
        bd = DequantizeLinear(bq, t, z) y = Relu(ad) u = Relu(bd) }"""
    model, plan = invert(model_from(text, s=np.float32(0.004), t=np.float32(0.03), z=np.int8(0)))
    given = imported_qparams(model, plan)
    assert given.several == {"x"}
    found = given.of_tensor(["x"], S8)
    assert found is not None
    assert float(found[0].scale) == np.float32(0.03)
    assert (found.source, found.detail) == (ScaleSource.GIVEN_CHANGED, "the widest of several given numbers")


def test_another_kind_of_grid_gets_the_range() -> None:
    given = ImportedQParams({"t": QParams(U8, np.float32(0.02), np.int32(100))}, {}, {})
    found = given.of_tensor(["t"], S8)
    assert found is not None
    params, source, words = found
    assert source is ScaleSource.GIVEN_CHANGED
    assert words == "from the range of the given numbers, which are of another kind"
    assert float(params.scale) == pytest.approx(155 * 0.02 / 127)
    assert given.of_tensor(["other"], S8) is None


def test_a_constant_that_is_as_it_was_keeps_its_numbers() -> None:
    weight = normal(8, 6)
    coarse = QParams(S8, np.float32(0.05), np.int32(0))
    wanted = weight_params(weight, W8, 1)
    assert none(w=(coarse,)).of_constant(Origin("w"), weight, wanted) is coarse
    assert none(w=(coarse,)).of_constant(Origin("w", exact=False), weight, wanted) is None  # turned into something else
    assert none(w=(coarse,)).of_constant(Origin("v"), weight, wanted) is None


def test_a_constant_that_was_turned_or_cut_is_found_by_its_grid() -> None:
    columns = weight_params(normal(8, 12), W8, 1)
    weight = fake_quantize(normal(8, 12), columns)
    given = none(w=(columns,))
    turned = given.of_constant(Origin("w", exact=False), weight.T.copy(), weight_params(weight.T, W8, 0))
    assert turned is not None
    np.testing.assert_array_equal(turned.scale, columns.scale)
    assert turned.axis == 0
    part = weight[:, 6:]
    cut = given.of_constant(Origin("w", exact=False), part, weight_params(part, W8, 1))
    assert cut is not None
    np.testing.assert_array_equal(cut.scale, columns.scale[6:])
    scaled = given.of_constant(Origin("w", exact=False), 0.3 * part, weight_params(0.3 * part, W8, 1))
    assert scaled is None
