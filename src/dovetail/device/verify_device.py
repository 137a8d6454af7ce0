"""Filling the verdict ``device`` of a run from what a device gave back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from dovetail.backend import MODEL
from dovetail.device.manifest import MANIFEST, Manifest, read_manifest
from dovetail.device.pack import FLOAT, FOLDER, SIMULATION
from dovetail.device.read_outputs import Found, find_outputs, read_outputs
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.model.write import write_whole
from dovetail.plan.rows import read_plan
from dovetail.report.assemble import columns
from dovetail.report.result import Metrics, Result, load_result
from dovetail.stage_files import load_compiled
from dovetail.targets import open_target
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs, side_by_side

RESULT = "result.json"
RECORD = "ran.json"
# How the notes of a result begin that speak of what ran on the device.
_ON_DEVICE = "on the device:"


@dataclass(frozen=True, slots=True)
class DeviceRunRecord:
    """The record that our script leaves beside the outputs; another tool leaves none."""

    manifest_sha256: str
    model: str = ""
    machine: str = "an unnamed machine"
    emulated: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


def verify_device(run: Path, device_outputs: Path) -> Result:
    """Compare what a device computed with simulation and float, and write the result again, whole."""
    result = load_result(run / RESULT)
    manifest = _manifest(run, result)
    found = find_outputs(device_outputs, manifest)
    ran = _record(run, device_outputs)
    ways = {"device": found, "float": _expected(run, FLOAT, manifest)}
    ways["simulation"] = _expected(run, SIMULATION, manifest)

    def compare(one: str, other: str) -> Agreement:
        reference, found = (read_outputs(ways[way], manifest) for way in (one, other))
        return compare_runs(reference, found, manifest.ranked, manifest.classes)

    vs_float, vs_simulation = compare("float", "device"), compare("simulation", "device")
    simulation = compare("float", "simulation")
    simulated, found_db = side_by_side(simulation, vs_float)
    if manifest.float_db is not None:
        simulated = {name: min(value, manifest.float_db) for name, value in simulated.items()}
    evidence = f"{manifest.samples} samples in {device_outputs.name}, {_described(ran)}"
    verdict = _verdict(simulated, found_db, result.thresholds, evidence)
    verdict = verdicts.with_integers(verdict, simulation, vs_float)
    verdict = verdicts.with_selections(verdict, simulation, vs_float)
    metrics = _with_device(result.metrics, vs_float, vs_simulation)
    if ran is not None and ran.emulated:
        verdict, metrics = _of_emulator(verdict), _with_device(result.metrics, None, None)
    filled = replace(result, verdicts={**result.verdicts, "device": verdict}, metrics=metrics)
    filled = _with_files(filled, run, device_outputs)
    write_whole(run / RESULT, filled.to_json())
    return filled


def _with_files(result: Result, run: Path, outputs: Path) -> Result:
    """The result with what the vendor's tool left beside the outputs, where the target reads such files."""
    backend = open_target(result.target, result.option).backend
    if backend.device is None or backend.device.read is None:
        return result
    compiled, plan = load_compiled(run), read_plan(run / "plan.json")
    said = backend.device.read(outputs, compiled, plan)
    metrics = replace(result.metrics, latency_device=said.latency, not_measured=said.not_measured)
    notes = tuple(note for note in result.notes if not note.startswith(_ON_DEVICE))
    result = replace(result, metrics=metrics, notes=(*notes, *(f"{_ON_DEVICE} {note}" for note in said.notes)))
    # An earlier call may have read another file: what was built is read again, not what that call left.
    usable = result.verdicts["compiled"].status is Status.PASS
    built = backend.read_back(compiled, plan) if usable else None
    why_not = "" if usable else f"nothing was compiled: {result.verdicts['compiled'].reason}"
    of_device = said.read_back is not None and not said.read_back.unparsed
    shown, found = (said.read_back, said.findings) if of_device else (built, compiled.findings)
    others = (one for one in result.findings if one.code not in said.codes)
    fidelity = verdicts.fidelity(said.read_back or built, result.thresholds, why_not)
    return replace(
        result,
        verdicts={**result.verdicts, "fidelity": fidelity},
        read_back=() if shown is None else shown.tensors,
        findings=(*others, *(one for one in found if one.code in said.codes)),
    )


def _verdict(
    simulation: Mapping[str, float], device: Mapping[str, float], thresholds: Thresholds, evidence: str
) -> Verdict:
    """What ``numerics`` asks of the target, asked of the device; both in dB against float, per output."""
    judged = verdicts.numerics(simulation, device, thresholds)
    broken = [name for name, value in device.items() if math.isnan(value) and not math.isnan(simulation[name])]
    reason = judged.reason
    if broken:
        reason = f"the device's output {broken[0]!r} holds NaN, the simulation's does not"
    elif judged.numbers:
        worst = max(judged.numbers, key=judged.numbers.__getitem__)
        said = f"{worst!r}: device {device[worst]:.1f} dB, simulation {simulation[worst]:.1f} dB against float"
        passed = judged.status is Status.PASS
        reason = f"the device runs as simulated; {said}" if passed else f"device and simulation part; {said}"
    return Verdict(judged.status, reason, passes_when("device", thresholds), evidence, judged.numbers)


def _of_emulator(verdict: Verdict) -> Verdict:
    """An emulator can show that a graph is broken, never that a device runs it."""
    if verdict.status is not Status.PASS:
        return verdict
    reason = f"the outputs come from an emulator, not from a device: {verdict.reason}"
    return replace(verdict, status=Status.NOT_CHECKED, reason=reason)


def _manifest(run: Path, result: Result) -> Manifest:
    """The manifest of the run's device folder, if it speaks of the model that the result speaks of."""
    path = run / FOLDER / MANIFEST
    if not path.is_file():
        raise InputError(f"{run}: has no {FOLDER}/{MANIFEST}, so there is nothing to compare outputs of a device with")
    manifest = read_manifest(path)
    shipped = next((a.sha256 for a in result.artifacts if a.name == MODEL), "")
    if manifest.model_sha256 != shipped:
        raise InputError(f"{path}: speaks of another model than {RESULT} ({manifest.model_sha256[:12]})")
    return manifest


def _expected(run: Path, place: str, manifest: Manifest) -> list[Found]:
    return find_outputs(run / FOLDER / place, manifest)


def _record(run: Path, outputs: Path) -> DeviceRunRecord | None:
    """What is known of where the outputs come from; those of another device folder are refused."""
    path = outputs / RECORD
    if not path.exists():
        return None
    try:
        ran = msgspec.json.decode(path.read_bytes(), type=DeviceRunRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not the record of a run on a device ({error})") from error
    if ran.manifest_sha256 != file_sha256(run / FOLDER / MANIFEST):
        raise InputError(f"{outputs}: comes from another model or other samples than those of {run / FOLDER}")
    return ran


def _described(ran: DeviceRunRecord | None) -> str:
    if ran is None:
        return "without a record of what ran them"
    tools = ", ".join(f"{name} {version}" for name, version in ran.versions.items())
    return f"{ran.model} on {ran.machine} with {tools}"


def _with_device(metrics: Metrics, vs_float: Agreement | None, vs_simulation: Agreement | None) -> Metrics:
    one, other = columns(vs_float), columns(vs_simulation)
    changed = {
        name: replace(getattr(metrics, name), device_vs_float=one[name], device_vs_simulation=other[name])
        for name in one
    }
    return replace(metrics, **changed)
