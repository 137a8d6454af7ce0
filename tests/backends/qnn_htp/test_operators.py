"""Every operator that Q101, Q103, Q106, Q111, Q201, Q301 (on HTP) and Q607 name, on the real compiler.

As many as possible in one graph: its log names every operator that is rejected for its type or its rank, its dumped
graph every operator that runs in float. Each graph has a Relu as well, which is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.backend import Artifact, CompileResult, Outcome
from dovetail.checking import check_file
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.qdq.invert import invert
from dovetail.targets import open_target
from dovetail.targets.htp.rules.kernels import IN_FLOAT_ONLY, NOT_IN_FLOAT, NOT_SUPPORTED
from dovetail.targets.htp.rules.shapes import RANK_4, RANK_4_IN_INTEGERS, RANK_5_IN_8_BITS
from dovetail.targets.qnn_htp.compile import GRAPH, compile_model
from dovetail.targets.qnn_htp.read_back import read_dump
from tests.backends.qnn_htp.real_compiler import options

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

QPARAMS = {"uint8": "float s = {0.03}, uint8 z = {128}", "uint16": "float s = {0.0001}, uint16 z = {32768}"}
DTYPES = tuple(QPARAMS)
CHIP = "sm8550"
IMAGE = "1,4,6,6"
# Operator: shape of its own input ``@``, and how it is called.
Calls = Mapping[str, tuple[str, str]]
RELU = {"Relu": ("4,8", "Relu(@)")}
OTHER_INPUTS = "uint8[4] u, float[1,2,5,5] offset"


def write(text: str, outputs: list[str], folder: Path) -> Path:
    """Save a graph in ONNX text, with these outputs, of inferred shapes."""
    model = onnx.parser.parse_model(text)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    folder.mkdir(exist_ok=True)
    model = onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:  # a checker wants a type and a shape, also where none can be inferred
        kind = output.type.tensor_type
        kind.elem_type = kind.elem_type or onnx.TensorProto.FLOAT
        if not kind.HasField("shape"):
            kind.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in IMAGE.split(","))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def write_calls(
    calls: Calls, constants: str, dtype: str | None, folder: Path, *, opset: int = 21, first: str = ""
) -> Path:
    """Save a graph with each operator on an input of its own, in float, or with Q/DQ pairs around it.

    The node and its output have the name of the operator. ``s_out``, if it is a constant, is the scale of the outputs;
    ``first``: nodes before all others.
    """
    scale_out = "s_out" if "s_out" in constants else "s"
    nodes = [_call(op, call, dtype, scale_out) for op, (_, call) in calls.items()]
    inputs = ", ".join(f"float[{shape}] x_{op}" for op, (shape, _) in calls.items())
    initializers = ", ".join(filter(None, ("" if dtype is None else QPARAMS[dtype], constants)))
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}, {OTHER_INPUTS}) => (float[1] none)'
    return write(f"{head} <{initializers}> {{ {first} {' '.join(nodes)} }}", list(calls), folder)


def _call(op: str, call: str, dtype: str | None, scale_out: str) -> str:
    indices = ", indices" if op == "TopK" else ""
    if dtype is None:
        return f"[{op}] {op}{indices} = {call.replace('@', f'x_{op}')}"
    before = f"q_{op} = QuantizeLinear(x_{op}, s, z) d_{op} = DequantizeLinear(q_{op}, s, z)"
    call = call.replace("@", f"d_{op}")
    if call.startswith(("ArgMax", "ArgMin", "Cast")):  # these have no float output
        return f"{before} [{op}] {op} = {call}"
    after = f"r_{op} = QuantizeLinear(t_{op}, {scale_out}, z) {op} = DequantizeLinear(r_{op}, {scale_out}, z)"
    return f"{before} [{op}] t_{op}{indices} = {call} {after}"


def compiled(model: Path, folder: Path, chip: str = CHIP) -> CompileResult:
    return compile_model(options(chip), (Artifact("model", model),), folder)


def rejected(model: Path, folder: Path, chip: str = CHIP) -> set[str]:
    """The names of the nodes that the compiler rejects; those into which ONNX Runtime expands an operator have none."""
    return {str(finding.place) for finding in compiled(model, folder, chip).findings} - {"an unnamed node"}


def in_float(model: Path, folder: Path) -> set[str]:
    """The inputs that are quantized in the model, and float in the compiled graph."""
    result = compiled(model, folder)
    assert result.error == ""
    rows = read_dump(model, folder / GRAPH, invert(read(model))[1], result.log).tensors
    return {row.tensor for row in rows if row.outcome is Outcome.CHANGED and "found float16" in row.detail}


def reported(code: str, model: Path, chip: str = CHIP) -> set[str]:
    """The places of the findings of a rule."""
    found = check_file(model, open_target(f"qnn-htp:{chip}"))
    return {str(finding.place) for finding in found if finding.code == code}


# Q101.
NO_KERNEL: Calls = {
    "AffineGrid": ("1,2,3", "AffineGrid(@, size)"),
    "BitShift": ("4", 'BitShift <direction = "LEFT"> (u, u)'),
    "CenterCropPad": (IMAGE, "CenterCropPad <axes = [2, 3]> (@, crop)"),
    "Col2Im": ("1,16,4", "Col2Im(@, crop, block)"),
    "Compress": (IMAGE, "Compress <axis = 1> (@, condition)"),
    "DeformConv": (IMAGE, "DeformConv(@, kernel, offset)"),
    "Mod": (IMAGE, "Mod <fmod = 1> (@, @)"),
    "ReverseSequence": ("3,2,4", "ReverseSequence <batch_axis = 1, time_axis = 0> (@, lengths)"),
    "Unique": (IMAGE, "Unique <axis = 1> (@)"),
}
KERNEL_CONSTANTS = """int64[4] size = {1,1,4,4}, int64[2] crop = {4,4}, int64[2] block = {2,2},
int64[2] lengths = {1,2}, bool[4] condition = {1,0,1,0}, float[1,4,2,2] kernel = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}"""


# These have no output, or no input, that can be quantized here.
NO_QDQ = {"BitShift", "Compress", "IsInf", "Unique"}
# A float model is checked after the rewrites of fit.
REWRITTEN_BY_FIT = {"Col2Im", "Mish"}


@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_operators_without_a_kernel(dtype: str | None, tmp_path: Path) -> None:
    names = {*NOT_SUPPORTED, *NOT_IN_FLOAT, "Mod"} - (set() if dtype is None else NO_QDQ)
    calls = {op: NO_KERNEL.get(op, (IMAGE, f"{op}(@)")) for op in sorted(names)} | RELU
    model = write_calls(calls, KERNEL_CONSTANTS, dtype, tmp_path)
    expected = names - (set() if dtype is None else set(NOT_IN_FLOAT))
    assert rejected(model, tmp_path) == expected
    assert reported("Q101", model) == expected - (REWRITTEN_BY_FIT if dtype is None else set())


# Q607.
HIGH = "1,2,4,3,8"
HIGH_CALLS: Calls = {
    "CumSum": (HIGH, "CumSum(@, axis)"),
    "InstanceNormalization": (HIGH, "InstanceNormalization(@, two, two)"),
    "MatMul": (HIGH, "MatMul(@, matrix)"),
    "ReduceL2": (HIGH, "ReduceL2(@, axes)"),
    "ReduceMin": (HIGH, "ReduceMin(@, axes)"),
    "ScatterElements": (HIGH, "ScatterElements(@, zeros, @)"),
}
HIGH_CONSTANTS = (
    f"int64 axis = {{2}}, int64[1] axes = {{4}}, int64[{HIGH}] zeros = {{{', '.join(['0'] * 192)}}}, "
    "float[2] two = {1, 2}"
)


# A float model is checked after the rewrites of fit, which merge dimensions before these.
MERGED_BY_FIT = {"Elu", "Gelu", "MatMul", "Neg", "Softplus", "Sqrt", "Tanh"}


@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_operators_without_a_kernel_of_rank_5(dtype: str | None, tmp_path: Path) -> None:
    """All of them but one reduction over one axis, which has a kernel."""
    names = {*RANK_4, *RANK_4_IN_INTEGERS, "MatMul", "ReduceMin"}
    calls = {op: HIGH_CALLS.get(op, (HIGH, f"{op}(@)")) for op in sorted(names)} | RELU
    matrix, first = f"float[8,8] matrix = {{{', '.join(['0.5'] * 64)}}}", ""
    if dtype is not None:
        matrix, first = f"{dtype}[8,8] m = {{{', '.join(['200'] * 64)}}}", "matrix = DequantizeLinear(m, s, z)"
    model = write_calls(calls, f"{HIGH_CONSTANTS}, {matrix}", dtype, tmp_path, first=first)
    expected = names - {"ReduceMin"} - (RANK_4_IN_INTEGERS if dtype is None else set())
    expected -= RANK_5_IN_8_BITS if dtype == "uint8" else set()
    assert rejected(model, tmp_path) == expected
    assert reported("Q607", model) == expected - (MERGED_BY_FIT if dtype is None else set())


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose", "Add"])
def test_a_prelu_after_a_three_dimensional_convolution(layer: str, tmp_path: Path) -> None:
    first = "c = Add(x, x)" if layer == "Add" else f"c = {layer}(x, w)"
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1,2,4,3,8] x) => (float[1,2,4,3,8] y)
        <float[2,2,1,1,1] w = {{1, 2, 3, 4}}, float[2,1,1,1] slopes = {{0.1, 0.2}}>
        {{ {first} y = PRelu(c, slopes)}}"""
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.op_type
    onnx.save(model, path)
    is_accepted = layer == "Add"
    assert reported("Q607", path) == (set() if is_accepted else {"PRelu"})
    data = {"x": np.random.default_rng(0).standard_normal((4, 1, 2, 4, 3, 8)).astype(np.float32)}
    for precision in ("fp16", "w8a8"):
        options = {"target": "qnn-htp:sm8550", "precision": precision, "baselines": "none"}
        result = dovetail.fit(path, calibration=data, output=tmp_path / precision, **options)
        assert (result.verdicts["compiled"].status is Status.PASS) == is_accepted


