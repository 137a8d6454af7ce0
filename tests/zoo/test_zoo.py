"""The shipped models reach their figures, their files are clean, and the metrics are right on hand-made cases."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest

from dovetail import zoo
from dovetail.zoo import metrics
from dovetail.zoo.detection_map import DetectionMap, box_iou

HEAD_DIM = 32
FIGURES = {
    "vit_digits": ("top1", 0.98, 450),
    "vit_fashion": ("top1", 0.85, 2500),
    "detector_scenes": ("map50_95", 0.720, 240),
}
CALIBRATION_SAMPLES = {"vit_digits": 64, "vit_fashion": 128, "detector_scenes": 64}
PYCOCOTOOLS_MAP50_95 = 0.4057327912048263
PYCOCOTOOLS_MAP50 = 0.6801867840739904
MAX_BYTES = {".onnx": 1_500_000, ".npz": 3_000_000}


def run(entry: zoo.ZooModel) -> Iterator[dict[str, np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(entry.model_path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for sample in zoo.samples(entry.eval()):
        yield dict(zip(names, session.run(names, sample), strict=True))


def test_every_model_has_a_figure() -> None:
    assert set(zoo.names()) == set(FIGURES)


@pytest.mark.parametrize("name", zoo.names())
def test_shipped_model_reaches_its_figure(name: str) -> None:
    entry = zoo.load(name)
    key, floor, count = FIGURES[name]
    assert len(entry.eval()[entry.input_name]) == count
    module, _, function = entry.metric.partition(":")
    figures = getattr(importlib.import_module(module), function)(run(entry), zoo.samples(entry.targets()))
    assert figures[key] >= floor


@pytest.mark.parametrize("name", zoo.names())
def test_data_is_preprocessed_and_held_out(name: str) -> None:
    entry = zoo.load(name)
    calib, held_out = entry.calib()[entry.input_name], entry.eval()[entry.input_name]
    assert calib.dtype == held_out.dtype == np.float32
    assert len(calib) == CALIBRATION_SAMPLES[name]
    assert calib.shape[1:] == held_out.shape[1:]
    assert abs(float(calib.mean())) < 0.5
    assert 0.5 < float(calib.std()) < 1.5
    calibrated = {sample.tobytes() for sample in calib}
    assert not any(sample.tobytes() in calibrated for sample in held_out)


@pytest.mark.parametrize("name", zoo.names())
def test_model_file_is_static_single_and_clean(name: str) -> None:
    entry = zoo.load(name)
    model = onnx.load(entry.model_path, load_external_data=False)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert not model.metadata_props
    assert not model.doc_string
    assert not model.graph.doc_string
    assert not model.functions
    for tensor in model.graph.initializer:
        assert tensor.data_location != onnx.TensorProto.EXTERNAL
        assert not tensor.doc_string
    for node in model.graph.node:
        assert node.name
        assert not node.doc_string
        assert not node.metadata_props
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        assert not value.metadata_props
        assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    assert model.graph.input[0].name == entry.input_name
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", zoo.names())
def test_files_hold_no_absolute_path_and_stay_small(name: str) -> None:
    entry = zoo.load(name)
    for path in (entry.model_path, entry.data_path):
        content = path.read_bytes()
        assert not re.search(rb"/(home|root|work|usr|tmp|opt|var|Users)/|[A-Za-z]:\\\\|\.py\b|site-packages", content)
        assert len(content) <= MAX_BYTES[path.suffix]


def test_attention_heads_are_32_wide_and_the_detector_samples_a_grid() -> None:
    for name in zoo.names():
        model = onnx.load(zoo.load(name).model_path)
        shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.value_info
        }
        softmaxes = {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}
        attentions = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[0] in softmaxes]
        assert attentions
        assert all(shapes[node.input[1]][-1] == HEAD_DIM for node in attentions)
    assert any(node.op_type == "GridSample" for node in model.graph.node)


def test_unknown_model_is_named_in_the_error() -> None:
    with pytest.raises(KeyError, match="vit_moon"):
        zoo.load("vit_moon")


def test_top1_counts_hits() -> None:
    outputs = [{"logits": np.array([[0.0, 1.0, 0.5]])}, {"logits": np.array([[2.0, 1.0, 0.5]])}]
    targets = [{"labels": np.array([1])}, {"labels": np.array(2)}]
    assert metrics.top1(iter(outputs), iter(targets)) == {"top1": 0.5}
    with pytest.raises(ValueError, match="shorter"):
        metrics.top1(iter(outputs), iter(targets[:1]))
    with pytest.raises(ValueError, match="no samples"):
        metrics.top1(iter([]), iter([]))


SQUARES = np.array([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])


def score_map(boxes: np.ndarray, scores: list[float], classes: list[int], truth: np.ndarray = SQUARES) -> DetectionMap:
    detections = DetectionMap()
    detections.add(
        boxes=np.asarray(boxes, np.float64), scores=np.array(scores), classes=np.array(classes, np.int64),
        true_boxes=truth, true_classes=np.zeros(len(truth), np.int64),
    )  # fmt: skip
    return detections


def test_iou_of_half_shifted_boxes_is_a_third() -> None:
    shifted = SQUARES[:1] + np.array([5.0, 0.0, 5.0, 0.0])
    assert box_iou(SQUARES[:1], shifted)[0, 0] == pytest.approx(1 / 3)


def test_perfect_detections_give_one() -> None:
    assert score_map(SQUARES, [0.9, 0.8], [0, 0]).result() == pytest.approx(1.0)


def test_shifted_boxes_count_only_below_their_iou() -> None:
    # A shift of 2 in 10 leaves 8/12 = 0.667: the thresholds 0.50, 0.55, 0.60 and 0.65 of ten are met.
    assert score_map(SQUARES + np.array([2.0, 0.0, 2.0, 0.0]), [0.9, 0.8], [0, 0]).result() == pytest.approx(0.4)


def test_wrong_class_gives_nothing() -> None:
    assert score_map(SQUARES, [0.9, 0.8], [1, 1]).result() == 0.0


def test_duplicate_before_the_second_hit_lowers_precision() -> None:
    # hit, duplicate, hit: precision 1 up to recall 0.5 (51 of 101 points), then 2/3 (50 points).
    boxes = np.stack([SQUARES[0], SQUARES[0], SQUARES[1]])
    assert score_map(boxes, [0.9, 0.8, 0.7], [0, 0, 0]).result() == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_duplicate_after_all_hits_has_no_effect() -> None:
    boxes = np.stack([SQUARES[0], SQUARES[1], SQUARES[0]])
    assert score_map(boxes, [0.9, 0.8, 0.7], [0, 0, 0]).result() == pytest.approx(1.0)


def test_missed_box_limits_recall() -> None:
    assert score_map(SQUARES[:1], [0.9], [0]).result() == pytest.approx(51 / 101)


def random_detections(images: int, classes: int) -> Iterator[dict[str, np.ndarray]]:
    """Images with jittered hits, false positives, wrong classes and a duplicate; the legacy generator never changes."""
    rng = np.random.RandomState(7)
    for _ in range(images):
        count = rng.randint(1, 6)
        low = rng.uniform(0, 60, (count, 2))
        truth = np.concatenate([low, low + rng.uniform(8, 30, (count, 2))], axis=1)
        labels = rng.randint(0, classes, count).astype(np.int64)
        jittered = truth + rng.normal(0, 1.5, truth.shape)
        predicted = np.where(rng.uniform(size=count) < 0.15, (labels + 1) % classes, labels)
        yield {
            "boxes": np.concatenate([jittered, truth[:1], truth[:1] + 40]),
            "scores": rng.uniform(size=count + 2),
            "classes": np.concatenate([predicted, labels[:1], labels[:1]]),
            "true_boxes": truth,
            "true_classes": labels,
        }


def test_agrees_with_the_reference_implementation() -> None:
    """The two figures were computed by pycocotools 2.0.11 (COCOeval, all areas) on the same boxes."""
    detections = DetectionMap()
    for image in random_detections(images=40, classes=5):
        detections.add(**image)
    assert detections.result() == pytest.approx(PYCOCOTOOLS_MAP50_95, abs=1e-9)
    assert detections.result(thresholds=(0.5,)) == pytest.approx(PYCOCOTOOLS_MAP50, abs=1e-9)


def test_a_true_box_is_required_and_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="no true box"):
        score_map(SQUARES, [0.9, 0.8], [0, 0], truth=np.zeros((0, 4))).result()
    with pytest.raises(ValueError, match="not finite"):
        score_map(SQUARES, [np.nan, 0.8], [0, 0])


def test_detection_reads_logits_and_center_boxes() -> None:
    boxes = np.array([[[0.3, 0.3, 0.2, 0.2], [0.7, 0.7, 0.2, 0.4]]], np.float32)
    logits = np.array([[[4.0, -4.0], [-4.0, 3.0]]], np.float32)
    padded = {
        "boxes": np.concatenate([boxes, np.full((1, 1, 4), -1, np.float32)], axis=1),
        "classes": np.array([[0, 1, -1]]),
    }
    figures = metrics.detection(iter([{"logits": logits, "boxes": boxes}]), iter([padded]))
    assert figures == {"map50_95": pytest.approx(1.0), "map50": pytest.approx(1.0)}
