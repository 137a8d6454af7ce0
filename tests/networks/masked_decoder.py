"""An RT-DETR-like decoder with the three things that no integer can represent, and its twin without them.

- sentinel: anchors outside the valid part of the image are 1e34, and box offsets are added to them;
- log boxes: every refinement computes the logit of the boxes, ``Log(x / (1 - x))`` with both clamped to 1e-5;
- image size: the boxes are multiplied by the size of the image.

The shapes and values are those of RT-DETRv2's decoder, small: 64 anchors, all of them queries (a TopK would select
other rows after quantization, so that rows could not be compared), two layers with self-attention.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

ANCHORS, WIDTH, CLASSES, LAYERS = 64, 32, 5, 2
SENTINEL = 1e34
IMAGE_SIZE = (640.0, 480.0, 640.0, 480.0)
BOXES, LOGITS = "boxes", "logits"
PARTS = ("sentinel", "log_boxes", "image_size")

_HEAD = """
    n = LayerNormalization<axis = -1>(memory, gamma, beta)
    h0 = MatMul(n, box_w0)  h1 = Add(h0, box_b0)  h2 = Relu(h1)  h3 = MatMul(h2, box_w1)  offsets = Add(h3, box_b1)
    {anchors}
    unactivated = Add(offsets, masked_anchors)
    boxes0 = Sigmoid(unactivated)
    target0 = Identity(n)
"""
_LAYER = """
    p{i} = MatMul(boxes{i}, l{i}_wp)  pb{i} = Add(p{i}, l{i}_bp)  pr{i} = Relu(pb{i})
    x{i} = Add(target{i}, pr{i})
    q{i} = MatMul(x{i}, l{i}_wq)  k{i} = MatMul(x{i}, l{i}_wk)  v{i} = MatMul(target{i}, l{i}_wv)
    kt{i} = Transpose<perm = [0,2,1]>(k{i})  s{i} = MatMul(q{i}, kt{i})  ss{i} = Mul(s{i}, attention_scale)
    a{i} = Softmax<axis = -1>(ss{i})  m{i} = MatMul(a{i}, v{i})  r{i} = Add(target{i}, m{i})
    target{j} = LayerNormalization<axis = -1>(r{i}, gamma, beta)
    d0{i} = MatMul(target{j}, l{i}_w0)  d1{i} = Add(d0{i}, l{i}_b0)  d2{i} = Relu(d1{i})
    d3{i} = MatMul(d2{i}, l{i}_w1)  delta{i} = Add(d3{i}, l{i}_b1)
    {logit}
    refined{i} = Add(delta{i}, logit{i})
    boxes{j} = Sigmoid(refined{i})
"""
_LOG_BOXES = """
    inside{i} = Clip(boxes{i}, zero, one)  above{i} = Max(inside{i}, epsilon)
    rest{i} = Sub(one, inside{i})  below{i} = Max(rest{i}, epsilon)
    ratio{i} = Div(above{i}, below{i})  logit{i} = Log(ratio{i})
"""
_END = """
    c = MatMul(target{last}, class_w)  logits = Add(c, class_b)
    {boxes}
"""


def masked_decoder(*parts: str) -> onnx.ModelProto:
    """The decoder with these of the three ``PARTS``; without any it is the twin."""
    assert set(parts) <= set(PARTS)
    masked = (
        "masked_anchors = Where(valid, anchors, sentinel)"
        if "sentinel" in parts
        else "masked_anchors = Identity(anchors)"
    )
    nodes = [_HEAD.format(anchors=masked)]
    for i in range(LAYERS):
        unactivated = "unactivated" if i == 0 else f"refined{i - 1}"
        plain = f"logit{i} = Identity({unactivated})"
        nodes.append(_LAYER.format(i=i, j=i + 1, logit=_LOG_BOXES.format(i=i) if "log_boxes" in parts else plain))
    ending = f"boxes = Mul(boxes{LAYERS}, size)" if "image_size" in parts else f"boxes = Identity(boxes{LAYERS})"
    nodes.append(_END.format(last=LAYERS, boxes=ending))
    inputs, outputs = (
        f"float[1,{ANCHORS},{WIDTH}] memory",
        f"float[1,{ANCHORS},4] boxes, float[1,{ANCHORS},{CLASSES}] logits",
    )
    text = f"decoder ({inputs}) => ({outputs}) {{ {' '.join(nodes)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"decoder/{node.op_type}_{number}"
    used = {name for node in model.graph.node for name in node.input}
    for name, array in _constants().items():
        if name not in used:
            continue
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    return model


def memory(samples: int, seed: int = 0) -> np.ndarray:
    """Features of the image for the decoder's input, [samples, 1, ANCHORS, WIDTH]."""
    random = np.random.default_rng(seed)
    return random.standard_normal((samples, 1, ANCHORS, WIDTH)).astype(np.float32)


def _constants() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def weight(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return gain * random.standard_normal((rows, columns)) / math.sqrt(rows)

    anchors, valid = _anchors()
    constants: dict[str, np.ndarray | float] = {
        "gamma": np.ones(WIDTH),
        "beta": np.zeros(WIDTH),
        "anchors": anchors,
        "sentinel": np.float64(SENTINEL),
        "attention_scale": 1 / math.sqrt(WIDTH),
        "zero": 0.0,
        "one": 1.0,
        "epsilon": 1e-5,
        "size": np.array(IMAGE_SIZE),
        "class_w": weight(WIDTH, CLASSES),
        "class_b": random.standard_normal(CLASSES),
        "box_w0": weight(WIDTH, WIDTH),
        "box_b0": 0.1 * random.standard_normal(WIDTH),
        "box_w1": weight(WIDTH, 4, 0.5),
        "box_b1": 0.1 * random.standard_normal(4),
    }
    for i in range(LAYERS):
        constants |= {f"l{i}_{name}": weight(WIDTH, WIDTH) for name in ("wq", "wk", "wv", "w0")}
        constants |= {f"l{i}_wp": weight(4, WIDTH), f"l{i}_w1": weight(WIDTH, 4, 0.5)}
        constants |= {f"l{i}_{name}": 0.1 * random.standard_normal(WIDTH) for name in ("bp", "b0")}
        constants |= {f"l{i}_b1": 0.1 * random.standard_normal(4)}
    return {"valid": valid} | {name: np.asarray(array, np.float32) for name, array in constants.items()}


def _anchors() -> tuple[np.ndarray, np.ndarray]:
    """The logits of a grid of boxes, [1, ANCHORS, 4], and which of them are valid: not the corners' neighbourhood."""
    side = math.isqrt(ANCHORS)
    centers = (np.arange(side) + 0.5) / side
    y, x = (grid.reshape(-1) for grid in np.meshgrid(centers, centers, indexing="ij"))
    boxes = np.stack([x, y, np.full(ANCHORS, 0.1), np.full(ANCHORS, 0.1)], axis=-1)
    boxes[[27, 36], 2:] = 1 - 1e-6  # as large as the image: the ratio of their logit is beyond 1e5
    border = (np.abs(x - 0.5) > 0.4) & (np.abs(y - 0.5) > 0.3)
    return np.log(boxes / (1 - boxes))[None], ~border.reshape(1, ANCHORS, 1)
