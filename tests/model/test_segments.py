"""Running a graph segment by segment computes what the whole graph computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.backend import Sample
from dovetail.model.segments import Segment, segment_models, segments_of
from dovetail.model.session import Mode
from dovetail.verify.run import SessionRun
from tests.planning import graph, noise

_OPS = ("Relu({0})", "Add({0}, {1})", "MatMul({0}, w)", "Mul({0}, {1})", "Tanh({0})", "Sub({1}, c)", "Sigmoid({0})")


def _in_segments(model: ir.Model, segments: tuple[Segment, ...], sample: Sample, folder: Path) -> Sample:
    tensors = dict(sample)
    for segment, part in zip(segments, segment_models(model, segments), strict=True):
        assert {value.name for value in part.graph.inputs} == set(segment.inputs)
        (outputs,) = SessionRun(part, Mode.FLOAT, folder)([tensors])
        tensors |= outputs
    return {value.name or "": tensors[value.name or ""] for value in model.graph.outputs}


def _check(model: ir.Model, count: int, folder: Path) -> tuple[Segment, ...]:
    segments = segments_of(model, count)
    nodes = [node.name for node in model.graph]
    sample = {name: array[0] for name, array in noise(model, 1).items()}
    (whole,) = SessionRun(model, Mode.FLOAT, folder)([sample])
    for name, array in _in_segments(model, segments, sample, folder).items():
        np.testing.assert_allclose(array, whole[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert [node.name for node in model.graph] == nodes, "the model was changed"
    return segments


@st.composite
def _bodies(draw: st.DrawFn) -> str:
    """A random graph with one or two outputs, of which the first may also be read by later nodes."""
    count = draw(st.integers(1, 14))
    names = ["x"]
    lines = []
    for number in range(count):
        operands = [names[-1], draw(st.sampled_from(names))]
        lines.append(f"t{number} = {draw(st.sampled_from(_OPS)).format(*operands)}")
        names.append(f"t{number}")
    outputs = list(dict.fromkeys((draw(st.sampled_from(names[1:])), names[-1])))
    typed = ", ".join(f"float[1,4] {name}" for name in outputs)
    constants = "<float[4,4] w = {1,0,0.5,0,0,1,0,0.25,0,0.5,1,0,1,0,0,1}, float[4] c = {1,2,3,4}>"
    return f"g (float[1,4] x) => ({typed}) {constants} {{ {'  '.join(lines)} }}"


@settings(max_examples=25, deadline=None)
@given(_bodies(), st.integers(1, 6))
def test_generated_graphs(tmp_path_factory: pytest.TempPathFactory, body: str, count: int) -> None:
    model = graph(body)
    assert 1 <= len(_check(model, count, tmp_path_factory.getbasetemp())) <= count


def test_a_tensor_that_several_segments_read(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,4] x) => (float[1,4] y) { a = Relu(x) b = Tanh(a) c = Add(b, a) d = Exp(c) y = Mul(d, a) }"
    )
    segments = _check(model, 5, tmp_path)
    assert len(segments) == 5
    assert sum("a" in segment.inputs for segment in segments) == 3


def test_an_output_that_is_read_again_and_an_input_that_is_an_output(tmp_path: Path) -> None:
    model = graph("g (float[1,4] x) => (float[1,4] a, float[1,4] y) { a = Relu(x) y = Tanh(a) }")
    assert [segment.outputs for segment in _check(model, 2, tmp_path)] == [("a",), ("y",)]


def test_topk_and_a_split(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,8] x) => (float[1,2] v, int64[1,2] i, float[1,4] s) <int64[1] k = {2}, int64[2] n = {4,4}>
        { a = Relu(x)  v, i = TopK(a, k)  s, unused = Split<axis=1>(a, n) }"""
    )
    _check(model, 3, tmp_path)


def test_constant_nodes_belong_to_every_segment_that_reads_them(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,2] x) => (float[1,2] y)
        { c = Constant<value_floats=[1.0, 2.0]>()  a = Add(x, c)  b = Relu(a)  d = Tanh(b)  y = Mul(d, c) }"""
    )
    segments = _check(model, 4, tmp_path)
    assert all("c" not in segment.inputs for segment in segments)


def test_a_subgraph_reads_tensors_of_another_segment(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,2] x) => (float[1,2] y) <float zero = {0}>
        { a = Relu(x)  b = Tanh(a)  s = ReduceSum<keepdims=0>(b)  p = Greater(s, zero)
          y = If (p) <then_branch = t () => (float[1,2] u) { u = Add(a, b) },
                      else_branch = e () => (float[1,2] w) { w = Exp(a) }> }"""
    )
    segments = _check(model, 5, tmp_path)
    assert "a" in segments[-1].inputs
