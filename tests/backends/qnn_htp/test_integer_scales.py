"""Q205 and Q206: weights in blocks of another tool, with integer scales (LPBQ) and float ones, on the real compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dovetail.checking import check_file
from dovetail.targets import open_target
from tests.backends.qnn_htp.case_compilation import compiled

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

# Shapes of input and output by operator, for a number of input and output channels.
SHAPES = {
    "MatMul": ((1, 8, "i"), (1, 8, "o")),
    "Gemm": ((8, "i"), (8, "o")),
    "Conv": ((1, "i", 4, 4), (1, "o", 4, 4)),
}
ELEMENT = {"int4": TensorProto.INT4, "int8": TensorProto.INT8}
OUTPUTS = 48


def layer(
    op: str, size: int, inputs: int, *, dtype: str = "int4", largest: int = 16, scales: str = "uint8"
) -> onnx.ModelProto:
    """A linear layer with a weight in blocks, whose scales are integers (``scales``: their dtype) or ``float32``."""
    random = np.random.default_rng(0)
    axis, span = (0, 1) if op == "MatMul" else (1, 0), 8 if dtype == "int4" else 120
    shape = (inputs, OUTPUTS) if op == "MatMul" else (OUTPUTS, inputs, *(1, 1) * (op == "Conv"))
    blocks = tuple(n // size if at == axis[0] else n for at, n in enumerate(shape))
    weight = random.integers(-span, span, shape)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["x_dq"]),
        helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["w_dq"], axis=axis[0], block_size=size),
        helper.make_node(op, ["x_dq", "w_dq"], ["t"], name=op, **({"transB": 1} if op == "Gemm" else {})),
        helper.make_node("QuantizeLinear", ["t", "y_s", "z"], ["y_q"]),
        helper.make_node("DequantizeLinear", ["y_q", "y_s", "z"], ["y"]),
    ]
    step = 0.16 / span
    constants = {"s": np.float32(2e-4), "z": np.uint16(32768), "y_s": np.float32(5e-4)}
    if scales == "float32":
        constants["w_s"] = random.uniform(0.5, 1.5, blocks).astype(np.float32) * np.float32(step)
    else:
        nodes.insert(2, helper.make_node("DequantizeLinear", ["w_i", "w_c", "w_cz"], ["w_s"], axis=axis[1]))
        integers = random.integers(1, largest + 1, blocks)
        integers.flat[0] = largest
        constants |= {"w_i": integers.astype(scales), "w_cz": np.zeros(OUTPUTS, scales)}
        constants["w_c"] = (random.uniform(0.5, 1.5, OUTPUTS) * step * 2 / largest).astype(np.float32)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    tensors.append(helper.make_tensor("w", ELEMENT[dtype], shape, weight.reshape(-1).tolist()))
    tensors.append(helper.make_tensor("w_z", ELEMENT[dtype], blocks, [0] * int(np.prod(blocks))))
    ends = [[{"i": inputs, "o": OUTPUTS}.get(str(n), n) for n in dims] for dims in SHAPES[op]]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in zip("xy", ends, strict=True)]
    graph = helper.make_graph(nodes, "blocks", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def outcome_and_codes(model: onnx.ModelProto, folder: Path) -> tuple[str, set[str]]:
    """What the compiler does with a model, and the codes of its findings."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    found = {finding.code for finding in check_file(path, open_target("qnn-htp:sm8550"))}
    return compiled(path, "sm8550", folder).outcome, found


@pytest.mark.parametrize(
    ("size", "inputs"), [(8, 64), (24, 192), (40, 160), (48, 192), (80, 160), (16, 48), (16, 80), (16, 112), (16, 240)]
)
def test_sizes_and_channels_that_are_computed_wrongly(size: int, inputs: int, tmp_path: Path) -> None:
    outcome, codes = outcome_and_codes(layer("MatMul", size, inputs), tmp_path)
    assert (outcome, codes) in (("differs", {"Q205"}), ("rejected", {"Q205"}))  # or the emulator crashes


@pytest.mark.parametrize(("size", "inputs"), [(16, 64), (32, 64), (64, 192), (96, 192), (128, 256), (256, 256)])
def test_sizes_and_channels_that_are_right(size: int, inputs: int, tmp_path: Path) -> None:
    assert outcome_and_codes(layer("MatMul", size, inputs), tmp_path) == ("as planned", set())


@pytest.mark.parametrize("op", ["Gemm", "Conv"])
def test_operators_without_integer_scales(op: str, tmp_path: Path) -> None:
    assert outcome_and_codes(layer(op, 32, 64), tmp_path) == ("rejected", {"Q205"})


@pytest.mark.parametrize(
    ("largest", "scales", "dtype", "outcome"),
    [
        (17, "uint8", "int4", "differs"),
        (255, "uint8", "int4", "differs"),
        (16, "int8", "int4", "rejected"),
        (16, "uint16", "int4", "rejected"),
        (16, "uint8", "int8", "rejected"),
        (255, "uint8", "int8", "rejected"),
    ],
)
def test_integers_that_are_not_supported(largest: int, scales: str, dtype: str, outcome: str, tmp_path: Path) -> None:
    model = layer("MatMul", 32, 64, dtype=dtype, largest=largest, scales=scales)
    assert outcome_and_codes(model, tmp_path) == (outcome, {"Q205"})


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_float_scales_run_in_float(op: str, dtype: str, tmp_path: Path) -> None:
    assert outcome_and_codes(layer(op, 32, 64, dtype=dtype, scales="float32"), tmp_path) == ("changed", {"Q206"})
