"""Set the verdict ``device`` of a run from the outputs that a device wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dovetail.backend import MODEL
from dovetail.device.device_accuracy import ON_DEVICE, with_accuracy, with_device_findings
from dovetail.device.manifest import MANIFEST, Manifest, read_manifest
from dovetail.device.pack import FLOAT, FOLDER, SIMULATION
from dovetail.device.read_outputs import OutputFiles, find_outputs, read_outputs
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.model.write import write_whole
from dovetail.plan.rows import read_plan
from dovetail.report.assemble import columns
from dovetail.report.result import Metrics, Result, load_result
from dovetail.run_lock import run_lock
from dovetail.rundir import PAGE, RESULT
from dovetail.stage_files import load_compiled
from dovetail.targets import open_target
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs, side_by_side

RECORD = "ran.json"


@dataclass(frozen=True, slots=True)
class DeviceRunRecord:
    """The record that ``run_on_device.py`` writes next to the outputs; other tools write none."""

    manifest_sha256: str
    model: str = ""
    machine: str = "an unnamed machine"
    emulated: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


def verify_device(run: Path, device_outputs: Path) -> Result:
    """Compare the outputs of a device with simulation and float, and rewrite the result."""
    load_result(run / RESULT)  # before the lock, which requires a folder
    with run_lock(run.resolve()):
        return _verify_device(run, device_outputs)


def _verify_device(run: Path, device_outputs: Path) -> Result:
    result = load_result(run / RESULT)
    manifest = _manifest(run, result)
    files = {"device": find_outputs(device_outputs, manifest)}
    record = _record(run, device_outputs)
    files |= {"float": _expected(run, FLOAT, manifest), "simulation": _expected(run, SIMULATION, manifest)}

    def compare(reference: str, outputs: str) -> Agreement:
        expected, measured = (read_outputs(files[name], manifest) for name in (reference, outputs))
        return compare_runs(expected, measured, manifest.ranked, manifest.classes)

    vs_float, vs_simulation = compare("float", "device"), compare("simulation", "device")
    simulation = compare("float", "simulation")
    simulation_db, device_db = side_by_side(simulation, vs_float)
    if manifest.float_db is not None:
        simulation_db = {name: min(value, manifest.float_db) for name, value in simulation_db.items()}
    evidence = f"{manifest.samples} samples in {device_outputs.name}, {_description(record)}"
    verdict = _verdict(simulation_db, device_db, result.thresholds, evidence)
    verdict = verdicts.with_integers(verdict, simulation, vs_float)
    verdict = verdicts.with_selections(verdict, simulation, vs_float)
    judged = None if manifest.data.random else vs_float
    if judged is not None:
        verdict = with_accuracy(verdict, judged, result.thresholds)
    metrics = _with_device(result.metrics, vs_float, vs_simulation, simulation)
    if record is not None and record.emulated:
        verdict, metrics, judged = _for_emulator(verdict), _with_device(result.metrics, None, None, None), None
    findings = with_device_findings(result.findings, judged, result.thresholds)
    verified = replace(result, verdicts={**result.verdicts, "device": verdict}, metrics=metrics, findings=findings)
    verified = _with_tool_files(verified, run, device_outputs)
    write_whole(run / RESULT, verified.to_json())
    (run / PAGE).unlink(missing_ok=True)  # it is about the result before
    return verified


def _with_tool_files(result: Result, run: Path, outputs: Path) -> Result:
    """Add to the result what the vendor's tool wrote next to the outputs, if the target reads such files."""
    backend = open_target(result.target, result.option).backend
    if backend.device is None or backend.device.read is None:
        return result
    compiled, plan = load_compiled(run), read_plan(run / "plan.json")
    report = backend.device.read(outputs, compiled, plan)
    metrics = replace(result.metrics, latency_device=report.latency, not_measured=report.not_measured)
    notes = tuple(note for note in result.notes if not note.startswith(ON_DEVICE))
    result = replace(result, metrics=metrics, notes=(*notes, *(f"{ON_DEVICE} {note}" for note in report.notes)))
    # result.json may contain values from an earlier verify of other outputs, so read the build back again.
    usable = result.verdicts["compiled"].status is Status.PASS
    built = backend.read_back(compiled, plan) if usable else None
    why_not = "" if usable else f"nothing was compiled: {result.verdicts['compiled'].reason}"
    from_device = report.read_back is not None and not report.read_back.unparsed
    read_back, findings = (report.read_back, report.findings) if from_device else (built, compiled.findings)
    kept = (finding for finding in result.findings if finding.code not in report.codes)
    fidelity = verdicts.fidelity(report.read_back or built, result.thresholds, why_not)
    return replace(
        result,
        verdicts={**result.verdicts, "fidelity": fidelity},
        read_back=() if read_back is None else read_back.tensors,
        findings=(*kept, *(finding for finding in findings if finding.code in report.codes)),
    )


