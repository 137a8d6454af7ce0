"""Every XNNPACK case of every rule on the real lowering and runtime: the bad ones are bad, the good ones good.

A case says in its head what becomes of it: ``refused`` at load, ``changed`` (a planned storage was read back as
something else), ``outside`` (every node of it runs outside XNNPACK), ``useless`` (as planned, but the outputs are far
from those of the float graph) or ``as planned``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.invert import invert, is_quantized
from dovetail.rules import docs
from dovetail.rules.catalog import all_rules
from dovetail.storage import Plan
from dovetail.target import Outcome
from dovetail.targets import open_target
from tests.backends.xnnpack.lowering import lowered
from tests.equality import random_inputs, run, sqnr_db
from tests.rules.cases import head_of, write

pytest.importorskip("executorch", reason="needs the package executorch")

USELESS_DB, TOGETHER_DB = 10.0, 40.0


def _cases() -> list[Any]:
    found = []
    for rule in all_rules():
        for kind in ("bad", "good"):
            for name, text in docs.case_texts(rule.code, kind).items():
                if head_of(text).get("target") == "xnnpack":
                    found.append(pytest.param(kind, text, id=name))
    return found


def _what_becomes(text: str, folder: Path) -> str:
    target, raw = open_target("xnnpack"), read(write(text, folder))
    model, plan = invert(raw) if is_quantized(raw) else (raw, Plan("xnnpack", "fp32", {}))
    infer_shapes(model)
    try:
        program = lowered(model, plan, target, folder)
    except RuntimeError as error:
        return "refused" if "Failed to load method" in str(error) else str(error)
    inputs = random_inputs(model)
    found, simulated, exact = program.run(inputs), program.simulate(inputs), run(model, inputs)
    assert min(sqnr_db(simulated[name], found[name]) for name in found) >= TOGETHER_DB
    if any(row.outcome is Outcome.CHANGED for row in program.read_back.tensors):
        return "changed"
    if {each["node"] for each in program.placed.outside} == {node.name for node in model.graph}:
        return "outside"
    assert program.placed.outside == ()
    worst = min(sqnr_db(exact[name], found[name]) for name in found)
    return "useless" if worst < USELESS_DB else "as planned"


@pytest.mark.parametrize(("kind", "text"), _cases())
def test_a_case_is_what_it_says(kind: str, text: str, tmp_path: Path) -> None:
    said = head_of(text)["compiled"]
    assert (said == "as planned") is (kind == "good")
    assert _what_becomes(text, tmp_path) == said


def test_there_are_cases() -> None:
    assert len(_cases()) >= 9
