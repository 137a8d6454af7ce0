"""Graphs through the real lowering and runtime: what runs in int8, what is exact, what is rejected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dovetail.backend import Outcome
from dovetail.encoding import QParams
from dovetail.passes.lower_to_slices import lower_to_slices
from dovetail.storage import Choice, Plan, Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tool_call import Task, tool_session
from dovetail.targets.xnnpack.session import time_in_child
from dovetail.targets.xnnpack.table import DYNAMIC, STATIC, TABLE
from tests.backends.xnnpack.lowering import Lowered, lowered
from tests.equality import sqnr_db
from tests.planning import graph, noise, planned

pytest.importorskip("executorch", reason="needs the package executorch")

_RANDOM = np.random.default_rng(0)


def constant(name: str, *shape: int, size: float = 1.0) -> str:
    """An initializer in text form."""
    values = ",".join(f"{value:.4f}" for value in size * _RANDOM.standard_normal(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{values}}}"


# Every branch has one kind of operator after a layer, so that a fault in one branch is not hidden by another.
LAYERS = f"""
g (float[1,3,8,8] p, float[6,8] x) => (float[1,8,8,8] conv, float[1,8,7,7] uneven, float[1,8,4,4] pooled,
   float[1,8,1,1] mean, float[8,6] turned, float[3,8] cut, float[16,6] joined, float[6,8] summed, float[1,4,16,16] up,
   float[1,512] flat, float[6,8] thin, float[1,3,8,8] deep, float[1,4,8] line, float[6,8] dense, float[6,8] plain,
   float[1,8,4,5] window, float[1,8,1,1] largest, float[1,4,16,16] grown, float[1,8,4,4] ceiled)
