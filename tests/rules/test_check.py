"""The findings of the generic rules, when they do not fire, and how ``check_file`` prepares a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.catalog import find_rule, rules_for
from dovetail.checking import check_file
from dovetail.encoding import DType, Encoding, QParams
from dovetail.errors import InputError
from dovetail.finding import Finding, Severity
from dovetail.model.read import read
from dovetail.numerics.histogram import histogram_of
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.storage import Choice, Plan, Reason
from dovetail.targets import open_target
from tests.rules.cases import findings_in, write

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
TARGET = open_target("ort-cpu")


def _check(text: str, folder: Path, **fields: object) -> tuple[Finding, ...]:
    """Return the findings in a graph without normalization, with a plan or statistics."""
    model = read(write(HEAD + text, folder))
    infer_shapes(model)
    return check(replace(CheckInput(model, TARGET.table), **fields), rules_for(TARGET))


def _stats(**ranges: tuple[float, float]) -> Stats:
    tensors = {name: TensorStats(low, high) for name, (low, high) in ranges.items()}
    return Stats(tensors, DataInfo("made up", 1, ""))


def _plan(**scales: float) -> Plan:
    params = {name: QParams(Encoding(DType.U8), np.float32(scale), np.int32(0)) for name, scale in scales.items()}
    return Plan("ort-cpu", "w8a8", {name: Choice(storage, Reason.PINNED, "test") for name, storage in params.items()})


ADD = "g (float[1,4] x) => (float[1,4] y) { y = Add(x, x) }"


def test_sentinel_is_reported_with_range_and_step(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] c = {1, -2, 3, 1e34}> { y = Add(x, c) }"
    (finding,) = _check(text, tmp_path)
    assert (finding.code, str(finding.place), finding.severity) == ("Q501", "c", Severity.ERROR)
    assert finding.numbers == pytest.approx(
        {"low": -2.0, "high": 1e34, "step": 1e34 / 65535, "lost_share": 1.0}, rel=1e-6
    )
    assert "100 % of its smaller non-zero values become zero" in finding.message


def test_mask_of_two_values_is_quantized_exactly(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[4] mask = {0, 0, 0, -3.4e38}> { y = Add(x, mask) }"
    assert _check(text, tmp_path) == ()


def test_sentinel_in_one_channel_of_many(tmp_path: Path) -> None:
    text = "g (float[1,8] x) => (float[1,64] y) { y = MatMul(x, w) }"
    weight = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    proto = onnx.parser.parse_model(HEAD + text)
    for sentinel, codes in ((weight[3, 5], []), (np.float32(1e34), ["Q501"])):
        weight[3, 5] = sentinel
        del proto.graph.initializer[:]
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        onnx.save(proto, tmp_path / "model.onnx")
        findings = check_file(tmp_path / "model.onnx", TARGET)
        assert [finding.code for finding in findings] == codes


@pytest.mark.parametrize(("high", "fires"), [(1e34, True), (9e9, True), (8e9, False), (4.6e3, False)])
def test_a_range_without_values_must_exceed_float16(high: float, fires: bool, tmp_path: Path) -> None:
    findings = _check(ADD, tmp_path, stats=_stats(x=(-1.0, 1.0), y=(0.0, high)))
    assert [str(finding.place) for finding in findings if finding.code == "Q501"] == (["y"] if fires else [])


def test_planned_encoding_that_is_too_coarse_is_a_warning_if_a_finer_one_is_available(tmp_path: Path) -> None:
    plan, stats = _plan(x=0.01, y=1e8 / 255), _stats(x=(-1.0, 1.0), y=(0.0, 1e8))
    (finding,) = _check(ADD, tmp_path, plan=plan, stats=stats)
    assert (finding.code, str(finding.place), finding.severity) == ("Q501", "y", Severity.WARNING)
    assert "quantize 'y' to uint16" in finding.fix
    (finding,) = _check(ADD, tmp_path, plan=_plan(x=0.01, y=1e30), stats=_stats(x=(-1.0, 1.0), y=(0.0, 1e32)))
    assert finding.severity is Severity.ERROR


def test_planned_scale_is_enough_without_statistics(tmp_path: Path) -> None:
    assert [str(finding.place) for finding in _check(ADD, tmp_path, plan=_plan(x=0.01, y=1e30))] == ["y"]
    assert _check(ADD, tmp_path, plan=_plan(x=0.01, y=0.02)) == ()


@pytest.mark.parametrize(("op", "fires"), [("Add(x, x)", True), ("Softmax<axis=-1>(x)", False), ("Sigmoid(x)", False)])
def test_small_probabilities_may_quantize_to_zero(op: str, fires: bool, tmp_path: Path) -> None:
    values = np.asarray([1.0] + [1e-8] * 1000, np.float32)
    tensor_stats = TensorStats(float(values.min()), 1.0, histogram_of(values))
    stats = Stats({"y": tensor_stats}, DataInfo("made up", 1, ""))
    findings = _check(f"g (float[1,4] x) => (float[1,4] y) {{ y = {op} }}", tmp_path, stats=stats)
    assert [finding.code for finding in findings] == (["Q501"] if fires else [])


def test_values_that_are_all_tiny_are_a_note(tmp_path: Path) -> None:
    text = "# calib: random\n" + HEAD + "g (float[1,4] x) => (float[1,4] y) <float k = {1e-22}> { y = Mul(x, k) }"
    (finding,) = [finding for finding in findings_in(text, tmp_path) if str(finding.place) == "y"]
    assert (finding.code, finding.severity) == ("Q503", Severity.NOTE)
    assert "is practically zero, its largest magnitude is " in finding.message


@pytest.mark.parametrize(("values", "fix"), [("-inf, 0", "mask"), ("inf, 1", "largest"), ("nan, -inf", "NaN")])
def test_fix_depends_on_which_value_is_not_finite(values: str, fix: str, tmp_path: Path) -> None:
    text = f"g (float[1,2] x) => (float[1,2] y) <float[2] c = {{{values}}}> {{ y = Add(x, c) }}"
    (finding,) = _check(text, tmp_path)
    assert (finding.code, str(finding.place), finding.severity) == ("Q502", "c", Severity.ERROR)
    assert fix in finding.fix


def test_different_qparams_are_an_error_if_the_target_cannot_compute_in_float_between(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[4,1] y) { y = Transpose<perm=[1,0]>(x) }"
    assert [f.severity for f in _check(text, tmp_path, plan=_plan(x=0.01, y=0.02))] == [Severity.WARNING]
    strict = replace(TARGET.table, target="strict:v1", runs_float_between=False)
    (finding,) = _check(text, tmp_path, plan=_plan(x=0.01, y=0.02), table=strict)
    assert (finding.code, str(finding.place), finding.severity) == ("Q301", "y", Severity.ERROR)
    assert "its input 'x' is uint8 with scale 0.01 " in finding.message
    assert "'x'" in finding.fix


def test_only_the_inputs_are_reported_if_they_have_dynamic_shapes(tmp_path: Path) -> None:
    findings = _check("g (float[batch,4] x) => (float[n,4] y) { a = Relu(x) y = Relu(a) }", tmp_path)
    assert [(finding.code, str(finding.place)) for finding in findings] == [("Q601", "x")]
    assert findings[0].fix == "pin it, for example with --shape x=1,4"


def test_only_the_first_shape_that_depends_on_data_is_reported(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (int64[n,2] y) { a = NonZero(x) y = Transpose<perm=[1,0]>(a) }"
    assert [str(finding.place) for finding in _check(text, tmp_path)] == ["a"]


def test_problems_that_normalization_fixes_are_not_reported(tmp_path: Path) -> None:
    text = """g (float[1,8] x) => (float[m,n] y) <float[2] half = {2.5, 4.5}>
        { sizes = Floor(half) shape = Cast<to=7>(sizes) y = Reshape(x, shape) }"""
    assert [finding.code for finding in _check(text, tmp_path)] == ["Q601"]
    assert check_file(tmp_path / "model.onnx", TARGET) == ()


def test_calibration_needs_shapes(tmp_path: Path) -> None:
    path = write(f"{HEAD}g (float[batch,4] x) => (float[batch,4] y) {{ y = Relu(x) }}", tmp_path)
    with pytest.raises(InputError, match="'x'"):
        check_file(path, TARGET, calibration="random")
    assert check_file(path, TARGET, {"x": (1, 4)}, calibration="random") == ()


def test_calibration_of_a_double_tensor_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write(f"{HEAD}g (double[1,4] x) => (double[1,4] y) {{ y = Relu(x) }}", tmp_path)
    assert check_file(path, TARGET) == ()
    with pytest.raises(InputError, match="'x' is DOUBLE"):
        check_file(path, TARGET, calibration="random")


def test_calibration_without_float_tensors(tmp_path: Path) -> None:
    path = write(f"{HEAD}g (int64[1,4] x) => (int64[1,4] y) {{ y = Add(x, x) }}", tmp_path)
    assert check_file(path, TARGET, calibration="random") == ()


def test_findings_are_sorted_by_code_and_rules_can_be_selected(tmp_path: Path) -> None:
    text = "g (float[batch,2] x) => (float[batch,2] y) <float[2] b = {nan, 1}, float[2] a = {inf, 1}> " + (
        "{ z = Add(x, b) y = Add(z, a) }"
    )
    findings = _check(text, tmp_path)
    assert [(finding.code, str(finding.place)) for finding in findings] == [("Q502", "b"), ("Q502", "a"), ("Q601", "x")]
    subject = CheckInput(read(tmp_path / "model.onnx"), TARGET.table)
    assert [finding.code for finding in check(subject, [find_rule("Q601")])] == ["Q601"]
    with pytest.raises(InputError, match="Q999"):
        find_rule("Q999")
