"""Writing the device folder: what a device runs, the samples, and the outputs of simulation and float graph."""

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
from dovetail.qdq.quantized_io import quantized_sample
from dovetail.qdq.simulation import load_simulation
from dovetail.stats import DataInfo
from dovetail.storage import Plan
from dovetail.verify.run import SessionRun
from dovetail.verify.verify import BuildInputs, keeps_float
from dovetail.versions import core_versions

FOLDER = "device"
# Where the scripts in the folder write the outputs.
OUTPUTS = "outputs"
SCRIPT = "run_on_device.py"
SIMULATION, FLOAT = "expected/simulation", "expected/float"
# Raw images are large, and eight of them show whether a device computes what was simulated.
MOST_SAMPLES = 8


def write_device_folder(
    run: Path, built: BuildInputs, backend: Backend, data: Data, thresholds: Thresholds
) -> Verdict | None:
    """Write ``device/`` if the target supports it, and return the verdict that says how to run it.

    Outputs of a device that are already in the folder are kept.
    """
    if backend.device is None:
        return None
    folder, conditions = run / FOLDER, passes_when("device", thresholds)
    clear_device_folder(run)
    if built.compiled.error:
        return Verdict(Status.NOT_CHECKED, f"nothing was compiled: {built.compiled.error}", conditions)
    shipped = next(a.path for a in built.compiled.artifacts if a.name == MODEL)
    graph = ir.load(shipped).graph
    dynamic = [value.name for value in (*graph.inputs, *graph.outputs) if shape_of(value) is None]
    if dynamic:
        reason = f"{dynamic[0]!r} has no static shape, so raw files for a device cannot be written"
        return Verdict(Status.NOT_CHECKED, reason, conditions)
    reference = built.original if built.tail is None else built.model
    with tempfile.TemporaryDirectory(prefix="dovetail-") as work:
        runs = {
            FLOAT: SessionRun(reference, Mode.FLOAT, Path(work)),
            SIMULATION: SessionRun(load_simulation(shipped), Mode.EXACT, Path(work)),
        }
        case, info = _write_samples(folder, graph, runs, data, built)
    device_files = backend.device.files(built.compiled, case)
    _write_files(folder, device_files)
    manifest = Manifest(
        target=built.plan.target,
        precision=built.plan.precision,
        model_sha256=file_sha256(shipped),
        run=device_files.models[0].name,
        models={path.name: file_sha256(path) for path in device_files.models},
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
    how = f"run `python {SCRIPT}` in {FOLDER}/ on the device, then `dovetail verify {run.name} --device-outputs DIR`"
    return Verdict(Status.NOT_CHECKED, f"not run on a device yet: {how}", conditions)


def clear_device_folder(run: Path) -> None:
    """Remove what an earlier run wrote, the manifest first: without it the folder is not used."""
    folder = run / FOLDER
    (folder / MANIFEST).unlink(missing_ok=True)
    for old in (*folder.glob("input_[0-9]*"), folder / "expected"):
        shutil.rmtree(old, ignore_errors=True)


def _tensors(values: Sequence[ir.Value], plan: Plan) -> tuple[DeviceTensor, ...]:
    """Describe inputs or outputs of the shipped graph, with scale and zero point if they are quantized."""
    files = file_names(value.name or "" for value in values)
    tensors = []
    for value in values:
        name, dtype = value.name or "", value.dtype or ir.DataType.FLOAT
        choice = plan.tensors.get(name)
        storage = None if choice is None or not plan.quantized_io else choice.storage
        qparams = (float(storage.scale), int(storage.zero_point)) if isinstance(storage, QParams) else (None, None)
        tensors.append(DeviceTensor(name, files[name], shape_of(value) or (), dtype.numpy().name, *qparams))
    return tuple(tensors)


def _write_samples(
    folder: Path, graph: ir.Graph, runs: Mapping[str, SessionRun], data: Data, built: BuildInputs
) -> tuple[DeviceCase, DataInfo]:
    """Write the inputs as raw files in the dtype of the shipped graph, and the expected outputs."""
    inputs, outputs = _tensors(graph.inputs, built.plan), _tensors(graph.outputs, built.plan)
    input_files: list[dict[str, str]] = []
    first = Data(data.source, lambda: itertools.islice(data.samples(), MOST_SAMPLES), None, data.random)
    used = describe(first, built.model)
    for number, sample in enumerate(used.samples()):
        stored = quantized_sample(sample, built.plan)
        input_files.append({})
        for tensor in inputs:
            path = folder / f"input_{number:03d}" / f"{tensor.file}.raw"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_little_endian(stored, tensor))
            input_files[-1][tensor.name] = path.relative_to(folder).as_posix()
        for name, run in runs.items():
            (expected,) = run([stored if name == SIMULATION else sample])
            expected_folder = folder / name / sample_folder(number)
            expected_folder.mkdir(parents=True, exist_ok=True)
            for tensor in outputs:
                np.save(expected_folder / f"{tensor.file}.npy", expected[tensor.name], allow_pickle=False)
    return DeviceCase(inputs, outputs, tuple(input_files)), used.info()


def _little_endian(stored: Sample, tensor: DeviceTensor) -> bytes:
    array = np.asarray(stored[tensor.name])
    return array.astype(np.dtype(tensor.dtype).newbyteorder("<"), casting="same_kind").tobytes()


def _write_files(folder: Path, device_files: DeviceFiles) -> None:
    """Write the target's own files, and the script that is the same for all targets."""
    for path in device_files.models:
        shutil.copyfile(path, folder / path.name)
    texts = {SCRIPT: Path(run_on_device.__file__).read_text(), **device_files.texts}
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
