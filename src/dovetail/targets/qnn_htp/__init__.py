"""``qnn-htp:CHIP``: Qualcomm's HTP, with its real compiler and emulator from the ``onnxruntime-qnn`` wheel."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.errors import BackendError
from dovetail.model.origin import nodes_of
from dovetail.model.write import write
from dovetail.passes.linear_as_gemm import linear_as_gemm
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.remove_unused import remove_unused
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.target import (
    F32,
    W8A8,
    W8A16,
    Artifact,
    Chain,
    Compiled,
    Estimate,
    Precision,
    Probe,
    ReadBack,
    Sample,
    Target,
)
from dovetail.targets.child import run_child
from dovetail.targets.qnn_htp.chips import chip_named
from dovetail.targets.qnn_htp.estimate import read_estimate
from dovetail.targets.qnn_htp.log import log_findings
from dovetail.targets.qnn_htp.options import provider_options
from dovetail.targets.qnn_htp.read_back import read_dump
from dovetail.targets.qnn_htp.table import htp_table

_PACKAGE = "onnxruntime-qnn"
_SESSION = "dovetail.targets.qnn_htp.session"
_DUMP = "qnn_graph"
# Float tensors stay float32 in the file, and the provider computes them in float16.
FLOAT = Precision("fp16", F32, F32)
# A ViT in float16 on the emulator is 51 dB from float32 (onnxruntime-qnn 2.7.0); three less are asked of a graph.
_FLOAT16_DB = 48.0


def open_target(variant: str, options: Mapping[str, str]) -> Target:
    """The target of one chip; its table follows from the architecture."""
    chip = chip_named(variant)
    told = provider_options(chip, options, float16=chip.has_float16)
    return Target(
        name=f"qnn-htp:{chip.name}",
        ops=htp_table(chip),
        precisions={p.name: p for p in (W8A16, W8A8, *((FLOAT,) if chip.has_float16 else ()))},
        chains=(Chain(("Conv", "Relu")), Chain(("Gemm", "Relu"))),
        rewrites=(linear_as_gemm, merge_layout, remove_unused),
        probe=probe,
        emit=emit,
        compile=partial(compile_model, told),
        read_back=read_back,
        run=partial(run, told),
        baseline=partial(baseline, told) if chip.has_estimate else None,
        float_db=_FLOAT16_DB,
        max_rank=5,
        sample_limit=1,
    )


def probe() -> Probe:
    """Whether the wheel is here."""
    try:
        return Probe(True, {_PACKAGE: version(_PACKAGE)})
    except PackageNotFoundError:
        return Probe(False, {}, f"{_PACKAGE} is not installed: pip install 'dovetail-fit[qnn]'")


def emit(model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """QDQ ONNX with integer weights."""
    written = write(emit_qdq(model, plan), folder / "model.onnx")
    return tuple(Artifact("model" if path.suffix == ".onnx" else "model_data", path) for path in written)


def compile_model(told: Mapping[str, str], artifacts: tuple[Artifact, ...], folder: Path) -> Compiled:
    """Run the real compiler in a child process; its log, its graph and the context binary are kept."""
    dump, context = folder / _DUMP, folder / "context.onnx"
    shutil.rmtree(dump, ignore_errors=True)
    dump.mkdir()
    for old in folder.glob("context*"):  # the provider refuses to replace one
        old.unlink()
    profile = folder / "profile.csv"
    profile.unlink(missing_ok=True)
    options = {**told, "dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(dump)}
    options |= {"profiling_level": "detailed", "profiling_file_path": str(profile)}
    arguments = {"model": str(artifacts[0].path), "options": options, "context": str(context)}
    result = run_child(f"{_SESSION}:build_in_child", arguments)
    if result.answer is None:
        findings = log_findings(result.log, _original_nodes(artifacts[0].path))
        said = f"{findings[0].where}: {findings[0].message}" if findings else result.error
        return Compiled(artifacts, said, result.log, findings)
    made = [Artifact(path.stem, path) for path in sorted(folder.glob("context*")) if path.is_file()]
    graphs = [Artifact("qnn_graph", path) for path in sorted(dump.glob("*.json")) if "tensor_log" not in path.name]
    return Compiled((*artifacts, *made, *graphs), log=result.log, estimate=read_estimate(profile))


def baseline(told: Mapping[str, str], name: str, model: ir.Model, folder: Path) -> Estimate | None:
    """The estimate for the same graph in float16; None where the compiler refuses it."""
    if name != FLOAT.name:
        return None
    place = folder / f"baseline_{name}"
    place.mkdir(exist_ok=True)
    plan = Plan("qnn-htp", name, {})
    return compile_model(told, emit(model, plan, place), place).estimate


def _original_nodes(emitted: Path) -> dict[str, str]:
    """The caller's names of the nodes of an emitted graph."""
    return {node.name or "": ", ".join(nodes_of(node)) or node.name or "" for node in ir.load(emitted).graph}


def read_back(compiled: Compiled, plan: Plan) -> ReadBack:
    """Every planned tensor, looked up in the graph that the compiler was given."""
    dump = next(a.path.parent for a in compiled.artifacts if a.name == "qnn_graph")
    return read_dump(compiled.artifacts[0].path, dump, plan)


def run(told: Mapping[str, str], compiled: Compiled, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Emulate, every sample in a fresh process, as many at once as there are cores."""
    model = compiled.artifacts[0].path
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        yield from cores.map(partial(_emulate, told, model), samples)


def _emulate(told: Mapping[str, str], model: Path, sample: Sample) -> Sample:
    with tempfile.TemporaryDirectory(prefix="dovetail-htp-") as name:
        given, answer = Path(name) / "sample.npz", Path(name) / "outputs.npz"
        np.savez(given, allow_pickle=False, **sample)
        arguments = {"model": str(model), "options": dict(told), "sample": str(given), "outputs": str(answer)}
        result = run_child(f"{_SESSION}:run_in_child", arguments)
        if result.answer is None:
            raise BackendError(f"the HTP emulator did not run the model: {result.error}")
        with np.load(answer) as arrays:
            return {key: arrays[key] for key in arrays.files}
