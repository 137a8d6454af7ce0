"""As many blocks of a vision transformer as are wanted, after one another; nothing to compute in each."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from dovetail.passes.infer_shapes import infer_shapes

NODES_PER_BLOCK = 14


def blocks(count: int) -> ir.Model:
    """A chain of blocks on one residual stream; each has attention, a Concat and a Slice."""
    lines, weight = [], "float[8,8] w = {" + ",".join(["0.5"] * 64) + "}"
    for i in range(count):
        x, y = f"x{i}", f"x{i + 1}"
        lines += [
            f"q{i} = MatMul({x}, w) k{i} = MatMul({x}, w) v{i} = MatMul({x}, w)",
            f"t{i} = Transpose<perm=[0,2,1]>(k{i}) s{i} = MatMul(q{i}, t{i})",
            f"p{i} = Softmax(s{i}) o{i} = MatMul(p{i}, v{i})",
            f"a{i} = Add({x}, o{i}) h{i} = MatMul(a{i}, w) g{i} = Gelu(h{i}) c{i} = Concat<axis=1>(a{i}, g{i})",
            f"l{i} = Slice(c{i}, zero, four, one) m{i} = Mul(l{i}, g{i}) {y} = Add(a{i}, m{i})",
        ]
    header = f"{weight}, int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] one = {{1}}"
    graph = f"g (float[1,4,8] x0) => (float[1,4,8] x{count}) <{header}> {{ {' '.join(lines)} }}"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}'))
    for number, node in enumerate(model.graph):
        node.name = f"node{number}"
    infer_shapes(model)
    return model
