"""Sentinels, logits of boxes and image sizes in a detector's decoder: what they cost, and what is left after repair.

    python -m bench.ranges                      # w8a16 on qnn-htp:sm8550, 2 minutes
    python -m bench.ranges --precision w8a8 --target ort-cpu

The decoder is that of ``tests/networks/masked_decoder.py``, with each of the three alone, with all of them, and without
any (the twin). The detector is the shipped one with four masked anchors (``tests/networks/masked_detector.py``).
Printed is the SQNR of the boxes against float on samples that were not calibrated on, in dB: quantized with
``onnxruntime.quantization`` and its QNN helper (Q/DQ computed literally), by ``dovetail fit --no-range-repair`` and by
``dovetail fit``, each in simulation and on the target; and what ``fit`` says about it. For the detector mAP50:95 as
well, on its held-out images, and for the decoder with all three what ``--precision auto`` gives. The exit code is 1 if
a repaired decoder is more than 1 dB below the twin.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from tests.networks.masked_decoder import BOXES, PARTS, masked_decoder, memory
from tests.networks.masked_detector import masked_detector

import dovetail
from dovetail import zoo
from dovetail.numerics.metrics import sqnr_db
from dovetail.op_support import AUTO
from dovetail.report.result import Result
from dovetail.storage import Reason

CALIBRATED, HELD_OUT = 16, 8
ALLOWED_DB = 1.0
TWIN, ALL, DETECTOR = "twin", "all three", "shipped detector, masked"
_ACTIVATIONS = {"w8a8": QuantType.QUInt8, "w8a16": QuantType.QUInt16}


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its data; ``labelled`` has what the metric needs."""

    name: str
    model: onnx.ModelProto
    calibration: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]
    labelled: Mapping[str, Any]


class _Reader(CalibrationDataReader):
    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def cases() -> Iterator[Case]:
    calibration, held_out = memory(CALIBRATED, seed=1)[:, 0], memory(HELD_OUT, seed=2)[:, 0]
    data = {"memory": calibration}, {"memory": held_out}
    for name, parts in ((TWIN, ()), *((part, (part,)) for part in PARTS), (ALL, PARTS)):
        yield Case(name, masked_decoder(*parts), *data, {})
    shipped = zoo.load("detector_scenes")
    held_out_images = {**shipped.eval(), **shipped.targets()}
    yield Case(
        DETECTOR,
        masked_detector(),
        shipped.calib(),
        shipped.eval(),
        {"metric": shipped.metric, "evaluation": held_out_images},
    )


def others_db(case: Case, precision: str, folder: Path) -> float:
    """The SQNR of the boxes with ``onnxruntime.quantization`` and its QNN helper."""
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    source, prepared, quantized = (folder / f"{name}.onnx" for name in ("float", "prepared", "quantized"))
    onnx.save(case.model, source)
    file = prepared if qnn_preprocess_model(str(source), str(prepared)) else source
    reader = _Reader(_samples(case.calibration, CALIBRATED))
    config = get_qnn_qdq_config(
        str(file), reader, activation_type=_ACTIVATIONS[precision], weight_type=QuantType.QUInt8
    )
    quantize(str(file), str(quantized), config)
    samples = _samples(case.held_out, HELD_OUT)
    return sqnr_db(_boxes(source, samples), _boxes(quantized, samples))


def fitted(case: Case, target: str, precision: str, folder: Path, *, range_repair: bool) -> Result:
    options = {"baselines": "none", "range_repair": range_repair, "force": True, "evaluation": case.held_out}
    options |= case.labelled
    return dovetail.fit(
        case.model, target=target, precision=precision, calibration=case.calibration, output=folder / "run", **options
    )


def _samples(arrays: Mapping[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    return [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(count)]


def _boxes(path: Path, samples: list[dict[str, np.ndarray]]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.stack([session.run([BOXES], sample)[0] for sample in samples])


def _cells(result: Result) -> str:
    simulation, target = result.metrics.sqnr_db.simulation_vs_float, result.metrics.sqnr_db.target_vs_float
    ran = f"{target[BOXES]:6.1f}" if target is not None else "     -"
    accuracy = result.metrics.accuracy
    figures = {} if accuracy is None else accuracy.figures
    metric = "".join(f" {name} {values['map50_95']:.4f}" for name, values in figures.items())
    return f"{simulation[BOXES]:6.1f} {ran}{metric}"


def _named(result: Result) -> list[str]:
    """What the result says about ranges after repair."""
    repaired = [note for note in result.notes if note.startswith("range repaired")]
    return [*repaired, *(f"{row.code} {row.message[:150]}" for row in result.findings if row.code.startswith("Q5"))]


def _mixture(result: Result) -> str:
    """The plan that `auto` chose, how many of its tensors are float, and its conversions."""
    whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
    figures = next(row.figures for row in whole.alternatives if row.label == whole.taken)
    tensors = [row for row in result.plan if row.edge is None and row.why is not Reason.INTERIOR]
    in_float = sum(not row.dtype.is_quantized for row in tensors)
    return f"{whole.taken}, {in_float} of {len(tensors)} tensors in float, {figures['boundaries']:.0f} conversions"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranges")
    parser.add_argument("--target", default="qnn-htp:sm8550")
    parser.add_argument("--precision", default="w8a16", choices=list(_ACTIVATIONS))
    parser.add_argument("--only", default="", help="Cases whose names have this text.")
    wishes = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    twin_db, worst_db = None, None
    print(f"boxes against float in dB, {wishes.precision}, {wishes.target}: simulation, target")
    print(f"{'':26} {'onnxruntime':>11}   {'--no-range-repair':17}   repaired")
    for case in cases():
        if wishes.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            other = others_db(case, wishes.precision, Path(folder))
            plain = fitted(case, wishes.target, wishes.precision, Path(folder), range_repair=False)
            result = fitted(case, wishes.target, wishes.precision, Path(folder), range_repair=True)
        print(f"{case.name:26} {other:11.1f}   {_cells(plain):17}   {_cells(result)}", flush=True)
        for finding in plain.findings:
            print(f"{'':29}without repair: {finding.code} {finding.message[:150]}")
        for text in _named(result):
            print(f"{'':29}{text}")
        if case.name == ALL:
            with tempfile.TemporaryDirectory() as folder:
                auto = fitted(case, wishes.target, AUTO, Path(folder), range_repair=True)
            print(f"{case.name + ', auto':26} {'':11}   {'':17}   {_cells(auto)}; {_mixture(auto)}", flush=True)
            worst_db = min(auto.metrics.sqnr_db.simulation_vs_float[BOXES], worst_db or math.inf)
        boxes_db = result.metrics.sqnr_db.simulation_vs_float[BOXES]
        twin_db = boxes_db if case.name == TWIN else twin_db
        worst_db = min(boxes_db, worst_db or boxes_db) if case.name != DETECTOR else worst_db
    return int(twin_db is not None and worst_db is not None and worst_db < twin_db - ALLOWED_DB)


if __name__ == "__main__":
    sys.exit(main())
