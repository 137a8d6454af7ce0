"""Which outputs are class scores."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from dovetail import zoo
from dovetail.model.class_scores import class_outputs
from dovetail.model.read import read

LINEAR = "{ h = Flatten(x)  OUT = MatMul(h, w) }"
SOFTMAX = "{ h = Flatten(x)  m = MatMul(h, w)  s = Softmax(m)  OUT = Identity(s) }"
BOXES = "{ OUT = Reshape(x, shape) }"


def graph(body: str, name: str, shape: str, batch: int = 1) -> ir.Graph:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[{batch},4,6] x) => (float[{shape}] {name})
    <float[24,3] w, int64[2] shape = {{-1, 4}}> {body.replace("OUT", name)}"""
    model = onnx.parser.parse_model(text)
    return ir.from_proto(model).graph


@pytest.mark.parametrize(
    ("body", "name", "shape", "batch", "is_class_output"),
    [
        (LINEAR, "logits", "1,3", 1, True),
        (LINEAR, "class_scores", "1,3", 1, True),
        (LINEAR, "outputProbs", "4,3", 4, True),
        (SOFTMAX, "y", "1,3", 1, True),
        (LINEAR, "embedding", "1,3", 1, False),
        (LINEAR, "landmarks", "1,3", 1, False),
        (LINEAR, "classify", "1,3", 1, False),
        (LINEAR, "logits", "1,1", 1, False),
        (BOXES, "boxes", "6,4", 1, False),
        (BOXES, "scores", "6,4", 1, False),  # the six rows are not six samples
    ],
)
def test_class_scores_are_recognized_by_shape_and_by_softmax_or_name(
    body: str, name: str, shape: str, batch: int, is_class_output: bool
) -> None:
    assert class_outputs(graph(body, name, shape, batch)) == ({name} if is_class_output else set())


@pytest.mark.parametrize(
    ("name", "outputs"), [("vit_digits", {"logits"}), ("vit_fashion", {"logits"}), ("detector_scenes", set())]
)
def test_shipped_models(name: str, outputs: set[str]) -> None:
    assert class_outputs(read(zoo.load(name).model_path, {}).graph) == outputs
