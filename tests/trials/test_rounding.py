"""``--rounding``: the chosen scales and integers are those that are emitted, within what the target supports."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.edge import Edge
from dovetail.encoding import Array, QParams
from dovetail.model.edit import constant_of
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.numerics.methods import RoundingMethod
from dovetail.op_support import FP32, W4A16_LPBQ, W8A8, W8A16, Precision
from dovetail.plan.request import Pin, Pins
from dovetail.plan.rows import read_plan, write_plan
from dovetail.plan.validate import validate_plan
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.params import is_dequantize, qparams_of
from dovetail.storage import Plan, Reason
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import FP8
from dovetail.trials.decision import Decision
from dovetail.trials.knobs import rounding
from dovetail.trials.knobs.rounding import ROUNDING, LayerGain, round_weights
from dovetail.trials.variant import Variant, pinned
from dovetail.trials.workbench import Workbench
from tests.planning import graph
from tests.trials.benches import bench_of

CASES: Mapping[str, Precision] = {
    "ort-cpu": W8A8,
    "qnn-htp:sm8550": W8A16,
    "xnnpack": W8A8,
    "tensorrt:sm89": FP8,
}
METHODS = (RoundingMethod.SCALE_SEARCH, RoundingMethod.SECOND_ORDER)


def constant(name: str, *shape: int, factor: float = 0.2) -> str:
    random = np.random.default_rng(list(name.encode()))
    elements = ",".join(f"{factor * element:.6g}" for element in random.standard_normal(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{elements}}}"


# A convolution, a depthwise one and a linear layer, whose inputs are correlated because they were computed.
NETWORK = f"""g (float[1,3,8,8] x) => (float[64,6] z)
    <{constant("k", 8, 3, 3, 3)}, {constant("b", 8)}, {constant("d", 8, 1, 3, 3)}, {constant("w", 8, 6)},
     {constant("c", 6)}, int64[2] rows = {{8, 64}}>
    {{ [conv] f = Conv<pads=[1,1,1,1]>(x, k, b)  r = Relu(f)
       [depthwise] g = Conv<pads=[1,1,1,1], group=8>(r, d)  s = Relu(g)
       v = Reshape(s, rows)  t = Transpose<perm=[1,0]>(v)  [linear] z = Gemm(t, w, c) }}"""
WEIGHTS = (Edge("conv", 1), Edge("depthwise", 1), Edge("linear", 1))


def bench_for(
    folder: Path, name: str, text: str = NETWORK, precision: Precision | None = None, **more: Any
) -> tuple[Workbench, Variant]:
    target = open_target(name)
    return bench_of(graph(text), target, precision or CASES[name], folder, available=False, count=16, **more)


def rounded(
    folder: Path, name: str, method: RoundingMethod, text: str = NETWORK
) -> tuple[Workbench, Plan, Plan, list[LayerGain]]:
    """A workbench, the plans with rounding to nearest and by this method, and the gains."""
    bench, variant = bench_for(folder, name, text)
    changed, gains = round_weights(bench, variant, method)
    return bench, bench.plan(variant), bench.plan(changed), gains


def params_of(plan: Plan, edge: Edge) -> QParams:
    storage = plan.edges[edge].storage
    assert isinstance(storage, QParams)
    return storage


def weight_at(model: ir.Model, edge: Edge) -> Array:
    array = constant_of(next(node for node in model.graph if node.name == edge.node).inputs[edge.index])
    assert array is not None
    return array


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_layer_gains_and_the_plan_says_by_how_much(name: str, method: RoundingMethod, tmp_path: Path) -> None:
    bench, before, after, gains = rounded(tmp_path, name, method)
    quantized = [edge for edge in WEIGHTS if isinstance(before.edges[edge].storage, QParams)]
    assert quantized
    assert all(gain.rounded_db >= gain.nearest_db for gain in gains)
    assert sum(gain.rounded_db - gain.nearest_db for gain in gains) > 0.5
    validate_plan(after, graph(NETWORK), bench.table)
    for edge, gain in zip(quantized, gains, strict=True):
        text = f"{method} rounding: its output from {gain.nearest_db:.1f} to {gain.rounded_db:.1f} dB"
        assert (text in after.edges[edge].detail) == (gain.rounded_db > gain.nearest_db)
        assert params_of(after, edge).encoding == params_of(before, edge).encoding
    assert after.stored.keys() <= set(WEIGHTS)
    assert bool(after.stored) == (method is RoundingMethod.SECOND_ORDER)
    assert after.tensors == before.tensors


@pytest.mark.parametrize("name", CASES)
def test_what_is_emitted_is_what_was_chosen(name: str, tmp_path: Path) -> None:
    """Integers and scales in the emitted file, in float16 where the target has float16 scales."""
    bench, variant = bench_for(tmp_path, name)
    changed, _ = round_weights(bench, variant, RoundingMethod.SECOND_ORDER)
    plan = bench.plan(changed)
    artifacts = bench.backend.emit(variant.model, plan, tmp_path)
    nodes = {node.name: node for node in ir.load(artifacts[0].path).graph}
    assert plan.stored
    for edge, integers in plan.stored.items():
        value = nodes[edge.node].inputs[edge.index]
        dequantizer = None if value is None else value.producer()
        assert dequantizer is not None
        assert is_dequantize(dequantizer)
        emitted = constant_of(dequantizer.inputs[0])
        assert emitted is not None
        np.testing.assert_array_equal(emitted.view(np.uint8), integers.view(np.uint8))
        assert qparams_of(dequantizer) == plan.edges[edge].storage
    assert ("tensorrt" in name) == any(node.inputs[1].dtype is ir.DataType.FLOAT16 for node in nodes.values()
                                       if is_dequantize(node) and node.inputs[1] is not None)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_layer_loses_by_second_order_rounding_what_the_search_for_scales_gains(name: str, tmp_path: Path) -> None:
    """The scales that are best with rounding to nearest are among those that it compares."""
    bench, variant = bench_for(tmp_path, name)
    searched, corrected = (round_weights(bench, variant, method)[1] for method in METHODS)
    assert len(searched) == len(corrected) > 0
    assert all(b.rounded_db >= a.rounded_db - 1e-9 for a, b in zip(searched, corrected, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_expanded_blocks_are_searched_and_emitted_as_searched(method: RoundingMethod, tmp_path: Path) -> None:
    precision = replace(W4A16_LPBQ, weight=replace(W4A16_LPBQ.weight, block_size=4))
    bench, variant = bench_for(tmp_path, "ort-cpu", precision=precision)
    changed, _ = round_weights(bench, variant, method)
    before, after = (params_of(bench.plan(tried), Edge("linear", 1)) for tried in (variant, changed))
    assert before.encoding == after.encoding == precision.weight
    assert (after.scale != before.scale).any()
    assert after.int_scale is not None
    assert (after.int_scale.max(axis=0) == 16).all()
    artifacts = bench.backend.emit(variant.model, bench.plan(changed), tmp_path)
    nodes = {node.name: node for node in ir.load(artifacts[0].path).graph}
    value = nodes["linear"].inputs[1]
    dequantizer = None if value is None else value.producer()
    assert dequantizer is not None
    assert qparams_of(dequantizer) == after


def test_the_scale_of_a_bias_follows_its_weight(tmp_path: Path) -> None:
    _, before, after, _ = rounded(tmp_path, "ort-cpu", RoundingMethod.SCALE_SEARCH)
    bias = Edge("conv", 2)
    assert after.edges[bias].why is Reason.BIAS
    weight, source = params_of(after, WEIGHTS[0]), after.tensors["x"].storage
    assert isinstance(source, QParams)
    assert (weight.scale != params_of(before, WEIGHTS[0]).scale).any()
    np.testing.assert_array_equal(params_of(after, bias).scale, source.scale * weight.scale)


@pytest.mark.parametrize(("name", "method"), [("qnn-htp:sm8550", METHODS[0]), ("tensorrt:sm89", METHODS[1])])
def test_scales_are_not_below_what_the_target_supports(name: str, method: RoundingMethod, tmp_path: Path) -> None:
    """Channels that are nearly dead: their scales were raised, and stay at the bound."""
    small = constant("k", 8, 3, 3, 3, factor=1e-7)
    text = NETWORK.replace(constant("k", 8, 3, 3, 3), small.replace("{", "{0.5,", 1).rsplit(",", 1)[0] + "}")
    _, before, after, _ = rounded(tmp_path, name, method, text)
    planned, found = (params_of(plan, WEIGHTS[0]).scale for plan in (before, after))
    assert before.edges[WEIGHTS[0]].raised_channels == after.edges[WEIGHTS[0]].raised_channels == 7
    np.testing.assert_array_equal(found[1:], planned[1:])


def test_a_weight_with_two_consumers_is_rounded_for_each(tmp_path: Path) -> None:
    text = f"""g (float[16,8] x) => (float[16,8] z) <{constant("w", 8, 8)}>
        {{ [first] h = MatMul(x, w)  r = Relu(h)  [second] z = MatMul(r, w) }}"""
    _, _, plan, gains = rounded(tmp_path, "ort-cpu", RoundingMethod.SECOND_ORDER, text)
    first, second = (plan.stored[Edge(node, 1)] for node in ("first", "second"))
    assert len(gains) == 2
    assert (first != second).any()
    emitted = emit_qdq(graph(text), plan)
    constants = [constant_of(node.inputs[0]) for node in emitted.graph if is_dequantize(node)]
    integers = [array for array in constants if array is not None]
    assert [array.tolist() for array in integers] == [first.tolist(), second.tolist()]


def test_other_constants_are_rounded_to_nearest(tmp_path: Path) -> None:
    """A constant that is added, and a matrix per batch; an input that is always zero changes nothing."""
    text = f"""g (float[2,4,8] x) => (float[2,4,5] z) <{constant("a", 8)}, {constant("w", 2, 8, 8)},
        {constant("v", 8, 5)}, float n = {{0}}>
        {{ h = Add(x, a)  [batched] m = MatMul(h, w)  o = Mul(m, n)  [dead] z = MatMul(o, v) }}"""
    _, before, after, (gain,) = rounded(tmp_path, "ort-cpu", RoundingMethod.SECOND_ORDER, text)
    assert gain.rounded_db == gain.nearest_db
    assert not after.stored
    assert {edge: choice.storage for edge, choice in after.edges.items()} == {
        edge: choice.storage for edge, choice in before.edges.items()
    }


def test_a_constant_on_the_left_keeps_its_scales(tmp_path: Path) -> None:
    text = f"g (float[8,6] x) => (float[5,6] z) <{constant('w', 5, 8)}> {{ r = Relu(x)  [left] z = MatMul(w, r) }}"
    _, before, after, (gain,) = rounded(tmp_path, "ort-cpu", RoundingMethod.SECOND_ORDER, text)
    edge = Edge("left", 0)
    assert gain.rounded_db > gain.nearest_db
    assert params_of(after, edge) == params_of(before, edge)
    assert (after.stored[edge] != quantize(weight_at(graph(text), edge), params_of(after, edge))).any()


def decision_of(method: RoundingMethod, *gains_db: float) -> Decision:
    gains = [LayerGain(30.0, 36.0), LayerGain(20.0, 21.0)]
    return rounding._decision(method, gains, [20.0, 20.0], [20.0 + gain for gain in gains_db])


def test_the_decision_has_the_figures_of_both(tmp_path: Path) -> None:
    bench, variant = bench_for(tmp_path, "qnn-htp:sm8550", knob_options={"rounding": "second-order"})
    changed, (decision,) = ROUNDING.decide(bench, variant)
    nearest, chosen = decision.alternatives
    assert (decision.knob, decision.taken, decision.samples) == ("rounding", "second-order", 16)
    assert (nearest.label, chosen.label) == ("nearest", "second-order")
    for figure in ("mean_sqnr_db", "mean_layer_sqnr_db"):
        assert chosen.figures[figure] > nearest.figures[figure] + 1
    assert decision.reason.endswith("; 3 layers")
    assert bench.plan(changed).stored


def test_a_rounding_that_gains_nothing_is_not_taken() -> None:
    """Worse, or better by less than the standard error: 1 dB with a standard error of 2 dB."""
    worse, by_chance, better = (decision_of(METHODS[1], *gains) for gains in ((-0.5, -0.5), (-1.0, 3.0), (1.0, 1.5)))
    assert worse.taken == by_chance.taken == "nearest"
    assert (
        worse.reason
        == "second-order loses 0.50 dB in the mean of the samples, with a standard error of 0.00 dB; 2 layers"
    )
    assert "gains 1.00 dB in the mean of the samples, with a standard error of 2.00 dB" in by_chance.reason
    assert better.taken == "second-order"
    assert better.alternatives[1].figures == {
        "mean_sqnr_db": 21.25, "mean_layer_sqnr_db": 28.5, "worst_layer_sqnr_db": 21.0
    }  # fmt: skip


def test_a_model_without_float_outputs_is_judged_by_its_layers() -> None:
    decision = rounding._decision(METHODS[0], [LayerGain(30.0, 36.0)], [], [])
    assert (decision.taken, decision.samples) == ("scale-search", 0)
    assert "no output is float" in decision.reason


def test_nearest_changes_nothing(tmp_path: Path) -> None:
    for options in ({}, {"rounding": "nearest"}):
        bench, variant = bench_for(tmp_path, "ort-cpu", knob_options=options)
        assert ROUNDING.decide(bench, variant) == (variant, ())


def test_without_quantized_layers_there_is_nothing_to_round(tmp_path: Path) -> None:
    bench, variant = bench_for(tmp_path, "ort-cpu", precision=FP32, knob_options={"rounding": "scale-search"})
    chosen, (decision,) = ROUNDING.decide(bench, variant)
    assert chosen.rounded == {}
    assert decision.taken == "nearest"
    assert decision.alternatives[0].failure.startswith("no quantized weight is multiplied by an activation")
    assert ROUNDING.decide(bench, chosen) == (chosen, ()), "it is not decided again"


def test_a_layer_that_a_workaround_keeps_in_float_is_not_rounded(tmp_path: Path) -> None:
    """Its weight is float then; the others stay rounded."""
    bench, variant = bench_for(tmp_path, "ort-cpu")
    changed, _ = round_weights(bench, variant, RoundingMethod.SECOND_ORDER)
    kept = pinned(Pins(units={"linear": Pin(FP32, Reason.MEASURED, "in float")}))(changed)
    plan = bench.plan(kept)
    assert plan.stored.keys() == bench.plan(changed).stored.keys() - {Edge("linear", 1)}
    assert not isinstance(plan.edges[Edge("linear", 1)].storage, QParams)


def test_the_same_samples_give_the_same_integers_whatever_fits_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []
    for size in (rounding.MOMENTS_BYTES, rounding.MOMENTS_BYTES, 1):
        monkeypatch.setattr(rounding, "MOMENTS_BYTES", size)
        _, _, plan, _ = rounded(tmp_path, "ort-cpu", RoundingMethod.SECOND_ORDER)
        stored.append({str(edge): integers.tolist() for edge, integers in plan.stored.items()})
    assert stored[0] == stored[1] == stored[2]
    assert len(stored[0]) == 3


def test_memory_is_that_of_one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget for one layer, ten layers with many inputs and few outputs need few more bytes than two."""
    peaks = []
    for count, budget in ((2, 1), (10, 1), (10, rounding.MOMENTS_BYTES)):
        monkeypatch.setattr(rounding, "MOMENTS_BYTES", budget)
        constants = ", ".join(constant(f"w{i}", 256, 2) for i in range(count))
        nodes = " ".join(f"h{i} = MatMul(s{i}, w{i}) s{i + 1} = Tanh(s{i})" for i in range(count))
        outputs = ",".join(f"h{i}" for i in range(count))
        text = f"g (float[4,256] s0) => (float[4,{2 * count}] y) <{constants}>"
        bench, variant = bench_for(tmp_path, "ort-cpu", f"{text} {{ {nodes} y = Concat<axis=1>({outputs}) }}")
        tracemalloc.start()
        _, gains = round_weights(bench, variant, RoundingMethod.SECOND_ORDER)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(gains) == count
    moments_of_others = 8 * 256 * 256 * 8
    assert peaks[1] - peaks[0] < moments_of_others / 2 < moments_of_others < peaks[2] - peaks[0]


