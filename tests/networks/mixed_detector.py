"""A detector like RT-DETR: GridSample in its decoder, and the size of the image as a second, int64 input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from dovetail import zoo
from dovetail.backend import Sample
from dovetail.model.session import Mode, open_session, run_session

SIZES = "orig_target_sizes"
FLOAT_DECODER = ("decoder.1*=fp16",)
SCATTERED = ("*GridSample*=fp16", "*box_head*=fp16")


def write_detector(folder: Path, samples: int = 4, *, padded_boxes: bool = False) -> tuple[Path, Path]:
    """Write the model and its calibration data; boxes are multiplied by the size of the image.

    ``padded_boxes``: boxes pass through a tensor with a far larger range, for which 16 bit are too few.
    """
    entry = zoo.load("detector_scenes")
    model = onnx.load(entry.model_path)
    graph = model.graph
    boxes = next(output for output in graph.output if output.name == "boxes")
    graph.input.append(helper.make_tensor_value_info(SIZES, TensorProto.INT64, [1, 2]))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "sizes_axes"))
    graph.node.extend(_sizes())
    if padded_boxes:
        graph.node.extend(_through_wide_tensor(graph))
    graph.node.append(_scaled("near_boxes" if padded_boxes else "boxes"))
    shape = [d.dim_value for d in boxes.type.tensor_type.shape.dim]
    boxes.CopyFrom(helper.make_tensor_value_info("scaled_boxes", TensorProto.FLOAT, shape))
    path = folder / "detector.onnx"
    onnx.save(model, path)
    data = folder / "calib.npz"
    images = entry.calib()[entry.input_name][:samples]
    np.savez(data, **{entry.input_name: images, SIZES: np.full((samples, 2), 64, np.int64)})
    return path, data


_DECODER = """<ir_version: 10, opset_import: ["": 21]>
decoder (float[1,4,8,8] images, int64[1,2] orig_target_sizes) => (float[1,64,3] logits, float[1,64,4] scaled_boxes)
<int64[3] flat = {1,8,64}, int64[4] points = {1,64,1,2}, int64[1] sizes_axes = {1}>
{
  features = Conv<pads=[1,1,1,1]>(images, conv_w, conv_b)
  value = Relu(features)
  rows = Reshape(value, flat)
  memory = Transpose<perm=[0,2,1]>(rows)
  [norm1] x = LayerNormalization(memory, gamma, beta)
  q0 = MatMul(x, q_w)  q = Add(q0, q_b)
  k0 = MatMul(x, k_w)  k = Add(k0, q_b)
  v0 = MatMul(x, v_w)  v = Add(v0, q_b)
  kt = Transpose<perm=[0,2,1]>(k)
  [scores] s = MatMul(q, kt)
  p = Softmax(s)
  [attended] a = MatMul(p, v)
  r = Add(x, a)
  [norm2] h = LayerNormalization(r, gamma, beta)
  o = MatMul(h, grid_w)
  grid = Reshape(o, points)
  [sampled] g = GridSample(value, grid)
  gr = Reshape(g, flat)
  gt = Transpose<perm=[0,2,1]>(gr)
  r2 = Add(h, gt)
  [norm3] d = LayerNormalization(r2, gamma, beta)
  logits = MatMul(d, class_w)
  b0 = MatMul(d, box_w)
  boxes = Sigmoid(b0)
}"""
_SHAPES = {
    "conv_w": (8, 4, 3, 3), "conv_b": (8,), "gamma": (8,), "beta": (8,), "q_w": (8, 8), "q_b": (8,), "k_w": (8, 8),
    "v_w": (8, 8), "grid_w": (8, 2), "class_w": (8, 3), "box_w": (8, 4),
}  # fmt: skip


def write_decoder(folder: Path, samples: int = 8) -> tuple[Path, Path]:
    """Write a small decoder with attention, GridSample and an int64 second input; its boxes pass through a tensor with
    a range for which 16 bit are too few."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(_DECODER)
    graph = model.graph
    weights = {name: 0.3 * random.standard_normal(shape, np.float32) for name, shape in _SHAPES.items()}
    weights["gamma"] += 1
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    graph.node.extend([*_sizes(), *_through_wide_tensor(graph, 1.5), _scaled("near_boxes")])
    path, data = folder / "decoder.onnx", folder / "decoder.npz"
    onnx.save(model, path)
    images = random.standard_normal((samples, 4, 8, 8)).astype(np.float32)
    np.savez(data, images=images, **{SIZES: np.full((samples, 2), 64, np.int64)})
    return path, data


def _sizes() -> list[onnx.NodeProto]:
    """The size of the image, as a float tensor that boxes can be multiplied by."""
    return [
        helper.make_node("Concat", [SIZES, SIZES], ["sizes_twice"], name="postprocessor/Concat", axis=1),
        helper.make_node("Cast", ["sizes_twice"], ["sizes_float"], name="postprocessor/Cast", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["sizes_float", "sizes_axes"], ["sizes"], name="postprocessor/Unsqueeze"),
    ]


def _scaled(boxes: str) -> onnx.NodeProto:
    return helper.make_node("Mul", [boxes, "sizes"], ["scaled_boxes"], name="postprocessor/Mul")


def _through_wide_tensor(graph: onnx.GraphProto, factor: float = 10) -> list[onnx.NodeProto]:
    """Boxes beside a row of padding that is far outside of their range, until the padding is sliced off."""
    constants = {
        "wide_factor": np.array(factor, np.float32),
        "padding": np.full((1, 1, 4), 6e4, np.float32),
        "first": np.array([0], np.int64),
        "last": np.array([-1], np.int64),
        "row_axis": np.array([1], np.int64),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return [
        helper.make_node("Mul", ["boxes", "wide_factor"], ["far_boxes"], name="padded/Mul"),
        helper.make_node("Concat", ["far_boxes", "padding"], ["padded"], name="padded/Concat", axis=1),
        helper.make_node("Sqrt", ["padded"], ["padded_root"], name="padded/Sqrt"),
        helper.make_node("Slice", ["padded_root", "first", "last", "row_axis"], ["near_boxes"], name="padded/Slice"),
    ]


def first_sample(data: Path) -> Sample:
    with np.load(data) as arrays:
        return {name: arrays[name][:1] for name in arrays.files}


def run_parts(folder: Path, kind: str, sample: Sample) -> Sample:
    """The outputs of the parts of a manifest, run one after another in ONNX Runtime."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    values = dict(sample)
    for part in manifest[kind]:
        session = open_session(folder / part["model"], Mode.EXACT)
        values |= run_session(session, {name: values[name] for name in part["inputs"]})
    return {name: values[name] for name in manifest["outputs"]}
