"""Scales below float16, and convolutions without an 8-bit kernel: a naive plan is rejected or changed, ours is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

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


class Case(NamedTuple):
    """A convolution, and whether there is an 8-bit kernel for it."""

    data: tuple[int, ...]
    weight: tuple[int, ...]
    in_8_bit: bool
    attributes: str = ""


CASES = (
    Case((1, 4, 1, 1), (16, 4, 1, 1), False),  # squeeze-and-excite
    Case((1, 5, 1, 1), (16, 5, 1, 1), True),
    Case((2, 4, 1, 1), (16, 4, 1, 1), True),
    Case((1, 4, 1, 1), (16, 4, 1, 1), True, "strides = [2, 2]"),
    Case((1, 4, 1, 1, 1), (16, 4, 1, 1, 1), True),
    Case((1, 4, 20), (16, 4, 1), False),  # over one axis
    Case((1, 5, 20), (16, 5, 1), True),
    Case((1, 4, 20), (16, 4, 3), False, "pads = [1, 1]"),
    Case((1, 4, 20), (16, 4, 3), True),  # shorter than its input
    Case((1, 4, 20, 1), (16, 4, 1, 1), False),  # the same as an image, in strip pooling
    Case((1, 5, 20, 1), (16, 5, 1, 1), True),
    Case((1, 4, 1, 20), (16, 4, 1, 1), True),
    Case((1, 4, 20, 2), (16, 4, 1, 1), True),
    Case((1, 4, 20, 1), (16, 4, 3, 1), False, "pads = [1, 0, 1, 0]"),
    Case((1, 4, 20, 1), (16, 4, 3, 3), True, "pads = [1, 1, 1, 1]"),
    Case((1, 4, 20, 1), (16, 4, 3, 1), True, "pads = [2, 0, 2, 0], dilations = [2, 1]"),
    Case((1, 4, 20, 1), (16, 4, 1, 1), True, "strides = [1, 2]"),
    Case((1, 4, 20, 1), (16, 2, 1, 1), True, "group = 2"),
    Case((1, 16, 9, 9), (16, 1, 3, 3), True, "group = 16"),  # depthwise
)


def convolutions() -> str:
    """Each case after a Relu, all in one graph."""
    inputs, outputs, weights, nodes = [], [], [], []
    for index, case in enumerate(CASES):
        drawn = np.random.default_rng(index).standard_normal(np.prod(case.weight))
        values = ", ".join(f"{value:.9g}" for value in drawn)
        inputs.append(f"float{list(case.data)} x{index}")
        outputs.append(f"float[{','.join('abcde'[: len(case.data)])}] y{index}")
        weights.append(f"float{list(case.weight)} w{index} = {{{values}}}")
        attributes = f"<{case.attributes}>" if case.attributes else ""
        nodes.append(f"r{index} = Relu(x{index})  [conv{index}] y{index} = Conv{attributes}(r{index}, w{index})")
    return f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) <{', '.join(weights)}> {{ {'  '.join(nodes)} }}"


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
def test_convolutions_are_in_8_bit_where_there_is_a_kernel(sm89: Target, precision: Precision, tmp_path: Path) -> None:
    model = graph(convolutions())
    _, read_back, plan = built(model, sm89, precision, tmp_path)
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}
    in_8_bit = {edge.node for edge, choice in plan.edges.items() if choice.storage.dtype.is_quantized}
    assert in_8_bit == {f"conv{index}" for index, case in enumerate(CASES) if case.in_8_bit}
    rows = tuple(dataclasses.replace(row, when=None) for row in sm89.table.ops["Conv"].signatures)
    naive = with_op(sm89, "Conv", dataclasses.replace(sm89.table.ops["Conv"], signatures=rows))
    _, read_back, _ = built(model, naive, precision, tmp_path)
    changed = {row.edge.node for row in read_back.tensors if row.outcome is Outcome.CHANGED and row.edge is not None}
    assert changed == {f"conv{index}" for index, case in enumerate(CASES) if not case.in_8_bit}