def test_a_plan_with_integers_is_written_and_read_back(tmp_path: Path) -> None:
    _, _, plan, _ = rounded(tmp_path, "tensorrt:sm89", RoundingMethod.SECOND_ORDER)
    write_plan(plan, graph(NETWORK), tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.stored.keys() == plan.stored.keys()
    for edge, integers in plan.stored.items():
        params = params_of(plan, edge)
        np.testing.assert_array_equal(
            dequantize(again.stored[edge], params_of(again, edge)), dequantize(integers, params)
        )
        assert (dequantize(integers, params) != fake_quantize(weight_at(graph(NETWORK), edge), params)).any()


def test_fit_ships_the_rounded_weights_and_says_so(tmp_path: Path) -> None:
    import onnx

    model = ir.to_proto(graph(NETWORK))
    samples = {"x": np.random.default_rng(1).standard_normal((24, 3, 8, 8)).astype(np.float32)}
    results = {}
    for method in RoundingMethod:
        output = tmp_path / method
        options: dict[str, Any] = {} if method is RoundingMethod.NEAREST else {"rounding": str(method)}  # the default
        result = dovetail.fit(model, target="ort-cpu", precision="w8a16", calibration=samples, output=output, **options)
        assert not result.failed
        assert result.options["rounding"] == options.get("rounding", "auto")
        results[method] = result, onnx.load(output / "model.onnx").SerializeToString()
    nearest, _ = results[RoundingMethod.NEAREST]
    assert [decision.knob for decision in nearest.decisions] == []
    for method in METHODS:
        result, file = results[method]
        (decision,) = result.decisions
        assert decision.taken == method
        assert file != results[RoundingMethod.NEAREST][1]
        before, after = (r.metrics.sqnr_db.simulation_vs_float["z"] for r in (nearest, result))
        assert before is not None
        assert after is not None
        assert after > before


def test_auto_judges_precisions_with_their_rounded_weights(tmp_path: Path) -> None:
    (knob, *_) = open_target("qnn-htp:sm8550").knobs
    figures = {}
    for method in (RoundingMethod.NEAREST, RoundingMethod.SECOND_ORDER):
        options = {"precision": "auto", "rounding": method}
        bench, variant = bench_for(tmp_path / method, "qnn-htp:sm8550", knob_options=options)
        chosen, (whole, *_) = knob.decide(bench, variant)
        figures[method] = {row.label: row.figures["sqnr_db"] for row in whole.alternatives}
    assert figures[RoundingMethod.SECOND_ORDER]["w8a16"] > figures[RoundingMethod.NEAREST]["w8a16"] + 1
    assert set(chosen.rounded) == set(WEIGHTS)
    assert ROUNDING.decide(bench, chosen) == (chosen, ())
