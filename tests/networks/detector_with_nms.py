"""A detector that ends in NonMaxSuppression."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dovetail import zoo


def detector_with_nms() -> onnx.ModelProto:
    """The shipped detector, whose boxes and scores go through a NonMaxSuppression at the end."""
    model = onnx.load(zoo.load("detector_scenes").model_path)
    constants = {"most": np.array([5]), "overlap": np.array([0.5], np.float32), "least": np.array([0.3], np.float32)}
    constants |= {"last": np.array([2]), "first": np.array([0])}
    model.graph.initializer.extend(numpy_helper.from_array(array, f"nms.{name}") for name, array in constants.items())
    nodes = [
        ("Sigmoid", ["logits"], "scores", {}),
        ("Transpose", ["scores"], "by_class", {"perm": [0, 2, 1]}),
        ("NonMaxSuppression", ["boxes", "by_class", "nms.most", "nms.overlap", "nms.least"], "chosen", {}),
        ("Gather", ["chosen", "nms.last"], "which", {"axis": 1}),
        ("Squeeze", ["boxes", "nms.first"], "table", {}),
        ("Squeeze", ["which", "nms.axis"], "rows", {}),
        ("Gather", ["table", "rows"], "chosen_boxes", {"axis": 0}),
    ]
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "nms.axis"))
    for op, inputs, output, attributes in nodes:
        more = {"center_point_box": 1} if op == "NonMaxSuppression" else attributes
        model.graph.node.append(helper.make_node(op, inputs, [output], name=f"nms/{output}", **more))
    del model.graph.output[:]
    outputs = (("boxes", onnx.TensorProto.FLOAT, [1, 64, 4]), ("chosen", onnx.TensorProto.INT64, ["n", 3]))
    for name, kind, shape in (*outputs, ("chosen_boxes", onnx.TensorProto.FLOAT, ["n", 4])):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    return model
