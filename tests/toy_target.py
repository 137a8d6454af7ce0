"""A target in one file, which shows that a new target needs no change to the stages.

On the toy, Concat passes its inputs' quantization through; it has no 16 bit and no tensors above rank 4, and "compiles"
by checking the file. ``toy:full`` has every capability that a target can have, so that tests cover each of them.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.backend import (
    MODEL,
    Artifact,
    Backend,
    Baseline,
    BaselineCase,
    CompileResult,
    ConverterReport,
    DeviceCase,
    DeviceFiles,
    DeviceKit,
    DeviceLatency,
    DeviceReport,
    Estimate,
    Estimator,
    MeasuredLatency,
    Outcome,
    Placement,
    Probe,
    ReadBack,
    Runner,
    Sample,
    TimedProgram,
    Timer,
    Traffic,
    UndelegatedOp,
)
from dovetail.encoding import DType, Encoding
from dovetail.errors import InputError
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.op_support import (
    A8,
    A16,
    B32,
    F32,
    FP32,
    W8,
    W8A8,
    W8A16,
    Chain,
    OpSupport,
    OpTable,
    Signature,
    Slot,
    bias,
    const,
    signature,
)
from dovetail.passes.gemm_to_matmul import gemm_to_matmul
from dovetail.passes.linear_to_gemm import linear_to_gemm
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of
from dovetail.qdq.quantized_values import quantized_values
from dovetail.qdq.transpose_before_quantize import transpose_before_quantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import Rule, parse_doc
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.trials.knobs.float_merges import FLOAT_MERGES
from dovetail.trials.knobs.islands import islands
from dovetail.trials.knobs.mixed import mixed
from dovetail.trials.knobs.operand_widths import OPERAND_WIDTHS

_FIRST = OpSupport((signature(A8, out=A8), signature(F32, out=F32)), shares=(0,))
_SAME = (Signature((Slot(A8),), A8, variadic=True), Signature((Slot(F32),), F32, variadic=True))
_BYTES = OpSupport(_SAME, shares=None)
_LINEAR = OpSupport((signature(A8, const(W8), bias(B32), out=A8), signature(F32, F32, F32, out=F32)))


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    unknown = set(options) - ({"estimate", "wrong"} if suffix == "full" else {"speed"})
    if suffix not in ("", "full") or unknown:
        raise InputError(f"target toy has no {min(unknown) if unknown else suffix!r}")
    if not suffix:
        return TOY
    return with_everything(ToyFacts(estimates=options.get("estimate") != "no", wrong_op=options.get("wrong", "")))


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    return tuple(Artifact("model", path, shipped=True) for path in write(emit_qdq(model, plan), folder / "toy.onnx"))


def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    onnx.checker.check_model(str(artifacts[0].path), full_check=True)
    return CompileResult(artifacts, log="checked")


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    model = ir.load(compiled.artifacts[0].path)
    readers = {n.inputs[0].name: n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0] is not None}
    rows = []
    for stored in quantized_values(model, plan):
        reader = readers.get(stored.name)
        same = reader is not None and qparams_of(reader).scale.tolist() == stored.params.scale.tolist()
        rows.append(stored.as_read(Outcome.MATCHED if same else Outcome.CHANGED, ""))
    return ReadBack(tuple(rows), "the file itself")


def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
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


@dataclass(frozen=True, slots=True)
class ToyFacts:
    """The vendor's facts: whether the compiler estimates latency, and an operator that it miscompiles if its output is
    quantized."""

    estimates: bool = True
    wrong_op: str = ""


def compile_program(facts: ToyFacts, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Write a program next to the file, with placement and estimate; the operator of the facts is miscompiled."""
    model = ir.load(artifacts[0].path)
    operators = [node for node in model.graph if not is_quantize(node) and not is_dequantize(node)]
    undelegated = tuple(
        UndelegatedOp(node.name or "", node.op_type, "slow") for node in operators if node.op_type == "Softmax"
    )
    estimate = _estimate(model) if facts.estimates else None
    _break(model, facts.wrong_op)
    (program, *_) = write(model, folder / "program.onnx")
    return CompileResult(
        (*artifacts, Artifact("program", program, "toyc 1")),
        log="compiled",
        estimate=estimate,
        traffic=None if estimate is None else Traffic(10, 20, 0, 0),
        not_estimated="" if facts.estimates else "this chip has no estimates",
        notes=("compiled by toyc",),
        placement=Placement(1, len(operators) - len(undelegated), undelegated),
    )


