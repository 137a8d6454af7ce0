"""Run the HTP compiler in a child process; collect the context binary, DLC, dumped graph and estimates."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from dovetail.backend import Artifact, CompileResult
from dovetail.finding import Finding, Place, PlaceKind, Severity
from dovetail.targets.child import ChildResult
from dovetail.targets.htp.rules.compiler import NO_DLC, NOT_FOR_DEVICE, OTHER_ARCHITECTURE, QAIRT_VERSION_UNKNOWN
from dovetail.targets.qnn_htp.emitted_nodes import emitted_nodes
from dovetail.targets.qnn_htp.estimate import read_estimate, read_traffic
from dovetail.targets.qnn_htp.expanded_blocks import ENCODINGS, block_options, extract_encodings
from dovetail.targets.qnn_htp.install import PACKAGE, why_ignored
from dovetail.targets.qnn_htp.log import compiled_for, failure, warnings
from dovetail.targets.qnn_htp.options import HtpOptions
from dovetail.targets.qnn_htp.qairt import DeviceFileKind, LoadExpectation, can_load, load_fix, made_by, parse_version
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs

GRAPH = "qnn_graph"
# The names of the context binary, and of the ONNX file that refers to it, start with this.
CONTEXT = "context"
_DLC = "dlc"
SESSION = "dovetail.targets.qnn_htp.session"
_COMPILER = "the HTP compiler"
# The files that a device loads, by suffix; the ONNX file next to a context binary only refers to it.
_KINDS = {".bin": DeviceFileKind.CONTEXT, ".dlc": DeviceFileKind.DLC}
# Suffix -> what loads such a file.
_LOAD = {
    ".bin": "ONNX Runtime's QNNExecutionProvider, by opening context.onnx, which refers to it (as "
    "device/device_session.py does)",
    ".dlc": "qnn-net-run --dlc_path model.dlc, or the QAIRT runtime",
}


def compile_model(options: HtpOptions, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Run the real compiler; keep its log, the dumped QNN graph and the context binary."""
    dump, profile = folder / GRAPH, folder / "profile.csv"
    _clear(folder)
    provider_options = {**options.provider, "dump_json_qnn_graph": "1", "json_qnn_graph_dir": dump.name}
    provider_options |= {"profiling_level": "detailed", "profiling_file_path": profile.name}
    model = artifacts[0].path
    blocks = block_options(model)
    provider_options |= blocks
    if blocks and (ignored := why_ignored(blocks, version(PACKAGE))):
        return CompileResult(error=ignored, finished=False)

    def failed(result: ChildResult) -> CompileResult:
        return failure(result, artifacts, emitted_nodes(model))

    call = ToolCall(
        f"{SESSION}:build_in_child",
        {"model": "model.onnx", "options": provider_options, "context": f"{CONTEXT}.onnx"},
        inputs=model_inputs(model),
        packages=(PACKAGE,),
        who=_COMPILER,
        limits=options.limits,
        is_final=lambda result: result.answer is not None or failed(result).finished,
    )
    result = call_tool(call, folder)
    if result.answer is None:
        rejected = failed(result)
        mismatch = _architecture_mismatch(options, result.log)
        if mismatch and rejected.finished:  # a node rejected for a different architecture may be fine on the named one
            error = f"{mismatch[0].message}; {mismatch[0].fix}; {rejected.error}"
            return replace(rejected, error=error, findings=(*mismatch, *rejected.findings))
        return rejected
    error = _write_encodings(options, model, dump) if blocks else ""
    files = [path for path in sorted(folder.glob(f"{CONTEXT}*")) if path.is_file()]
    contexts = [Artifact(p.stem, p, _builder(p), p.suffix in _KINDS, _LOAD.get(p.suffix, "")) for p in files]
    provider = f"{PACKAGE} {version(PACKAGE)}"
    graphs = [Artifact(GRAPH, path, provider) for path in sorted(dump.glob("*.json")) if "tensor_log" not in path.name]
    estimate, no_estimate = read_estimate(profile, result.log)
    traffic, no_traffic = read_traffic(result.log)
    return CompileResult(
        artifacts=(*artifacts, *contexts, *graphs),
        log=result.log,
        findings=(*warnings(result.log), *_architecture_mismatch(options, result.log)),
        notes=(f"the encodings of block-quantized weights could not be read: {error}",) if error else (),
        estimate=estimate,
        traffic=traffic,
        not_estimated="; ".join(filter(None, (no_estimate, no_traffic))),
    )


