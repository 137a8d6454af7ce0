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
    graph.node.extend(
        [
            helper.make_node("Concat", [SIZES, SIZES], ["sizes_twice"], name="postprocessor/Concat", axis=1),
            helper.make_node("Cast", ["sizes_twice"], ["sizes_float"], name="postprocessor/Cast", to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["sizes_float", "sizes_axes"], ["sizes"], name="postprocessor/Unsqueeze"),
            *(_through_wide_tensor(graph) if padded_boxes else ()),
            helper.make_node(
                "Mul", ["near_boxes" if padded_boxes else "boxes", "sizes"], ["scaled_boxes"], name="postprocessor/Mul"
            ),
        ]
    )
    shape = [d.dim_value for d in boxes.type.tensor_type.shape.dim]
    boxes.CopyFrom(helper.make_tensor_value_info("scaled_boxes", TensorProto.FLOAT, shape))
    path = folder / "detector.onnx"
    onnx.save(model, path)
    data = folder / "calib.npz"
    images = entry.calib()[entry.input_name][:samples]
    np.savez(data, **{entry.input_name: images, SIZES: np.full((samples, 2), 64, np.int64)})
    return path, data


def _through_wide_tensor(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Boxes beside a row of padding that is far outside of their range, until the padding is sliced off."""
    constants = {
        "wide_factor": np.array(10, np.float32),
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
