"""Scales below float16, and convolutions without an 8-bit kernel: a naive plan is rejected or changed, ours is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dovetail.backend import Outcome
from dovetail.op_support import Precision
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import FP8, W8A8
from tests.backends.tensorrt.building import built
from tests.changed import with_op
from tests.planning import graph, noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

PRECISIONS = pytest.mark.parametrize("precision", [FP8, W8A8], ids=lambda precision: precision.name)


@pytest.fixture
def sm89() -> Target:
    return open_target("tensorrt:sm89")


def matmul() -> str:
    """A MatMul, one output channel of which has small weights."""
    weight = np.random.default_rng(0).standard_normal((64, 32)) * np.where(np.arange(32) == 3, 1e-6, 1)
    values = ", ".join(f"{value:.9g}" for value in weight.reshape(-1))
    return f"g (float[1,16,64] x) => (float[1,16,32] y) <float[64,32] w = {{{values}}}> {{ y = MatMul(x, w) }}"


def conv(data: tuple[int, ...], weight: tuple[int, ...], group: int = 1) -> str:
    """One convolution, behind a Relu."""
    values = ", ".join(f"{value:.9g}" for value in np.random.default_rng(0).standard_normal(np.prod(weight)))
    out = ["n", "c", *"hw"[: len(data) - 2]]
    return f"""g (float{list(data)} x) => (float[{",".join(out)}] y) <float{list(weight)} w = {{{values}}}>
    {{ r = Relu(x)  y = Conv<group = {group}>(r, w) }}"""


@PRECISIONS
def test_scales_of_a_matmul_have_one_type(sm89: Target, precision: Precision, tmp_path: Path) -> None:
    model = graph(matmul())
    unlimited = dataclasses.replace(sm89.table.ops["MatMul"], least_weight_scale=None, least_scale={})
    naive = with_op(sm89, "MatMul", unlimited)
    artifacts = naive.backend.emit(model, planned(model, naive, precision, data=noise(model)), tmp_path)
    assert "type mismatch between matmul operand scales" in naive.backend.compile(artifacts, tmp_path).log
    _, read_back, plan = built(model, sm89, precision, tmp_path)
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}
    assert sum(choice.raised_channels for choice in plan.edges.values()) == 1


@PRECISIONS
@pytest.mark.parametrize(
    ("data", "weight", "group", "in_8_bit"),
    [
        ((1, 4, 1, 1), (16, 4, 1, 1), 1, False),  # squeeze-and-excite
        ((1, 5, 1, 1), (16, 5, 1, 1), 1, True),
        ((2, 4, 1, 1), (16, 4, 1, 1), 1, True),
        ((1, 4, 1, 2), (16, 4, 1, 1), 1, True),
        ((1, 4, 20), (16, 4, 1), 1, False),  # over one axis
        ((1, 5, 20), (16, 5, 1), 1, True),
        ((1, 4, 20), (16, 4, 3), 1, True),  # shorter than its input
        ((1, 16, 9, 9), (16, 1, 3, 3), 16, True),  # depthwise
    ],
)
def test_small_convolutions_are_in_8_bit_where_there_is_a_kernel(
    sm89: Target,
    precision: Precision,
    data: tuple[int, ...],
    weight: tuple[int, ...],
    group: int,
    in_8_bit: bool,
    tmp_path: Path,
) -> None:
    model = graph(conv(data, weight, group))
    _, read_back, plan = built(model, sm89, precision, tmp_path)
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}
    assert any(choice.storage.dtype.is_quantized for choice in plan.edges.values()) is in_8_bit
    if not in_8_bit:
        rows = tuple(dataclasses.replace(row, when=None) for row in sm89.table.ops["Conv"].signatures)
        naive = with_op(sm89, "Conv", dataclasses.replace(sm89.table.ops["Conv"], signatures=rows))
        _, read_back, _ = built(model, naive, precision, tmp_path)
        assert Outcome.CHANGED in {row.outcome for row in read_back.tensors}
