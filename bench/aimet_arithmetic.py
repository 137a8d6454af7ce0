"""A QDQ model with the arithmetic of aimet-onnx's simulation, where that is known to differ from ONNX."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dovetail.encoding import Array
from dovetail.encodings.records import TensorEncoding

Outputs = dict[str, Array]


def with_output_entries(outputs: Outputs, entries: Mapping[str, TensorEncoding]) -> Outputs:
    """The outputs of samples, quantized as their entries say; Dovetail leaves the outputs of the graph in float."""
    return {key: _quantized(array, entries.get(key.rsplit(":", 1)[0])) for key, array in outputs.items()}


def _quantized(array: Array, entry: TensorEncoding | None) -> Array:
    if entry is None or entry.is_float:
        return array
    scale, low = np.float32(entry.scale), entry.lowest - int(entry.zero_point)
    return (
        np.clip(np.floor(array / scale + np.float32(0.5)), low, low + (1 << entry.bits) - 1).astype(np.float32) * scale
    )


def biases_in_float(simulation: onnx.ModelProto, model: onnx.ModelProto, given: Collection[str]) -> dict[str, Array]:
    """Outputs of the DequantizeLinear nodes of int32 biases that have no entry -> the float bias of the model."""
    floats = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    stored = {tensor.name: tensor for tensor in simulation.graph.initializer}
    found = {}
    for node in simulation.graph.node:
        tensor = stored.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        name = "" if tensor is None else tensor.name.removesuffix("__q")
        if tensor is not None and tensor.data_type == TensorProto.INT32 and name in floats and name not in given:
            found[node.output[0]] = floats[name].astype(np.float32)
    return found


def ties_up(simulation: onnx.ModelProto, biases: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """The model with every QuantizeLinear written as float operators that round ties up, and some biases in float.

    The zero point is added before rounding, in float32: with 16 bits that moves values by up to 1/256 of a step.
    """
    model = onnx.ModelProto()
    model.CopyFrom(simulation)
    graph = model.graph
    zero_points = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes, rounded = [], set()
    for node in graph.node:
        name = node.output[0]
        if node.op_type == "QuantizeLinear":
            zero_point = zero_points[node.input[2]]
            ends = np.iinfo(zero_point.dtype)
            constants = {"zero": int(zero_point), "half": 0.5, "low": ends.min, "high": ends.max}
            graph.initializer.extend(
                numpy_helper.from_array(np.array(value, np.float32), f"{name}/{key}")
                for key, value in constants.items()
            )
            nodes += [
                helper.make_node("Div", node.input[:2], [f"{name}/steps"]),
                helper.make_node("Add", [f"{name}/steps", f"{name}/zero"], [f"{name}/shifted"]),
                helper.make_node("Add", [f"{name}/shifted", f"{name}/half"], [f"{name}/raised"]),
                helper.make_node("Floor", [f"{name}/raised"], [f"{name}/floor"]),
                helper.make_node("Clip", [f"{name}/floor", f"{name}/low", f"{name}/high"], [f"{name}/integer"]),
                helper.make_node("Sub", [f"{name}/integer", f"{name}/zero"], [name]),
            ]
            rounded.add(name)
        elif node.op_type == "DequantizeLinear" and node.input[0] in rounded:
            nodes.append(helper.make_node("Mul", node.input[:2], [name]))
        elif biases is not None and name in biases:
            graph.initializer.append(numpy_helper.from_array(biases[name], f"{name}/float"))
            nodes.append(helper.make_node("Identity", [f"{name}/float"], [name]))
        else:
            nodes.append(node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model
