"""Inverting whole models: our own emission of a shipped ViT, and the output of ONNX Runtime's quantizers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    matmul_nbits_quantizer,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from dovetail import zoo
from dovetail.encoding import FLOAT32, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.read import read
from dovetail.model.write import serialized, write
from dovetail.numerics.affine import quantize
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import invert
from dovetail.storage import Plan, Storage
from tests.qdq.round_trip import Array, assert_bit_equal, check_emitted, round_trip
from tests.qdq.shipped import images, planned


def _comparable(storage: Storage) -> Any:
    """A storage without its ``symmetric`` flag, which is not in the file."""
    if not isinstance(storage, QParams):
        return FLOAT32
    return (
        storage.dtype,
        storage.encoding.granularity,
        storage.axis,
        storage.scale.tolist(),
        storage.zero_point.tolist(),
    )


@pytest.mark.parametrize("quantized_io", [False, True])
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_our_own_emission(precision: str, quantized_io: bool, tmp_path: Path) -> None:
    model, plan = planned(precision, quantized_io)
    (path,) = write(emit_qdq(model, plan), tmp_path / "model.onnx")
    read_back = read(path)
    again, inverse = invert(read_back)
    emitted = emit_qdq(again, inverse)
    check_emitted(emitted)
    for sample in images(3):
        feed = {name: _quantized(name, array, plan) for name, array in sample.items()} if quantized_io else sample
        assert_bit_equal(path.read_bytes(), serialized(emitted), feed)
    assert inverse.quantized_io == quantized_io
    assert {name: _comparable(c.storage) for name, c in inverse.tensors.items()} == {
        name: _comparable(c.storage) for name, c in plan.tensors.items()
    }
    quantized = {edge: c.storage for edge, c in plan.edges.items() if isinstance(c.storage, QParams)}
    assert {e: _comparable(c.storage) for e, c in inverse.edges.items()} == {
        e: _comparable(s) for e, s in quantized.items()
    }
    assert [(n.name, n.op_type) for n in again.graph] == [(n.name, n.op_type) for n in model.graph]
    # Every consumer has its own quantized constant, so a constant that was shared becomes several.
    assert set(_unnumbered(again.graph.initializers)) == set(_unnumbered(model.graph.initializers))
    assert _unnumbered(n.name or "" for n in emitted.graph) == _unnumbered(n.name or "" for n in read_back.graph)


def _unnumbered(names: Iterable[str]) -> list[str]:
    """Names without the number that makes them unique."""
    return [re.sub(r"\.\d+(?=$|__)", "", name) for name in names]


def _quantized(name: str, array: Array, plan: Plan) -> Array:
    storage = plan.tensors[name].storage
    assert isinstance(storage, QParams)
    return quantize(array, storage)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: list[dict[str, Array]]) -> None:
        self._samples: Iterator[dict[str, Array]] = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._samples, None)


@pytest.fixture(scope="module")
def preprocessed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("ort") / "preprocessed.onnx"
    quant_pre_process(zoo.load("vit_digits").model_path, path)
    return path


STATIC: dict[str, dict[str, Any]] = {
    "uint8 activations, int8 weights": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8},
    "int8, per channel": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    "int16 activations": {"activation_type": QuantType.QInt16, "weight_type": QuantType.QInt8},
    "uint16 activations in ONNX Runtime's own domain": {
        "activation_type": QuantType.QUInt16,
        "weight_type": QuantType.QUInt8,
        "extra_options": {"UseQDQContribOps": True},
    },
    "symmetric, a Q/DQ pair for each consumer, Q on weights": {
        "activation_type": QuantType.QInt8,
        "weight_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": True, "DedicatedQDQPair": True, "AddQDQPairToWeight": True},
    },
    "without pre-processing": {
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
        "per_channel": True,
    },
}


@pytest.mark.parametrize("case", STATIC)
def test_onnx_runtimes_static_quantizer(case: str, preprocessed: Path, tmp_path: Path) -> None:
    source = zoo.load("vit_digits").model_path if case == "without pre-processing" else preprocessed
    path = tmp_path / "quantized.onnx"
    options: dict[str, Any] = {"quant_format": QuantFormat.QDQ, **STATIC[case]}
    quantize_static(source, path, _Reader(images(2)), **options)
    trip = round_trip(path, seeds=(0,))
    source_ops = {node.op_type for node in onnx.load(source, load_external_data=False).graph.node}
    assert "Identity" not in set(trip.ops()) - source_ops
    assert trip.quantized_tensors()
    assert trip.plan.stored
    assert [value.name for value in trip.model.graph.outputs] == [v.name for v in ir.load(source).graph.outputs]
    names = set(ir.load(source).graph.initializers)
    assert set(trip.model.graph.initializers) <= names | {f"{name}.1" for name in names}


def _with_4_bit_weights(path: Path, symmetric: bool) -> Path:
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,64] x) => (float[2,32] y) {
        [first] h = MatMul(x, A) r = Relu(h) [second] y = MatMul(r, B) }"""
    proto = onnx.parser.parse_model(text)
    for name, shape in (("A", (64, 48)), ("B", (48, 32))):
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        proto, block_size=16, is_symmetric=symmetric, quant_format=QuantFormat.QDQ
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))
    return path


def test_onnx_runtimes_4_bit_weights(tmp_path: Path) -> None:
    trip = round_trip(_with_4_bit_weights(tmp_path / "quantized.onnx", symmetric=False))
    assert trip.model.graph.initializers.keys() == {"A", "B"}
    assert set(trip.edges()) == {"first_matmul_Q4:1", "second_matmul_Q4:1"}
    for choice in trip.plan.edges.values():
        assert isinstance(choice.storage, QParams)
        assert choice.storage.encoding.granularity is Granularity.BLOCK
        assert choice.storage.dtype.bits == 4


def test_negative_scales_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime's symmetric 4-bit quantizer makes a block's scale negative to use -8; QParams does not allow it."""
    with pytest.raises(InputError, match="'first_DQ_Q4': its scale must be finite and above zero"):
        invert(read(_with_4_bit_weights(tmp_path / "quantized.onnx", symmetric=True)))
