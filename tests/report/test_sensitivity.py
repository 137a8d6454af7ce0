"""The result of ``dovetail sensitivity``: JSON, CSV, ranks of rows, and the terminal."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import dovetail
from dovetail.errors import InputError
from dovetail.report.sensitivity import SensitivityResult, load_sensitivity
from dovetail.report.sensitivity_rows import MetricFigures, rows_of
from dovetail.report.sensitivity_terminal import print_sensitivity
from dovetail.stats import DataInfo
from dovetail.trials.sensitivity.measure import Cost
from dovetail.trials.sensitivity.subjects import Level, Part, Subject

_LONG = "encoder.layers.3/" + "very_long_name_without_any_break" * 5 + "/MatMul"


def _subjects() -> list[Subject]:
    names = {"a": "[red]a[/]\x1b[31m\n/MatMul", "b": _LONG, "c": _LONG}
    subjects = [Subject(Level.MODEL, Part.BOTH, "the whole graph", "", frozenset({0, 1, 2}))]
    subjects += [
        Subject(Level.MODEL, Part.WEIGHTS, "the whole graph", "", frozenset({0}), whole=False),
        Subject(Level.BLOCK, Part.ACTIVATIONS, "encoder.layers.3", "", frozenset({1, 2})),
    ]
    for number, (unit, name) in enumerate(names.items()):
        subjects.append(Subject(Level.OPERATOR, Part.ACTIVATIONS, name, "MatMul", frozenset({number}), unit))
    return subjects


def _result(figures: MetricFigures | None = None) -> SensitivityResult:
    costs = [Cost("y", (db, db + 1, db - 1)) for db in (20.0, 40.0, 25.0, 60.0, 30.0, -150.0)]
    return SensitivityResult(
        model="model.onnx",
        target="ort-cpu",
        precision="w8a8",
        data=DataInfo("calib.npz", 3, "0" * 64),
        held_out=False,
        rows=rows_of(_subjects(), costs, frozenset({4}), figures),
        ranked_by="sqnr_db" if figures is None else figures.ranked_by,
        float_figures={} if figures is None else dict(figures.in_float),
        metric_samples=None if figures is None else figures.samples,
        notes=("a note",),
    )


def _printed(result: SensitivityResult, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_sensitivity(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _metric() -> MetricFigures:
    values = [0.5, 0.9, 0.9, 0.4, math.nan, 0.9]
    return MetricFigures({"top1": 0.9, "top5": 1.0}, [{"top1": value, "top5": 1.0} for value in values], (), 100)


def test_json_round_trip(tmp_path: Path) -> None:
    for result in (_result(), _result(_metric())):
        path = tmp_path / "sensitivity.json"
        path.write_bytes(result.to_json())
        assert dovetail.load_sensitivity(path) == result
    path.write_text('{"schema_version": 1, "model": 3}')
    with pytest.raises(InputError, match="sensitivity result"):
        load_sensitivity(path)
    path.write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="schema version 1"):
        load_sensitivity(path)


def test_csv_has_every_row_and_every_value_of_the_metric() -> None:
    result = _result(_metric())
    lines = list(csv.DictReader(io.StringIO(result.to_csv().decode())))
    assert [line["name"] for line in lines] == [row.name for row in result.rows]
    assert [line["rank"] for line in lines[3:]] == ["2", "1", "3"]
    assert [line["top1"] for line in lines] == ["0.5", "0.9", "0.9", "0.4", "", "0.9"]
    assert [line["drop"] for line in lines][3:] == ["0.5", "", "0.0"]
    assert [line["estimated"] for line in lines] == ["no", "no", "no", "no", "yes", "no"]


def test_ranks_by_sqnr_or_by_the_metric() -> None:
    assert [row.rank for row in _result().at(Level.OPERATOR)] == [3, 2, 1]
    assert [row.rank for row in _result(_metric()).at(Level.OPERATOR)] == [2, 1, 3]
    assert [row.rank for row in _result().at(Level.MODEL)] == [1, 1]
    assert _result().rows[0].noise == 1.0
    lower = replace(_metric(), lower_is_better=("top1",))
    assert [row.rank for row in _result(lower).at(Level.OPERATOR)] == [3, 1, 2]


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("figures", [None, _metric()])
def test_nothing_is_wider_than_the_terminal_and_names_are_escaped(width: int, figures: MetricFigures | None) -> None:
    text = _printed(_result(figures), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "[red]" in text or width == 50
    assert "~30.0" in text
    assert "a note" in text
    assert "-150.0" in text
    assert ("ranked by the drop of top1 on 100 held-out samples" in " ".join(text.split())) == (figures is not None)
    assert ("ranked by SQNR" in text) == (figures is None)


def test_operators_of_the_same_name_are_not_merged() -> None:
    text = _printed(_result(), 80)
    assert "60.0" in text
    assert "~30.0" in text
    assert "-150.0" in text
