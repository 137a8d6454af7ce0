"""Every mapping of an ONNX operator to torch against ONNX Runtime, in float."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.targets.xnnpack.module import build_module
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.operators.reduce import REDUCTIONS
from dovetail.targets.xnnpack.operators.registry import OPERATORS
from tests.equality import model_from, normal, random_inputs, run, sqnr_db

torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("executorch", reason="needs the package executorch")

IMAGE, ROWS = "float[1,4,6,8] x", "float[2,3,4] x"
NORM = "<float[4] s = {1,2,3,4}, float[4] b = {1,2,3,4}>"
BACKWARDS = "<int64[2] s = {1,-1}, int64[2] e = {3,-9}, int64[2] a = {1,2}, int64[2] t = {1,-2}>"
INTEGERS, HALVES, ARGUMENTS, SCATTER = "int64[6] x", ("Div", "Mod"), ("ArgMax", "ArgMin"), "ScatterElements<axis=1>"
ALIGNED = 'Resize<mode="linear", axes=[2,3], coordinate_transformation_mode="align_corners">'
HOLES = "AveragePool<kernel_shape=[3,3], dilations=[2,2]>(x)"
MOMENTS = "LayerNormalization(x, s, b)"
RATIO = 'keep_aspect_ratio_policy="not_larger"'
CROPPED = 'mode="linear", coordinate_transformation_mode="tf_crop_and_resize"'
COUNT = "p = Greater(x, o) f = Cast<to=1>(p) n = ReduceSum<keepdims=0>(f, a)"
COORDINATES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Sizes by whole factors, by other factors, smaller, and of one element, in every mode.
RESIZED = [
    *(
        ("12,24", f'mode="nearest", coordinate_transformation_mode="{corner}", nearest_mode="{rounding}"')
        for corner in (*COORDINATES, "tf_half_pixel_for_nn")
        for rounding in NEAREST
    ),
    *(
        (size, f'mode="{mode}", coordinate_transformation_mode="{corner}"')
        for size in ("12,24", "7,11", "4,3", "1,8")
        for mode in ("nearest", "linear", "cubic")
        for corner in COORDINATES
    ),
    *(("4,3", f'mode="{mode}", antialias=1') for mode in ("linear", "cubic")),
    ("7,11", 'mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5'),
]
# Inputs, outputs, constants, nodes.
CASES: list[tuple[str, str, str, str]] = [
    *(
        (ROWS, "float[2,3,4] y", "", f"y = {op}(x)")
        for op in ("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity")
    ),
    *(
        (ROWS, "float[2,3,4] y", "", f"y = {op}(x)")
        for op in ("Celu<alpha=0.5>", "Mish", "Selu", "Softplus", "Softsign", "ThresholdedRelu<alpha=0.5>")
    ),
    *(
        (ROWS, "float[2,3,4] y", "", f"y = {op}(x)")
        for op in ("LeakyRelu", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Tanh")
    ),
    *((ROWS, "float[2,3,4] y", "", f"a = Abs(x) y = {op}(a)") for op in ("Log", "Sqrt")),
    *((f"{ROWS}, float[3,1] z", "float[2,3,4] y", "", f"y = {op}(x, z)") for op in ("Add", "Div", "Mul", "Sub")),
    *((f"{ROWS}, float[4] z", "float[2,3,4] y", "", f"y = {op}(x, z, x)") for op in ("Max", "Min")),
    *(
        (f"{ROWS}, float[4] z", "bool[2,3,4] y", "", f"y = {op}(x, z)")
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    *(
        (f"{ROWS}, float[4] z", "bool[2,3,4] y", "", f"a = Less(x, z) b = Less(z, x) y = {op}(a, b)")
        for op in ("And", "Or", "Xor")
    ),
    (ROWS, "bool[2,3,4] y", "", "a = Less(x, x) y = Not(a)"),
    (ROWS, "bool[2,3,4] y", "", "a = Log(x) y = IsNaN(a)"),
    (f"{ROWS}, float[4] z", "float[2,3,4] y", "", "a = Less(x, z) y = Where(a, x, z)"),
    *(
        (ROWS, "float[2,3,4] y", f"<float p = {{{power}}}>", "a = Abs(x) y = Pow(a, p)")
        for power in ("0.5", 2, 3, "1.7")
    ),
    (f"{ROWS}, float[4] z", "float[2,3,4] y", "", "a = Abs(x) y = Pow(a, z)"),
    ("float[3] x", "float[1,3] y", "<float[1,1] p = {2}>", "y = Pow(x, p)"),
    *((f"{ROWS}, float[4] z", "float[2,3,4] y", "", f"y = {op}(x, z, x)") for op in ("Sum", "Mean")),
    *((ROWS, "float[2,3,4] y", "", f"y = {op}(x)") for op in ("Sum", "Mean")),
    (ROWS, "float[2,3,4] y", "<float p = {2}>", "y = Mod<fmod=1>(x, p)"),
    (ROWS, "float[2,3,4] y", "<float lo = {-0.5}, float hi = {0.7}>", "y = Clip(x, lo, hi)"),
    (ROWS, "float[2,3,4] y", "<float hi = {0.7}>", "y = Clip(x, , hi)"),
    (ROWS, "int64[2,3,4] y", "", "y = Cast<to=7>(x)"),
    (ROWS, "float[2,3,4] y", "", 'y = Gelu<approximate="tanh">(x)'),
    (ROWS, "float[2,3,4] y", "<float[1,4] s = {0.1,0.2,0.3,0.4}>", "y = PRelu(x, s)"),
    (ROWS, "float[2,3,4] y", "", "y = Softmax<axis=1>(x)"),
    (ROWS, "float[2,3,4] y", "", "y = LogSoftmax(x)"),
    *((ROWS, "float[2,1,4] y", "<int64[1] a = {-2}>", f"y = {op}(x, a)") for op in REDUCTIONS),
    *((ROWS, "float[2,4] y", "<int64[1] a = {1}>", f"y = {op}<keepdims=0>(x, a)") for op in REDUCTIONS),
    *((ROWS, "float[2] y", "<int64[2] a = {-1,1}>", f"y = {op}<keepdims=0>(x, a)") for op in REDUCTIONS),
    *(("float x", "float y", "", f"y = {op}(x)") for op in REDUCTIONS if op != "ReduceL2"),
    *((ROWS, "int64[2,1,4] y", "", f"y = {op}<axis=1>(x)") for op in ("ArgMax", "ArgMin")),
    (ROWS, "float[2,3,2] y, int64[2,3,2] i", "<int64[1] k = {2}>", "y, i = TopK(x, k)"),
    (ROWS, "float[2,3,4] y", "<int64 a = {1}>", "y = CumSum(x, a)"),
    (ROWS, "float[6,4] y", "<int64[2] s = {-1, 4}>", "y = Reshape(x, s)"),
    (ROWS, "float[2,12] y", "", "y = Flatten(x)"),
    (ROWS, "float[2,1,3,4] y", "<int64[1] a = {1}>", "y = Unsqueeze(x, a)"),
    ("float[2,1,3] x", "float[2,3] y", "<int64[1] a = {1}>", "y = Squeeze(x, a)"),
    (ROWS, "float[4,2,3] y", "", "y = Transpose<perm=[2,0,1]>(x)"),
    (f"{ROWS}, float[2,1,4] z", "float[2,7,4] y", "", "y = Concat<axis=-2>(x, z, x)"),
    ("float[2,1,4] x", "float[2,3,4] y", "<int64[3] s = {2,3,4}>", "y = Expand(x, s)"),
    (ROWS, "float[4,3,8] y", "<int64[3] r = {2,1,2}>", "y = Tile(x, r)"),
    (ROWS, "float[2,1,4] a, float[2,2,4] b", "<int64[2] s = {1,2}>", "a, b = Split<axis=1>(x, s)"),
    (ROWS, "float[2,2,2] y", BACKWARDS, "y = Slice(x,s,e,a,t)"),
    (ROWS, "float[2,4] y", "<int64 i = {-1}>", "y = Gather<axis=1>(x, i)"),
    (ROWS, "float[2,2,2,4] y", "<int64[2,2] i = {2,0,-1,1}>", "y = Gather<axis=1>(x, i)"),
    (f"{ROWS}, int64[2,2,4] i", "float[2,2,4] y", "", "y = GatherElements<axis=1>(x, i)"),
    (f"{ROWS}, int64[5,2] i", "float[5,4] y", "", "y = GatherND(x, i)"),
    (f"{ROWS}, int64[2,1,4] i, float[2,1,4] u", "float[2,3,4] y", "", "y = ScatterElements<axis=1>(x, i, u)"),
    (ROWS, "float[2,3,4] y", "<int64[2,2] i = {0,1,1,2}, float[2,4] u = {1,2,3,4,5,6,7,8}>", "y = ScatterND(x, i, u)"),
    (IMAGE, "float[1,4,9,9] y", "<int64[8] p = {0,0,1,0,0,0,2,1}, float v = {0.5}>", "y = Pad(x, p, v)"),
    (IMAGE, "float[1,4,8,8] y", "<int64[4] p = {1,0,1,0}, int64[2] a = {2,3}>", 'y = Pad<mode="reflect">(x, p, , a)'),
    (IMAGE, "float[1,1,12,16] y", "", "y = DepthToSpace<blocksize=2>(x)"),
    (IMAGE, "float[1,1,12,16] y", "", 'y = DepthToSpace<blocksize=2, mode="CRD">(x)'),
    (IMAGE, "float[1,16,3,4] y", "", "y = SpaceToDepth<blocksize=2>(x)"),
    (f"{ROWS}, float[4,5] z", "float[2,3,5] y", "", "y = MatMul(x, z)"),
    ("float[2,3,5,4] x, float[2,1,4,5] z", "float[2,3,5,5] y", "", "y = MatMul(x, z)"),
    (f"{ROWS}, float[2,5,4] z", "float[2,3,5] y", "", 'y = Einsum<equation="bnc,bmc->bnm">(x, z)'),
    (
        "float[4,3] x, float[5,4] z",
        "float[3,5] y",
        "<float[3,1] c = {1,2,3}>",
        "y = Gemm<transA=1, transB=1, alpha=2.0>(x, z, c)",
    ),
    (IMAGE, "float[1,4,6,8] y", "", "y = Mul(x, x)"),
    (IMAGE, "float[1,4,3,4] y", "", "y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)"),
    (IMAGE, "float[1,4,3,4] y", "", 'y = MaxPool<auto_pad="SAME_UPPER", kernel_shape=[3,3], strides=[2,2]>(x)'),
    (IMAGE, "float[1,4,3,4] y", "", "y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    *((IMAGE, "float[1,4,1,1] y", "", f"y = {op}(x)") for op in ("GlobalAveragePool", "GlobalMaxPool")),
    ("float[2,4,7] x", "float[2,4,3] y", "", "y = MaxPool<kernel_shape=[3], strides=[2]>(x)"),
    ("float[2,4,7] x", "float[2,4,4] y", "", "y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,1]>(x)"),
    *(
        (IMAGE, f"float[1,4,{size}] y", "", f"y = AveragePool<kernel_shape=[3,2], strides=[2,2], {attributes}>(x)")
        for size, attributes in (
            ("3,4", "pads=[1,0,0,0]"),
            ("3,4", "pads=[1,0,0,0], count_include_pad=1"),
            ("4,5", "pads=[1,1,1,1], ceil_mode=1"),
            ("4,5", "pads=[1,1,1,1], ceil_mode=1, count_include_pad=1"),
            ("3,5", "pads=[1,1,1,1]"),
            ("3,5", "pads=[1,1,1,1], count_include_pad=1"),
            ("3,4", 'auto_pad="SAME_UPPER"'),
            ("3,4", 'auto_pad="SAME_LOWER", count_include_pad=1'),
        )
    ),
    (IMAGE, "float[1,4,6,8] y", NORM, "y = InstanceNormalization(x, s, b)"),
    (IMAGE, "float[1,4,6,8] y", NORM, "y = GroupNormalization<num_groups=2>(x,s,b)"),
    (IMAGE, "float[1,4,6,8] y", NORM, "y = BatchNormalization(x, s, b, b, s)"),
    (ROWS, "float[2,3,4] y", NORM, "y = LayerNormalization(x, s, b)"),
    (f"{IMAGE}, float[1,5,5,2] g", "float[1,4,5,5] y", "", "y = GridSample(x, g)"),
    (IMAGE, "float[1,4,12,16] y", "<float[4] s = {1,1,2,2}>", 'y = Resize<mode="linear">(x, , s)'),
    (IMAGE, "float[1,4,12,16] y", "<float[4] s = {1,1,2,2}>", 'y = Resize<mode="nearest">(x, , s)'),
    (IMAGE, "float[1,4,7,11] y", "<float[2] s = {1.3,1.4}>", f"y = {ALIGNED}(x, , s)"),
    *(
        (IMAGE, f"float[1,4,{size}] y", f"<int64[4] z = {{1,4,{size}}}>", f"y = Resize<{attributes}>(x, , , z)")
        for size, attributes in RESIZED
    ),
    (IMAGE, "float[1,4,9,11] y", "<float[4] s = {1,1,1.6,1.45}>", 'y = Resize<mode="linear">(x, , s)'),
    (IMAGE, "float[1,4,9,11] y", "<float[2] s = {1.6,1.45}>", 'y = Resize<mode="nearest", axes=[-2,-1]>(x, , s)'),
    (IMAGE, "float[1,8,6,8] y", "<float[4] s = {1,2,1,1}>", 'y = Resize<mode="nearest">(x, , s)'),
    ("float[2,3,5] x", "float[2,3,8] y", "<int64[3] z = {2,3,8}>", 'y = Resize<mode="linear">(x, , , z)'),
    ("uint8[1,2,3,4] x", "uint8[1,2,5,7] y", "<int64[4] z = {1,2,5,7}>", 'y = Resize<nearest_mode="ceil">(x, , , z)'),
    *((INTEGERS, "int64[6] y", "<int64 o = {5}, int64[1] k = {3}>", f"d = Sub(x, o) y = {op}(d, k)") for op in HALVES),
    (INTEGERS, "int64[6] y", "<int64 lo = {-1}>", "y = Clip(x, lo)"),
    *(("int32[2,3] x", "int32[2,1] y", "<int64[1] a = {1}>", f"y = {op}(x, a)") for op in ("ReduceSum", "ReduceMax")),
    ("int32[2,3] x", "int32[2,3] y", "<int64 a = {1}>", "y = CumSum(x, a)"),
    *((ROWS, "int64[2,1,4] y", "", f"r = Sign(x) y = {op}<axis=1, select_last_index=1>(r)") for op in ARGUMENTS),
    (ROWS, "int64[2,4] y", "", "r = Sign(x) y = ArgMax<axis=-2, keepdims=0, select_last_index=1>(r)"),
    (ROWS, "float[2,3,4] y", "<int64[0] a = {}>", "y = ReduceMean<noop_with_empty_axes=1>(x, a)"),
    (ROWS, "float[1,1,1] y", "<int64[0] a = {}>", "y = ReduceMean(x, a)"),
    ("float[2,4,4] x", "float[2,4,4] y", NORM, "y = LayerNormalization<axis=1>(x, s, b)"),
    (ROWS, "float[1,2,2] y", "<int64[1,2,2] i = {-1,0,1,-3}>", "y = GatherElements<axis=1>(x, i)"),
    (f"{ROWS}, float[1,1,2] u", "float[2,3,4] y", "<int64[1,1,2] i = {-1,-3}>", f"y = {SCATTER}(x, i, u)"),
    (IMAGE, "float[1,4,6,10] y", "<int64[8] p = {0,0,0,1,0,0,0,1}>", 'y = Pad<mode="wrap">(x, p)'),
    (IMAGE, "float[1,4,6,10] y", "<int64[8] p = {0,0,0,1,0,0,0,1}>", 'y = Pad<mode="reflect">(x, p)'),
    ("uint8[1,2,3,4] x", "uint8[1,2,6,12] y", "<float[4] f = {1,1,2,3}>", 'y = Resize<mode="nearest">(x, , f)'),
    ("int64[2,3,4] x, int64[4,5] z", "int64[2,3,5] y", "", "y = MatMul(x, z)"),
    ("int64[2,1,4] x", "int64[2,3,4] y", "<int64[3] s = {2,3,4}>", "y = Expand(x, s)"),
    ("int64[2,4] x", "int64[2,8] y", "<int64[2] r = {1,2}>", "y = Tile(x, r)"),
    (ROWS, "float[3,1,3,4] y", "<int64[4] s = {3,1,1,1}, int64[1] i = {0}>", "h = Gather(x, i) y = Expand(h, s)"),
    ("float[8,82] x", "int64[8] y", "<float o = {0}, int64[1] a = {-1}>", f"{COUNT} y = Cast<to=7>(n)"),
    ("float x", "float y", "", "y = ReduceL2(x)"),
    ("float[1,2,1,2,1,2,3] x", "float[1,2,1,2,1,2,3] y", "", "h = Softmax<axis=1>(x) y = Softmax(h)"),
    ("float[1,2,1,2,1,2,3] x", "float[1,2,1,2,1,2,3] y", "<float[3] s = {1,2,3}>", "y = LayerNormalization(x, s)"),
    ("float[2,4,5] x", "float[2,4,1] y", "", "y = GlobalAveragePool(x)"),
    (IMAGE, "float[1,4,3,4] y", "", "y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)"),
    (IMAGE, "float[1,4,2,3] y", "", "y = AveragePool<kernel_shape=[3,3], strides=[3,3], ceil_mode=1>(x)"),
    (ROWS, "float[2,3,4] y", "", "k = Constant<value = float[4] {1,2,3,4}>() y = Mul(x, k)"),
]
WEIGHTED = [
    ("float[2,3,4] x", "float[2,3,5] y", "y = MatMul(x, w)", (4, 5), None),
    ("float[3,4] x", "float[3,5] y", "y = Gemm(x, w, b)", (4, 5), (5,)),
    ("float[3,4] x", "float[3,5] y", "y = Gemm<transB=1>(x, w, b)", (5, 4), (5,)),
    ("float[3,4] x", "float[3,4] y", "y = Gemm<alpha=0.5>(x, w, b)", (4, 4), (4,)),
    ("float[3,4] x", "float[3,5] y", "y = Gemm<beta=0.5>(x, w, b)", (4, 5), (5,)),
    ("float[3,4] x", "float[3,5] y", "y = Gemm<alpha=0.5, transB=1>(x, w, b)", (5, 4), (5,)),
    ("float[4,3] x", "float[3,4] y", "y = Gemm<transA=1>(x, w, b)", (4, 4), (4,)),
    ("float[3,4] x", "float[3,4] y", "y = Gemm(x, w, b)", (4, 4), (1, 4)),
    ("float[3,4] x", "float[3,4] y", "y = Gemm(x, w, b)", (4, 4), (3, 1)),
    ("float[3,4] x", "float[3,4] y", "y = Gemm(x, w, b)", (4, 4), (1,)),
    (IMAGE, "float[1,6,4,7] y", "y = Conv<pads=[0,1,0,0], group=2>(x, w, b)", (6, 2, 3, 2), (6,)),
    (IMAGE, "float[1,6,3,4] y", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w, b)', (6, 4, 3, 2), (6,)),
    (IMAGE, "float[1,6,6,8] y", 'y = Conv<auto_pad="SAME_LOWER">(x, w)', (6, 4, 2, 2), None),
    ("float[1,4,8] x", "float[1,6,4] y", "y = Conv<strides=[2], pads=[1,1]>(x, w, b)", (6, 4, 3), (6,)),
    (IMAGE, "float[1,3,12,16] y", "y = ConvTranspose<strides=[2,2]>(x, w, b)", (4, 3, 2, 2), (3,)),
    *(
        (IMAGE, f"float[1,3,{size}] y", f"y = ConvTranspose<strides=[2,2], {attributes}>(x, w, b)", (4, 3, 3, 3), (3,))
        for size, attributes in (
            ("12,16", "pads=[1,1,0,0]"),
            ("12,16", "pads=[0,0,1,1]"),
            ("12,16", "pads=[1,1,1,1], output_padding=[1,1]"),
            ("12,16", 'auto_pad="SAME_UPPER"'),
            ("12,16", 'auto_pad="SAME_LOWER"'),
            ("12,17", "output_shape=[12,17]"),
        )
    ),
]


def resized(constant: str, size: str, attributes: str, inputs: str) -> str:
    return f"g (float[1,2,6,6] x) => (float[1,2,{size}] y) <{constant}> {{ [odd] y = Resize<{attributes}>{inputs} }}"


def assert_matches_onnx_runtime(text: str, **constants: np.ndarray) -> None:
    model = model_from(text, opset=21, **constants)
    inputs = random_inputs(model)
    expected = run(model, inputs)
    with torch.no_grad():
        outputs = build_module(model)(*(torch.from_numpy(array) for array in inputs.values()))
    for (name, array), tensor in zip(expected.items(), outputs, strict=True):
        assert tuple(tensor.shape) == array.shape, name
        assert tensor.numpy().dtype == array.dtype, name
        if array.dtype.kind == "f":
            assert sqnr_db(array, tensor.numpy()) > 100
        else:
            np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize(("inputs", "outputs", "constants", "nodes"), CASES, ids=lambda text: text[-40:])
def test_operator_matches_onnx_runtime(inputs: str, outputs: str, constants: str, nodes: str) -> None:
    assert_matches_onnx_runtime(f"g ({inputs}) => ({outputs}) {constants} {{ {nodes} }}")


@pytest.mark.parametrize(("inputs", "outputs", "nodes", "weight", "bias"), WEIGHTED, ids=lambda field: str(field)[-30:])
def test_layers_match_onnx_runtime(
    inputs: str, outputs: str, nodes: str, weight: tuple[int, ...], bias: tuple[int, ...] | None
) -> None:
    constants = {"w": normal(*weight), **({} if bias is None else {"b": normal(*bias, seed=1)})}
    assert_matches_onnx_runtime(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", **constants)


# Node -> the torch function that a model's author uses.
STOCK = {
    "y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)": "avg_pool2d",
    "y = Expand(x, wide)": "expand",
    "y = GroupNormalization<num_groups=2>(x, s, s)": "group_norm",
    "y = InstanceNormalization(x, s, s)": "instance_norm",
    "y = LayerNormalization(x, e)": "layer_norm",
    "y = ReduceL2(x, a)": "sum.dim_IntList",
    "y = ReduceMean(x, a)": "mean.dim",
    "y = ReduceSum(x, a)": "sum.dim_IntList",
    'y = Resize<mode="nearest">(x, , f)': "upsample_nearest2d",
    "y = Softmax<axis=1>(x)": "softmax",
    "y = Tile(x, r)": "repeat",
}


@pytest.mark.parametrize(("node", "function"), STOCK.items())
def test_a_stock_program_calls_the_functions_of_a_models_author(node: str, function: str) -> None:
    constants = "float[4] s = {1,2,3,4}, float[8] e = {1,2,3,4,5,6,7,8}, int64[1] a = {-1}, float[4] f = {1,1,2,2}"
    constants += ", int64[4] wide = {3,4,6,8}, int64[4] r = {1,2,1,1}"
    model = model_from(f"g ({IMAGE}) => (float[a,b,c,d] y) <{constants}> {{ {node} }}")
    infer_shapes(model)
    exported = torch.export.export(build_module(model, PLAIN), (torch.zeros(1, 4, 6, 8),))
    calls = [str(torch_node.target) for torch_node in exported.graph.nodes if torch_node.op == "call_function"]
    assert any(function in call for call in calls), calls
    rewritten = ("aten.permute", "aten.view", "aten.rsqrt", "aten.linear")
    assert not any(call.startswith(rewritten) for call in calls), calls


def test_every_operator_has_a_case() -> None:
    tested = " ".join([nodes for *_, nodes in CASES] + [case[2] for case in WEIGHTED])
    assert [op for op in OPERATORS if f"= {op}" not in tested] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g (float[2] x) => (float[2] y) { [odd] y = Celu<alpha = 0.0>(x) }", "'odd' .Celu.: alpha 0 is not supported"),
        (
            "g (float[2] x) => (float[2] y) { [odd] y = Acosh(x) }",
            "node 'odd' uses the operator 'Acosh', which has no mapping to torch",
        ),
        (
            "g (float[2] x, float l, float h) => (float[2] y) { [odd] y = Clip(x, l, h) }",
            "'odd'.*input 1 must be a constant",
        ),
        (
            resized("int64[2] z = {4,9}", "4,4", f'mode="linear", axes=[2,3], {RATIO}', "(x, , , z)"),
            "'odd'.*keep_aspect_ratio_policy",
        ),
        (
            resized("float[8] r = {0,0,0,0,1,1,1,1}, int64[4] z = {1,2,4,4}", "4,4", CROPPED, "(x, r, , z)"),
            "'odd'.*tf_crop_and_resize is not supported; crop",
        ),
        (
            "g (uint8[1,2,3,4] x) => (uint8[1,2,5,7] y) <int64[4] z = {1,2,5,7}> "
            '{ [odd] y = Resize<mode="linear">(x, , , z) }',
            "'odd'.*only nearest can resize integers",
        ),
        (f"g (float[1,2,8,8] x) => (float[1,2,4,4] y) {{ [odd] y = {HOLES} }}", "'odd'.*dilations"),
        (
            f"g (float[2,4] x) => (float[2,4] y, float[2,1] m) {NORM} {{ [odd] y, m = {MOMENTS} }}",
            "'odd'.*the outputs Mean and InvStdDev",
        ),
        (
            "g (float[2] x) => (float[2] y) <int64[0] a = {}> { [odd] y = ReduceL2<noop_with_empty_axes=1>(x, a) }",
            "'odd'.*reducing no axes",
        ),
    ],
)
def test_unsupported_nodes_are_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        build_module(model_from(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('g (float[4] x) => (float[6] y) <int64[2] p = {1,1}> { [odd] y = Pad<mode="wrap">(x, p) }', "'odd' .Pad.: "),
        (
            "g (float[2,3] x) => (float[2,3] y, float[3] m, float[3] v) <float[3] s = {1,2,3}> "
            "{ [odd] y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }",
            "'odd' .BatchNormalization.: ",
        ),
    ],
)
def test_an_error_at_run_time_names_the_node(text: str, why: str) -> None:
    model = model_from(text)
    with pytest.raises(InputError, match=why):
        build_module(model)(*(torch.from_numpy(array) for array in random_inputs(model).values()))


def test_a_resize_builds_no_matrix_of_an_axis_that_it_keeps() -> None:
    """A matrix of the third axis would have 250 GB."""
    text = "g (float[1,1,250000,2] x) => (float[1,1,250000,4] y) <float[4] s = {1,1,1,2}> { y = Resize(x, , s) }"
    assert_matches_onnx_runtime(text)


def test_a_softmax_behind_many_branches_is_built_quickly() -> None:
    """Every Add reads the one before it twice, so there are 2^64 paths: the search must visit every value once."""
    adds = " ".join(f"a{i + 1} = Add(a{i}, a{i})" for i in range(64))
    text = f"g (float[1,2,3,4] x) => (float[1,2,3,4] y) {{ a0 = Relu(x) {adds} y = Softmax(a64) }}"
    build_module(model_from(text))
