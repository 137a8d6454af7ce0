"""Damaged models for ``bench.fuzz``: one per seed, made from small good ones by changing bytes or the graph."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

import onnx
from onnx.backend.test.case.node import collect_testcases
from tests.networks.small_graphs import LINEAR, TWO_PRODUCTS

from dovetail import zoo

TARGETS = ("ort-cpu", "qnn-htp:sm8550", "tensorrt:sm89", "xnnpack")
# Sizes, axes and counts at which code breaks.
NUMBERS = (-(2**63), -(2**31), -77, -2, -1, 0, 1, 2, 3, 7, 16, 77, 255, 65536, 2**31 - 1, 2**31, 10**10, 2**63 - 1)
FLOATS = (0.0, -0.0, 1e-45, 1e-30, -1.0, 1e10, 3.4e38, float("inf"), float("-inf"), float("nan"))
HEAD = '<ir_version: 10, opset_import: ["": 21]>'
# The share of seeds that start from a shipped model, which takes a hundred times as long as a small one.
LARGE_SHARE = 0.01


# Names and contents of good models.
Models = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damaged model: its bytes, what it was made from and how, and the target to check it for."""

    content: bytes
    source: str
    kind: str
    target: str


def mutant(seed: int, small: Models | None = None) -> Mutant:
    """The damaged model of a seed; the same one with the same packages and the same cases of rules.

    ``small``: what ``small_models`` returned in another process.
    """
    rng = random.Random(seed)
    large = rng.random() < LARGE_SHARE
    source, content = rng.choice(_large() if large else small or small_models())
    kind = rng.choice(("bytes", "graph", "graph", "opset"))
    content = _at_old_opset(content, rng) if kind == "opset" else content
    changed = _change_bytes(content, rng) if kind == "bytes" else _change_graph(content, rng)
    return Mutant(changed, source, kind, rng.choice(TARGETS))


def _change_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
            case 2:
                del data[at : at + rng.choice((1, 2, 8, 64))]
            case 3:
                other = rng.randrange(len(data) + 1)
                data[at : at + 16] = data[other : other + 16]
            case _ if rng.random() < 0.2:
                del data[at:]
    return bytes(data)


def _at_old_opset(content: bytes, rng: random.Random) -> bytes:
    """The same graph in an opset from which it is converted on read, whether it is valid there or not."""
    proto = onnx.ModelProto.FromString(content)
    version = rng.randrange(7, 21)
    for entry in proto.opset_import:
        if not entry.domain:
            entry.version = version
    return proto.SerializeToString()


def _change_graph(content: bytes, rng: random.Random) -> bytes:
    proto = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(proto, rng)
    try:
        return proto.SerializeToString()
    except ValueError:  # a change left what protobuf does not write
        return content


def _node(proto: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(proto.graph.node) if proto.graph.node else proto.graph.node.add(op_type="Relu")


def _attribute(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(proto, rng)
    if not node.attribute or rng.random() < 0.1:
        name = rng.choice(("axis", "axes", "perm", "pads", "strides", "kernel_shape", "group", "to", "epsilon", "mode"))
        value = rng.choice((rng.choice(NUMBERS), rng.choice(FLOATS), [rng.choice(NUMBERS)], "x", [1, 1]))
        node.attribute.append(onnx.helper.make_attribute(name, value))
        return
    attribute = rng.choice(node.attribute)
    if attribute.ints and rng.random() < 0.8:
        index = rng.randrange(len(attribute.ints))
        attribute.ints[index] = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            del attribute.ints[index:]
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"\xff", b"SAME_UPPER", b"constant", b"tanh", b"ij,jk->ik", b"...->"))
    else:
        node.attribute.remove(attribute)


