"""Compile a small model of another tool unchanged, emulate it, and say in a word what the compiler did with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from dovetail.backend import Outcome
from dovetail.encoding import Array
from dovetail.model.read import read
from dovetail.numerics.metrics import sqnr_db
from dovetail.qdq.invert import invert, is_quantized
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.install import PACKAGE
from dovetail.targets.qnn_htp.options import provider_options
from dovetail.targets.qnn_htp.read_back import read_dump
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs
from tests.backends.qnn_htp.case_session import simulate

DUMP = "dump"
# An SQNR between these limits decides nothing.
DIFFERENT_DB, EQUAL_DB = 20.0, 40.0


@dataclass(frozen=True)
class Compilation:
    """The outcome of a model: the compiler's error, the tensors that were read back as changed, the SQNR per output."""

    error: str
    changed: tuple[str, ...] = ()
    matched: int = 0
    agreement_db: tuple[float, ...] = ()

    @property
    def outcome(self) -> str:
        if self.error:
            return "rejected"
        if min(self.agreement_db) < DIFFERENT_DB:
            return "differs"
        if self.changed:
            return "changed"
        return "as planned" if min(self.agreement_db) >= EQUAL_DB else "between"


def compiled(model: Path, chip_name: str, folder: Path) -> Compilation:
    """Compile a file unchanged, with CPU fallback disabled; emulate one sample and compare it with the simulation."""
    chip = chip_named(chip_name)
    options = provider_options(chip, {}, float16=chip.has_float16)
    options |= {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": DUMP}
    sample = noise(onnx.load(model))
    np.savez(folder / "sample.npz", allow_pickle=False, **sample)
    call = ToolCall(
        "tests.backends.qnn_htp.case_session:build_and_run",
        {"model": "model.onnx", "options": options, "sample": "sample.npz", "outputs": "outputs.npz", "dump": DUMP},
        inputs={**model_inputs(model), "sample.npz": folder / "sample.npz"},
        packages=(PACKAGE,),
        who="the HTP compiler",
        is_final=lambda result: True,
    )
    result = call_tool(call, folder)
    if result.answer is None:
        return Compilation(result.error)
    simulated = simulate(str(model), sample)
    with np.load(folder / "outputs.npz") as arrays:
        agreement = tuple(sqnr_db(simulated[name], arrays[name]) for name in result.answer["outputs"])
    raw = read(model)
    if not is_quantized(raw):
        return Compilation("", agreement_db=agreement)
    rows = read_dump(model, folder / DUMP, invert(raw)[1], result.log)
    assert rows.unparsed == ""
    changed = tuple(f"{row.tensor}: {row.detail}" for row in rows.tensors if row.outcome is Outcome.CHANGED)
    return Compilation("", changed, sum(row.outcome is Outcome.MATCHED for row in rows.tensors), agreement)


def noise(model: onnx.ModelProto) -> dict[str, Array]:
    """Seeded noise for every float input and zeros for integer inputs; dynamic dimensions are 1."""
    random = np.random.default_rng(0)
    sample: dict[str, Array] = {}
    for value in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        sample[value.name] = (random.standard_normal(shape) if kind.kind == "f" else np.zeros(shape)).astype(kind)
    return sample
