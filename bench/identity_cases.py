"""The cases of ``python -m bench.identity``: shipped models, a small network per family, models to repair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from dovetail import zoo

# Target -> its precisions. xnnpack's ``auto`` is left out: it is chosen by timing, so it may differ from run to run.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "ort-cpu": ("w8a8", "w8a16", "fp32"),
    "qnn-htp:sm8550": ("w8a16", "w8a8", "fp16"),
    "qnn-htp:soc52": ("w8a16", "w8a8", "fp16"),
    "xnnpack": ("w8a8", "w8a8-dynamic", "fp32"),
    "tensorrt:sm89": ("fp8", "w8a8", "fp16"),
}
# Small networks with random weights: name in a row -> name in tests/networks/catalog.py.
NETWORKS: Mapping[str, str] = {
    **{name: name for name in ("vit", "deit", "beit", "dinov2", "swin", "segformer", "mobilevit", "clip", "siglip")},
    **{name: name for name in ("sam", "yolos", "detr")},
    "rt-detrv2": "RT-DETRv2",
    "rf-detr": "RF-DETR",
    "dinov2-plain": "dinov2 without windows",
}
NETWORK_TARGETS: Mapping[str, str] = {"ort-cpu": "w8a8", "xnnpack": "w8a8", "tensorrt:sm89": "fp8"}
# Models to repair -> the settings of onnxruntime's quantizer that made them.
QUANTIZED_BY_ORT: Mapping[str, str] = {
    "qdq-uint8": "per channel, uint8 activations",
    "qdq-int8": "per channel, symmetric int8 activations",
    "qdq-defaults": "all defaults",
}
SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One call of ``fit`` or ``repair``; ``emit_only``: stop before the compiler; ``slow``: skipped by ``--quick``."""

    model: str
    target: str
    precision: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    repair: bool = False
    emit_only: bool = False
    slow: bool = False

    @property
    def row(self) -> str:
        """The name of the row."""
        fields = (self.model, self.target, "repair" if self.repair else self.precision, self.label)
        return "|".join(text for text in fields if text)


@dataclass(frozen=True, slots=True)
class Source:
    """A model file and its calibration samples, as a ``.npz`` or as arrays."""

    path: Path
    calibration: Path | Mapping[str, np.ndarray]


def cases() -> Iterator[Case]:
    """Yield all cases in the order in which they run."""
    for model in zoo.names():
        for target, precisions in TARGETS.items():
            yield from (Case(model, target, precision) for precision in precisions)
    keep = {"keep": ("blocks.0.*=fp32",)}
    yield Case("vit_digits", "ort-cpu", "w8a8", keep, "keep")
    for model in ("vit_digits", "detector_scenes"):
        yield Case(model, "tensorrt:sm89", "w8a8", {"option": {"compute": "fp32"}}, "compute=fp32")
        yield Case(model, "qnn-htp:sm8550", "w8a8", {"io": "quantized"}, "io=quantized")
    for model in QUANTIZED_BY_ORT:
        yield from (Case(model, target, repair=True) for target in ("ort-cpu", "tensorrt:sm89"))
    for model in NETWORKS:
        for target, precision in NETWORK_TARGETS.items():
            yield Case(model, target, precision, emit_only=True)
        narrow = {"operand_bits": "8"}
        yield Case(model, "qnn-htp:soc52", "w8a16", narrow, "operands=narrow", emit_only=True)
        yield Case(model, "qnn-htp:soc52", "w8a16", emit_only=True, slow=True)


def sources(models: Iterable[str], folder: Path) -> dict[str, Source]:
    """Model name -> its files; models that are not shipped are made in the folder, unless they exist there."""
    names = dict.fromkeys(models)
    by_name = {name: _shipped(name) for name in names if name in zoo.names()}
    for name in [name for name in names if name not in by_name]:
        source = Source(folder / f"{name}.onnx", folder / f"{name}.npz")
        if not source.path.exists() or not Path(str(source.calibration)).exists():
            (_quantize if name in QUANTIZED_BY_ORT else _export)(name, folder)
        by_name[name] = source
    return by_name


def _shipped(name: str) -> Source:
    model = zoo.load(name)
    return Source(model.model_path, {key: array[:SAMPLES] for key, array in model.calib().items()})


def _export(name: str, folder: Path) -> None:
    from tests.networks.catalog import network
    from tests.networks.images import images

    file = network(NETWORKS[name])
    model_input = onnx.load(file).graph.input[0]
    shape = tuple(dim.dim_value for dim in model_input.type.tensor_type.shape.dim)
    np.savez(folder / f"{name}.npz", allow_pickle=False, **images(shape))
    (folder / f"{name}.onnx").write_bytes(file.read_bytes())


def _quantize(name: str, folder: Path) -> None:
    from onnxruntime import quantization
    from tests.networks.quantized_elsewhere import calibration, quantized_elsewhere

    path, arrays = folder / f"{name}.onnx", calibration()
    if name == "qdq-defaults":
        quantization.quantize_static(str(zoo.load("vit_digits").model_path), str(path), _Reader(arrays["images"]))
    else:
        quantized_elsewhere(path, signed=name == "qdq-int8")
    np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)


class _Reader:
    """Gives onnxruntime's quantizer one sample per call."""

    def __init__(self, images: np.ndarray) -> None:
        self._samples = iter([{"images": image[None]} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)
