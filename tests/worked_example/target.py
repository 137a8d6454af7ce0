"""A target in one file: what it supports, how its tools are called, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Backend, CompileResult, Outcome, Probe, ReadBack, Runner, Sample
from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.op_support import A8, B32, F32, W8, W8A8, OpSupport, OpTable, bias, const, signature
from dovetail.passes.linear_to_gemm import linear_to_gemm
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.params import qparams_of
from dovetail.qdq.quantized_values import quantized_values
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from tests.worked_example.knob import FIRST_LAYER

LINEAR = OpSupport((signature(A8, const(W8), bias(B32), out=A8), signature(F32, F32, F32, out=F32)))
ELEMENTWISE = OpSupport((signature(A8, A8, out=A8), signature(F32, F32, out=F32)))
MOVES = OpSupport((signature(A8, out=A8), signature(F32, out=F32)), shares=(0,))
TABLE = OpTable(
    target="example",
    ops={"Gemm": LINEAR, "Add": ELEMENTWISE, "Relu": ELEMENTWISE, "Reshape": MOVES, "Transpose": MOVES},
    precisions={"w8a8": W8A8},
)


def probe() -> Probe:
    """Whether the vendor's tools are installed; if not, ``missing`` says what to install."""
    return Probe(True, {"onnx": onnx.__version__})


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write the QDQ graph, which is the simulation and the compiler's input."""
    return tuple(Artifact(MODEL, path, shipped=True) for path in write(emit_qdq(model, plan), folder / "model.onnx"))


def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Check the model; a real target calls its compiler here, in a child process (``targets/child.py``)."""
    try:
        onnx.checker.check_model(str(artifacts[0].path), full_check=True)
    except onnx.checker.ValidationError as error:
        return CompileResult(artifacts, error=str(error))
    return CompileResult(artifacts, log="checked")


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Compare every planned tensor with the compiled model: here the emitted file itself."""
    model = ir.load(compiled.artifacts[0].path)
    nodes = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    dequantizes = {node.inputs[0].name: node for node in nodes if node.inputs[0] is not None}
    rows = []
    for planned in quantized_values(model, plan):
        dequantize = dequantizes.get(planned.name)
        outcome = Outcome.NOT_FOUND
        if dequantize is not None:
            outcome = Outcome.MATCHED if _same(qparams_of(dequantize), planned.params) else Outcome.CHANGED
        rows.append(planned.as_read(outcome, ""))
    return ReadBack(tuple(rows), "the file itself")


def _same(a: QParams, b: QParams) -> bool:
    return np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    """The outputs of the compiled model, sample by sample."""
    session = open_session(compiled.artifacts[0].path, Mode.EXACT)
    for sample in samples:
        yield run_session(session, sample)


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """The target, which has no suffix and no options: any other name is an error, so that a typo is not ignored."""
    if suffix or options:
        raise InputError(f"target example has no suffix or option {suffix or min(options)!r}")
    return EXAMPLE


EXAMPLE = Target(
    name="example",
    facts=None,
    table=TABLE,
    backend=Backend(probe, emit, compile_model, read_back, Runner(run)),
    rewrites=Rewrites((linear_to_gemm,)),
    knobs=(FIRST_LAYER,),
)
FAMILY = Family(open_target)