def _estimate(model: ir.Model) -> Estimate:
    """Estimate the cost of the file as the bytes that MatMul and Gemm read."""
    values = [v for node in model.graph if node.op_type in ("MatMul", "Gemm") for v in node.inputs if v is not None]
    cost = sum(_stored_bytes(value) for value in values)
    return Estimate(cost, cost, cost, ops_without_cost=0, fill_bytes=0, spill_bytes=0)


def _stored_bytes(value: ir.Value) -> int:
    producer = value.producer()
    is_float = producer is None or not is_dequantize(producer) or producer.inputs[0] is None
    stored = value if is_float else producer.inputs[0]
    return int((stored.dtype or ir.DataType.FLOAT).itemsize)


def _break(model: ir.Model, op_type: str) -> None:
    """Replace every such operator whose output is quantized by Neg."""
    for node in model.graph:
        if node.op_type == op_type and any(is_quantize(use.node) for use in node.outputs[0].uses()):
            node.op_type = "Neg"


def run_program(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    session = open_session(_program(compiled), Mode.EXACT)
    for sample in samples:
        yield run_session(session, sample)


def _program(compiled: CompileResult) -> Path:
    return next(artifact.path for artifact in compiled.artifacts if artifact.name == "program")


def package(compiled: CompileResult, folder: Path) -> CompileResult:
    """Add the file for the device, which only the shipped build has."""
    path = folder / "toy.bin"
    path.write_bytes(_program(compiled).read_bytes())
    return replace(compiled, artifacts=(*compiled.artifacts, Artifact("package", path, "toyc 1", shipped=True)))


def build_float(facts: ToyFacts, case: BaselineCase, folder: Path) -> CompileResult:
    """Compile the fitted graph in float."""
    return compile_program(facts, emit(case.model, Plan("toy", FP32.name, {}), folder), folder)


def build_stock(facts: ToyFacts, case: BaselineCase, folder: Path) -> CompileResult:
    """Compile the caller's file as it is."""
    return compile_program(facts, (Artifact("model", case.original),), folder)


def measure(programs: Mapping[str, TimedProgram], baseline: str) -> MeasuredLatency | str:
    """Measure the CPU time of the programs, interleaved."""
    runs = [(open_session(_program(row.compiled), Mode.EXACT), row.sample) for row in programs.values()]
    rounds = []
    for _ in range(3):
        rounds.append([])
        for session, sample in runs:
            start = time.process_time()
            run_session(session, sample)
            rounds[-1].append(time.process_time() - start + 1e-6)  # never zero, even with a coarse clock
    medians = dict(zip(programs, np.median(rounds, axis=0) * 1e6, strict=True))
    ratios = {name: float(us / medians[baseline]) for name, us in medians.items()}
    return MeasuredLatency(baseline, {name: float(us) for name, us in medians.items()}, ratios, len(rounds), ("timed",))


SESSION = """
import json

import onnxruntime


def open_model(model, backend=""):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # without it, 8-bit sums saturate on some CPUs
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def export_to(folder):
    (folder / "times.txt").write_text("7.0 9.0 3")


def emulated():
    return False


def versions():
    return {"toy": "1"}
"""


def device_files(compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    names = json.dumps([tensor.name for tensor in case.inputs])
    return DeviceFiles((compiled.artifacts[0].path,), {"device_session.py": SESSION, "inputs.json": names})


def read_converted(emitted: Path, files: Sequence[Path], plan: Plan) -> ConverterReport:
    """What the converter writes is one ONNX file."""
    (file,) = files
    return ConverterReport(read_back(CompileResult((Artifact(MODEL, file),)), plan), ("written by toyconvert",))


def reading_the_callers_file(backend: Backend, path: Path) -> Backend:
    """The compiler also reads the caller's file."""

    def compile_too(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        compiled = backend.compile(artifacts, folder)
        return replace(compiled, notes=(*compiled.notes, f"toyc read {path.name}"))

    return replace(backend, compile=compile_too)


def read_device(folder: Path, compiled: CompileResult, plan: Plan) -> DeviceReport:
    """Read the latency that the toy's tool wrote next to the outputs."""
    path = folder / "times.txt"
    if not path.exists():
        return DeviceReport(not_measured="the device wrote no times")
    compute_us, latency_us, runs = path.read_text().split()
    return DeviceReport(
        notes=("timed by toytime",),
        latency=DeviceLatency(float(compute_us), float(latency_us), int(runs), "toytime"),
    )


def softmax_on_a_chip_that_is_slow_at_it(subject: CheckInput) -> Iterator[Finding]:
    """A Softmax runs outside the toy's backend.

    ## What it finds
    Every Softmax, on targets whose facts are those of the toy.

    ## Why it matters
    It shows that a target's own rule can read the target's facts.

    ## How to fix it
    No fix is needed: the toy is a test.

    ## Seen on
    - toy: 1, by reading its compiler, which is in this file.
    """
    if isinstance(subject.facts, ToyFacts):
        for node in subject.model.graph:
            if node.op_type == "Softmax":
                yield Finding("Q199", at_node(node), "runs outside the toy", Severity.WARNING, fix="leave it")


# Not registered with ``@rule``, because tests check all registered codes and their documentation.
SLOW_SOFTMAX = Rule(
    "Q199",
    softmax_on_a_chip_that_is_slow_at_it.__name__,
    softmax_on_a_chip_that_is_slow_at_it,
    *parse_doc("Q199", inspect.getdoc(softmax_on_a_chip_that_is_slow_at_it) or ""),
)
_SAME_16 = (*_SAME, Signature((Slot(A16),), A16, variadic=True))
_FIRST_16 = OpSupport((*_FIRST.signatures, signature(A16, out=A16)), shares=(0,))
_LINEAR_16 = (*_LINEAR.signatures, signature(A16, const(W8), bias(B32), out=A16))
# The second operand of an activation-by-activation MatMul is requantized to int16 or uint8: the knob chooses which.
_S16 = Encoding(DType.S16, symmetric=True)
_MATMUL_16 = (signature(A16, _S16, out=A16), signature(A16, A8, out=A16))


def with_everything(facts: ToyFacts) -> Target:
    """Return the toy with every capability: 16 bit, its own rule, knobs, an estimator, a timer, a device."""
    floats = Baseline("float", partial(build_float, facts))
    stock = Baseline("stock", partial(build_stock, facts))
    backend = Backend(
        probe=lambda: Probe(True, {"toy": "1"}),
        emit=emit,
        compile=partial(compile_program, facts),
        read_back=read_back,
        runner=Runner(run_program, samples=2, retry_samples=4, notes=("run by toyrun",)),
        package=package,
        estimator=Estimator((floats,)),
        timer=Timer(measure, (stock,)),
        device=DeviceKit(device_files, read_device, opens_onnx=True),
        converted=read_converted,
    )
    return Target(
        name="toy:full",
        facts=facts,
        table=OpTable(
            target="toy:full",
            ops={
                **dict.fromkeys(("Reshape", "Transpose", "Slice", "Gather", "Squeeze", "Split"), _FIRST_16),
                **dict.fromkeys(("Add", "Mul", "Relu", "Gelu", "Softmax"), OpSupport(_SAME_16)),
                "Concat": OpSupport(_SAME_16, shares=None),
                "MatMul": OpSupport((*_LINEAR_16, signature(A8, A8, out=A8), *_MATMUL_16)),
                "Gemm": OpSupport(_LINEAR_16),
            },
            precisions={precision.name: precision for precision in (W8A8, W8A16, FP32)},
            choices={"auto": (W8A8.name, W8A16.name)},
            max_rank=4,
        ),
        backend=replace(backend, for_file=partial(reading_the_callers_file, backend)),
        rewrites=Rewrites((linear_to_gemm,), quantized=(transpose_before_quantize,), blocks=gemm_to_matmul),
        rules=(SLOW_SOFTMAX,),
        knobs=(mixed(FLOAT_MERGES), OPERAND_WIDTHS, islands(FP32)),
    )


TOY_WITH_EVERYTHING = with_everything(ToyFacts())
FAMILY = Family(open_target, ("full",), ("speed", "estimate", "wrong"), (SLOW_SOFTMAX,))
