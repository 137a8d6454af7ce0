"""A plan as a file: what is written is read back, and an edited plan is validated against the target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.errors import InputError
from dovetail.plan.rows import read_plan, write_plan
from dovetail.plan.validate import validate_plan
from dovetail.targets.ort_cpu import ORT_CPU
from tests.plan.test_make import LINEAR
from tests.planning import graph, planned


@pytest.fixture
def written(tmp_path: Path) -> Path:
    model = graph(LINEAR)
    path = tmp_path / "plan.json"
    write_plan(planned(model, ORT_CPU), model, path)
    return path


def edit(path: Path, change: object) -> None:
    content = json.loads(path.read_text())
    change(content)  # type: ignore[operator]
    path.write_text(json.dumps(content))


def row(content: dict, tensor: str, edge: bool = False) -> dict:
    return next(r for r in content["rows"] if r["tensor"] == tensor and (r["edge"] is not None) == edge)


def test_round_trip(written: Path) -> None:
    model = graph(LINEAR)
    plan, again = planned(model, ORT_CPU), read_plan(written)
    assert dict(again.tensors) == dict(plan.tensors)
    assert dict(again.edges) == dict(plan.edges)
    validate_plan(again, model, ORT_CPU)


def test_rows_carry_original_names(written: Path) -> None:
    content = json.loads(written.read_text())
    assert row(content, "h")["original_name"] == "h"
    assert row(content, "w", edge=True)["original_name"] == "w"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(colour="red"), "unknown key 'colour'"),
        (lambda c: row(c, "h").update(scales=[1]), "unknown key 'scales'"),
        (lambda c: row(c, "h").update(dtype="int7"), "int7"),
        (lambda c: row(c, "h").update(scale=None), "h: uint8 needs a scale"),
        (lambda c: row(c, "h").update(scale=-1.0), "h: a scale must be finite and above zero"),
        (lambda c: c.update(schema_version=99), "not a plan of schema version 1"),
        (lambda c: row(c, "w", edge=True).update(edge="nowhere"), "'nowhere' is not an edge"),
    ],
)
def test_bad_files_are_refused_by_name(written: Path, change: object, said: str) -> None:
    edit(written, change)
    with pytest.raises(InputError, match=said):
        read_plan(written)


def test_not_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(InputError, match="not a plan"):
        read_plan(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: row(c, "h").update(tensor="ghost"), "names tensor 'ghost'"),
        (lambda c: c["rows"].remove(row(c, "h")), "says nothing of tensor 'h'"),
        (lambda c: row(c, "t").update(scale=0.5), "only moves bytes"),
        (lambda c: row(c, "r").update(dtype="int16", scale=0.1, zero_point=0), "has no form on ort-cpu"),
    ],
)
def test_plans_that_cannot_be_carried_out(written: Path, change: object, said: str) -> None:
    edit(written, change)
    with pytest.raises(InputError, match=said):
        validate_plan(read_plan(written), graph(LINEAR), ORT_CPU)
