"""The device folder: what a device runs, on which samples, and what the simulation and the float graph say to them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Backend, DeviceCase, DeviceFiles, DeviceTensor, Sample
from dovetail.calibrate.data import Data, describe
from dovetail.device import run_on_device
from dovetail.device.manifest import MANIFEST, Manifest, file_names, sample_folder
from dovetail.encoding import QParams
from dovetail.files import file_sha256
from dovetail.finding import Status, Thresholds, Verdict, passes_when
from dovetail.model.class_scores import class_outputs
from dovetail.model.edit import shape_of
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.model.write import write_whole
from dovetail.qdq.boundary import stored_sample
from dovetail.qdq.simulation import load_simulation
from dovetail.stats import DataInfo
from dovetail.storage import Plan
from dovetail.verify.run import SessionRun
from dovetail.verify.verify import BuildInputs, keeps_float
from dovetail.versions import core_versions

FOLDER = "device"
# Where the scripts in it leave what was computed.
OUTPUTS = "outputs"
SCRIPT = "run_on_device.py"
SIMULATION, FLOAT = "expected/simulation", "expected/float"
# Raw pictures are large, and eight of them show whether a device computes what was simulated.
MOST_SAMPLES = 8


def leave_device_folder(
    run: Path, built: BuildInputs, backend: Backend, data: Data, thresholds: Thresholds
) -> Verdict | None:
    """Write ``device/`` for a target that has a device side, and say how its verdict is filled.

    What a device gave back to an earlier run is left where it is.
    """
    if backend.device is None:
        return None
    folder, conditions = run / FOLDER, passes_when("device", thresholds)
    _clear(folder)
    if built.compiled.error:
        return Verdict(Status.NOT_CHECKED, f"nothing was compiled: {built.compiled.error}", conditions)
    shipped = next(a.path for a in built.compiled.artifacts if a.name == MODEL)
    graph = ir.load(shipped).graph
    loose = [value.name for value in (*graph.inputs, *graph.outputs) if shape_of(value) is None]
    if loose:
        reason = f"{loose[0]!r} has no static shape, so a device cannot be given raw files"
        return Verdict(Status.NOT_CHECKED, reason, conditions)
    reference = built.original if built.tail is None else built.model
    with tempfile.TemporaryDirectory(prefix="dovetail-") as work:
        streams = {
            FLOAT: SessionRun(reference, Mode.FLOAT, Path(work)),
            SIMULATION: SessionRun(load_simulation(shipped), Mode.EXACT, Path(work)),
        }
        case, info = _write_samples(folder, graph, streams, data, built)
    side = backend.device.files(built.compiled, case)
    _write_side(folder, side)
    manifest = Manifest(
        target=built.plan.target,
        precision=built.plan.precision,
        model_sha256=file_sha256(shipped),
        run=side.models[0].name,
        models={path.name: file_sha256(path) for path in side.models},
        samples=len(case.samples),
        data=info,
        inputs=case.inputs,
        outputs=case.outputs,
        ranked=ranked_outputs(built.model.graph),
        classes=tuple(sorted(class_outputs(built.model.graph))),
        float_db=backend.float16_db if keeps_float(built.plan) else None,
        versions={**core_versions(), **built.probe.versions},
    )
    write_whole(folder / MANIFEST, manifest.to_json())
    how = f"python {SCRIPT} in {FOLDER}/ on the device, then dovetail verify {run.name} --device-outputs DIR"
    return Verdict(Status.NOT_CHECKED, f"no device has run it yet: {how}", conditions)


def _clear(folder: Path) -> None:
    """Take away what an earlier run left, the manifest first: without it nothing else counts."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for old in (*folder.glob("input_[0-9]*"), folder / "expected"):
        shutil.rmtree(old, ignore_errors=True)


def _tensors(values: Sequence[ir.Value], plan: Plan) -> tuple[DeviceTensor, ...]:
    """Inputs or outputs of the shipped graph, with their numbers where the plan has them stored in integers."""
    files = file_names(value.name or "" for value in values)
    found = []
    for value in values:
        name, dtype = value.name or "", value.dtype or ir.DataType.FLOAT
        choice = plan.tensors.get(name)
        storage = None if choice is None or not plan.quantized_io else choice.storage
        numbers = (float(storage.scale), int(storage.zero_point)) if isinstance(storage, QParams) else (None, None)
        found.append(DeviceTensor(name, files[name], shape_of(value) or (), dtype.numpy().name, *numbers))
    return tuple(found)


def _write_samples(
    folder: Path, graph: ir.Graph, streams: Mapping[str, SessionRun], data: Data, built: BuildInputs
) -> tuple[DeviceCase, DataInfo]:
    """Inputs as raw files in the dtype of the shipped graph, and beside them what is expected."""
    inputs, outputs = _tensors(graph.inputs, built.plan), _tensors(graph.outputs, built.plan)
    listed: list[dict[str, str]] = []
    first = Data(data.source, lambda: itertools.islice(data.samples(), MOST_SAMPLES), None, data.random)
    used = describe(first, built.model)
    for number, sample in enumerate(used.samples()):
        stored = stored_sample(sample, built.plan)
        listed.append({})
        for tensor in inputs:
            path = folder / f"input_{number:03d}" / f"{tensor.file}.raw"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_little_endian(stored, tensor))
            listed[-1][tensor.name] = path.relative_to(folder).as_posix()
        for place, stream in streams.items():
            (expected,) = stream([stored if place == SIMULATION else sample])
            where = folder / place / sample_folder(number)
            where.mkdir(parents=True, exist_ok=True)
            for tensor in outputs:
                np.save(where / f"{tensor.file}.npy", expected[tensor.name], allow_pickle=False)
    return DeviceCase(inputs, outputs, tuple(listed)), used.info()


def _little_endian(stored: Sample, tensor: DeviceTensor) -> bytes:
    array = np.asarray(stored[tensor.name])
    return array.astype(np.dtype(tensor.dtype).newbyteorder("<"), casting="same_kind").tobytes()


def _write_side(folder: Path, side: DeviceFiles) -> None:
    """The target's own part, and the script that is the same for all."""
    for path in side.models:
        shutil.copyfile(path, folder / path.name)
    texts = {SCRIPT: Path(run_on_device.__file__).read_text(), **side.texts}
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