def _inputs(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(proto, rng)
    names = [info.name for info in proto.graph.input] + [tensor.name for tensor in proto.graph.initializer]
    names += [name for other in proto.graph.node for name in other.output] + ["", "lost"]
    match rng.randrange(4):
        case 0 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 1:
            node.input.append(rng.choice(names))
        case 2 if node.input:
            del node.input[rng.randrange(len(node.input))]
        case _:
            node.input.append("")


def _outputs(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(proto, rng)
    if rng.random() < 0.5 and node.output:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output.append(rng.choice(("", "more", *(info.name for info in proto.graph.output))))


def _operator(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(proto, rng)
    node.op_type = rng.choice(_operators())
    if rng.random() < 0.1:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "other"))


def _nodes(proto: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(proto.graph.node)
    match rng.randrange(3):
        case 0 if nodes:
            proto.graph.node.remove(rng.choice(nodes))
        case 1 if nodes:
            copy = proto.graph.node.add()
            copy.CopyFrom(rng.choice(nodes))
            for index in range(len(copy.output)):
                copy.output[index] += ".copy"
        case _:
            rng.shuffle(nodes)
            del proto.graph.node[:]
            proto.graph.node.extend(nodes)


def _tensor(proto: onnx.ModelProto, rng: random.Random) -> None:
    attributes = [a.t for node in proto.graph.node for a in node.attribute if a.HasField("t")]
    tensors = [*proto.graph.initializer, *attributes]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    match rng.randrange(5):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 1:
            tensor.dims.append(rng.choice((0, 1, 1, 2)))
        case 2:
            tensor.data_type = rng.randrange(30)
        case 3:
            _change_values(tensor, rng)
        case _:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", rng.choice(("", "../x", "a\0b", "/dev/zero", "w"))), ("offset", "abc")):
                tensor.external_data.add(key=key, value=value)


def _change_values(tensor: onnx.TensorProto, rng: random.Random) -> None:
    """Change one element, and keep the size that the shape requires."""
    if tensor.raw_data:
        data = bytearray(tensor.raw_data)
        at = rng.randrange(len(data))
        data[at : at + 8] = rng.choice((b"\xff", b"\0", b"\x7f", rng.randbytes(1)))[:1] * len(data[at : at + 8])
        tensor.raw_data = bytes(data)
    for field, values in (("int64_data", NUMBERS), ("float_data", FLOATS), ("int32_data", (-(2**31), -1, 0, 7, 300))):
        data = getattr(tensor, field)
        if data:
            data[rng.randrange(len(data))] = rng.choice(values)


def _type(proto: onnx.ModelProto, rng: random.Random) -> None:
    infos = [*proto.graph.input, *proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    if not infos:
        return
    tensor_type = rng.choice(infos).type.tensor_type
    dims = tensor_type.shape.dim
    match rng.randrange(5):
        case 0 if dims:
            rng.choice(dims).dim_value = rng.choice(NUMBERS)
        case 1 if dims:
            rng.choice(dims).dim_param = rng.choice(("batch", "?", "", "n"))
        case 2 if dims:
            del dims[rng.randrange(len(dims))]
        case 3:
            dims.add(dim_value=rng.choice((0, 1, 2, 5)))
        case _:
            tensor_type.elem_type = rng.randrange(30)


def _header(proto: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.5 and proto.opset_import:
        rng.choice(proto.opset_import).version = rng.choice((0, 7, 11, 13, 17, 18, 20, 21, 22, 23, 99))
    else:
        proto.ir_version = rng.choice((0, 3, 7, 10, 11, 99))


_Change = Callable[[onnx.ModelProto, random.Random], None]
_CHANGES: tuple[_Change, ...] = (
    *(_attribute, _attribute, _inputs, _inputs, _operator, _operator, _tensor, _tensor, _type, _type),
    *(_outputs, _nodes, _header),
)


@cache
def _operators() -> tuple[str, ...]:
    return tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}))


@cache
def small_models() -> Models:
    """The cases of all rules, small graphs, and every eighth of ONNX's own node cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the reference implementation, which divides by zero on purpose
        cases = sorted(collect_testcases(), key=lambda case: case.name)
    folder = resources.files("dovetail.rules").joinpath("cases")
    texts = {file.name: file.read_text() for file in sorted(folder.iterdir(), key=lambda file: file.name)}
    texts |= {"linear": HEAD + LINEAR, "two_products": HEAD + TWO_PRODUCTS}
    models = [(name, onnx.parser.parse_model(text).SerializeToString()) for name, text in texts.items()]
    nodes = [(case.name, case.model.SerializeToString()) for case in cases[::8]]
    return (*models, *nodes)


@cache
def _large() -> Models:
    return tuple((name, zoo.load(name).model_path.read_bytes()) for name in ("vit_digits", "vit_fashion"))
