"""aimet-onnx, in an environment of its own, loads the encodings that Dovetail writes (2.0.0) and simulates them.

``python -m bench.encodings_aimet``: the sample files, converted, and what ``fit --target qairt`` wrote. Its outputs
are compared with Dovetail's simulation of the same encodings, first as it is, then with each known difference removed:
aimet-onnx quantizes the outputs of the graph that have an entry, rounds ties up where ONNX rounds them to even, and
leaves biases without an entry in float. The last column is what the order of float32 sums alone changes: that
simulation in ONNX Runtime against NumPy. The environment is that of ``bench.peers``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import dovetail
from bench.aimet_arithmetic import Outputs, biases_in_float, ties_up, with_output_entries
from bench.child import ROOT, ChildFailed, run_child
from bench.peers import PEERS, not_checked, python_of
from dovetail import zoo
from dovetail.encoding import Array
from dovetail.encodings.convert import convert
from dovetail.encodings.read import read_encodings
from dovetail.encodings.records import TensorEncoding
from dovetail.encodings.shapes import read_model_tensors

SAMPLES = ROOT / "tests" / "encodings" / "samples"
CONVERTED = ("w8a16_0.6.1", "w8a16_1.0.0", "w8a16_1.0.0_int32bias", "w4a16_pc_1.0.0")
VERSION = "2.0.0"
TARGET = "qairt:2.41/soc52"  # an SDK that reads 2.0.0
COUNT = 8
BIAS_BITS = 32


def main() -> None:
    aimet = next(peer for peer in PEERS if peer.name == "aimet")
    python = python_of(aimet)
    if python is None:
        print(not_checked(aimet))
        return
    header = ("as it is", "outputs", "ties", "biases", "sums")
    print(f"{'':38}{'entries':>8}{''.join(f'{text:>16}' for text in header)}   dB, and how many values differ")
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        for label, model, encodings, simulation, inputs in _cases(Path(name)):
            request = {"model": str(model), "encodings": str(encodings), "inputs": str(inputs)}
            try:
                answer = run_child("bench.encodings_aimet_child", {**request, "outputs": f"{inputs}.out.npz"}, python)
            except ChildFailed as error:
                print(f"{label:34}failed: {error}")
                continue
            outputs, entries = Path(f"{inputs}.out.npz"), read_encodings(encodings).entries
            cells = list(_compared(model, simulation, inputs, outputs, entries))
            print(f"{label:38}{len(entries):>8}{''.join(f'{c:>16}' for c in cells)}   {answer['version']}", flush=True)


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


def _compared(
    model: Path, simulation: Path, inputs: Path, outputs: Path, entries: Mapping[str, TensorEncoding]
) -> Iterator[str]:
    """The outputs of aimet-onnx against those of Dovetail's simulation, with ever fewer known differences."""
    theirs = _loaded(outputs)
    onnx_model = onnx.load(simulation)
    given = {name for name, entry in entries.items() if entry.bits == BIAS_BITS}
    half_up = ties_up(onnx_model)
    as_aimet = ties_up(onnx_model, biases_in_float(onnx_model, onnx.load(model), given))
    plain = _run(onnx_model, inputs)
    yield _cell(plain, theirs)
    yield _cell(with_output_entries(plain, entries), theirs)
    yield _cell(with_output_entries(_run(half_up, inputs), entries), theirs)
    last = with_output_entries(_run(as_aimet, inputs), entries)
    yield _cell(last, theirs)
    yield _cell(with_output_entries(_run_in_numpy(as_aimet, inputs), entries), last)


def _loaded(path: Path) -> Outputs:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _run(model: onnx.ModelProto, inputs: Path) -> Outputs:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # constants that the changes leave unused
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return _each(lambda sample: session.run(None, sample), model, inputs)


def _run_in_numpy(model: onnx.ModelProto, inputs: Path) -> Outputs:
    evaluator = ReferenceEvaluator(model)
    return _each(lambda sample: evaluator.run(None, sample), model, inputs)


def _each(run: Callable[[Outputs], Sequence[Array]], model: onnx.ModelProto, inputs: Path) -> Outputs:
    """The outputs of every sample, as the child names them."""
    names = [output.name for output in model.graph.output]
    with np.load(inputs) as samples:
        name = samples.files[0]
        arrays = [run({name: samples[name][number : number + 1]}) for number in range(len(samples[name]))]
    return {f"{n}:{number}": a for number, found in enumerate(arrays) for n, a in zip(names, found, strict=True)}


def _cell(ours: Outputs, theirs: Outputs) -> str:
    """SQNR in dB, and how many of all values differ."""
    signal = sum(float(np.sum(np.square(theirs[name], dtype=np.float64))) for name in ours)
    noise = sum(float(np.sum(np.square(ours[n].astype(np.float64) - theirs[n]))) for n in ours)
    count = sum(int(np.sum(ours[name] != theirs[name])) for name in ours)
    text = f"{10 * np.log10(signal / noise):.1f}" if noise else "equal"
    return f"{text}, {count}/{sum(array.size for array in ours.values())}"


if __name__ == "__main__":
    main()
