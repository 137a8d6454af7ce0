"""Models that other tools quantized, before and after ``dovetail repair``: SQNR against float, on every target.

    python -m bench.repair                                  # every cell; a cell that is in the file is not run again
    python -m bench.repair --models vit_fashion --targets ort-cpu,tensorrt:sm89
    python -m bench.repair --table                          # print what has been measured

Three networks: YOLOv8n (from the package nudenet), the shipped Fashion ViT, and a network of convolutions and attention
(tests/repros/mynet_softmax_wrap.onnx). Seven quantizers: onnxruntime's ``quantize_static`` with all defaults, per
channel, and symmetric int8 for both (S8S8); its QNN helper with 8-bit and 16-bit activations; nvidia-modelopt in fp8
and int8 (set DOVETAIL_MODELOPT_PYTHON to the Python of an environment with ``nvidia-modelopt[onnx]``). A cell is "as
given -> repaired" in dB of the worst output on the calibration samples, each model's Q/DQ computed literally by ONNX
Runtime, with the verdicts that failed; or the sentence with which the repair was refused. The exit code is 1 if a
repaired model is more than 1 dB below the model as given.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.networks.images import images
from tests.networks.wheels import NUDENET, NotFetched, fetch

import dovetail
from bench.peer_onnxruntime import Reader
from dovetail import zoo
from dovetail.errors import InputError
from dovetail.finding import Status

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "bench" / ".repair"
REPROS = ROOT / "tests" / "repros"
VARIABLE = "DOVETAIL_MODELOPT_PYTHON"
TARGETS = ("ort-cpu", "tensorrt:sm89", "qnn-htp:sm8550", "xnnpack")
SAMPLES = 64
YOLO_SAMPLES = 16
DROP_DB = 1.0
YOLO, YOLO_SHAPE = "320n.onnx", (1, 3, 320, 320)
TIMEOUT_S = 600


class NotAvailable(Exception):
    """A network or a quantizer that this machine does not have."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One repair: the figures of the worst output in dB, the verdicts that failed; or why there is no figure."""

    model: str
    quantizer: str
    target: str
    as_given_db: float | None = None
    repaired_db: float | None = None
    failed: tuple[str, ...] = ()
    refused: str = ""

    @property
    def worse(self) -> bool:
        if self.as_given_db is None or self.repaired_db is None:
            return False
        return self.repaired_db < self.as_given_db - DROP_DB

    def __str__(self) -> str:
        if self.as_given_db is None or self.repaired_db is None:
            return self.refused
        failed = f" ({', '.join(self.failed)} failed)" if self.failed else ""
        reason = f": {self.refused}" if self.refused else ""
        return f"{self.as_given_db:.1f} -> {self.repaired_db:.1f}{failed}{reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quantizers", default=",".join(QUANTIZERS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="models, and the cells that were measured")
    parser.add_argument("--table", action="store_true", help="print the cells that were measured, and run nothing")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # onnxruntime's quantizer warns about every LayerNormalization
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder / "cells.jsonl"
    cells = _read(record)
    models, quantizers = options.models.split(","), options.quantizers.split(",")
    for known, names, label in ((MODELS, models, "model"), (QUANTIZERS, quantizers, "quantizer")):
        for name in names:
            if name not in known:
                parser.error(f"unknown {label} {name!r}; expected one of {', '.join(known)}")
    if not options.table:
        for target in options.targets.split(","):
            for model in models:
                for quantizer in quantizers:
                    if (model, quantizer, target) not in cells:
                        cell = measure(model, quantizer, target, options.folder)
                        cells[model, quantizer, target] = cell
                        with record.open("a") as file:
                            file.write(json.dumps(asdict(cell)) + "\n")
                        print(f"{model} | {quantizer} | {target} | {cell}", flush=True)
    print(table(list(cells.values())))
    return 1 if any(cell.worse for cell in cells.values()) else 0


def measure(model: str, quantizer: str, target: str, folder: Path) -> Cell:
    """Quantize a network, unless that was done before, and repair it."""
    try:
        path, data = MODELS[model](folder)
        quantized = folder / f"{model}_{quantizer}.onnx"
        if not quantized.exists():
            QUANTIZERS[quantizer](path, quantized, data)
    except NotAvailable as missing:
        return Cell(model, quantizer, target, refused=str(missing))
    with tempfile.TemporaryDirectory(prefix="bench-repair-") as run:
        try:
            result = dovetail.repair(
                quantized, target=target, calibration=data, output=Path(run) / "run", float_model=path
            )
        except InputError as error:
            return Cell(model, quantizer, target, refused=str(error).replace(str(quantized), "the model"))
    numbers = result.verdicts["repaired"].numbers
    outputs = [name.partition(": ")[2] for name in numbers if name.startswith("repaired: ")]
    failed = tuple(name for name, verdict in result.verdicts.items() if verdict.status is Status.FAIL)
    if not outputs:
        return Cell(model, quantizer, target, failed=failed, refused=result.verdicts["repaired"].reason)
    worst = max(outputs, key=lambda name: numbers[f"as given: {name}"] - numbers[f"repaired: {name}"])
    before, after = numbers[f"as given: {worst}"], numbers[f"repaired: {worst}"]
    types = numbers.get(f"types alone: {worst}")
    reason = "" if types is None else f"the change of types alone gives {types:.1f}"
    return Cell(model, quantizer, target, before, after, failed, reason)