@pytest.mark.parametrize("axes", ["0", "4", "3,4", "1,2,3,4", "0,4", "0,1,2,3,4"])
@pytest.mark.parametrize("dtype", [None, "uint16"])
def test_a_minimum_of_rank_5_over_several_axes(dtype: str | None, axes: str, tmp_path: Path) -> None:
    constants = f"int64[{axes.count(',') + 1}] axes = {{{axes}}}"
    model = write_calls({"ReduceMin": (HIGH, "ReduceMin(@, axes)")} | RELU, constants, dtype, tmp_path)
    has_kernel = axes in ("0", "4") or (dtype is not None and "0" not in axes)
    assert (compiled(model, tmp_path).error == "") == has_kernel
    assert reported("Q607", model) == (set() if has_kernel else {"ReduceMin"})


# Q103.
FLOAT_CALLS: Calls = {
    "Cast": ("4,8", "Cast <to = 6> (@)"),
    "GatherND": ("4,8", "GatherND(@, places)"),
    "LpPool": (IMAGE, "LpPool <kernel_shape = [2, 2]> (@)"),
    "Mean": ("4,8", "Mean(@, @)"),
    "ReduceL2": ("1,4,8", "ReduceL2(@, last)"),
    "RoiAlign": (IMAGE, "RoiAlign <output_height = 2, output_width = 2> (@, boxes, batch)"),
    "RotaryEmbedding": ("1,2,4,8", "RotaryEmbedding(@, halves, halves)"),
    "ScatterND": ("4,8", "ScatterND(@, places, rows)"),
    "Sum": ("4,8", "Sum(@, @)"),
    "TopK": ("4,8", "TopK(@, three)"),
}
FLOAT_CONSTANTS = f"""int64[2,1] places = {{1, 3}}, int64[1] last = {{-1}}, float[1,4] boxes = {{0, 0, 4, 4}},
int64[1] batch = {{0}}, int64[1] three = {{3}}, float[1,4,4] halves = {{{", ".join(["0.5"] * 16)}}},
float[2,8] rows = {{{", ".join(["0.5"] * 16)}}}"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [21, 23])
def test_operators_that_run_in_float(opset: int, dtype: str, tmp_path: Path) -> None:
    """RotaryEmbedding is new in opset 23."""
    names = IN_FLOAT_ONLY - {"RotaryEmbedding"} if opset == 21 else {"RotaryEmbedding"}
    calls = {op: FLOAT_CALLS.get(op, ("4,8", f"{op}(@)")) for op in sorted(names)} | RELU
    model = write_calls(calls, FLOAT_CONSTANTS, dtype, tmp_path, opset=opset)
    assert in_float(model, tmp_path) == {f"x_{op}" for op in names}
    assert reported("Q103", model) == names


# Q301.
MOVED: Calls = {
    "Expand": ("1,8", "Expand(@, shape)"),
    "Flatten": ("2,3,4", "Flatten(@)"),
    "Gather": ("4,8", "Gather(@, rows)"),
    "GatherElements": ("4,8", "GatherElements(@, places)"),
    "MaxPool": (IMAGE, "MaxPool <kernel_shape = [2, 2]> (@)"),
    "Reshape": ("4,8", "Reshape(@, other)"),
    "Resize": (
        IMAGE,
        'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
        "(@, , , double)",
    ),
    "Squeeze": ("1,4,8", "Squeeze(@, first)"),
    "Tile": ("4,8", "Tile(@, twice)"),
    "Transpose": ("4,8", "Transpose(@)"),
    "Unsqueeze": ("4,8", "Unsqueeze(@, first)"),
}
CONVERTED: Calls = {
    "DepthToSpace": (IMAGE, "DepthToSpace <blocksize = 2> (@)"),
    "Slice": ("4,8", "Slice(@, first, all)"),
}
MOVED_CONSTANTS = """int64[2] shape = {4, 8}, int64[2] rows = {1, 3}, int64[2,2] places = {1, 3, 0, 2},
int64[2] other = {2, 16}, int64[4] double = {1, 4, 12, 12}, int64[1] first = {0}, int64[2] twice = {2, 1},
int64[1] all = {4}, float s_out = {0.05}"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_that_only_move_data_run_in_float_between_different_scales(dtype: str, tmp_path: Path) -> None:
    model = write_calls({**MOVED, **CONVERTED}, MOVED_CONSTANTS, dtype, tmp_path)
    assert in_float(model, tmp_path) == {f"x_{op}" for op in MOVED}
    assert reported("Q301", model) == set(MOVED)


