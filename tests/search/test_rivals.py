"""Which of several precisions is taken: the rule, and a target that compiles, runs and times them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from dovetail.search.choices import choose
from dovetail.search.rivals import Candidate, Score, Trials, pick

from dovetail.backend import Compiled, Measured, Sample
from dovetail.errors import BackendError
from dovetail.op_support import W8A8, Precision
from dovetail.plan.request import Request
from dovetail.target import Target
from tests.planning import graph, noise, observe
from tests.toy_target import TOY, run


@pytest.mark.parametrize(
    ("one", "other", "taken", "why"),
    [
        ((40.0, 0.97), (45.0, 1.0), "b", "no other is faster"),
        ((40.0, 0.60), (45.0, 1.0), "a", "it takes 0.60 of the time, and its worst output keeps 40.0 dB"),
        ((24.0, 0.60), (45.0, 1.0), "b", "what is faster does not keep 25 dB"),
        ((24.0, None), (20.0, None), "a", "how long they take was not measured"),
        ((None, None), (20.0, None), "b", "no other runs on the target"),
        ((None, None), (None, None), "a", "none was run on the target"),
    ],
)
def test_the_rule(
    one: tuple[float | None, float | None], other: tuple[float | None, float | None], taken: str, why: str
) -> None:
    rows = [
        Candidate(name, db, target_sqnr_db=ran, median_us=ratio and 100 * ratio, time_ratio=ratio)
        for name, db, (ran, ratio) in (("a", 50.0, one), ("b", 40.0, other))
    ]
    chosen, reason = pick(rows)
    assert chosen.precision == taken
    assert why in reason


OTHER = Precision("other", W8A8.activation, W8A8.weight)
MODEL = """g (float[1,4,4] x) => (float[1,4,4] y)
    <float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,9}> { h = MatMul(x, w) y = Relu(h) }"""


def toy(*, fails: str = "", nan: str = "") -> Target:
    """Two precisions of which the second takes a third of the time; one may refuse to run, or give NaN."""

    def timed(programs: Mapping[str, Compiled], baseline: str, sample: Sample) -> Measured:
        assert set(sample) == {"x"}
        taken = {name: 10.0 if name == "other" else 30.0 for name in programs}
        return Measured(baseline, taken, {name: us / taken[baseline] for name, us in taken.items()}, 5)

    def ran(compiled: Compiled, samples: Iterable[Sample]) -> Iterator[Sample]:
        if fails and fails in str(compiled.artifacts[0].path):
            raise BackendError("no such kernel")
        broken = np.float32(np.nan if nan and nan in str(compiled.artifacts[0].path) else 1)
        return ({name: output * broken for name, output in outputs.items()} for outputs in run(compiled, samples))

    return dataclasses.replace(TOY, precisions={"w8a8": W8A8, "other": OTHER}, measure=timed, run=ran)


def chosen(target: Target, folder: Path) -> tuple[Request, tuple[Candidate, ...], tuple[str, ...]]:
    model = graph(MODEL)
    data = noise(model)
    stats, samples = observe(model, target, data), [{"x": one} for one in data["x"]]
    score = Score(lambda: samples, lambda outputs: {"n": float(len(list(outputs)))})
    trials = Trials(model, target, stats, samples, folder, lambda *_: None, score)
    request, choices = choose(model, target, stats, Request(W8A8), ("w8a8", "other"), samples, trials)
    assert choices.samples == len(samples)
    return request, choices.candidates, choices.notes


def test_candidates_are_compiled_run_timed_and_scored(tmp_path: Path) -> None:
    request, rows, (note,) = chosen(toy(), tmp_path)
    assert request.precision == OTHER
    assert [row.precision for row in rows] == ["w8a8", "other"]
    assert all(row.target_sqnr_db == pytest.approx(row.simulation_sqnr_db) for row in rows)
    assert rows[1].time_ratio == pytest.approx(1 / 3)
    assert [row.figures for row in rows] == [{"n": 4.0}, {"n": 4.0}]
    assert note.startswith("other was chosen, because it takes 0.33 of the time")
    assert "other's time" in note, "the rule is said"
    assert (tmp_path / "other/toy.onnx").exists()


def test_what_does_not_run_is_not_chosen_and_said(tmp_path: Path) -> None:
    request, rows, (note,) = chosen(toy(fails="other"), tmp_path)
    assert request.precision == W8A8
    assert rows[1].failure == "no such kernel"
    assert rows[1].time_ratio is None
    assert "no other runs on the target" in note
    assert "other does not run (no such kernel)" in note


@pytest.mark.parametrize(("nan", "taken"), [("w8a8", OTHER), ("other", W8A8)])
def test_what_gives_nan_is_not_chosen(nan: str, taken: Precision, tmp_path: Path) -> None:
    request, rows, _ = chosen(toy(nan=f"/{nan}/"), tmp_path)
    assert request.precision == taken
    assert {row.precision: row.target_sqnr_db for row in rows}[nan] == -200.0
