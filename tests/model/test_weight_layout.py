"""Layers as matrices: the products of both give what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from dovetail.model.edit import constant_of
from dovetail.model.weight_layout import WeightLayout, weight_layout
from dovetail.numerics import layouts
from tests.planning import graph

# Input, weight, output, node; the weight is the constant w.
LAYERS = {
    "conv": ([1, 4, 9, 8], [6, 4, 3, 3], [1, 6, 9, 8], "Conv<pads=[1,1,1,1]>(x, w)"),
    "conv with groups": ([1, 4, 9, 8], [6, 2, 3, 3], [1, 6, 9, 8], "Conv<pads=[1,1,1,1], group=2>(x, w)"),
    "depthwise": ([2, 4, 9, 8], [4, 1, 3, 3], [2, 4, 5, 4], "Conv<pads=[1,0,1,1], group=4, strides=[2,2]>(x, w)"),
    "same upper": ([1, 4, 9, 8], [6, 4, 3, 3], [1, 6, 5, 4], 'Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)'),
    "same lower": ([1, 4, 9, 8], [6, 4, 3, 3], [1, 6, 5, 4], 'Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, w)'),
    "last row not read": ([1, 2, 9, 9], [3, 2, 3, 3], [1, 3, 4, 4], "Conv<pads=[1,1,0,0], strides=[2,2]>(x, w)"),
    "dilated": ([1, 4, 9, 8], [6, 4, 3, 3], [1, 6, 5, 4], "Conv<dilations=[2,2]>(x, w)"),
    "one axis": ([2, 4, 9], [6, 4, 3], [2, 6, 7], "Conv(x, w)"),
    "transposed": ([1, 4, 5, 4], [4, 6, 2, 2], [1, 6, 10, 8], "ConvTranspose<strides=[2,2]>(x, w)"),
    "transposed with groups": (
        [1, 4, 5, 4], [4, 3, 3, 3], [1, 6, 10, 8],
        "ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1], group=2>(x, w)",
    ),
    "transposed, cropped": (
        [1, 4, 5, 4], [4, 6, 3, 3], [1, 6, 1, 2], "ConvTranspose<pads=[3,3,3,3], dilations=[1,2]>(x, w)"
    ),
    "matmul": ([2, 3, 4], [4, 5], [2, 3, 5], "MatMul(x, w)"),
    "matmul from the left": ([2, 3, 4], [5, 3], [2, 5, 4], "MatMul(w, x)"),
    "gemm": ([3, 4], [4, 5], [3, 5], "Gemm(x, w)"),
    "gemm, weight transposed": ([3, 4], [5, 4], [3, 5], "Gemm<transB=1>(x, w)"),
    "gemm, input transposed": ([4, 3], [4, 5], [3, 5], "Gemm<transA=1>(x, w)"),
    "gemm from the left": ([4, 5], [3, 4], [3, 5], "Gemm(w, x)"),
    "gemm from the left, both transposed": ([5, 4], [4, 3], [3, 5], "Gemm<transA=1, transB=1>(w, x)"),
}  # fmt: skip
OTHERS = {
    "a matrix per batch": ([2, 3, 4], [2, 4, 5], [2, 3, 5], "MatMul(x, w)"),
    "a vector": ([3, 4], [4], [3], "MatMul(x, w)"),
    "elementwise": ([3, 4], [3, 4], [3, 4], "Mul(x, w)"),
    "output shape given": (
        [1, 4, 5, 4], [4, 6, 2, 2], [1, 6, 10, 8], "ConvTranspose<strides=[2,2], output_shape=[10,8]>(x, w)"
    ),
}  # fmt: skip


def layer(case: tuple[list[int], list[int], list[int], str]) -> tuple[ir.Model, WeightLayout | None, np.ndarray]:
    x, w, y, node = case
    weight = np.random.default_rng(0).standard_normal(w).astype(np.float32)
    elements = ",".join(f"{element:.4f}" for element in weight.reshape(-1))
    model = graph(f"g (float{x} x) => (float{y} y) <float{w} w = {{{elements}}}> {{ y = {node} }}".replace(", ", ","))
    (operator,) = model.graph
    index = 0 if "(w" in node else 1
    array = constant_of(operator.inputs[index])
    assert array is not None
    return model, weight_layout(operator, index), array


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("elements", [1, 1 << 23])
def test_products_are_the_outputs(name: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the unfolded input is computed in pieces; the order of rows and outputs does not matter."""
    monkeypatch.setattr(layouts, "_CHUNK", elements)
    model, found, weight = layer(LAYERS[name])
    assert found is not None
    x = np.random.default_rng(1).standard_normal(LAYERS[name][0]).astype(np.float32)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    matrices = found.layout.matrices(weight)
    np.testing.assert_array_equal(found.layout.weight(matrices), weight)
    pieces = [(rows @ matrices.swapaxes(1, 2)).reshape(-1) for rows in found.layout.rows(x)]
    products = np.sort(np.concatenate(pieces))
    np.testing.assert_allclose(products, np.sort(expected.reshape(-1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_constants_are_no_weights_of_a_layer(name: str) -> None:
    assert layer(OTHERS[name])[1] is None


def test_a_weight_needs_an_activation() -> None:
    model = graph(
        "g (float[2] x) => (float[2,2] z) <float[2,2] w = {1,2,3,4}, float[2,2] v = {1,2,3,4}>"
        " { y = MatMul(v, w)  z = Add(y, x) }"
    )
    assert weight_layout(next(iter(model.graph)), 1) is None