def _verdict(
    simulation: Mapping[str, float], device: Mapping[str, float], thresholds: Thresholds, evidence: str
) -> Verdict:
    """Apply the conditions of ``numerics`` to the device; figures in dB against float, per output."""
    numerics = verdicts.numerics(simulation, device, thresholds)
    broken = [name for name, value in device.items() if math.isnan(value) and not math.isnan(simulation[name])]
    reason = numerics.reason
    if broken:
        reason = f"the device's output {broken[0]!r} contains NaN, the simulation's does not"
    elif numerics.numbers:
        worst = max(numerics.numbers, key=numerics.numbers.__getitem__)
        figures = f"{worst!r}: device {device[worst]:.1f} dB, simulation {simulation[worst]:.1f} dB against float"
        outcome = "device and simulation agree" if numerics.status is Status.PASS else "device and simulation disagree"
        reason = f"{outcome}; {figures}"
    return Verdict(numerics.status, reason, passes_when("device", thresholds), evidence, numerics.numbers)


def _for_emulator(verdict: Verdict) -> Verdict:
    """Return the verdict for outputs of an emulator: they can make it fail, but never pass."""
    if verdict.status is not Status.PASS:
        return verdict
    reason = f"the outputs come from an emulator, not from a device: {verdict.reason}"
    return replace(verdict, status=Status.NOT_CHECKED, reason=reason)


def _manifest(run: Path, result: Result) -> Manifest:
    """Read the manifest of the run's device folder; one of another model is refused."""
    path = run / FOLDER / MANIFEST
    if not path.is_file():
        why = "the target has no device folder, or nothing was compiled"
        raise InputError(f"{run} has no {FOLDER}/{MANIFEST} to compare device outputs with: {why}")
    manifest = read_manifest(path)
    shipped = next((a.sha256 for a in result.artifacts if a.name == MODEL), "")
    if manifest.model_sha256 != shipped:
        raise InputError(
            f"{path} is for another model: its model_sha256 is {manifest.model_sha256[:12]}, but the {MODEL} of "
            f"{RESULT} has {shipped[:12] or 'no hash'}; run `dovetail fit` again, which writes both"
        )
    return manifest


def _expected(run: Path, folder: str, manifest: Manifest) -> list[OutputFiles]:
    return find_outputs(run / FOLDER / folder, manifest)


def _record(run: Path, outputs: Path) -> DeviceRunRecord | None:
    """Read the record of what ran, if there is one; outputs of another device folder are refused."""
    path = outputs / RECORD
    if not path.exists():
        return None
    try:
        record = msgspec.json.decode(path.read_bytes(), type=DeviceRunRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not the record that run_on_device.py writes ({error})") from error
    if record.manifest_sha256 != file_sha256(run / FOLDER / MANIFEST):
        raise InputError(
            f"{outputs} has the outputs of another model or other samples: the manifest_sha256 in its {RECORD} is not "
            f"the hash of {run / FOLDER / MANIFEST}; copy {run / FOLDER} to the device and run it again"
        )
    return record


def _description(record: DeviceRunRecord | None) -> str:
    if record is None:
        return f"no {RECORD}: model, device and tool versions unknown"
    tools = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f"{record.model} on {record.machine} with {tools}"


def _with_device(
    metrics: Metrics, vs_float: Agreement | None, vs_simulation: Agreement | None, simulation: Agreement | None
) -> Metrics:
    float_columns, simulation_columns, same_samples = columns(vs_float), columns(vs_simulation), columns(simulation)
    changed = {
        name: replace(
            getattr(metrics, name),
            device_vs_float=float_columns[name],
            device_vs_simulation=simulation_columns[name],
            simulation_where_device_ran=same_samples[name],
        )
        for name in float_columns
    }
    return replace(metrics, **changed, device_samples=None if vs_float is None else vs_float.samples)
