"""A sweep end to end: a planted defect is found, shrunk, grouped and reported; an interrupted sweep continues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail import targets
from dovetail.backend import ReadBack
from dovetail.errors import InputError
from dovetail.run_lock import run_lock
from dovetail.sweep.case import Case, make_case
from dovetail.sweep.fit_graph import FitRequest, fit_graph
from dovetail.sweep.fit_process import FitProcess
from dovetail.sweep.outcome import Failure, FailureKind, Outcome
from dovetail.sweep.records import SweepSettings
from dovetail.sweep.shrink import save_graph, shrink
from dovetail.sweep.sweep import Sweep, require_usable

# The toy replaces this operator by Neg if its output is quantized.
WRONG = {"wrong": "Relu"}
GRAPH = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1,6,4] x) => (float[1,6,4] y, float[1,6,4] other)
<float[4,4] w = {1,-2,3,4, -5,6,7,8, 2,1,-1,3, 1,0,1,0}, float[4] b = {1,2,3,4},
 float[1,6,4] m, float[1,6,4] a, float[1,6,4] s, float[1,6,4] r, float[1,6,4] t>
{
    m = MatMul(x, w)
    a = Add(m, b)
    other = Gelu(a)
    s = Mul(a, b)
    r = Relu(s)
    t = Add(r, b)
    y = Mul(t, a)
}
"""
# The same Relu at an output, where it can be kept in float.
AT_OUTPUT = GRAPH.replace("y = Mul(t, a)", "u = Mul(t, a) y = Relu(u)").replace("r = Relu(s)", "r = Gelu(s)")


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.FAMILIES, "toy", "tests.toy_target")


def planted_case(text: str = GRAPH) -> Case:
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    samples = np.random.default_rng(0).normal(0.3, 1, (4, 1, 6, 4)).astype(np.float32)
    return Case(model, {"x": samples}, ("planted",))


def request(folder: Path, case: Case, **changes: object) -> FitRequest:
    model, samples = save_graph(ir.from_proto(case.model), case.samples, folder / "case")
    return replace(FitRequest(model, samples, "toy:full", "w8a8", WRONG, build_only=True), **changes)


def kinds(outcome: Outcome) -> list[FailureKind]:
    return [failure.kind for failure in outcome.failures]


def test_a_wrong_operator_is_found_and_shrunk_to_itself(tmp_path: Path) -> None:
    case = planted_case()
    how = request(tmp_path, case)
    outcome = fit_graph(how)
    assert kinds(outcome) == [FailureKind.WRONG]
    assert "output 'y': target " in outcome.failures[0].cause
    assert outcome.outputs["other"].target_db == outcome.outputs["other"].simulation_db
    shrunk = shrink(case, outcome.failures[0], how, fit_graph)
    assert shrunk is not None
    assert shrunk.is_minimal
    assert [node.op_type for node in shrunk.model.graph] == ["Relu"]
    # The part's input has the values that the tensor has in the whole graph.
    assert shrunk.samples["s"].shape == (4, 1, 6, 4)
    again = shrink(case, outcome.failures[0], how, fit_graph, known=[shrunk.model])
    assert again is not None
    assert again.calls == 2  # the whole graph, and the known pattern in it


def test_a_full_fit_has_verdicts_and_workarounds(tmp_path: Path) -> None:
    outcome = fit_graph(request(tmp_path, planted_case(AT_OUTPUT), build_only=False))
    assert outcome.failures == ()
    assert outcome.verdicts["numerics"] == "pass"
    assert outcome.outputs["y"].target_db > 20
    assert len(outcome.workarounds) == 1
    assert outcome.workarounds[0].startswith("island: ")
    wrong = fit_graph(request(tmp_path, planted_case(), build_only=False))
    assert kinds(wrong) == [FailureKind.WRONG]
    assert (wrong.verdicts["numerics"], wrong.workarounds) == ("fail", ())
    assert "the first wrong tensor is 'r', computed by Relu" in wrong.failures[0].cause
    right = fit_graph(request(tmp_path, planted_case(), build_only=False, option={}))
    assert (right.failures, right.workarounds) == ((), ())


def test_a_failure_that_the_first_build_does_not_show_is_not_shrunk(tmp_path: Path) -> None:
    case = planted_case()
    failure = Failure(FailureKind.WRONG, "elsewhere")
    assert shrink(case, failure, request(tmp_path, case, option={}), fit_graph) is None


