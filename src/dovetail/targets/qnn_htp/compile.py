"""The HTP compiler, run in a child process, and what it makes: context binary, DLC, dumped graph, figures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact, CompileResult
from dovetail.finding import Finding, Place, PlaceKind, Severity
from dovetail.model.origin import nodes_of
from dovetail.model.place import at_node, at_tensor
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.targets.child import ChildResult
from dovetail.targets.compile_in_child import CompileCall, compile_in_child, model_inputs
from dovetail.targets.htp.rules.compiler import BUILDER_NOT_KNOWN, NO_DLC, NOT_FOR_DEVICE, OTHER_ARCHITECTURE
from dovetail.targets.qnn_htp.estimate import read_estimate, read_traffic
from dovetail.targets.qnn_htp.install import PACKAGE
from dovetail.targets.qnn_htp.log import compiled_for, failure, warnings
from dovetail.targets.qnn_htp.options import HtpOptions
from dovetail.targets.qnn_htp.qairt import DeviceFileKind, LoadExpectation, can_load, instead, made_by, parse_version

GRAPH = "qnn_graph"
_DLC = "dlc"
SESSION = "dovetail.targets.qnn_htp.session"
_COMPILER = "the HTP compiler"
# The files that a device loads, by suffix; the ONNX file beside a context binary only refers to it.
_KINDS = {".bin": DeviceFileKind.CONTEXT, ".dlc": DeviceFileKind.DLC}


def compile_model(asked: HtpOptions, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Run the real compiler; its log, its graph and the context binary are kept."""
    dump, profile = folder / GRAPH, folder / "profile.csv"
    _clear(folder)
    options = {**asked.provider, "dump_json_qnn_graph": "1", "json_qnn_graph_dir": dump.name}
    options |= {"profiling_level": "detailed", "profiling_file_path": profile.name}
    model = artifacts[0].path

    def refusal(result: ChildResult) -> CompileResult:
        return failure(result, artifacts, _places(model))

    call = CompileCall(
        f"{SESSION}:build_in_child",
        {"model": "model.onnx", "options": options, "context": "context.onnx"},
        inputs=model_inputs(model),
        packages=(PACKAGE,),
        who=_COMPILER,
        limits=asked.limits,
        is_final=lambda result: result.answer is not None or refusal(result).finished,
    )
    result = compile_in_child(call, folder)
    if result.answer is None:
        refused = refusal(result)
        other = _another_architecture(asked, result.log)
        if other and refused.finished:  # what it refuses says little about the chip that was named
            error = f"{other[0].message}; {other[0].fix}; {refused.error}"
            return replace(refused, error=error, findings=(*other, *refused.findings))
        return refused
    files = [path for path in sorted(folder.glob("context*")) if path.is_file()]
    contexts = [Artifact(p.stem, p, _builder(p), shipped=p.suffix in _KINDS) for p in files]
    provider = f"{PACKAGE} {version(PACKAGE)}"
    graphs = [Artifact(GRAPH, path, provider) for path in sorted(dump.glob("*.json")) if "tensor_log" not in path.name]
    estimate, no_estimate = read_estimate(profile, result.log)
    traffic, no_traffic = read_traffic(result.log)
    return CompileResult(
        artifacts=(*artifacts, *contexts, *graphs),
        log=result.log,
        findings=(*warnings(result.log), *_another_architecture(asked, result.log)),
        estimate=estimate,
        traffic=traffic,
        not_estimated="; ".join(filter(None, (no_estimate, no_traffic))),
    )


def _clear(folder: Path) -> None:
    """Remove what an earlier run left."""
    for name in (GRAPH, _DLC):
        shutil.rmtree(folder / name, ignore_errors=True)
    for old in (*folder.glob("context*"), folder / "profile.csv"):
        old.unlink(missing_ok=True)


