"""Calibration statistics are exact, and only the tensors that planning needs are observed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.calibrate.data import Data
from dovetail.calibrate.record import load_stats, save_stats
from dovetail.errors import InputError
from dovetail.numerics.histogram import histogram_of
from dovetail.plan.make import observed
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.planning import graph, noise, observe

BODY = """
g (float[1,4,6] x) => (float[1,6,4] z)
{
    a = Relu(x)
    t = Transpose <perm = [0, 2, 1]> (a)
    z = Softmax(t)
}
"""


def test_ranges_and_histograms_are_exact() -> None:
    model = graph(BODY)
    data = noise(model, count=5)
    stats = observe(model, ORT_CPU, data, histograms=True)
    x = data["x"]
    assert (stats.tensors["x"].low, stats.tensors["x"].high) == (x.min(), x.max())
    np.testing.assert_array_equal(stats.tensors["x"].counts, histogram_of(x))
    np.testing.assert_array_equal(stats.tensors["a"].counts, histogram_of(np.maximum(x, 0)))


def test_layout_outputs_are_not_observed() -> None:
    assert observed(graph(BODY), ORT_CPU.table) == ("x", "a", "z")


def test_nan_in_an_activation_is_named_by_its_original_name() -> None:
    model = graph("g (float[1,2] x) => (float[1,2] y) { a = Log(x)  y = Relu(a) }")
    with pytest.raises(InputError, match=r"activation 'a' \(output of Log 'Log/a'\) contains NaN on sample 1"):
        observe(model, ORT_CPU, {"x": np.float32([[1, 2], [-1, 1]])})
    with pytest.raises(InputError, match=r"activation 'a' \(output of Log 'Log/a'\) contains infinity on sample 0"):
        observe(model, ORT_CPU, {"x": np.float32([[0, 2]])})


def test_statistics_are_saved_and_loaded(tmp_path: Path) -> None:
    model = graph(BODY)
    stats = observe(model, ORT_CPU, noise(model), histograms=True)
    save_stats(stats, tmp_path / "stats.npz")
    loaded = load_stats(tmp_path / "stats.npz")
    assert (loaded.data, loaded.digests) == (stats.data, stats.digests)
    for name, tensor in stats.tensors.items():
        assert (loaded.tensors[name].low, loaded.tensors[name].high) == (tensor.low, tensor.high)
        np.testing.assert_array_equal(loaded.tensors[name].counts, tensor.counts)


def test_samples_are_streamed_one_at_a_time(tmp_path: Path) -> None:
    from dovetail.calibrate.collect import collect

    model = graph(BODY)
    yielded: list[int] = []

    def samples():  # type: ignore[no-untyped-def]
        for number in range(3):
            yielded.append(number)
            yield {"x": np.full((1, 4, 6), number, np.float32)}

    reported: list[tuple[int, int | None]] = []
    collect(
        model,
        ("x", "a"),
        Data("stream", samples, 3),
        workdir=tmp_path,
        histograms=False,
        progress=lambda done, total: reported.append((done, total)) or None,
    )
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert yielded == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []
