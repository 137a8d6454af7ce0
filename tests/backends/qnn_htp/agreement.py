"""How well the emulator agrees with the simulation of the same plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL
from dovetail.float_graph import prepared
from dovetail.model.session import Mode
from dovetail.op_support import Precision
from dovetail.target import Target
from dovetail.verify.run import SessionRun
from tests.equality import sqnr_db
from tests.planning import planned

Data = dict[str, np.ndarray]


def agreement_db(model: ir.Model, target: Target, precision: Precision, data: Data, folder: Path) -> float:
    """The SQNR of the emulator's output against the simulation's on the first sample; the graph is planned as it is."""
    folder.mkdir(exist_ok=True)
    plan = planned(model, target, precision, data=data)
    artifacts = target.backend.emit(model, plan, folder)
    compiled = target.backend.compile(artifacts, folder)
    assert compiled.error == ""
    sample = {name: array[0] for name, array in data.items()}
    simulation = SessionRun(next(a.path for a in artifacts if a.name == MODEL), Mode.EXACT, folder)
    (expected,), (emulated,) = list(simulation([sample])), list(target.backend.runner.run(compiled, [sample]))
    return min(sqnr_db(expected[name], emulated[name]) for name in expected)


def rewritten_agreement_db(model: ir.Model, target: Target, precision: Precision, data: Data, folder: Path) -> float:
    """The same for the graph that ``fit`` would quantize."""
    return agreement_db(prepared(model, target), target, precision, data, folder)
