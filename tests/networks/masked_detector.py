"""The shipped detector with masked anchors in the corners of the image, as RT-DETR masks those outside of it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dovetail import zoo

SENTINEL = 1e34
MASKED = (0, 7, 56, 63)
_ANCHORS = "decoder.0/Add_5_const0"
_ATTENTION = ("decoder.0.self_attn/Softmax_out", "decoder.1.self_attn/Softmax_out")


def masked_detector() -> onnx.ModelProto:
    """Four of 64 anchors are 1e34, and no query attends to theirs: the lowest float is added to the scores."""
    model = onnx.load(zoo.load("detector_scenes").model_path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    anchors = numpy_helper.to_array(constants[_ANCHORS]).copy()
    anchors.reshape(-1, 4)[list(MASKED)] = SENTINEL
    constants[_ANCHORS].CopyFrom(numpy_helper.from_array(anchors, _ANCHORS))
    mask = np.zeros((1, anchors.size // 4), np.float32)
    mask[0, list(MASKED)] = np.finfo(np.float32).min
    model.graph.initializer.append(numpy_helper.from_array(mask, "query_mask"))
    for softmax in [node for node in model.graph.node if node.output[0] in _ATTENTION]:
        masked = f"{softmax.output[0]}/masked"
        add = helper.make_node("Add", [softmax.input[0], "query_mask"], [masked], name=masked)
        model.graph.node.insert(list(model.graph.node).index(softmax), add)
        softmax.input[0] = masked
    onnx.checker.check_model(model, full_check=True)
    return model
