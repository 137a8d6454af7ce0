"""The networks and quantizers of ``bench.repair``: float models with data, and other tools that quantize them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.networks.images import images
from tests.networks.wheels import NUDENET, NotFetched, fetch

from bench.peer_onnxruntime import Reader
from dovetail import zoo

ROOT = Path(__file__).resolve().parents[1]
REPROS = ROOT / "tests" / "repros"
VARIABLE = "DOVETAIL_MODELOPT_PYTHON"
SAMPLES, HELD_OUT = 64, 64
YOLO_SAMPLES, YOLO_HELD_OUT = 16, 16
FASHION_HELD_OUT = 256  # its top class is judged
YOLO, YOLO_SHAPE = "320n.onnx", (1, 3, 320, 320)
# torch with its version, because modelopt takes any: the newest one brings gigabytes of CUDA libraries.
MODELOPT = ("nvidia-modelopt[onnx]==0.47.0", "torch==2.13.0")
TIMEOUT_S = 900


class NotAvailable(Exception):
    """A network or a quantizer that this machine does not have."""


Data = dict[str, np.ndarray[Any, Any]]


def _split(data: Data, count: int, held_out: int) -> tuple[Data, Data]:
    """The first samples to calibrate on, and others to compare on."""
    return (
        {name: array[:count] for name, array in data.items()},
        {name: array[count : count + held_out] for name, array in data.items()},
    )


def _yolo(folder: Path) -> tuple[Path, Data, Data]:
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
    pictures = images(YOLO_SHAPE, YOLO_SAMPLES + YOLO_HELD_OUT)["x"]
    low, high = pictures.min(), pictures.max()
    data = {"images": ((pictures - low) / (high - low)).astype(np.float32)}
    return path, *_split(data, YOLO_SAMPLES, YOLO_HELD_OUT)


def _fashion(folder: Path) -> tuple[Path, Data, Data]:
    shipped = zoo.load("vit_fashion")
    calibration = {name: array[:SAMPLES] for name, array in shipped.calib().items()}
    return shipped.model_path, calibration, {name: array[:FASHION_HELD_OUT] for name, array in shipped.eval().items()}


def _conv_attention(folder: Path) -> tuple[Path, Data, Data]:
    path = REPROS / "mynet_softmax_wrap.onnx"
    if not path.exists():
        raise NotAvailable(f"{path.name} is not in tests/repros")
    return path, *_split({"image": images((1, 3, 64, 64), SAMPLES + HELD_OUT)["x"]}, SAMPLES, HELD_OUT)


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
        python = os.environ.get(VARIABLE) or _modelopt_environment(output.parent / "modelopt")
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


def _modelopt_environment(folder: Path) -> str:
    """The Python of an environment with nvidia-modelopt, which is made once; its packages differ from ours."""
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "-q", *MODELOPT],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            if done.returncode:
                raise NotAvailable(f"nvidia-modelopt cannot be installed: {done.stderr.strip()[-200:]}; set {VARIABLE}")
        installed.touch()
    return str(python)


def _reader(data: Data) -> Reader:
    count = len(next(iter(data.values())))
    return Reader([{name: array[index : index + 1] for name, array in data.items()} for index in range(count)])


MODELS: Mapping[str, Callable[[Path], tuple[Path, Data, Data]]] = {
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