# Q201. The compiler stops at the first operator that reads a constant with several scales.
WITH_CONSTANT = {op: f"{op}(d, c)" for op in ("Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub")}
WITH_CONSTANT |= {"Concat": "Concat <axis = 0> (d, c)", "Where": "Where(choice, d, c)"}


@pytest.mark.parametrize("op", WITH_CONSTANT)
def test_constants_with_a_scale_per_channel(op: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1,4,2] x) => (float[1] none) <{QPARAMS["uint8"]},
    uint8[1,4,2] k = {{10, 20, 30, 40, 50, 60, 70, 80}}, float[4] k_s = {{0.01, 0.02, 0.03, 0.04}},
    uint8[4] k_z = {{0, 0, 0, 0}}, bool[1,4,2] choice = {{1, 0, 1, 0, 1, 0, 1, 0}}>
    {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = DequantizeLinear <axis = 1> (k, k_s, k_z)
    [{op}] t = {WITH_CONSTANT[op]} r = QuantizeLinear(t, s, z) y = DequantizeLinear(r, s, z) }}"""
    model = write(text, ["y"], tmp_path)
    assert op in rejected(model, tmp_path)
    assert reported("Q201", model) == {"k"}


ACTIVATIONS = ("Abs", "Gelu", "Neg", "Relu", "Sigmoid", "Softmax", "Tanh")


def test_activations_with_a_scale_per_channel(tmp_path: Path) -> None:
    nodes = [
        f"[Q_{op}] q_{op} = QuantizeLinear <axis = 1> (x_{op}, k_s, k_z) d_{op} = DequantizeLinear <axis = 1> "
        f"(q_{op}, k_s, k_z) t_{op} = {op}(d_{op}) r_{op} = QuantizeLinear(t_{op}, s, z) "
        f"{op} = DequantizeLinear(r_{op}, s, z)"
        for op in ACTIVATIONS
    ]
    inputs = ", ".join(f"float[1,2,4] x_{op}" for op in ACTIVATIONS)
    text = f"""<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[1] none)
    <{QPARAMS["uint8"]}, float[2] k_s = {{0.01, 0.02}}, uint8[2] k_z = {{0, 0}}> {{ {" ".join(nodes)} }}"""
    model = write(text, list(ACTIVATIONS), tmp_path)
    assert {f"Q_{op}" for op in ACTIVATIONS} <= rejected(model, tmp_path)
    assert reported("Q201", model) == {f"x_{op}" for op in ACTIVATIONS}


# Q106: normalizations by the dtype and zero point of gamma, after which the nodes are named.
GAMMAS = ("uint8_0", "uint8_100", "int8_0", "int16_0", "int16_7", "uint16_0", "uint16_32768")
NORMS = ("InstanceNormalization", "LayerNormalization", "RMSNormalization")


def _supports(norm: str, gamma: str, dtype: str, chip: str) -> bool:
    """Whether the compiler accepts a gamma; it converts int8 to uint8 for InstanceNormalization."""
    if gamma.startswith("uint8") or (gamma == "int8_0" and norm == "InstanceNormalization"):
        return True
    if dtype == "uint8" or gamma == "int8_0":
        return False
    if norm == "LayerNormalization":
        return chip == CHIP and gamma in ("int16_0", "uint16_32768")
    return norm == "RMSNormalization" or gamma.startswith("uint16")


@pytest.mark.parametrize("chip", ["v68", "v69", CHIP])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gammas_of_normalizations(dtype: str, chip: str, tmp_path: Path) -> None:
    calls: dict[str, tuple[str, str]] = {}
    constants = ["int32[8] b = {1000, 2000, 3000, 4000, -1000, -2000, -3000, -4000}, float b_s = {0.000001}"]
    first = ["beta = DequantizeLinear(b, b_s)"]
    for gamma in GAMMAS:
        kind, _, zero_point = gamma.partition("_")
        integers = ", ".join(str(int(zero_point) + number) for number in range(20, 28))
        constants.append(f"{kind}[8] q_{gamma} = {{{integers}}}, {kind} z_{gamma} = {{{zero_point}}}")
        first.append(f"g_{gamma} = DequantizeLinear(q_{gamma}, g_s, z_{gamma})")
        calls[f"InstanceNormalization_{gamma}"] = ("1,8,2,2", f"InstanceNormalization(@, g_{gamma}, beta)")
        calls[f"LayerNormalization_{gamma}"] = ("1,4,8", f"LayerNormalization <axis = -1> (@, g_{gamma}, beta)")
        calls[f"RMSNormalization_{gamma}"] = ("1,4,8", f"RMSNormalization <axis = -1> (@, g_{gamma})")
    text = ", ".join(("float g_s = {0.05}", *constants))
    model = write_calls(calls | RELU, text, dtype, tmp_path, opset=23, first=" ".join(first))
    names = {(norm, gamma): f"{norm}_{gamma}" for norm in NORMS for gamma in GAMMAS}
    expected = {name for key, name in names.items() if not _supports(*key, dtype, chip)}
    assert rejected(model, tmp_path, chip) & set(calls) == expected
    assert reported("Q106", model, chip) == expected


# Q111.
LINEAR: Calls = {
    "Conv": (IMAGE, "Conv(@, kernel)"),
    "ConvTranspose": (IMAGE, "ConvTranspose(@, kernel)"),
    "Gemm": ("4,8", "Gemm(@, matrix)"),
    "MatMul": ("1,4,8", "MatMul(@, matrix)"),
}


@pytest.mark.parametrize("chip", ["v68", "v69", CHIP])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int16_weights(dtype: str, chip: str, tmp_path: Path) -> None:
    integers = f"int16[4,4,1,1] k = {{{', '.join(['900'] * 16)}}}, int16[8,8] m = {{{', '.join(['700'] * 64)}}}"
    first = "kernel = DequantizeLinear(k, w_s, w_z) matrix = DequantizeLinear(m, w_s, w_z)"
    constants = f"{integers}, float w_s = {{0.00001}}, int16 w_z = {{0}}"
    model = write_calls(LINEAR | RELU, constants, dtype, tmp_path, first=first)
    expected = set() if chip == CHIP and dtype == "uint16" else set(LINEAR)
    assert rejected(model, tmp_path, chip) & set(LINEAR) == expected
    assert reported("Q111", model, chip) == expected
