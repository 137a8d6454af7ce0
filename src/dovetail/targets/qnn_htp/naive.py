"""The baseline ``naive``: the caller's file quantized with ``onnxruntime.quantization`` and its QNN helpers.

It follows onnxruntime's documentation: ``qnn_preprocess_model``, ``get_qnn_qdq_config`` with uint8 weights and uint8 or
uint16 activations, ``quantize``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.backend import Sample
from dovetail.targets.qnn_htp.options import HtpOptions
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs

# The activation type of the helpers, by the name of the precision.
_ACTIVATIONS = {"w8a8": "QUInt8", "w8a16": "QUInt16"}
_ORIGINAL, _SAMPLES = "original/model.onnx", "samples"


def export_naive(
    options: HtpOptions,
    original: Path,
    precision: str,
    samples: Iterable[Sample],
    shapes: Mapping[str, tuple[int, ...]],
    output: Path,
) -> str:
    """Write the caller's file quantized with ``onnxruntime.quantization``; return why it failed, or an empty string."""
    if precision not in _ACTIVATIONS:
        expected = ", ".join(_ACTIVATIONS)
        return f"baseline naive (onnxruntime.quantization) does not support {precision}; expected one of {expected}"
    with tempfile.TemporaryDirectory(prefix="dovetail-naive-") as folder:
        files, names = {}, list[str]()
        for number, sample in enumerate(samples):
            files[f"{_SAMPLES}/{number:04d}.npz"] = path = Path(folder) / f"{number:04d}.npz"
            names = sorted(sample)
            # Numbered, because an input may be called like a parameter of savez.
            np.savez(path, allow_pickle=False, **{f"{i}": sample[name] for i, name in enumerate(names)})
        arguments: dict[str, Any] = {"model": _ORIGINAL, "output": output.name, "samples": _SAMPLES, "names": names}
        call = ToolCall(
            "dovetail.targets.qnn_htp.naive:export_in_child",
            {**arguments, "activation": _ACTIVATIONS[precision], "shapes": _shape_texts(shapes)},
            inputs={**model_inputs(original, _ORIGINAL), **files},
            packages=("onnxruntime",),
            who="onnxruntime.quantization",
            limits=options.limits,
        )
        result = call_tool(call, output.parent)
    return "" if result.answer is not None else f"baseline naive (onnxruntime.quantization) failed: {result.error}"


def _shape_texts(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    return [(name, ",".join(map(str, shape))) for name, shape in shapes.items()]


def export_in_child(
    model: str, output: str, samples: str, names: list[str], activation: str, shapes: list[tuple[str, str]]
) -> dict[str, Any]:
    """Run the export in a child process, because it needs several times the memory of the model.

    ``names``: the inputs, in the order in which they are numbered in the files of ``samples``.
    """
    from onnxruntime.quantization import QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    prepared = Path(samples) / "prepared.onnx"
    pinned = [(name, shape) for name, shape in shapes]
    changed = qnn_preprocess_model(model, prepared, dynamic_input_shapes=pinned or None)
    source = str(prepared) if changed else model
    reader = _SampleReader(Path(samples), names, source)
    config = get_qnn_qdq_config(
        source, reader, activation_type=getattr(QuantType, activation), weight_type=QuantType.QUInt8
    )
    quantize(source, output, config)
    prepared.unlink(missing_ok=True)
    return {"preprocessed": changed}


class _SampleReader:
    """A ``CalibrationDataReader`` of ``onnxruntime.quantization``: returns one sample after the other, then None."""

    def __init__(self, folder: Path, names: list[str], model: str) -> None:
        import onnx

        graph = onnx.load(model, load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        inputs = {value.name for value in graph.input} - constants
        self._keys = {name: f"{number}" for number, name in enumerate(names) if name in inputs}
        self._feeds = self._read(sorted(folder.glob("*.npz")))

    def _read(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        for file in files:
            with np.load(file) as arrays:
                yield {name: arrays[key] for name, key in self._keys.items()}

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, or None after the last."""
        return next(self._feeds, None)
