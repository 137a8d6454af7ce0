"""aimet-onnx, in an environment of its own, loads the encodings that Dovetail writes (2.0.0) and simulates them.

``python -m bench.encodings_aimet``: the sample files, converted, and what ``fit --target qairt`` wrote. Its outputs
are compared with Dovetail's simulation of the same encodings. The environment is that of ``bench.peers``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dovetail
from bench.child import ROOT, ChildFailed, run_child
from bench.peers import PEERS, not_checked, python_of
from dovetail import zoo
from dovetail.encodings.convert import convert
from dovetail.encodings.read import read_encodings
from dovetail.encodings.shapes import read_model_tensors
from dovetail.model.session import Mode, open_session, run_session

SAMPLES = ROOT / "tests" / "encodings" / "samples"
CONVERTED = ("w8a16_0.6.1", "w8a16_1.0.0", "w8a16_1.0.0_int32bias", "w4a16_pc_1.0.0")
VERSION = "2.0.0"
TARGET = "qairt:2.41/soc52"  # an SDK that reads 2.0.0
COUNT = 8


def main() -> None:
    aimet = next(peer for peer in PEERS if peer.name == "aimet")
    python = python_of(aimet)
    if python is None:
        print(not_checked(aimet))
        return
    print(f"{'':34}{'entries':>8}{'dB':>9}{'largest':>12}   aimet-onnx against Dovetail's simulation")
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        for label, model, encodings, simulation, inputs in _cases(Path(name)):
            request = {"model": str(model), "encodings": str(encodings), "inputs": str(inputs)}
            try:
                answer = run_child("bench.encodings_aimet_child", {**request, "outputs": f"{inputs}.out.npz"}, python)
            except ChildFailed as error:
                print(f"{label:34}failed: {error}")
                continue
            count = len(read_encodings(encodings).entries)
            db, largest = _compared(simulation, inputs, Path(f"{inputs}.out.npz"))
            print(f"{label:34}{count:>8}{db:>9.1f}{largest:>12.2g}   {answer['version']}", flush=True)


def _cases(folder: Path) -> Iterator[tuple[str, Path, Path, Path, Path]]:
    """(label, float model, encodings of version 2.0.0, Dovetail's simulation, inputs)."""
    tiny = SAMPLES / "tiny.onnx"
    noise = np.random.default_rng(0).standard_normal((COUNT, 4, 3, 3)).astype(np.float32)
    inputs = folder / "tiny.npz"
    np.savez(inputs, x=noise)
    for name in CONVERTED:
        path = folder / f"{name}.json"
        tensors = read_model_tensors(tiny, {})
        path.write_bytes(convert(read_encodings(SAMPLES / f"{name}.json"), VERSION, tensors, lossy=True).content)
        run = folder / name
        dovetail.fit(tiny, target="ort-cpu", encodings=path, output=run, calibration=inputs)
        yield f"sample {name} -> {VERSION}", tiny, path, run / "model.onnx", inputs
    entry = zoo.load("vit_digits")
    images = entry.calib()[entry.input_name][:COUNT]
    inputs = folder / "digits.npz"
    np.savez(inputs, **{entry.input_name: images})
    run = folder / "digits"
    dovetail.fit(entry.model_path, target=TARGET, precision="w8a16", calibration=inputs, output=run)
    written = run / "qairt" / "fallback"
    yield "vit_digits, fit w8a16", written / "model.onnx", written / "encodings.json", run / "model.onnx", inputs


def _compared(simulation: Path, inputs: Path, outputs: Path) -> tuple[float, float]:
    """SQNR in dB and the largest difference of aimet-onnx's outputs against those of Dovetail's simulation."""
    session = open_session(simulation, Mode.EXACT)
    signal = noise = largest = 0.0
    with np.load(inputs) as samples, np.load(outputs) as others:
        name = samples.files[0]
        for number in range(len(samples[name])):
            for output, array in run_session(session, {name: samples[name][number : number + 1]}).items():
                error = array.astype(np.float64) - others[f"{output}:{number}"]
                signal += float(np.sum(np.square(array, dtype=np.float64)))
                noise += float(np.sum(np.square(error)))
                largest = max(largest, float(np.max(np.abs(error))))
    return (200.0 if noise == 0 else 10 * float(np.log10(signal / noise))), largest


if __name__ == "__main__":
    main()
