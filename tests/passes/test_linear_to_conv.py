"""Linear layers for block-quantized weights: as convolutions, or as MatMul and Add; equal to the original."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.pass_record import PassRecord
from dovetail.passes.gemm_to_matmul import gemm_to_matmul
from dovetail.passes.linear_to_conv import linear_to_conv
from tests.equality import changed_by, model_from, ops

GEMM = """g (float[6,8] x) => (float[6,4] y, float[6,8] z)
{ y = Gemm(x, w, b)  z = Relu(x) }"""
MATMUL = """g (float[2,3,8] x) => (float[2,3,4] y, float[2,3,8] z)
{ y = MatMul(x, w)  z = Relu(x) }"""
Rewrite = Callable[[ir.Model, Mapping[str, int]], PassRecord]


def made(body: str) -> ir.Model:
    random = np.random.default_rng(0)
    weight, bias = random.standard_normal((8, 4)).astype(np.float32), random.standard_normal(4).astype(np.float32)
    return model_from(body, w=weight, b=bias)


def all_of(model: ir.Model, size: int) -> dict[str, int]:
    return {node.name or "": size for node in model.graph}


@pytest.mark.parametrize(
    ("rewrite", "body", "expected"),
    [
        (linear_to_conv, GEMM, ["Reshape", "Transpose", "Conv", "Transpose", "Reshape", "Relu"]),
        (linear_to_conv, MATMUL, ["Reshape", "Transpose", "Conv", "Transpose", "Reshape", "Relu"]),
        (gemm_to_matmul, GEMM, ["MatMul", "Add", "Relu"]),
    ],
)
def test_the_layer_computes_the_same_and_other_consumers_of_its_input_are_unchanged(
    rewrite: Rewrite, body: str, expected: list[str]
) -> None:
    after, record = changed_by(lambda model: rewrite(model, all_of(model, 4)), made(body))
    assert len(record.changed) == 1
    assert ops(after) == expected


@pytest.mark.parametrize("rewrite", [linear_to_conv, gemm_to_matmul])
def test_channels_that_cannot_be_divided_into_blocks_are_declined(rewrite: Rewrite) -> None:
    model = made(GEMM)
    record = rewrite(model, all_of(model, 3))
    assert record.changed == ()
    assert "its 8 input channels are not a multiple of the block size 3" in record.declined[0].what
    assert [node.op_type for node in model.graph] == ["Gemm", "Relu"]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("Gemm <transB = 1> (x, w2, b8)", "transposed"),
        ("Gemm <alpha = 2.0> (x, w, b)", "scaled"),
        ("Gemm(x, w, c)", "bias"),
    ],
)
def test_other_forms_of_gemm_stay(node: str, reason: str) -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((8, 4)).astype(np.float32),
        "w2": random.standard_normal((4, 8)).astype(np.float32),
        "b": np.ones(4, np.float32),
        "b8": np.ones(4, np.float32),
        "c": np.ones((6, 4), np.float32),
    }
    model = model_from(f"g (float[6,8] x) => (float[6,4] y) {{ y = {node} }}", **constants)
    record = linear_to_conv(model, all_of(model, 4))
    assert record.changed == ()
    assert reason in record.declined[0].what


@pytest.mark.parametrize(("rewrite", "op"), [(linear_to_conv, "Conv"), (gemm_to_matmul, "MatMul")])
def test_only_the_named_layers_are_rewritten(rewrite: Rewrite, op: str) -> None:
    body = "g (float[6,8] x) => (float[6,4] y, float[6,4] z) { [first] y = Gemm(x, w, b) [second] z = Gemm(x, w, b) }"
    after, record = changed_by(lambda model: rewrite(model, {"second": 4}), made(body))
    assert [site.where for site in record.changed] == ["z"]
    assert record.declined == ()
    assert [ops(after).count(op_type) for op_type in ("Gemm", op)] == [1, 1]
