"""Mixed precision by latency: plans are timed alternately, the fastest good one is taken, and limits have a margin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import dovetail
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.targets.ort_cpu import target
from dovetail.trials.goal import SAME_DB
from dovetail.trials.knobs import mixed as knob
from dovetail.trials.knobs.mixed import MOST_TIMED
from dovetail.trials.latency import Latency, fastest
from tests.changed import changed
from tests.trials.mixed_runs import DATA, fitted, saved


def test_models_with_quantized_inputs_are_timed(tmp_path: Path) -> None:
    result = fitted(tmp_path, io="quantized", max_latency=1000)
    whole = next(row for row in result.decisions if row.is_whole)
    timed = [row.figures for row in whole.alternatives if "latency_ratio" in row.figures]
    assert len(timed) > 1
    assert all(figures["latency_us"] > 0 for figures in timed)
    assert result.metrics.latency_measured is not None
    assert result.metrics.latency_measured.median_us["fitted"] > 0
    assert result.verdicts["budget"].status is Status.PASS


def test_the_decision_says_why_plans_were_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target.ORT_CPU.backend.timer is not None
    timer = replace(target.ORT_CPU.backend.timer, time=lambda programs, baseline: "the clock is broken")
    monkeypatch.setattr(target, "ORT_CPU", changed(target.ORT_CPU, timer=timer))
    result = fitted(tmp_path, min_sqnr=25.0)
    whole = next(row for row in result.decisions if row.is_whole)
    assert whole.reason.endswith("compared by MACs in float, because their latency is not known: the clock is broken")
    enough = [row.figures["float_macs_percent"] for row in whole.alternatives if row.figures["sqnr_db"] >= 25.5]
    taken = next(row for row in whole.alternatives if row.label == whole.taken)
    assert taken.figures["float_macs_percent"] == min(enough)


def test_a_search_that_was_killed_does_not_time_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are never twice the same: only kept ones make a resumed search choose as the first would have."""

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(knob, "whole_decision", killed)
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path, min_sqnr=30.0)
    kept = [json.loads(file.read_bytes())["figures"] for file in (tmp_path / "run/stages/kept").glob("*/*.json")]
    (times,) = [figures for figures in kept if any(name.endswith(" us") for name in figures)]
    resumed = fitted(tmp_path, min_sqnr=30.0, resume=True)
    whole = next(row for row in resumed.decisions if row.is_whole)
    timed = [row.figures["latency_us"] for row in whole.alternatives if "latency_us" in row.figures]
    assert sorted(timed) == sorted(us for name, us in times.items() if name.endswith(" us"))


def test_plans_are_compared_by_measured_time(tmp_path: Path) -> None:
    """Of those that are good enough and were timed, the fastest: of equally fast ones the one with the fewest MACs."""
    whole = next(row for row in fitted(tmp_path, min_sqnr=30.0).decisions if row.is_whole)
    timed = {row.label: row.figures for row in whole.alternatives if "latency_us" in row.figures}
    assert len(timed) > 1
    least_us = min(figures["latency_us"] for figures in timed.values())
    fast = [figures for figures in timed.values() if figures["latency_us"] <= 1.05 * least_us]
    assert timed[whole.taken]["float_macs_percent"] == min(figures["float_macs_percent"] for figures in fast)


def test_latency_is_limited_relative_to_the_callers_file(tmp_path: Path) -> None:
    """A model this small cannot be a thousand times faster; it is not a thousand times slower."""
    never = fitted(tmp_path, "never", max_latency=0.001)
    assert never.verdicts["budget"].status is Status.FAIL
    whole = next(row for row in never.decisions if row.is_whole)
    assert "no plan that was tried meets the goal" in whole.reason
    timed = [row.figures for row in whole.alternatives if "latency_ratio" in row.figures]
    assert 1 < len(timed) <= MOST_TIMED
    always = fitted(tmp_path, "always", max_latency=1000)
    assert always.verdicts["budget"].status is Status.PASS
    assert always.metrics.latency_measured is not None
    assert always.metrics.latency_measured.baseline == "stock-fp32"
    whole = next(row for row in always.decisions if row.is_whole)
    sqnr_db = {row.label: row.figures["sqnr_db"] for row in whole.alternatives}
    assert sqnr_db[whole.taken] >= max(sqnr_db.values()) - SAME_DB


def test_without_a_limit_of_latency_nothing_is_timed_after_the_choice(tmp_path: Path) -> None:
    assert fitted(tmp_path, min_sqnr=-50.0).metrics.latency_measured is None


def size(latency: Latency) -> tuple[float, ...]:
    """As if what is slower were smaller."""
    return (-latency.us,)


def test_the_fastest_is_taken_and_equally_fast_ones_by_size() -> None:
    measured = [Latency(us, measured=True) for us in (100.0, 104.0, 106.0)]
    assert fastest(measured, lambda latency: latency, size).us == 104
    estimated = [Latency(us) for us in (100.0, 104.0, 106.0)]
    assert fastest(estimated, lambda latency: latency, size).us == 100
    unlike = [*estimated, Latency(90, ops_without_cost=1)]  # an operator less is counted: it may well be slower
    assert fastest(unlike, lambda latency: latency, size).us == 106
    assert fastest(estimated, lambda latency: None if latency.us == 100 else latency, size).us == 106


def test_a_measured_latency_is_within_a_limit_only_with_a_margin() -> None:
    assert Latency(1, ratio=0.5).is_within(0.5)
    assert not Latency(1, ratio=0.5, measured=True).is_within(0.5)
    assert Latency(1, ratio=0.47, measured=True).is_within(0.5)
    assert not Latency(1).is_within(0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qnn-htp:sm8550", r"qnn-htp:sm8550 is neither .*estimates it for qnn-htp:soc52, "),
        ("tensorrt:sm89", r"tensorrt:sm89 is neither .*the files in device/ measure it on the GPU"),
    ],
)
def test_max_latency_is_refused_with_where_it_is_known(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        dovetail.fit(saved(tmp_path), target=name, calibration=DATA, output=tmp_path / "run", max_latency=0.9)
