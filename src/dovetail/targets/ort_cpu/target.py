"""``ort-cpu``: ONNX Runtime's own CPU kernels, the target that is always available.

Every operator can have 8- or 16-bit inputs and outputs, because ONNX Runtime runs an operator without an integer kernel
in float between DequantizeLinear and QuantizeLinear; the table has the operators for which quantizing is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact, Backend, CompileResult, Probe, ReadBack, Runner, Sample, Timer
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.op_support import AUTO, FP32, W4A16, W4A16_BQ, W4A16_LPBQ, W8A8, W8A16, Chain, OpTable
from dovetail.passes.gemm_to_matmul import gemm_to_matmul
from dovetail.passes.linear_to_gemm import linear_to_gemm
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.remove_unused import remove_unused
from dovetail.qdq.emit import emit_qdq
from dovetail.rules.rule import rules_in
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.ort_cpu import rules
from dovetail.targets.ort_cpu.islands import insert_casts_around_islands
from dovetail.targets.ort_cpu.measure import BASELINES, measure
from dovetail.targets.ort_cpu.read_back import read_optimized
from dovetail.targets.ort_cpu.table import TABLE
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs
from dovetail.trials.knobs.mixed import mixed
from dovetail.trials.knobs.wide_outputs import WIDE_OUTPUTS

RULES = rules_in(rules)
_LOAD = 'onnxruntime.InferenceSession("model.onnx", session_options)'


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Return the target, which has no suffix and no options."""
    if suffix:
        raise InputError(f"unknown target suffix {suffix!r}: ort-cpu has none")
    if options:
        raise InputError(f"target ort-cpu has no option {min(options)!r}")
    return ORT_CPU


def probe() -> Probe:
    """Always available: ONNX Runtime is a dependency of Dovetail itself."""
    import onnxruntime

    return Probe(True, {"onnxruntime": onnxruntime.__version__})


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write QDQ ONNX with integer weights, which ships as it is."""
    emitted = emit_qdq(model, plan)
    insert_casts_around_islands(emitted, plan)
    written = write(emitted, folder / "model.onnx")
    names = ["model" if path.suffix == ".onnx" else "model_data" for path in written]
    load = {"model": _LOAD}
    return tuple(
        Artifact(name, path, shipped=True, load=load.get(name, "")) for name, path in zip(names, written, strict=True)
    )


def compile_model(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Let ONNX Runtime build a session in a child process, and keep the optimized graph."""
    model = artifacts[0].path
    optimized = model.with_name("optimized.onnx")  # beside the model, because it may refer to the model's weight file
    call = ToolCall(
        "dovetail.targets.ort_cpu.build:build_in_child",
        {"model": "model.onnx", "optimized": optimized.name},
        inputs=model_inputs(model),
        packages=("onnxruntime",),
        who="ONNX Runtime",
    )
    result = call_tool(call, optimized.parent)
    if result.answer is None:
        return CompileResult(artifacts, error=result.error, log=result.log, finished=result.finished)
    made_by = f"onnxruntime {result.answer['version']}"
    return CompileResult((*artifacts, Artifact("optimized", optimized, made_by)), log=result.log)


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Look up every planned tensor in the optimized graph, which ONNX Runtime runs."""
    optimized = next(a.path for a in compiled.artifacts if a.name == "optimized")
    return read_optimized(compiled.artifacts[0].path, optimized, plan)


def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Run the deployed graph with its integer kernels, and yield its outputs sample by sample."""
    session = open_session(compiled.artifacts[0].path, Mode.DEPLOYED)
    for sample in samples:
        yield run_session(session, sample)


_NOTE = (
    "deploy model.onnx with the session options it was checked with: session.x64quantprecision=1, optimizer "
    "WeightBiasQuantization disabled"
)
ORT_CPU = Target(
    name="ort-cpu",
    facts=None,
    table=OpTable(
        target="ort-cpu",
        ops=TABLE,
        precisions={p.name: p for p in (W8A8, W8A16, W4A16, W4A16_BQ, W4A16_LPBQ, FP32)},
        choices={AUTO: (W8A8.name, FP32.name)},
        chains=(Chain(("Conv", "Relu")), Chain(("Gemm", "Relu")), Chain(("Add", "Relu"))),
        runs_float_between=True,
        domains=("", "com.microsoft"),
    ),
    backend=Backend(
        probe,
        emit,
        compile_model,
        read_back,
        Runner(run, notes=(_NOTE,)),
        timer=Timer(measure, BASELINES, by_default=False),
    ),
    rewrites=Rewrites((linear_to_gemm, merge_layout, remove_unused), blocks=gemm_to_matmul),
    rules=RULES,
    knobs=(mixed(WIDE_OUTPUTS),),
)
FAMILY = Family(open_target, rules=RULES)
