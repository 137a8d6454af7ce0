"""The verdict ``accuracy``: what fails, what passes with a warning, and what the user can do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import dovetail
from dovetail import zoo
from dovetail.backend import Sample
from dovetail.cli.main import main
from dovetail.errors import InputError
from dovetail.finding import Finding, Severity, Status, Thresholds
from dovetail.report.terminal import print_result
from dovetail.rules.keep_line import keep_line
from dovetail.stats import DataInfo
from dovetail.verify.accuracy import Judgement, Measured, judge
from dovetail.verify.compare import Agreement, compare_runs
from dovetail.verify.metric import Accuracy
from tests.networks.outlier_vit import outlier_vit

DIGITS = zoo.load("vit_digits")
HELD_OUT = {**DIGITS.eval(), **DIGITS.targets()}


def fit_outlier(folder: Path, **options: Any) -> dovetail.Result:
    arguments = {"calibration": DIGITS.calib(), "evaluation": HELD_OUT, "metric": DIGITS.metric, **options}
    return dovetail.fit(outlier_vit(), target="ort-cpu", output=folder, **arguments)


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> dovetail.Result:
    return fit_outlier(tmp_path_factory.mktemp("outlier") / "run")


def printed(result: dovetail.Result) -> str:
    console = Console(file=StringIO(), width=120)
    print_result(result, Path("run"), console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def low_accuracy(result: dovetail.Result) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "Q505"]


def test_a_ruined_model_fails_although_target_and_simulation_agree(ruined: dovetail.Result) -> None:
    assert ruined.failed == ("accuracy",)
    verdict = ruined.verdicts["accuracy"]
    assert "top1 drops from 0.9956 to 0.1022: by 0.8933, more than the allowed 0.05" in verdict.reason
    assert re.search(r"output 'logits' is at -0\.\d dB against float, below the limit of 10 dB", verdict.reason)
    on_metric, on_outputs = verdict.evidence.split("; ")
    assert on_metric == "dovetail.zoo.metrics:top1 on 450 held-out samples of in-memory arrays, target"
    assert on_outputs == "SQNR on 16 held-out samples of in-memory arrays, target"
    (finding,) = low_accuracy(ruined)
    assert finding.severity is Severity.ERROR


def test_the_tensors_that_lose_most_are_the_causes_not_what_follows_them(ruined: dovetail.Result) -> None:
    losses = ruined.metrics.losses
    norms = {f"blocks.{block}.norm{norm}/LayerNormalization_out" for block in range(4) for norm in (1, 2)}
    assert {loss.original_name for loss in losses[:8]} == norms
    assert max(loss.consumer_sqnr_db for loss in losses[:8]) < 1 < 20 < losses[8].consumer_sqnr_db
    own_db = {tensor.original_name: tensor.sqnr_db for tensor in ruined.metrics.tensors}
    first_db, after_db = own_db["blocks.0.norm1/LayerNormalization_out"], own_db["blocks.0.attn.qkv/Add_out"]
    assert first_db is not None
    assert after_db is not None
    assert first_db > 30, "the SQNR of the first cause itself looks fine"
    assert after_db < 1, "and what follows it looks like a cause"
    text = printed(ruined)
    assert text.count("LayerNormalization_out │") == 5
    assert "--keep " in text


def test_the_keep_line_repairs_the_model(ruined: dovetail.Result, tmp_path: Path) -> None:
    (finding,) = low_accuracy(ruined)
    words = shlex.split(finding.fix[finding.fix.index("--keep") :])
    keeps = words[1::2]
    assert set(words[::2]) == {"--keep"}
    result = fit_outlier(tmp_path / "run", keep=keeps)
    assert not result.failed
    assert result.metrics.accuracy is not None
    assert result.metrics.accuracy.figures["target"]["top1"] >= 0.99
    assert low_accuracy(result) == []
    assert result.metrics.losses == ()


def test_tensors_that_share_a_scale_are_named_once(tmp_path: Path) -> None:
    result = dovetail.fit(
        DIGITS.model_path, target="ort-cpu", calibration=DIGITS.calib(), min_sqnr=90, output=tmp_path / "run"
    )
    names = [loss.original_name for loss in result.metrics.losses]
    groups = {row.original_name: row.group for row in result.plan if row.edge is None}
    shared = [groups[name] for name in names if groups[name] is not None]
    assert len(shared) > 10
    assert len(set(shared)) == len(shared)


def test_limits_are_options_and_recorded(tmp_path: Path) -> None:
    """Lowered on purpose, the run passes; Q505 is then a warning."""
    result = fit_outlier(tmp_path / "run", max_drop={"top1": 0.9, "*": 0.2}, min_sqnr=-5)
    assert not result.failed
    assert (result.thresholds.max_drop, result.thresholds.max_drop_of) == (0.2, {"top1": 0.9})
    assert result.thresholds.min_sqnr_db == -5
    conditions = result.verdicts["accuracy"].passes_when
    assert conditions["metric"] == "no value gets worse than in float by more than 0.2, top1 by more than 0.9"
    assert [finding.severity for finding in low_accuracy(result)] == [Severity.WARNING]
    assert "'logits' has the same top class as float for only" in low_accuracy(result)[0].message


def test_one_row_is_on_the_same_samples_with_the_spread_beside_it(ruined: dovetail.Result) -> None:
    spread = ruined.metrics.sqnr_db_per_sample
    assert spread.target_vs_float is not None
    simulation, target = spread.simulation_vs_float["logits"], spread.target_vs_float["logits"]
    assert simulation.samples == target.samples == ruined.metrics.target_samples == 16
    assert target.min_db < target.mean_db
    assert target.std_db > 0
    text = printed(ruined)
    assert f"{target.mean_db:.1f} ± {target.std_db:.1f} dB" in text
    assert "outputs against float on 16 samples" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-sqnr", "nan"), "min_sqnr_db: expected a finite number"),
        (("--min-sqnr", "ten"), "not a valid float"),
        (("--max-drop", "top1="), "--max-drop top1=: '' is not a number"),
        (("--max-drop", "=0.1"), "must be NAME=NUMBER"),
        (("--max-drop", "-0.1"), "expected a number of at least 0"),
        (("--max-drop", "0.1", "--max-drop", "0.2"), "given twice"),
        (("--max-drop", "a=0.1", "--max-drop", "a=0.2"), "--max-drop a is given twice"),
        (("--max-drop", "0.1"), "--max-drop limits the values of a metric: add --eval DATA"),
    ],
)
def test_bad_limits_are_refused(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "calib.npz", **DIGITS.calib())
    base = ("fit", str(DIGITS.model_path), "--target", "ort-cpu", "--calib", str(tmp_path / "calib.npz"))
    with pytest.raises(SystemExit) as stop:
        main([*base, "-o", str(tmp_path / "run"), *options])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_configuration_file_has_the_same_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "calib.npz", **DIGITS.calib())
    (tmp_path / "fit.toml").write_text('target = "ort-cpu"\nmin_sqnr = 90\n')
    base = (
        "fit",
        str(DIGITS.model_path),
        "--calib",
        str(tmp_path / "calib.npz"),
        "--config",
        str(tmp_path / "fit.toml"),
    )
    with pytest.raises(SystemExit) as stop:
        main([*base, "-o", str(tmp_path / "run")])
    assert stop.value.code == 1
    assert "below the limit of 90 dB" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert dovetail.load_result(tmp_path / "run/result.json").thresholds.min_sqnr_db == 90


def test_a_limit_of_an_unknown_figure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--max-drop: the metric returns no value 'topl'; expected one of top1"):
        fit_outlier(tmp_path / "run", max_drop={"topl": 0.01})
    assert not (tmp_path / "run").exists()


def error_rate(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    right = [o["logits"].argmax() == t["labels"] for o, t in zip(outputs, targets, strict=True)]
    return {"error": 1 - float(np.mean(right)), "share": float(np.mean(right))}


def test_a_metric_may_say_that_lower_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_rate, "lower_is_better", {"error"}, raising=False)
    result = fit_outlier(tmp_path / "run", metric=error_rate, min_sqnr=-100)
    assert "error rises from 0.004444 to 0.8978" in result.verdicts["accuracy"].reason
    assert "share drops from 0.9956 to 0.1022" in result.verdicts["accuracy"].reason
    assert result.metrics.accuracy is not None
    assert result.metrics.accuracy.lower_is_better == ("error",)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("error", "must be True or a set of names of values, not 'error'"),
        (1.5, "must be True or a set"),
        ({3}, "must contain names of values, not 3"),
        ({"eror"}, "lower_is_better: the metric returns no value 'eror'; expected one of error, share"),
    ],
)
def test_what_is_no_declaration_is_refused(
    declared: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_rate, "lower_is_better", declared, raising=False)
    with pytest.raises(InputError, match=re.escape(message)):
        fit_outlier(tmp_path / "run", metric=error_rate)


def test_random_data_never_passes(tmp_path: Path) -> None:
    result = dovetail.fit(DIGITS.model_path, target="ort-cpu", calibration="random", output=tmp_path / "run")
    verdict = result.verdicts["accuracy"]
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason.startswith("the data is random, so the accuracy on real data is unknown; lowest output")


def judged(
    simulation: Agreement,
    target: Agreement | None = None,
    accuracy: Accuracy | None = None,
    emulated: Accuracy | None = None,
    limits: Thresholds | None = None,
) -> Judgement:
    data = DataInfo("calib.npz", simulation.samples, "")
    return judge(Measured(simulation, target, data, 1, False, accuracy, emulated), limits or Thresholds())


def agreement(noise: float, count: int = 1) -> Agreement:
    exact = [{"y": np.ones((1, 8), np.float32)}] * count
    return compare_runs(exact, [{"y": np.full((1, 8), 1 + noise, np.float32)}] * count)


def test_the_target_is_judged_if_it_ran_and_the_simulation_otherwise() -> None:
    good, bad = agreement(0.01, 4), agreement(0.5, 2)
    on_target = judged(good, bad).verdict
    assert (on_target.status, on_target.evidence) == (Status.FAIL, "SQNR on 2 calibration samples of calib.npz, target")
    simulated = judged(good).verdict
    assert (simulated.status, simulated.evidence) == (
        Status.PASS,
        "SQNR on 4 calibration samples of calib.npz, simulation",
    )
    assert judged(bad, good).verdict.status is Status.PASS


@pytest.mark.parametrize(("noise", "status", "problems"), [(0.09, "pass", 0), (0.2, "pass", 1), (0.4, "fail", 1)])
def test_between_10_and_20_db_is_a_warning(noise: float, status: str, problems: int) -> None:
    judgement = judged(agreement(noise))
    assert (str(judgement.verdict.status), len(judgement.problems)) == (status, problems)


def test_few_same_top_classes_are_a_warning() -> None:
    exact = [{"scores": np.array([[1.0, 0.99]], np.float32)}] * 20
    other = [{"scores": np.array([[0.99, 1.0]], np.float32)}] * 2 + exact[2:]
    judgement = judged(compare_runs(exact, other, classes=["scores"]))
    assert judgement.verdict.status is Status.PASS
    assert judgement.problems == ("'scores' has the same top class as float for only 90.0 % of the samples",)


def test_integer_outputs_are_not_judged() -> None:
    exact, other = [{"i": np.arange(8)}], [{"i": np.arange(8)[::-1]}]
    verdict = judged(compare_runs(exact, other)).verdict
    assert verdict.status is Status.NOT_CHECKED
    assert "no float output" in verdict.reason


def test_nan_where_float_has_none_fails_and_nan_of_float_is_not_judged() -> None:
    exact, other = [{"y": np.ones(4, np.float32)}], [{"y": np.full(4, np.nan, np.float32)}]
    assert judged(compare_runs(exact, other)).verdict.status is Status.FAIL
    assert judged(compare_runs(other, exact)).verdict.status is Status.NOT_CHECKED


def test_after_a_topk_only_rows_that_both_selected_are_judged() -> None:
    rows = np.random.default_rng(0).normal(size=(1, 32, 4)).astype(np.float32)
    other = rows.copy()
    other[0, :3] += 100
    compared = compare_runs([{"boxes": rows}], [{"boxes": other[:, ::-1]}], {"boxes": 1})
    judgement = judged(compared)
    assert compared.outputs["boxes"].sqnr_db < 0
    assert (judgement.verdict.status, judgement.problems) == (Status.PASS, ())
    assert compared.per_sample["boxes"][0] > 100


def figures(count: int, target: float | None, simulation: float = 0.99) -> Accuracy:
    columns = {"float": {"m": 0.99}, "simulation": {"m": simulation}}
    columns |= {} if target is None else {"target": {"m": target}}
    return Accuracy("metric", DataInfo("e.npz", count, ""), columns)


@pytest.mark.parametrize(
    ("emulated", "status", "side"),
    [(figures(4, 0.75), "pass", "450 held-out samples of e.npz, simulation"), (figures(20, 0.75), "fail", "target")],
)
def test_too_few_emulated_samples_do_not_decide_about_a_metric(emulated: Accuracy, status: str, side: str) -> None:
    verdict = judged(agreement(0.01), agreement(0.01), figures(450, None), emulated).verdict
    assert str(verdict.status) == status
    assert side in verdict.evidence


def test_a_metric_that_becomes_nan_fails() -> None:
    assert judged(agreement(0.01), accuracy=figures(450, None, float("nan"))).verdict.status is Status.FAIL
    assert judged(agreement(0.01), accuracy=figures(450, None, 0.95)).verdict.status is Status.PASS


def test_a_batch_has_a_figure_per_image() -> None:
    exact = [{"y": np.ones((3, 8), np.float32)}]
    other = [{"y": np.array([[1.0], [1.1], [1.2]], np.float32) * np.ones((3, 8), np.float32)}]
    values = compare_runs(exact, other, per_call=3).per_sample["y"]
    assert [round(value) for value in values[1:]] == [20, 14]
    assert values[0] == float("inf")
    assert len(compare_runs(exact, other).per_sample["y"]) == 1


def test_names_with_wildcards_are_quoted() -> None:
    assert keep_line(["a[0]*", "b"], "fp32") == "--keep 'a[[]0][*]=fp32' --keep b=fp32"


def test_integer_outputs_are_not_shown_in_db(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y, int64[1,1] top) '
        "{ a = Relu(x)  y = Neg(a)  top = ArgMax<axis=1>(y) }"
    )
    data = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
    result = dovetail.fit(onnx.parser.parse_model(text), target="ort-cpu", calibration=data, output=tmp_path / "run")
    shown = printed(result)
    assert "SQNR of y" in shown
    assert "SQNR of top" not in shown
    assert "same integers as float, top" in shown


def test_a_finding_of_severity_error_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All verdicts pass; the calibration data is that of another range."""
    np.savez(tmp_path / "calib.npz", images=DIGITS.calib()["images"] * np.float32(255))
    np.savez(tmp_path / "eval.npz", **HELD_OUT)
    base = ("fit", str(DIGITS.model_path), "--target", "ort-cpu", "--calib", str(tmp_path / "calib.npz"))
    options = ("--eval", str(tmp_path / "eval.npz"), "--min-sqnr", "-100")
    with pytest.raises(SystemExit) as stop:
        main([*base, *options, "-o", str(tmp_path / "run")])
    result = dovetail.load_result(tmp_path / "run/result.json")
    assert (stop.value.code, result.failed) == (1, ())
    assert "Q506 error" in capsys.readouterr().out
