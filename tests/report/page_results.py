"""Results for tests of the report page: a real run, and variants of it with many tensors or hostile names."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import dovetail
from dovetail import zoo
from dovetail.backend import Estimate, Outcome, TensorReadBack
from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.finding import WHOLE_MODEL, Finding, Place, PlaceKind, Severity, Status, Verdict
from dovetail.report.result import OperatorRow, Result
from dovetail.trials.decision import Alternative, Decision

# What a name must never become: the end of a script, an element, an attribute, a comment, an entity.
HOSTILE = "</script><img src=x onerror=window.hacked=1>\"'><svg onload=window.hacked=2><!--&lt;`"


def digits_run(folder: Path) -> Path:
    """A run of the shipped ViT on ONNX Runtime, with a metric on held-out data."""
    shipped = zoo.load("vit_digits")
    dovetail.fit(
        shipped.model_path,
        target="ort-cpu",
        calibration={name: images[:8] for name, images in shipped.calib().items()},
        evaluation={name: rows[:32] for name, rows in {**shipped.eval(), **shipped.targets()}.items()},
        metric=shipped.metric,
        output=folder / "run",
    )
    return folder / "run"


def with_everything(result: Result) -> Result:
    """The result with a failed verdict, findings, decisions, estimates and a tensor that was changed."""
    estimates = {"fp16": Estimate(80, 100, 130, 0, 0, 0), "naive": Estimate(90, 120, 140, 0, 0, 0)}
    estimates |= {"fitted": Estimate(60, 75, 90, 0, 0, 0)}
    plans = [
        Alternative(f"w8a8 + {n} in fp32", {"sqnr_db": 30 + 2.0 * n, "float_macs_percent": n**2}) for n in range(6)
    ]
    decision = Decision("mixed", WHOLE_MODEL, plans[2].label, tuple(plans), "SQNR >= 33 dB", "the cheapest", 16)
    node = Place(PlaceKind.NODE, ("blocks.0.attn/MatMul",), op_type="MatMul")
    local = Decision(
        "operands", node, "uint8", (Alternative("int16"), Alternative("uint8")), "1 dB", "costs little", 16
    )
    findings = (
        Finding("Q505", WHOLE_MODEL, "output 'logits' is at 3 dB", Severity.ERROR, fix="use `--precision auto`"),
        Finding("Q301", node, "the inputs have very different ranges", Severity.WARNING),
    )
    first, *others = result.read_back
    changed = replace(first, outcome=Outcome.CHANGED, detail="planned uint8, found float32")
    failed = Verdict(Status.FAIL, "the output is too far from float")
    return replace(
        result,
        verdicts={
            **result.verdicts,
            "accuracy": failed,
            "device": Verdict(Status.NOT_CHECKED, "not run on a device yet"),
        },
        metrics=replace(result.metrics, latency_estimate_us=estimates, not_estimated={"other": "the compiler crashed"}),
        decisions=(decision, local),
        findings=findings,
        read_back=(*others, changed),
    )


def with_tensors(result: Result, count: int) -> Result:
    """The result with this many planned tensors, each with an operator, an SQNR and what was read back.

    Every third is in float: as many islands and boundaries as can be.
    """
    row = next(row for row in result.plan if row.edge is None)
    quality = result.metrics.tensors[0]
    names = [f"backbone.stages.{i // 50}.blocks.{i % 50}.mlp.fc1/MatMul_output_{i}" for i in range(count)]
    edges = [Edge(f"{name}/node", 0) for name in names]
    return replace(
        result,
        plan=tuple(
            replace(
                row,
                tensor=name,
                original_name=name,
                detail=f"w8a8; {name[-4:]}",
                dtype=row.dtype if i % 3 else DType.F32,
                scale=row.scale if i % 3 else None,
            )
            for i, name in enumerate(names)
        ),
        operators=tuple(
            OperatorRow(e.node, "MatMul", (names[max(i - 1, 0)],), (names[i],)) for i, e in enumerate(edges)
        ),
        read_back=tuple(TensorReadBack(name, Outcome.MATCHED, "read by QGemm", None, f"{name}__q") for name in names),
        metrics=replace(
            result.metrics,
            tensors=tuple(
                replace(quality, tensor=name, original_name=name, sqnr_db=30 + i % 17) for i, name in enumerate(names)
            ),
        ),
    )


def hostile(value: Any) -> Any:
    """A record in which every text, key and edge is hostile; only members of enumerations stay."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return HOSTILE + value
    if isinstance(value, Edge):
        return Edge(HOSTILE + value.node, value.index)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: hostile(getattr(value, f.name)) for f in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {hostile(key): hostile(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hostile(item) for item in value)
    return value
