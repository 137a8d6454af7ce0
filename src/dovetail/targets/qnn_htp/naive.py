"""The naive export: what a caller gets from ``onnxruntime.quantization`` and its QNN helpers, for comparison.

The caller's own file goes in, as its documentation shows: ``qnn_preprocess_model``, ``get_qnn_qdq_config`` with uint8
weights and uint8 or uint16 activations, ``quantize``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.backend import Sample
from dovetail.targets.compile_in_child import CompileCall, compile_in_child, model_inputs
from dovetail.targets.qnn_htp.options import HtpOptions

# What the helpers are told about activations, by our name of the precision.
_ACTIVATIONS = {"w8a8": "QUInt8", "w8a16": "QUInt16"}
_ORIGINAL, _SAMPLES = "original.onnx", "samples"


def export_naive(
    asked: HtpOptions,
    original: Path,
    precision: str,
    samples: Iterable[Sample],
    shapes: Mapping[str, tuple[int, ...]],
    output: Path,
) -> str:
    """Write a naive QDQ export of the caller's file, within the limits; the empty string, or why there is none."""
    if precision not in _ACTIVATIONS:
        return f"there is no naive export in {precision}"
    with tempfile.TemporaryDirectory(prefix="dovetail-naive-") as folder:
        files = {}
        for number, sample in enumerate(samples):
            files[f"{_SAMPLES}/{number:04d}.npz"] = path = Path(folder) / f"{number:04d}.npz"
            np.savez(path, allow_pickle=False, **sample)
        arguments: dict[str, Any] = {"model": _ORIGINAL, "output": output.name, "samples": _SAMPLES}
        call = CompileCall(
            "dovetail.targets.qnn_htp.naive:export_in_child",
            {**arguments, "activation": _ACTIVATIONS[precision], "shapes": _texts(shapes)},
            inputs={**model_inputs(original, _ORIGINAL), **files},
            packages=("onnxruntime",),
            who="onnxruntime.quantization",
            limits=asked.limits,
        )
        result = compile_in_child(call, output.parent)
    return "" if result.answer is not None else f"there is no naive export: {result.error}"


def _texts(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    return [(name, ",".join(map(str, shape))) for name, shape in shapes.items()]


def export_in_child(
    model: str, output: str, samples: str, activation: str, shapes: list[tuple[str, str]]
) -> dict[str, Any]:
    """The export itself, in a child process: it needs several times the memory of the model."""
    from onnxruntime.quantization import QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    prepared = Path(samples) / "prepared.onnx"
    pinned = [(name, shape) for name, shape in shapes]
    changed = qnn_preprocess_model(model, prepared, dynamic_input_shapes=pinned or None)
    source = str(prepared) if changed else model
    reader = _Reader(Path(samples), source)
    config = get_qnn_qdq_config(
        source, reader, activation_type=getattr(QuantType, activation), weight_type=QuantType.QUInt8
    )
    quantize(source, output, config)
    prepared.unlink(missing_ok=True)
    return {"preprocessed": changed}


class _Reader:
    """The samples as ``onnxruntime.quantization`` asks for them: one after the other, then None."""

    def __init__(self, folder: Path, model: str) -> None:
        import onnx

        graph = onnx.load(model, load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        self._names = [value.name for value in graph.input if value.name not in constants]
        self._feeds = self._read(sorted(folder.glob("*.npz")))

    def _read(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        for file in files:
            with np.load(file) as arrays:
                yield {name: arrays[name] for name in self._names}

    def get_next(self) -> dict[str, Any] | None:
        """The next sample."""
        return next(self._feeds, None)