def package(asked: HtpOptions, compiled: CompileResult, folder: Path) -> CompileResult:
    """A build that ships: a DLC where one is wanted, and whether the device's runtime can load its files."""
    findings, notes, artifacts = list[Finding](), list[str](), list(compiled.artifacts)
    if asked.dlc:
        path, error = _write_dlc(asked, compiled.artifacts[0].path, folder / _DLC)
        if error:
            findings.append(Finding(NO_DLC, _file(DeviceFileKind.DLC), f"no DLC was made: {error}", Severity.ERROR))
        else:
            artifacts.append(Artifact("dlc", path, _builder(path), shipped=True))
    for artifact in artifacts:
        kind = _KINDS.get(artifact.path.suffix)
        if kind is not None:
            finding, note = _on_device(asked, kind, artifact)
            findings += finding
            notes += note
    return replace(
        compiled,
        artifacts=tuple(artifacts),
        findings=(*compiled.findings, *findings),
        notes=(*compiled.notes, *notes),
    )


def _write_dlc(asked: HtpOptions, model: Path, folder: Path) -> tuple[Path, str]:
    """The DLC of a model, or why there is none; the serializer names it by a number, so it is renamed."""
    folder.mkdir()
    path = folder / "model.dlc"
    call = CompileCall(
        f"{SESSION}:write_dlc_in_child",
        {"model": "model.onnx", "options": dict(asked.provider), "folder": "."},
        inputs=model_inputs(model),
        packages=(PACKAGE,),
        who="the DLC writer",
        limits=asked.limits,
        is_final=lambda result: result.answer is not None,
    )
    written = compile_in_child(call, folder)
    if written.answer is None:
        return path, written.error
    files = written.answer["files"]
    if len(files) != 1:
        return path, f"{len(files)} files were written, one was expected"
    (folder / files[0]).rename(path)
    return path, ""


def _builder(path: Path) -> str:
    build = made_by(path)
    return f"QAIRT {build}" if build else ""


def _on_device(asked: HtpOptions, kind: DeviceFileKind, artifact: Artifact) -> tuple[list[Finding], list[str]]:
    """Whether the device's runtime can be expected to load a file: a note where it can, a finding where not."""
    if not artifact.made_by:
        said = f"which QAIRT made {artifact.path.name} could not be read from it"
        return [Finding(BUILDER_NOT_KNOWN, _file(kind), said, Severity.WARNING)], []
    if asked.device_qairt is None:
        return [], []
    build = artifact.made_by.removeprefix("QAIRT ")
    expected, source = can_load(kind, parse_version(build), asked.device_qairt)
    device = ".".join(map(str, asked.device_qairt))
    said = f"{artifact.path.name} was made by QAIRT {build} and is {expected} on QAIRT {device}: {source}"
    if expected is LoadExpectation.YES:
        return [], [said]
    severity = Severity.ERROR if expected is LoadExpectation.NO else Severity.WARNING
    return [Finding(NOT_FOR_DEVICE, _file(kind), said, severity, fix=instead(asked.device_qairt))], []


def _another_architecture(asked: HtpOptions, log: str) -> list[Finding]:
    """A number that is not in our table may belong to another architecture than its caller said."""
    found = compiled_for(log)
    if found in (None, asked.chip.architecture):
        return []
    said = f"it was compiled for HTP v{found}, which is what the compiler takes soc {asked.chip.soc} for"
    place = Place(PlaceKind.TARGET, name=asked.chip.name)
    fix = f"say qnn-htp:soc{asked.chip.soc}/v{found}"
    return [Finding(OTHER_ARCHITECTURE, place, said, Severity.WARNING, fix=fix)]


def _file(kind: DeviceFileKind) -> Place:
    return Place(PlaceKind.FILE, name=str(kind))


def _places(emitted: Path) -> dict[str, Place]:
    """The nodes of an emitted graph in the caller's names: of what we put in, the tensor that it stands at."""
    graph = ir.load(emitted).graph
    ours = any(nodes_of(node) for node in graph)  # a naive export has no trail, and its own names
    return {node.name or "": _place(node, ours) for node in graph}


def _place(node: ir.Node, ours: bool) -> Place:
    if nodes_of(node):
        return at_node(node)
    if not ours:
        return Place(PlaceKind.NODE, (node.name or "",), op_type=node.op_type)
    source = node.inputs[0] if is_quantize(node) or is_dequantize(node) else node.outputs[0]
    return at_tensor(node.outputs[0] if source is None else source)
