"""A second target in one file: proof that a target needs no change in the stages.

The toy only moves bytes in Concat too, has no 16 bit and no tensors above rank 4, and "compiles" by checking the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from dovetail.backend import Artifact, Backend, Compiled, Outcome, Probe, ReadBack, Runner, Sample
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.op_support import (
    A8,
    B32,
    F32,
    W8,
    W8A8,
    Chain,
    OpSupport,
    OpTable,
    Signature,
    Slot,
    bias,
    const,
    signature,
)
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.params import qparams_of
from dovetail.qdq.stored import stored_values
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target

_FIRST = OpSupport((signature(A8, out=A8), signature(F32, out=F32)), shares=(0,))
_SAME = (Signature((Slot(A8),), A8, variadic=True), Signature((Slot(F32),), F32, variadic=True))
_BYTES = OpSupport(_SAME, shares=None)
_LINEAR = OpSupport((signature(A8, const(W8), bias(B32), out=A8), signature(F32, F32, F32, out=F32)))


def open_target(variant: str, options: Mapping[str, str]) -> Target:
    unknown = set(options) - {"speed"}
    if variant or unknown:
        raise InputError(f"target toy has no {variant or min(unknown)!r}")
    return TOY


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    return tuple(Artifact("model", path, shipped=True) for path in write(emit_qdq(model, plan), folder / "toy.onnx"))


def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> Compiled:
    onnx.checker.check_model(str(artifacts[0].path), full_check=True)
    return Compiled(artifacts, log="checked")


def read_back(compiled: Compiled, plan: Plan) -> ReadBack:
    model = ir.load(compiled.artifacts[0].path)
    readers = {n.inputs[0].name: n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0] is not None}
    rows = []
    for stored in stored_values(model, plan):
        reader = readers.get(stored.name)
        same = reader is not None and qparams_of(reader).scale.tolist() == stored.params.scale.tolist()
        rows.append(stored.as_read(Outcome.MATCHED if same else Outcome.CHANGED, ""))
    return ReadBack(tuple(rows), "the file itself")


def run(compiled: Compiled, samples: Iterable[Sample]) -> Iterator[Sample]:
    session = open_session(compiled.artifacts[0].path, Mode.EXACT)
    for sample in samples:
        yield run_session(session, sample)


TOY = Target(
    name="toy",
    facts=None,
    table=OpTable(
        target="toy",
        ops={
            **dict.fromkeys(("Reshape", "Transpose", "Slice", "Gather", "Squeeze", "Split"), _FIRST),
            **dict.fromkeys(("Add", "Mul", "Relu", "Gelu", "Softmax"), OpSupport(_SAME)),
            "Concat": _BYTES,
            "MatMul": OpSupport((*_LINEAR.signatures, signature(A8, A8, out=A8))),
            "Conv": _LINEAR,
        },
        precisions={"w8a8": W8A8},
        chains=(Chain(("MatMul", "Add"), bias=True),),
        max_rank=4,
    ),
    backend=Backend(lambda: Probe(True, {"toy": "1"}), emit, compile_model, read_back, Runner(run)),
    rewrites=Rewrites(()),
)
FAMILY = Family(open_target)