def test_a_graph_with_nothing_to_quantize_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was read back, so ``fidelity`` is not checked; with something quantized that is a failure."""
    monkeypatch.setattr("tests.toy_target.read_back", lambda compiled, plan: ReadBack((), "nothing"))
    floats = fit_graph(request(tmp_path, planted_case(), precision="fp32"))
    assert (floats.failures, floats.verdicts["fidelity"]) == ((), "not_checked")
    quantized = fit_graph(request(tmp_path, planted_case(), option={}))
    assert kinds(quantized) == [FailureKind.NOT_FOUND]


def test_refused_and_unexpected_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = planted_case()
    refused = fit_graph(request(tmp_path, case, precision="w4a4"))
    assert kinds(refused) == [FailureKind.REFUSED]
    assert "w4a4" in refused.failures[0].cause
    monkeypatch.setattr("dovetail.sweep.fit_graph.fit", lambda job, run: 1 // 0)
    unexpected = fit_graph(request(tmp_path, case))
    assert [failure.cause for failure in unexpected.failures] == [
        "ZeroDivisionError: integer division or modulo by zero"
    ]


def settings(**changes: object) -> SweepSettings:
    return replace(SweepSettings("toy:full", "w8a8", 1, WRONG, build_only=True), **changes)


def test_a_sweep_reports_the_planted_operator(tmp_path: Path) -> None:
    """Among the first graphs of this seed, those with a quantized Relu are wrong, and nothing else is."""
    report = Sweep(settings(seed=39), tmp_path, fit_graph).run(3)
    wrong = [group for group in report.groups if group.kind is FailureKind.WRONG]
    assert wrong
    assert {group.pattern.split(" -> ")[-1] for group in wrong} == {"Relu"}
    text = (tmp_path / "report.md").read_text()
    assert f"{report.passed} of 3 graphs pass" in text
    assert "Wrong while `numerics` passes: not checked." in text  # only the first builds were judged
    for group in wrong:
        file = tmp_path / group.members[0].file
        assert f"- file: `{group.members[0].file}`" in text
        onnx.checker.check_model(str(file))
        assert (tmp_path / "graphs" / f"{group.members[0].index:05}.onnx").exists()
        with np.load(file.with_suffix(".npz")) as arrays:
            assert set(arrays.files) == {value.name for value in onnx.load(file).graph.input}
    again = list(Sweep(settings(seed=39), tmp_path, fit_graph).recheck())
    assert [group for group, _ in again] == list(report.groups)
    assert all(outcome.failures[0].is_like(group.smallest.failure) for group, outcome in again)
    mended = Sweep(settings(seed=39), tmp_path, lambda how: fit_graph(replace(how, option={})))
    assert all(outcome.failures == () for group, outcome in mended.recheck() if group in wrong)
    saved = json.loads((tmp_path / "report.json").read_text())
    assert (saved["graphs"], saved["passed"]) == (3, report.passed)


def test_an_interrupted_sweep_continues_and_counts_add_up(tmp_path: Path) -> None:
    fitted: list[str] = []

    def fit(how: FitRequest) -> Outcome:
        if len(fitted) == 2 and "interrupted" not in fitted:
            fitted.append("interrupted")
            raise KeyboardInterrupt
        fitted.append("graph")
        return Outcome((Failure(FailureKind.CHANGED, "one"),)) if len(fitted) == 1 else Outcome()

    with pytest.raises(KeyboardInterrupt):
        Sweep(settings(), tmp_path, fit).run(5, shrinks=False)
    assert (tmp_path / "report.md").exists()
    with (tmp_path / "graphs.jsonl").open("a") as file:
        file.write('{"index": 2, "kin')  # as a process leaves it that is killed while it writes
    report = Sweep(settings(), tmp_path, fit).run(5, shrinks=False)
    assert fitted.count("graph") == 5
    assert (report.graphs, report.passed, report.not_shrunk) == (5, 4, 1)
    whole = Sweep(settings(), tmp_path, fit).run(5, shrinks=False)
    assert whole == report
    assert fitted.count("graph") == 5
    assert Sweep(settings(), tmp_path, fit).run(9, lambda: len(fitted) >= 8, shrinks=False).graphs == 7
    with run_lock(tmp_path), pytest.raises(InputError, match="another run is writing to this folder"):
        Sweep(settings(), tmp_path, fit).run(5)
    recorded = (tmp_path / "sweep.json").read_text()
    (tmp_path / "sweep.json").write_text(recorded.replace('"generator": "', '"generator": "other'))
    with pytest.raises(InputError, match="has graphs of another version of the generator"):
        Sweep(settings(), tmp_path, fit).run(5)
    with pytest.raises(InputError, match="has a sweep with another seed \\(1, not 2\\)"):
        Sweep(settings(seed=2), tmp_path, fit)


def test_a_target_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.backend import Probe
    from tests import toy_target

    missing = replace(toy_target.TOY.backend, probe=lambda: Probe(False, {}, "toyc is not installed"))
    monkeypatch.setattr(toy_target, "TOY", replace(toy_target.TOY, backend=missing))
    with pytest.raises(InputError, match="toy cannot be swept: toyc is not installed"):
        require_usable(settings(target="toy", option={}))


def test_a_precision_that_the_target_lacks_is_refused_once() -> None:
    require_usable(settings(option={}))
    with pytest.raises(InputError, match="unknown precision 'w9a9' for target toy"):
        require_usable(settings(precision="w9a9", option={}))


def test_a_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="file cannot be used as the folder of a sweep \\(File exists\\)"):
        Sweep(settings(), file, fit_graph)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(InputError, match=r"sweep\.json does not have the settings of a sweep"):
        Sweep(settings(), tmp_path, fit_graph)


def test_the_process_survives_a_time_limit_and_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ort-cpu, because the toy is not registered in another process."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    how = request(tmp_path, make_case(1, 0), target="ort-cpu", option={})
    with FitProcess(120.0) as fit:
        assert fit(how).verdicts["compiled"] == "pass"
        assert fit._process is not None
        fit._process.kill()
        crashed = fit(how)
        assert [failure.cause for failure in crashed.failures] == ["the process that fitted it ended with code -9"]
        fit(how)  # so that the process has started
        assert list(scratch.rglob("*"))
        fit._time_limit_s = 0.05
        slow = fit(how)
        assert [failure.cause for failure in slow.failures] == ["not finished within 0.05 s"]
        assert kinds(slow) == [FailureKind.UNFINISHED]
        assert not list(scratch.rglob("*"))  # although the process was killed while it fitted
