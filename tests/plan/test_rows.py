"""A plan as a file: reading it gives the same plan, and an edited plan is validated against the target."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.plan.rows import read_plan, write_plan
from dovetail.plan.validate import validate_plan
from dovetail.storage import Reason
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.networks.small_graphs import LINEAR
from tests.planning import graph, planned
from tests.toy_target import TOY


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


def weight_edge(content: dict) -> str:
    return row(content, "w", edge=True)["edge"]


def per_axis(axis: int, count: int) -> dict:
    return {"granularity": "axis", "axis": axis, "scale": [0.1] * count, "zero_point": [0] * count}


def test_round_trip(written: Path) -> None:
    model = graph(LINEAR)
    plan, again = planned(model, ORT_CPU), read_plan(written)
    assert dict(again.tensors) == dict(plan.tensors)
    assert dict(again.edges) == dict(plan.edges)
    validate_plan(again, model, ORT_CPU.table)


def test_a_plan_of_schema_version_1_is_read(written: Path) -> None:
    """Version 1 had one text per row, which also says which tensors are inside a fused operator."""

    def back_to_1(content: dict) -> None:
        content["schema_version"] = 1
        for entry in content["rows"]:
            detail, why = entry.pop("detail"), entry.pop("why")
            entry["reason"] = "inside MatMul+Add, never stored" if why == Reason.INTERIOR else detail
            del entry["scale_from"]

    model = graph(LINEAR)
    write_plan(planned(model, TOY), model, written)
    plan = read_plan(written)
    assert [name for name, choice in plan.tensors.items() if not choice.is_stored] == ["m"]
    edit(written, back_to_1)
    again = read_plan(written)
    assert {name: c.is_stored for name, c in again.tensors.items()} == {n: c.is_stored for n, c in plan.tensors.items()}
    assert {name: c.storage for name, c in again.tensors.items()} == {n: c.storage for n, c in plan.tensors.items()}
    assert {c.why for c in again.edges.values()} == {Reason.RECORDED}


def test_rows_have_original_names(written: Path) -> None:
    content = json.loads(written.read_text())
    assert row(content, "h")["original_name"] == "h"
    assert row(content, "w", edge=True)["original_name"] == "w"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(color="red"), "unknown key 'color'"),
        (lambda c: row(c, "h").update(scales=[1]), "unknown key 'scales'"),
        (lambda c: row(c, "h").update(dtype="int7"), "int7"),
        (
            lambda c: row(c, "h").update(scale=None),
            "the row of 'h' is not valid: uint8 requires a scale and a zero point",
        ),
        (
            lambda c: row(c, "h").update(scale=-1.0),
            "the row of 'h' is not valid: every scale must be finite and above zero",
        ),
        (lambda c: c.update(schema_version=99), "not a plan of schema version 2"),
        (lambda c: row(c, "w", edge=True).update(edge="nowhere"), "'nowhere' is not an edge"),
        (lambda c: row(c, "w", edge=True).update(edge="node:²"), "'node:²' is not an edge"),
        (lambda c: row(c, "w", edge=True).update(edge=f"node:{'9' * 5000}"), "is not an edge"),
        (lambda c: row(c, "h").update(scale=[{}]), "the row of 'h' is not valid: float"),
        (lambda c: row(c, "h").update(zero_point=[{}]), "the row of 'h' is not valid: float"),
        (lambda c: c.update(rows=3), "Expected `array`, got `int`"),
        (
            lambda c: row(c, "h").update(zero_point=300),
            "the row of 'h' is not valid: zero_point must be a whole number from 0 to 255 for uint8",
        ),
        (
            lambda c: row(c, "h").update(zero_point=-5),
            "the row of 'h' is not valid: zero_point must be a whole number from 0 to 255 for uint8",
        ),
        (
            lambda c: row(c, "h").update(zero_point=127.5),
            "the row of 'h' is not valid: zero_point must be a whole number",
        ),
        (lambda c: row(c, "h").update(scale="a"), "scale"),
        (lambda c: c["rows"].append(row(c, "h")), "two rows for 'h'; remove one"),
        (lambda c: c["rows"].append(row(c, "w", edge=True)), "two rows for '.*:1'; remove one"),
    ],
)
def test_bad_files_are_refused_by_name(written: Path, change: object, message: str) -> None:
    edit(written, change)
    with pytest.raises(InputError, match=message):
        read_plan(written)


def test_not_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read as a plan"):
        read_plan(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: row(c, "h").update(tensor="ghost"), "has a row for tensor 'ghost'"),
        (lambda c: c["rows"].remove(row(c, "h")), "has no row for tensor 'h'"),
        (lambda c: row(c, "t").update(scale=0.5), "passes its input's quantization through"),
        (lambda c: row(c, "r").update(dtype="int16", scale=0.1, zero_point=0), "ort-cpu has no kernel for"),
        (lambda c: row(c, "x").update(per_axis(1, 6)), "'x' as uint8 per axis"),
        (lambda c: row(c, "x").update(per_axis(1, 3)), r"tensor 'x' of the plan: the per-axis scale .* not \(3,\)"),
        (lambda c: row(c, "x").update(per_axis(9, 4)), "tensor 'x' of the plan: axis 9 is out of range"),
        (lambda c: row(c, "x").update(scale=[0.1], zero_point=[0]), "tensor 'x' of the plan: the per-tensor scale"),
        (
            lambda c: row(c, "x").update(granularity="block", axis=1, block_size=2, scale=[0.1], zero_point=[0]),
            "tensor 'x' of the plan: the per-block scale",
        ),
        (
            lambda c: row(c, "x").update(
                granularity="block", axis=1, block_size=2, scale=[[[0.1] * 4] * 3], zero_point=[[[0] * 4] * 3]
            ),
            "'x' as uint8 per block",
        ),
        (lambda c: row(c, "w", edge=True).update(edge=weight_edge(c).replace(":1", ":7")), "row for edge '.*:7'"),
        (lambda c: row(c, "w", edge=True).update(axis=0), "axis 0 of 'w' is not the output channel axis of"),
        (
            lambda c: row(c, "w", edge=True).update(scale=[1], zero_point=[0]),
            "edge '.*:1' of the plan: the per-axis scale",
        ),
    ],
)
def test_plans_that_the_target_does_not_support(written: Path, change: object, message: str) -> None:
    edit(written, change)
    with pytest.raises(InputError, match=message):
        validate_plan(read_plan(written), graph(LINEAR), ORT_CPU.table)


GEMM = """
g (float[1,4] x) => (float[1,2] z)
<float[4,2] w = {1,2,3,4,5,6,7,8}, float[2] b = {0.5,-1}>
{
    h = Relu(x)
    z = Gemm(h, w, b)
}
"""


@pytest.mark.parametrize("tensor", ["h", "b"])
def test_a_bias_must_have_input_scale_times_weight_scale(tensor: str, tmp_path: Path) -> None:
    model, path = graph(GEMM), tmp_path / "plan.json"
    write_plan(planned(model, ORT_CPU), model, path)
    scale = 0.5 if tensor == "h" else [0.5, 0.5]
    edit(path, lambda c: row(c, tensor, edge=tensor == "b").update(scale=scale))
    with pytest.raises(InputError, match=r"edge '.*:2' of the plan: the scale of bias 'b' must be input scale"):
        validate_plan(read_plan(path), model, ORT_CPU.table)


def test_integers_beside_a_plan(tmp_path: Path) -> None:
    model, path = graph(GEMM), tmp_path / "plan.json"
    plan = planned(model, ORT_CPU)
    edge = next(edge for edge in plan.edges if edge.index == 1)
    stored = {edge: np.ones((4, 2), np.int8)}
    assert write_plan(dataclasses.replace(plan, stored=stored), model, path) == (path, tmp_path / "plan.npz")
    np.testing.assert_array_equal(read_plan(path).stored[edge], stored[edge])
    np.savez(tmp_path / "plan.npz", **{"nobody:0": np.ones(2, np.int8)})
    with pytest.raises(InputError, match="has a quantized constant for edge 'nobody:0'"):
        read_plan(path)
    (tmp_path / "plan.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as the quantized constants of a plan"):
        read_plan(path)
    assert write_plan(plan, model, path) == (path,)  # the earlier plan.npz is removed
    assert list(tmp_path.iterdir()) == [path]
