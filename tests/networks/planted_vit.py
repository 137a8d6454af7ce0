"""A vision transformer of twelve layers, quantized, in which one pattern is planted that a compiler refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from dovetail.target import Target
from tests.planning import graph, planned

LAYERS, TOKENS, WIDTH, HEADS = 12, 16, 16, 2
# The input of the layer in which the pattern is.
PLANTED_AT = "x6"
_RANDOM = np.random.default_rng(3)


def _constant(name: str, *shape: int) -> str:
    numbers = ",".join(f"{number:.4f}" for number in 0.25 * _RANDOM.standard_normal(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{numbers}}}"


def _layer(number: int, x: str, y: str) -> tuple[list[str], str]:
    """The constants of a layer, and its nodes from ``x`` to ``y``."""
    i = f"l{number}"
    square = ("q", "k", "v", "o")
    constants = [_constant(f"{i}{name}", WIDTH, WIDTH) for name in square]
    constants += [_constant(f"{i}f", WIDTH, 2 * WIDTH), _constant(f"{i}g", 2 * WIDTH, WIDTH)]
    constants += [_constant(f"{i}{name}s", WIDTH) for name in "ab"]
    heads = "  ".join(
        f"{i}{name}r = Reshape({i}{name}m, heads)  {i}{name}t = Transpose<perm={perm}>({i}{name}r)"
        for name, perm in (("q", "[0,2,1,3]"), ("k", "[0,2,3,1]"), ("v", "[0,2,1,3]"))
    )
    products = "  ".join(f"{i}{name}m = MatMul({i}n, {i}{name})" for name in "qkv")
    nodes = f"""{i}n = LayerNormalization({x}, {i}as)  {products}  {heads}
        {i}c = MatMul({i}qt, {i}kt)  {i}p = Softmax({i}c)  {i}x = MatMul({i}p, {i}vt)
        {i}xt = Transpose<perm=[0,2,1,3]>({i}x)  {i}j = Reshape({i}xt, joined)  {i}om = MatMul({i}j, {i}o)
        {i}y = Add({x}, {i}om)  {i}z = LayerNormalization({i}y, {i}bs)  {i}h = MatMul({i}z, {i}f)
        {i}e = Gelu({i}h)  {i}w = MatMul({i}e, {i}g)  {y} = Add({i}y, {i}w)"""
    return constants, nodes


def _vit(pattern: str = "") -> ir.Model:
    """The float graph; ``pattern``: nodes from ``x6`` to ``planted``."""
    after = "planted" if pattern else PLANTED_AT
    names = ["x0", *(f"x{number + 1}" for number in range(LAYERS - 1)), "y"]
    constants, nodes = [], ""
    for number in range(LAYERS):
        x = after if names[number] == PLANTED_AT else names[number]
        more, layer = _layer(number, x, names[number + 1])
        constants += more
        nodes += layer + "\n" + (pattern if names[number + 1] == PLANTED_AT else "")
    sizes = f"""int64[4] heads = {{1,{TOKENS},{HEADS},{WIDTH // HEADS}}}, int64[3] joined = {{1,{TOKENS},{WIDTH}}},
        int64[6] windows = {{2,2,2,2,4,{WIDTH // 4}}}"""
    shape = f"float[1,{TOKENS},{WIDTH}]"
    return graph(f"vit ({shape} x0) => ({shape} y) <{sizes}, {', '.join(constants)}> {{ {nodes} }}")


def _int32_bias(model: onnx.ModelProto) -> None:
    """A constant on a separate Add in int32, as the bias of a layer is."""
    add = next(node for node in model.graph.node if node.op_type == "Add" and "l6y" in node.output[0])
    bias = numpy_helper.from_array(np.arange(WIDTH, dtype=np.int32), "bias32")
    scale = numpy_helper.from_array(np.float32(1e-3), "bias32_scale")
    model.graph.initializer.extend([bias, scale])
    position = list(model.graph.node).index(add)
    dequantize = helper.make_node("DequantizeLinear", ["bias32", "bias32_scale"], ["bias32_float"], name="bias32_dq")
    extra = helper.make_node("Add", [add.input[0], "bias32_float"], ["biased"], name="planted_bias")
    model.graph.node.insert(position, dequantize)
    model.graph.node.insert(position + 1, extra)
    add.input[0] = "biased"


def _nonzero(model: onnx.ModelProto) -> None:
    """Places of nonzero elements, whose number depends on the data."""
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization" and "l6n" in node.output[0])
    model.graph.node.append(helper.make_node("NonZero", [norm.input[0]], ["places"], name="planted_nonzero"))
    model.graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, [3, None]))


@dataclass(frozen=True)
class Pattern:
    """Nodes that are planted before the model is quantized, what is done afterwards, and the operator to be found."""

    operator: str
    nodes: str = ""
    change: Callable[[onnx.ModelProto], None] | None = None


PATTERNS = {
    "rank-6 window": Pattern(
        "Reshape", "r6 = Reshape(x6, windows)  t6 = Transpose<perm=[0,2,1,4,3,5]>(r6)  planted = Reshape(t6, joined)"
    ),
    "Erf": Pattern("Erf", "planted = Erf(x6)"),
    "int32 bias": Pattern("Add", change=_int32_bias),
    "NonZero": Pattern("NonZero", change=_nonzero),
}


def planted_vit(name: str, target: Target, folder: Path) -> Path:
    """The quantized model with a pattern, as a file."""
    pattern = PATTERNS[name]
    model = _vit(pattern.nodes)
    plan = planned(model, target, target.table.precisions["w8a16"])
    path = target.backend.emit(model, plan, folder)[0].path
    if pattern.change is not None:
        proto = onnx.load(path)
        pattern.change(proto)
        onnx.save(proto, path)
    return path


def samples(count: int = 2) -> dict[str, np.ndarray]:
    """Random tokens."""
    random = np.random.default_rng(5)
    return {"x0": random.standard_normal((count, 1, TOKENS, WIDTH)).astype(np.float32)}