def _clear(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for name in (GRAPH, _DLC):
        shutil.rmtree(folder / name, ignore_errors=True)
    for old in (*folder.glob(f"{CONTEXT}*"), folder / "profile.csv"):
        old.unlink(missing_ok=True)


def package(options: HtpOptions, compiled: CompileResult, folder: Path) -> CompileResult:
    """Complete a build that ships: write the DLC if requested, and check whether the device can load the files."""
    findings, notes, artifacts = list[Finding](), list[str](), list(compiled.artifacts)
    if options.dlc:
        path, error = _write_dlc(options, compiled.artifacts[0].path, folder / _DLC)
        if error:
            findings.append(Finding(NO_DLC, _file(DeviceFileKind.DLC), f"no DLC was written: {error}", Severity.ERROR))
        else:
            artifacts.append(Artifact("dlc", path, _builder(path), shipped=True, load=_LOAD[path.suffix]))
    for artifact in artifacts:
        kind = _KINDS.get(artifact.path.suffix)
        if kind is not None:
            kind_findings, kind_notes = _check_device(options, kind, artifact)
            findings += kind_findings
            notes += kind_notes
    return replace(
        compiled,
        artifacts=tuple(artifacts),
        findings=(*compiled.findings, *findings),
        notes=(*compiled.notes, *notes),
    )


def _write_dlc(options: HtpOptions, model: Path, folder: Path) -> tuple[Path, str]:
    """Write the DLC of a model and return its path and an error; the serializer's file name is a number: rename it."""
    folder.mkdir()
    path = folder / "model.dlc"
    call = ToolCall(
        f"{SESSION}:write_dlc_in_child",
        {"model": "model.onnx", "options": {**options.provider, **block_options(model)}, "folder": "."},
        inputs=model_inputs(model),
        packages=(PACKAGE,),
        who="the DLC writer",
        limits=options.limits,
    )
    result = call_tool(call, folder)
    if result.answer is None:
        return path, result.error
    files = result.answer["files"]
    if len(files) != 1:
        return path, f"the DLC writer wrote {len(files)} files, expected one"
    (folder / files[0]).rename(path)
    return path, ""


def _write_encodings(options: HtpOptions, model: Path, dump: Path) -> str:
    """Write the encodings of expanded blocks beside the dumped graph, which lacks them; return an error."""
    folder = dump / _DLC
    path, error = _write_dlc(options, model, folder)
    if not error:
        extract_encodings(path, dump / ENCODINGS)
    shutil.rmtree(folder)
    return error


def _builder(path: Path) -> str:
    build = made_by(path)
    return f"QAIRT {build}" if build else ""


def _check_device(options: HtpOptions, kind: DeviceFileKind, artifact: Artifact) -> tuple[list[Finding], list[str]]:
    """Whether the device's runtime is expected to load a file: a note if it is, a finding if not."""
    if not artifact.made_by:
        message = f"the QAIRT version that wrote {artifact.path.name} could not be read from the file"
        return [Finding(QAIRT_VERSION_UNKNOWN, _file(kind), message, Severity.WARNING)], []
    if options.device_qairt is None:
        return [], []
    build = artifact.made_by.removeprefix("QAIRT ")
    expected, source = can_load(kind, parse_version(build), options.device_qairt)
    device = ".".join(map(str, options.device_qairt))
    message = f"{artifact.path.name} was written by QAIRT {build} and is {expected} on QAIRT {device}: {source}"
    if expected is LoadExpectation.YES:
        return [], [message]
    severity = Severity.ERROR if expected is LoadExpectation.NO else Severity.WARNING
    return [Finding(NOT_FOR_DEVICE, _file(kind), message, severity, fix=load_fix(options.device_qairt))], []


def _architecture_mismatch(options: HtpOptions, log: str) -> list[Finding]:
    """A finding if the compiler maps an unlisted SoC number to a different architecture than the target's name."""
    chip, architecture = options.chip, compiled_for(log)
    if architecture in (None, chip.architecture):
        return []
    message = f"the compiler compiled for HTP v{architecture}, the architecture to which it maps soc {chip.soc}"
    place = Place(PlaceKind.TARGET, name=chip.name)
    fix = f"use the target qnn-htp:soc{chip.soc}/v{architecture}"
    return [Finding(OTHER_ARCHITECTURE, place, message, Severity.WARNING, fix=fix)]


def _file(kind: DeviceFileKind) -> Place:
    return Place(PlaceKind.FILE, name=str(kind))
