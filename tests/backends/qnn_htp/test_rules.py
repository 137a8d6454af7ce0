"""Every HTP case of every rule, held against the real compiler and emulator: the bad ones are bad, the good ones good.

A case says in its head what becomes of it: ``refused``, ``apart`` (compiled, but the emulator's numbers are not the
simulation's), ``changed`` (right numbers, but a stored tensor was read back as something else) or ``as planned``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dovetail import rule_docs as docs
from dovetail.backend import Outcome
from dovetail.catalog import all_rules, families_with
from dovetail.encoding import Array
from dovetail.model.read import read
from dovetail.numerics.metrics import sqnr_db
from dovetail.qdq.invert import invert, is_quantized
from dovetail.targets.child import run_child
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.options import provider_options
from dovetail.targets.qnn_htp.read_back import read_dump
from tests.backends.qnn_htp.case_session import simulate
from tests.rules.cases import cases_of, head_of, write

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

FAMILY = "qnn-htp"
# Everything between these is a case that proves nothing.
APART_DB, TOGETHER_DB = 20.0, 40.0
# Rules whose row is known from another tool and does not happen here: their bad case says what is true today.
NOT_REPRODUCED = {"Q403"}
# Block weights have no kernel for integer activations without an option of the provider's: their numbers are proved.
IN_FLOAT_BY_DESIGN = {"Q203"}


@dataclass(frozen=True)
class Told:
    """What became of a model: the compiler's refusal, the tensors read back changed, the agreement per output."""

    error: str
    changed: tuple[str, ...] = ()
    matched: int = 0
    agreement_db: tuple[float, ...] = ()

    @property
    def word(self) -> str:
        if self.error:
            return "refused"
        if min(self.agreement_db) < APART_DB:
            return "apart"
        if self.changed:
            return "changed"
        return "as planned" if min(self.agreement_db) >= TOGETHER_DB else "between"


def compiled(model: Path, chip_name: str, folder: Path) -> Told:
    """Compile a file as it is, with CPU fallback forbidden; emulate one sample and compare it with the simulation."""
    chip = chip_named(chip_name)
    dump, given, answer = folder / "dump", folder / "sample.npz", folder / "outputs.npz"
    dump.mkdir()
    options = provider_options(chip, {}, float16=chip.has_float16)
    options |= {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(dump)}
    sample = noise(onnx.load(model))
    np.savez(given, allow_pickle=False, **sample)
    arguments = {"model": str(model), "options": options, "sample": str(given), "outputs": str(answer)}
    result = run_child("tests.backends.qnn_htp.case_session:build_and_run", arguments)
    if result.answer is None:
        return Told(result.error)
    simulated = simulate(str(model), sample)
    with np.load(answer) as arrays:
        agreement = tuple(sqnr_db(simulated[name], arrays[name]) for name in result.answer["outputs"])
    raw = read(model)
    if not is_quantized(raw):
        return Told("", agreement_db=agreement)
    rows = read_dump(model, dump, invert(raw)[1], result.log)
    assert rows.unparsed == ""
    changed = tuple(f"{row.tensor}: {row.detail}" for row in rows.tensors if row.outcome is Outcome.CHANGED)
    return Told("", changed, sum(row.outcome is Outcome.MATCHED for row in rows.tensors), agreement)


def noise(model: onnx.ModelProto) -> dict[str, Array]:
    """Seeded noise for every input, zeros for one of integers; 1 for an open size."""
    random = np.random.default_rng(0)
    sample: dict[str, Array] = {}
    for value in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        sample[value.name] = (random.standard_normal(shape) if kind.kind == "f" else np.zeros(shape)).astype(kind)
    return sample


def cases() -> list[Any]:
    return [pytest.param(code, kind, text, id=name) for name, code, kind, text in cases_of(FAMILY)]


@pytest.mark.parametrize(("code", "kind", "text"), cases())
def test_the_compiler_agrees_with_the_rule(code: str, kind: str, text: str, tmp_path: Path) -> None:
    head = head_of(text)
    told = compiled(write(text, tmp_path), head["target"].partition(":")[2], tmp_path)
    assert told.word == head["compiled"], told
    if kind == "good":
        assert min(told.agreement_db) >= TOGETHER_DB
        assert told.matched > 0 or "QuantizeLinear" not in text


@pytest.mark.parametrize(
    "rule", [r for r in all_rules() if r.check and FAMILY in families_with(r)], ids=lambda rule: rule.code
)
def test_every_rule_of_the_target_is_proved(rule: Any) -> None:
    bad, good = (
        {head_of(text)["compiled"] for text in docs.case_texts(rule.code, k).values()} for k in ("bad", "good")
    )
    assert good == ({"changed"} if rule.code in IN_FLOAT_BY_DESIGN else {"as planned"})
    if rule.code in NOT_REPRODUCED:
        assert bad == {"as planned"}
        assert "not reproduced" in rule.sections["Seen on"]
    else:
        assert bad
        assert bad <= {"refused", "changed", "apart"}