def table(cells: Sequence[Cell]) -> str:
    """A Markdown table: one row per network and quantizer, one column per target."""
    targets = list(dict.fromkeys(cell.target for cell in cells))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.model, cell.quantizer), {})[cell.target] = cell
    lines = [f"| network | quantizer | {' | '.join(targets)} |", "|---" * (2 + len(targets)) + "|"]
    for (model, quantizer), row in rows.items():
        texts = [str(row[target]) if target in row else "not run" for target in targets]
        lines.append(f"| {model} | {quantizer} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _read(record: Path) -> dict[tuple[str, str, str], Cell]:
    lines = record.read_text().splitlines() if record.exists() else []
    cells = [Cell(**{**row, "failed": tuple(row["failed"])}) for row in map(json.loads, lines)]
    return {(cell.model, cell.quantizer, cell.target): cell for cell in cells}


Data = dict[str, np.ndarray[Any, Any]]


def _yolo(folder: Path) -> tuple[Path, Data]:
    """YOLOv8n of the package nudenet at a static size, and smooth images in [0, 1]."""
    path = folder / "yolov8n.onnx"
    if not path.exists():
        from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

        try:
            model = onnx.load(fetch(NUDENET, YOLO))
        except NotFetched as missing:
            raise NotAvailable(str(missing)) from missing
        del model.metadata_props[:]  # onnxruntime 1.31.1: qnn_preprocess_model fails on a model that has any
        make_input_shape_fixed(model.graph, "images", YOLO_SHAPE)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
    pictures = images(YOLO_SHAPE, YOLO_SAMPLES)["x"]
    low, high = pictures.min(), pictures.max()
    return path, {"images": ((pictures - low) / (high - low)).astype(np.float32)}


def _fashion(folder: Path) -> tuple[Path, Data]:
    shipped = zoo.load("vit_fashion")
    return shipped.model_path, {name: array[:SAMPLES] for name, array in shipped.calib().items()}


def _conv_attention(folder: Path) -> tuple[Path, Data]:
    path = REPROS / "mynet_softmax_wrap.onnx"
    if not path.exists():
        raise NotAvailable(f"{path.name} is not in tests/repros")
    return path, {"image": images((1, 3, 64, 64), SAMPLES)["x"]}


def _static(**settings: Any) -> Callable[[Path, Path, Data], None]:
    """``quantize_static`` after the pre-processing that its guide recommends."""

    def quantize(source: Path, output: Path, data: Data) -> None:
        from onnxruntime.quantization import QuantFormat, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        prepared = output.with_suffix(".prepared.onnx")
        quant_pre_process(source, prepared)
        quantize_static(prepared, output, _reader(data), quant_format=QuantFormat.QDQ, **_typed(settings))

    return quantize


def _typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    return {name: QuantType[value] if name.endswith("_type") else value for name, value in settings.items()}


def _qnn_helper(activation: str) -> Callable[[Path, Path, Data], None]:
    """ONNX Runtime's helper for its QNN execution provider, with its own pre-processing."""

    def quantize(source: Path, output: Path, data: Data) -> None:
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization import quantize as run_quantize
        from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

        prepared = output.with_suffix(".prepared.onnx")
        changed = qnn_preprocess_model(source, prepared)
        model = prepared if changed else source
        types = {"activation_type": QuantType[activation], "weight_type": QuantType.QUInt8}
        run_quantize(model, output, get_qnn_qdq_config(model, _reader(data), **types))

    return quantize


def _modelopt(mode: str) -> Callable[[Path, Path, Data], None]:
    def quantize(source: Path, output: Path, data: Data) -> None:
        python = os.environ.get(VARIABLE)
        if not python:
            raise NotAvailable(f"nvidia-modelopt is not installed; set {VARIABLE}")
        samples = output.with_suffix(".npz")
        np.savez(samples, allow_pickle=False, **data)
        script = Path(__file__).with_name("peer_modelopt.py")
        # -P: without it, modelopt would import the tensorrt.py of this folder as the tensorrt package.
        command = [python, "-P", str(script), str(source), str(output), mode, str(samples)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode or not output.exists():
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise NotAvailable(f"nvidia-modelopt failed: {lines[-1][-200:]}")

    return quantize


def _reader(data: Data) -> Reader:
    count = len(next(iter(data.values())))
    return Reader([{name: array[index : index + 1] for name, array in data.items()} for index in range(count)])


MODELS: Mapping[str, Callable[[Path], tuple[Path, Data]]] = {
    "mynet": _conv_attention,
    "vit_fashion": _fashion,
    "yolov8n": _yolo,
}
QUANTIZERS: Mapping[str, Callable[[Path, Path, Data], None]] = {
    "static-default": _static(),
    "static-per-channel": _static(per_channel=True, activation_type="QUInt8", weight_type="QInt8"),
    "static-s8s8": _static(
        per_channel=True,
        activation_type="QInt8",
        weight_type="QInt8",
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
    ),
    "qnn-a8w8": _qnn_helper("QUInt8"),
    "qnn-a16w8": _qnn_helper("QUInt16"),
    "modelopt-int8": _modelopt("int8"),
    "modelopt-fp8": _modelopt("fp8"),
}

if __name__ == "__main__":
    sys.exit(main())
