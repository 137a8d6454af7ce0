"""``xnnpack``: lowers a planned ONNX graph to an ExecuTorch program for XNNPACK and runs it on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact, Backend, CompileResult, DeviceKit, ReadBack, Runner, Sample, Timer
from dovetail.errors import InputError
from dovetail.model.write import write
from dovetail.op_support import AUTO, FP32, Chain, OpTable
from dovetail.passes.fold_scale import fold_scale
from dovetail.passes.linear_to_gemm import linear_to_gemm
from dovetail.passes.lower_to_slices import lower_to_slices
from dovetail.passes.merge_duplicates import merge_duplicates
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.move_slices_up import move_slices_up
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.split_fused_linear import split_fused_linear
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.xnnpack.compile import CENSUS, PROGRAM, compile_model
from dovetail.targets.xnnpack.device import device_files
from dovetail.targets.xnnpack.dynamic import insert_dynamic
from dovetail.targets.xnnpack.install import probe
from dovetail.targets.xnnpack.measure import baselines, measure
from dovetail.targets.xnnpack.module import known_operators
from dovetail.targets.xnnpack.options import DEFAULTS, XnnpackOptions, read_options
from dovetail.targets.xnnpack.read_back import read_operator_list
from dovetail.targets.xnnpack.rules import RULES
from dovetail.targets.xnnpack.run import run_program
from dovetail.targets.xnnpack.table import DYNAMIC, STATIC, TABLE
from dovetail.trials.knobs.float_merges import FLOAT_MERGES
from dovetail.trials.knobs.mixed import mixed


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Open the target, which has no suffix."""
    if suffix:
        raise InputError(f"unknown target suffix {suffix!r}: xnnpack has none")
    checked = read_options(options)
    return Target(
        name="xnnpack",
        facts=checked,
        table=OpTable(
            target="xnnpack",
            ops=TABLE,
            precisions={p.name: p for p in (STATIC, DYNAMIC, FP32)},
            chains=(Chain(("Conv", "Relu")), Chain(("Gemm", "Relu")), Chain(("Add", "Relu"))),
            only=known_operators(),
            choices={AUTO: (STATIC.name, DYNAMIC.name, FP32.name)},
        ),
        backend=Backend(
            probe=probe,
            emit=emit,
            compile=partial(compile_model, checked),
            read_back=read_back,
            runner=Runner(partial(run, checked)),
            timer=Timer(partial(measure, checked), baselines(checked)),
            device=DeviceKit(device_files),
        ),
        rewrites=Rewrites(
            (
                linear_to_gemm,
                fold_scale,
                split_fused_linear,
                lower_to_slices,
                move_slices_up,
                merge_duplicates,
                merge_layout,
                remove_unused,
            )
        ),
        rules=RULES,
        knobs=(mixed(FLOAT_MERGES),),
    )


FAMILY = Family(open_target, option_keys=tuple(DEFAULTS), rules=RULES)


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write QDQ ONNX with integer weights, which is both the simulation and the input of the lowering."""
    emitted = emit_qdq(model, plan)
    insert_dynamic(emitted)
    written = write(emitted, folder / "model.onnx")
    return tuple(Artifact("model" if path.suffix == ".onnx" else "model_data", path) for path in written)


def read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    """Look up every planned tensor in the program."""
    return read_operator_list(compiled.artifacts[0].path, _file(compiled, CENSUS), plan)


def run(options: XnnpackOptions, compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Run the program in the ExecuTorch runtime, and yield its outputs sample by sample."""
    graph = ir.load(compiled.artifacts[0].path).graph
    names = [str(v.name) for v in graph.inputs], [str(v.name) for v in graph.outputs]
    return run_program(options, _file(compiled, PROGRAM), names, samples)


def _file(compiled: CompileResult, name: str) -> Path:
    return next(artifact.path for artifact in compiled.artifacts if artifact.name == name)