<{constant("dw", 3, 1, 3, 3)}, {constant("lw", 4, 6, 3)},
 {constant("w", 8, 3, 3, 3)}, {constant("b", 8)}, {constant("u", 8, 4, 2, 2)}, {constant("l", 8, 8)},
 {constant("u3", 8, 4, 3, 3)},
 {constant("c", 6, 8, size=4)}, {constant("m", 8, 8)}, {constant("v", 8, 8, 1, 1)}, int64[2] s = {{8,6}},
 int64[1] from = {{1}}, int64[1] to = {{4}}, int64[1] first = {{0}},
 int64[2] corner = {{1,2}}, int64[2] other = {{5,-1}}, int64[2] both = {{2,-1}}>
{{
    k = Conv<pads=[1,1,1,1]>(p, w, b)  conv = Relu(k)
    uneven = Conv<pads=[1,1,0,0]>(p, w)
    pooled = MaxPool<kernel_shape=[2,2], strides=[2,2]>(conv)
    g = GlobalAveragePool(conv)  mean = Conv(g, v)
    up = ConvTranspose<strides=[2,2]>(conv, u)
    h = Gemm(x, l, b)
    turned = Transpose<perm=[1,0]>(h)
    cut = Slice(h, from, to, first)
    r = Reshape(h, s)  q = Reshape(c, s)  joined = Concat<axis=0>(q, r)
    n = MatMul(h, m)  a = Add(n, h)  f = Relu(a)  summed = MatMul(f, m)
    flat = Flatten(conv)  one = Unsqueeze(h, from)  thin = Squeeze(one, from)
    deep = Conv<group=3, pads=[1,1,1,1]>(p, dw)
    row = Unsqueeze(x, first)  line = Conv<pads=[1,1]>(row, lw)
    dense = Gemm(x, l, b)  plain = MatMul(x, m)
    window = Slice(conv, corner, other, both)
    largest = GlobalMaxPool(conv)  ceiled = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(conv)
    grown = ConvTranspose<strides=[2,2], pads=[1,1,0,0]>(conv, u3)
}}
"""


@pytest.fixture(scope="module")
def target() -> Target:
    return open_target("xnnpack")


@pytest.fixture(scope="module")
def layers(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    model = graph(LAYERS)
    lower_to_slices(model)
    plan = dataclasses.replace(planned(model, target, STATIC, data=noise(model), quantized_io=True), quantized_io=False)
    return lowered(model, plan, target, tmp_path_factory.mktemp("layers"))


def test_every_planned_storage_is_in_the_file(layers: Lowered) -> None:
    assert len(layers.read_back.tensors) > 20
    assert [row for row in layers.read_back.tensors if row.outcome is not Outcome.MATCHED] == []
    assert layers.census["outside"] == []


def test_layers_and_layout_run_in_int8(layers: Lowered) -> None:
    kinds = set(layers.kinds())
    expected = {
        "Conv2d qint8 qcint8 qcint32 -> qint8",
        "ConvTranspose2d qint8 qcint8 -> qint8",
        "FullyConnected qint8 qcint8 qcint32 -> qint8",
        "StaticTranspose qint8 -> qint8",
        "StaticReshape qint8 -> qint8",
        "StaticSlice qint8 -> qint8",
        "Concatenate2 qint8 qint8 -> qint8",
        "MaxPooling2d qint8 -> qint8",
        "GlobalAvgPooling2d qint8 -> qint8",
        "Add qint8 qint8 -> qint8",
    }
    assert expected - kinds == set()
    assert not {kind for kind in kinds if "fp32" in kind and not kind.startswith("Convert")}


EXACT = (
    "conv",
    "uneven",
    "deep",
    "line",
    "up",
    "dense",
    "plain",
    "pooled",
    "turned",
    "flat",
    "thin",
    "cut",
    "joined",
    "window",
    "largest",
    "grown",
    "ceiled",
)


def test_every_layer_and_layout_operator_of_the_table_is_tested() -> None:
    ops = {op for op, support in TABLE.items() if not support.stays_float_between_float}
    assert [op for op in sorted(ops) if f"= {op}" not in LAYERS] == []


@pytest.mark.parametrize("output", EXACT)
def test_layers_and_layout_are_bit_exact(layers: Lowered, output: str) -> None:
    for number in range(3):
        sample = _sample(layers, number)
        np.testing.assert_array_equal(layers.run(sample)[output], layers.simulate(sample)[output])


@pytest.mark.parametrize("output", ["mean", "summed"])
def test_sums_are_within_a_quantization_step(layers: Lowered, output: str) -> None:
    sample = _sample(layers, 0)
    assert sqnr_db(layers.simulate(sample)[output], layers.run(sample)[output]) > 30


def test_programs_are_timed_in_turn(layers: Lowered, tmp_path: Path) -> None:
    path, sample = tmp_path / "sample.npz", _sample(layers, 0)
    np.savez(path, **{f"{i}": array for i, array in enumerate(sample.values())})
    rounds = time_in_child([(str(layers.program), str(path), len(sample))] * 2)["seconds"]
    assert len(rounds) >= 11
    assert all(len(turn) == 2 and min(turn) >= 0 for turn in rounds)


def _sample(layers: Lowered, number: int) -> dict[str, np.ndarray]:
    return {name: array[number] for name, array in noise(graph(LAYERS)).items()}


def test_the_simulation_of_dynamic_rows_matches_the_runtime(target: Target, tmp_path: Path) -> None:
    model = graph(f"""g (float[5,8] x) => (float[5,4] y) <{constant("l", 8, 4)}, {constant("b", 4)}>
        {{ s = Softmax(x)  a = Add(s, x)  y = Gemm(a, l, b) }}""")
    data = noise(model)
    data["x"][:, 1] = 0.0  # a row whose range is zero
    program = lowered(model, planned(model, target, DYNAMIC, data=data), target, tmp_path)
    assert "FullyConnected qdint8 qcint8 fp32 -> fp32" in program.kinds()
    outcomes = {row.emitted or row.tensor: row.outcome for row in program.read_back.tensors}
    assert set(outcomes.values()) == {Outcome.MATCHED}, outcomes  # the linear layer, and what is requested in float
    sample = {"x": data["x"][0]}
    assert sqnr_db(program.simulate(sample)["y"], program.run(sample)["y"]) > 100


BROKEN = f"""g (float[6,8] x) => (float[6,8] y) <{constant("l", 8, 8)}, {constant("m", 6, 8)}>
    {{ h = MatMul(x, l)  t = Transpose<perm=[1,0]>(h)  y = MatMul(t, m) }}"""


def test_a_transpose_that_changes_the_scale_is_rejected_at_load(target: Target, tmp_path: Path) -> None:
    model = graph(BROKEN)
    plan = planned(model, target, STATIC, data=noise(model))
    stored = plan.tensors["t"].storage
    assert isinstance(stored, QParams)
    wider = QParams(stored.encoding, stored.scale * np.float32(2), stored.zero_point)
    broken = dataclasses.replace(plan, tensors={**plan.tensors, "t": Choice(wider, Reason.PINNED)})
    emitted = target.backend.emit(model, broken, tmp_path)
    result = target.backend.compile(emitted, tmp_path)
    assert "static transpose" in result.error
    assert "xnn_status_invalid_parameter" in result.error
    assert result.finished
    with tool_session(use_cache=True) as session:
        assert target.backend.compile(emitted, tmp_path) == result  # rejected once is rejected always
    assert session.counts[Task.COMPILE].made == 0


def test_the_error_names_a_node_with_too_many_axes(target: Target, tmp_path: Path) -> None:
    model = graph("""g (float[4,4] x) => (float[1,1,1,4,1,2,2] y) <int64[7] s = {1,1,1,2,2,4,1}>
        { r = Relu(x)  [many] h = Reshape(r, s)  y = Transpose<perm=[0,1,2,5,6,3,4]>(h) }""")
    emitted = target.backend.emit(model, planned(model, target, STATIC), tmp_path)
    error = target.backend.compile(emitted, tmp_path).error
    assert error.startswith("node 'many' (Reshape) has 7 axes, XNNPACK supports at most 6; ")
    assert "Failed to define tensor" in error
    assert "::" not in error


def test_faults_of_the_vendor_lowering_are_worked_around(target: Target, tmp_path: Path) -> None:
    """XNNPACK runs a softmax after a pooling over the channels, and rejects zero padding of int8 at load."""
    model = graph(f"""g (float[1,3,8,8] p) => (float[1,3,4,4] s, float[1,3,10,9] z, float[1,3,8,8] d)
        <{constant("w", 3, 3, 1, 1)}, int64[8] pads = {{0,0,1,0,0,0,1,1}}>
        {{ c = Conv(p, w)  k = Neg(c)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(k)  s = Softmax(m)
           z = Pad(c, pads)  e = Gelu(c)  d = Conv(e, w) }}""")
    data = noise(model)
    program = lowered(model, planned(model, target, STATIC, data=data), target, tmp_path)
    sample = {"p": data["p"][0]}
    simulated, outputs = program.simulate(sample), program.run(sample)
    assert min(sqnr_db(simulated[name], outputs[name]) for name in ("s", "z")) > 100
    # The Gelu is planned in float between int8 layers, so it is not a change.
    assert [
        row.tensor for row in program.read_back.tensors if row.edge is not None and row.tensor.startswith("e")
    ] != []
    assert [row for row in program.read_back.tensors if row.outcome is not Outcome.MATCHED] == []


AT = "coordinate_transformation_mode"
REWRITTEN = {
    "n": ("1,4,6,6", "LayerNormalization(x, six, six)"),
    "nb": ("1,4,6,6", "LayerNormalization<axis=2>(x, six)"),
    "nr": ("1,16,1,9", "LayerNormalization(r, nine)"),
    "ns": ("1,16,1,9", "Softmax(nr)"),
    "i": ("1,4,6,6", "InstanceNormalization(x, four, four)"),
    "g": ("1,4,6,6", "GroupNormalization<num_groups=2>(x, four, four)"),
    "gr": ("1,4,6,6", "Relu(g)"),
    "m": ("1,6,6", "ReduceMean<keepdims=0>(x, one)"),
    "ma": ("4", "ReduceMean<keepdims=0>(x, some)"),
    "u": ("1,4,6", "ReduceSum<keepdims=0>(x, last)"),
    "ua": ("1,4", "ReduceSum<keepdims=0>(x, hw)"),
    "l": ("1,4,6,1", "ReduceL2(x, last)"),
    "o": ("1,4,3,3", "Softmax<axis=1>(p)"),
    "e": ("3,4,6,6", "Expand(x, thrice)"),
    "t": ("1,8,6,12", "Tile(x, twos)"),
    "b": ("2,4,6,6", "MatMul(x, two)"),
    "z": ("1,4,12,18", 'Resize<mode="nearest">(x, , wider)'),
    "zh": ("1,4,12,18", 'Resize<mode="nearest", nearest_mode="floor">(x, , wider)'),
    "zn": ("1,4,7,5", 'Resize<mode="nearest", nearest_mode="ceil">(x, , , odd)'),
    "zl": ("1,4,7,5", 'Resize<mode="linear">(x, , , odd)'),
    "zp": ("1,4,1,5", f'Resize<mode="linear", {AT}="pytorch_half_pixel">(x, , , flat)'),
    "zc": ("1,4,7,5", f'Resize<mode="linear", {AT}="align_corners">(x, , , odd)'),
    "za": ("1,4,12,18", f'Resize<mode="linear", {AT}="asymmetric">(x, , wider)'),
    "zw": ("1,4,12,18", 'Resize<mode="linear">(x, , wider)'),
    "zb": ("1,4,7,5", 'Resize<mode="cubic">(x, , , odd)'),
    "zz": ("1,4,9,9", 'Resize<mode="linear">(x, , more)'),
    "sp": ("1,4,6,6", "Softplus(x)"),
    "mi": ("1,4,6,6", "Mish(x)"),
    "ce": ("1,4,6,6", "Celu<alpha=0.5>(x)"),
    "se": ("1,4,6,6", "Selu(x)"),
    "ss": ("1,4,6,6", "Softsign(x)"),
    "pr": ("1,4,6,6", "PRelu(x, fours)"),
    "sq": ("1,4,6,6", "Pow(x, two_)"),
    "rc": ("1,4,6,6", "Reciprocal(x)"),
    "rm": ("1,4,6", "ReduceMax<keepdims=0>(x, last)"),
    "ri": ("1,4", "ReduceMin<keepdims=0>(x, hw)"),
    "rl": ("1,4,6,1", "ReduceL1(x, last)"),
    "gm": ("1,4,1,1", "GlobalMaxPool(x)"),
    "au": ("1,4,3,3", "AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x)"),
    "ac": ("1,4,4,4", "AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x)"),
    "ml": ("4,6,3", "MaxPool<kernel_shape=[2], strides=[2]>(lines)"),
    "tu": ("1,2,12,12", "ConvTranspose<strides=[2,2], pads=[0,0,1,1]>(x, up)"),
    "c": ("1,4,3,6", "Slice(x, i1, i9, i2, i2)"),
    "a": ("1,4,3,3", "AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)"),
}


def test_operators_that_xnnpack_lacks_are_written_with_operators_it_has(target: Target, tmp_path: Path) -> None:
    declared = ", ".join(f"float[{shape}] {name}" for name, (shape, _) in REWRITTEN.items())
    nodes = " ".join(f"{name} = {text}" for name, (_, text) in REWRITTEN.items())
    constants = "int64[1] one = {1}, int64[3] some = {0,2,3}, int64[1] last = {-1}, int64[2] hw = {3,2}, "
    constants += "int64[4] thrice = {3,1,1,1}, "
    constants += "int64[4] twos = {1,2,1,2}, float[4] wider = {1,1,2,3}, int64[4] rows = {1,16,1,9}, "
    constants += "int64[4] odd = {1,4,7,5}, int64[4] flat = {1,4,1,5}, float[4] more = {1,1,1.6,1.6}, "
    constants += "int64[3] columns = {4,6,6}, float two_ = {2}, "
    constants += "int64[1] i1 = {1}, int64[1] i9 = {9}, int64[1] i2 = {2}, "
    weights = (("six", 6), ("four", 4), ("nine", 9), ("two", 2, 1, 6, 6), ("fours", 4, 1, 1), ("up", 4, 2, 3, 3))
    constants += ", ".join(constant(*name_and_shape) for name_and_shape in weights)
    model = graph(f"""g (float[1,4,6,6] x) => ({declared}) <{constants}>
        {{ r = Reshape(x, rows)  lines = Reshape(x, columns)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
           {nodes} }}""")
    for rewrite in target.rewrites.graph:
        rewrite(model)
    program = lowered(model, Plan("xnnpack", "fp32", {}), target, tmp_path)
    assert program.census["outside"] == []
    assert program.census["delegates"] == 1
    sample = {"x": noise(model)["x"][0]}
    simulated, outputs = program.simulate(sample), program.run(sample)
    assert {name for name in REWRITTEN if sqnr_db(simulated[name], outputs[name]) < 100} == set()
